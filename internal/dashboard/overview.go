package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

type overviewView struct {
	Period     period
	Configured tenants.Configured
	Now        nowView
	Chart      chart
	Headline   headline
	Denied     []deniedSubject
	Denying    []denyingRule
	Near       []nearLimit
	Watching   watching
	Marks      []chartMark
	Log        bool
	Ending     []endingOverride
	Notices    []string // about the tenant's own quotas
}

// FirstRun reports whether there is nothing to limit yet.
func (v *overviewView) FirstRun() bool { return v.Configured.Rules == 0 }

// Subjects returns the number of subjects, up to the maximum.
func (v *overviewView) Subjects() string {
	if v.Configured.Subjects > tenants.MostCountedSubjects {
		return "over " + grouped(tenants.MostCountedSubjects) + " registered subjects"
	}
	return plural(v.Configured.Subjects, "registered subject", "registered subjects")
}

// period is how far back a page looks.
type period struct {
	Value, Name string // "24h", "24 hours"
	Grain       usage.Grain
	Grains      int
}

var periods = []period{
	{"1h", "1 hour", usage.Minute, 60}, {"24h", "24 hours", usage.Hour, 24},
	{"7d", "7 days", usage.Hour, 7 * 24}, {"30d", "30 days", usage.Day, 30},
}

// periodOf returns the period with a value; "" is the first one.
func periodOf(value string) (period, error) {
	for _, p := range periods {
		if p.Value == cmp.Or(value, periods[0].Value) {
			return p, nil
		}
	}
	return period{}, invalidField("period", limit.MustBe("1h, 24h, 7d or 30d"))
}

// nowView compares the last minutes with the same minutes of yesterday.
type nowView struct {
	Allowed, Denied                   int64
	AllowedYesterday, DeniedYesterday int64
	Latency                           check.Latency
	DegradedSince                     string
	DegradedAt                        moment
}

type denyingRule struct {
	Slug, Name      string
	Denied, Decided int64
	Trend           trend
}

// nearLimit is a subject near a limit.
type nearLimit struct {
	Subject, Rule, Used, Ago, Whole string
	Left                            int64 // thousandths
	Denied                          bool  // its last check was denied
}

// Over returns the class of the part of the meter beyond its mark: a full limit that denies nothing
// has none.
func (n *nearLimit) Over() string {
	if n.Denied {
		return "denied"
	}
	return ""
}

// watching says how many instances contributed recent decisions.
type watching struct{ Answered, Instances int }

type endingOverride struct {
	Subject, Rule, Limit, Reason, In string
	Ends                             moment
}

const (
	mostDenying  = 5
	mostNear     = 5
	mostEnding   = 5
	endingWithin = 7 * 24 * time.Hour
	nowMinutes   = 15
	// overviewSlow is the number of ticks between two reads of data that changes by the hour or
	// day.
	overviewSlow = 10
)

func (d *dashboard) overview(w http.ResponseWriter, r *http.Request, v *visit) error {
	ctx, actor := r.Context(), v.actor()
	var view overviewView
	var err error
	if view.Period, err = periodOf(r.URL.Query().Get("period")); err != nil {
		return err
	}
	if actor.Operator() {
		return d.operatorHome(w, r, v, view.Period)
	}
	if view.Configured, err = d.Store.Configured(ctx, actor); err != nil {
		return err
	}
	view.Log = r.URL.Query().Get("scale") == scaleLog
	span := stretchUntil(v.now, view.Period.Grain, view.Period.Grains)
	if view.Marks, err = d.configurationMarks(ctx, actor, span); err != nil {
		return err
	}
	if err := d.readOverview(ctx, actor, &view); err != nil {
		return err
	}
	until := v.now.Add(endingWithin)
	ending, _, err := d.Store.Overrides(ctx, actor, tenants.OverrideFilter{EndingBefore: &until}, tenants.Page{Limit: mostEnding})
	if err != nil {
		return err
	}
	names := d.ruleNames(ctx, actor.TenantID())
	for _, o := range ending {
		view.Ending = append(view.Ending, endingOverride{
			Subject: o.Subject, Rule: names.Of(o.Rule), Limit: plainLimit(o.Limit), Reason: o.Reason,
			In: inWords(o.ExpiresAt.Sub(v.now)), Ends: moment{*o.ExpiresAt},
		})
	}
	bounds, err := d.boundsOf(ctx, v.actor().TenantID())
	if err != nil {
		return err
	}
	if view.Notices, err = d.quotaNotices(ctx, v); err != nil {
		return err
	}
	view.Notices = append(view.Notices, bounds.notices()...)
	v.frame.Title = "Overview"
	return d.render(w, r, http.StatusOK, overviewPage(v.frame, &view))
}

// readOverview reads all live data.
func (d *dashboard) readOverview(ctx context.Context, actor tenants.Actor, view *overviewView) (err error) {
	now := d.Now()
	if view.Now, err = d.readNow(ctx, actor, now); err != nil {
		return err
	}
	view.Near, view.Watching = d.readNear(ctx, actor, now)
	return d.readPeriod(ctx, actor, view, now)
}

// readPeriod reads the data of the chosen period.
func (d *dashboard) readPeriod(ctx context.Context, actor tenants.Actor, view *overviewView, now time.Time) (err error) {
	s := stretchUntil(now, view.Period.Grain, view.Period.Grains)
	if view.Chart, err = d.series(ctx, actor, "Checks in the last "+strings.TrimPrefix(view.Period.Name, "1 "), s, tenants.UsageQuery{}); err != nil {
		return err
	}
	view.Chart.Marks, view.Chart.Log, view.Chart.Decisions = view.Marks, view.Log, "/decisions?show=all"
	view.Chart.Scale = view.scalePath(!view.Log)
	view.Chart.Zoom = zoomFrom("/?period="+view.Period.Value, url.Values{"period": {view.Period.Value}})
	if view.Denying, err = d.readDenying(ctx, actor, s); err != nil {
		return err
	}
	if s.Grain == usage.Hour && view.Period.Grains > 24 { // one list per hour would be slow
		s = stretchUntil(now, usage.Day, view.Period.Grains/24)
	}
	bySubject, err := d.Store.Usage(ctx, actor, tenants.UsageQuery{Grain: s.Grain, From: s.compared(), To: s.To, BySubject: true, DeniedFirst: true})
	if err != nil {
		return err
	}
	if err := d.sumUp(ctx, actor.TenantID(), len(bySubject.Items), func() { view.Denied = deniedSubjects(bySubject.Items, s) }); err != nil {
		return err
	}
	if s.Grain != view.Chart.Grain { // no list says when in a day denials began
		for i := range view.Denied {
			view.Denied[i].Since = time.Time{}
		}
	}
	view.Headline = headlineOf(&view.Chart, view.Period.Name, view.Denying, view.Denied)
	return nil
}

// scaleLog is the value of the parameter scale for logarithmic scales.
const scaleLog = "log"

// scalePath returns the address of the overview with linear or logarithmic scales.
func (v *overviewView) scalePath(logarithmic bool) string {
	path := "/?period=" + v.Period.Value
	if logarithmic {
		path += "&scale=" + scaleLog
	}
	return path
}

// Stream returns the address of the updates.
func (v *overviewView) Stream() string {
	return "/live/overview" + strings.TrimPrefix(v.scalePath(v.Log), "/")
}

func (d *dashboard) readNow(ctx context.Context, actor tenants.Actor, now time.Time) (out nowView, err error) {
	out.Latency = d.Checker.Latency()
	if since := d.DegradedSince(); !since.IsZero() {
		out.DegradedSince, out.DegradedAt = inWords(max(now.Sub(since), time.Second)), moment{since}
	}
	today := stretchUntil(now, usage.Minute, nowMinutes)
	for _, day := range []struct {
		back            time.Duration
		allowed, denied *int64
	}{{0, &out.Allowed, &out.Denied}, {24 * time.Hour, &out.AllowedYesterday, &out.DeniedYesterday}} {
		report, err := d.Store.Usage(ctx, actor, tenants.UsageQuery{Grain: usage.Minute, From: today.From.Add(-day.back), To: today.To.Add(-day.back)})
		if err != nil {
			return out, err
		}
		for i := range report.Items {
			item := &report.Items[i]
			allowed, denied := item.Allowed, item.Denied
			// Yesterday's last minute counts by the elapsed share of today's.
			if rest := today.To.Sub(now); day.back > 0 && rest > 0 && item.Start.Equal(today.To.Add(-day.back-time.Minute)) {
				part := 1 - float64(rest)/float64(time.Minute)
				allowed, denied = int64(float64(allowed)*part), int64(float64(denied)*part)
			}
			*day.allowed, *day.denied = *day.allowed+allowed, *day.denied+denied
		}
	}
	return out, nil
}

func (d *dashboard) readNear(ctx context.Context, actor tenants.Actor, now time.Time) (out []nearLimit, seen watching) {
	ctx, cancel := context.WithTimeout(ctx, recentWithin)
	defer cancel()
	list := d.Recent.Near(ctx, actor.TenantID(), mostNear)
	names := d.ruleNames(ctx, actor.TenantID())
	for i := range list.Near {
		n := &list.Near[i]
		out = append(out, nearLimit{
			Subject: n.Subject, Rule: names.Of(n.Rule), Used: grouped(n.Quota-n.Remaining) + " / " + grouped(n.Quota), Left: 1000 - int64(1000*n.Used()), Denied: n.Denied,
			Ago: agoInWords(now.Sub(n.At)), Whole: inWords(n.At.Add(time.Duration(n.ResetAfterMS) * time.Millisecond).Sub(now)),
		})
	}
	return out, watching{list.Answered, list.Instances}
}

// agoInWords is coarse, so that a page does not change with every second.
func agoInWords(d time.Duration) string {
	if d < 10*time.Second {
		return "just now"
	}
	if d < time.Minute {
		return grouped(int64(d/(10*time.Second))*10) + " s ago"
	}
	return inWords(d.Truncate(time.Minute)) + " ago"
}

// liveOverview updates the overview.
func (d *dashboard) liveOverview(w http.ResponseWriter, r *http.Request, v *visit) error {
	p, err := periodOf(r.URL.Query().Get("period"))
	if err != nil {
		return err
	}
	if v.actor().Operator() {
		return d.liveOperatorHome(w, r, v, p)
	}
	actor := tenants.AsSystem(v.actor().TenantID(), "live") // outlives this visit, and only reads
	logarithmic, boost := r.URL.Query().Get("scale") == scaleLog, v.frame.May.Reset
	var marks []chartMark
	return d.live(w, r, v, "overview "+p.Value+" "+strconv.FormatBool(logarithmic)+" "+strconv.FormatBool(boost), func(ctx context.Context, tick int) ([]part, error) {
		now, view := d.Now(), overviewView{Period: p, Log: logarithmic}
		if tick%2 == 1 { // usage is written once a second, and read half as often
			return nil, nil
		}
		var err error
		if tick%overviewSlow == 0 {
			if marks, err = d.configurationMarks(ctx, actor, stretchUntil(now, p.Grain, p.Grains)); err != nil {
				return nil, err
			}
		}
		view.Marks = marks
		if view.Now, err = d.readNow(ctx, actor, now); err != nil {
			return nil, err
		}
		view.Near, view.Watching = d.readNear(ctx, actor, now)
		parts := []part{{"now", overviewLive(&view.Now)}, {"near", nearTable(view.Near, view.Watching)}}
		if p.Grain != usage.Minute && tick%overviewSlow != 0 {
			return parts, nil
		}
		if err := d.readPeriod(ctx, actor, &view, now); err != nil {
			return nil, err
		}
		parts = append(parts, part{"headline", attention(&view.Headline, boost)}, part{"denied", deniedTable(view.Denied)})
		return append(parts, part{"sums", chartSums(&view.Chart)}, part{"plot", chartPlot(&view.Chart)}, part{"series", chartSeries(&view.Chart)}, part{"denying", denyingTable(view.Denying)}), nil
	})
}

// readDenying returns the rules with the most denials in a period, with their trends. Only these
// are read by grain: a thousand rules with checks in each minute have 120,000 items in two hours.
func (d *dashboard) readDenying(ctx context.Context, actor tenants.Actor, s stretch) (out []denyingRule, err error) {
	sums, err := d.Store.Usage(ctx, actor, tenants.UsageQuery{Grain: s.Grain, From: s.From, To: s.To, ByRule: true, Sum: true})
	if err != nil {
		return nil, err
	}
	names := d.ruleNames(ctx, actor.TenantID())
	if err := d.sumUp(ctx, actor.TenantID(), len(sums.Items), func() { out = denying(sums.Items, names) }); err != nil || len(out) == 0 {
		return nil, err
	}
	slugs := make([]string, len(out))
	for i := range out {
		slugs[i] = out[i].Slug
	}
	each, err := d.Store.Usage(ctx, actor, tenants.UsageQuery{Grain: s.Grain, From: s.compared(), To: s.To, ByRule: true, Rules: slugs})
	if err != nil {
		return nil, err
	}
	for i := range out {
		out[i].Trend = newTrend(itemsOf("rule", out[i].Slug, each.Items), s)
	}
	return out, nil
}

// denying returns the rules with the most denials, without trends.
func denying(sums []tenants.UsageItem, names ruleNames) (out []denyingRule) {
	for i := range sums {
		if sum := &sums[i]; sum.Denied > 0 {
			out = append(out, denyingRule{Slug: sum.Rule, Name: names.Of(sum.Rule), Denied: sum.Denied, Decided: sum.Allowed + sum.Denied})
		}
	}
	slices.SortFunc(out, func(a, b denyingRule) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Slug, b.Slug))
	})
	return out[:min(len(out), mostDenying)]
}

// plainLimit formats a limit without its rule.
func plainLimit(l limit.Limit) string {
	switch {
	case l.Unlimited:
		return "unlimited"
	case l.Burst != 0 && l.Burst != l.Limit:
		return grouped(l.Limit) + ", burst " + grouped(l.Burst)
	}
	return grouped(l.Limit)
}

// latencyText formats a latency.
func latencyText(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return grouped((d+5*time.Microsecond).Microseconds()/10*10) + " µs"
	case d < 10*time.Millisecond:
		return strconv.FormatFloat(d.Seconds()*1000, 'f', 1, 64) + " ms"
	}
	return grouped(d.Round(time.Millisecond).Milliseconds()) + " ms"
}

// Words says which instances contributed.
func (w watching) Words() string {
	switch {
	case w.Instances <= 1:
		return "this instance"
	case w.Answered == w.Instances:
		return "all " + grouped(int64(w.Instances)) + " instances"
	}
	return grouped(int64(w.Answered)) + " of " + grouped(int64(w.Instances)) + " instances"
}
