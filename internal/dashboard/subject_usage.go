package dashboard

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/recent"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// The tabs of a subject's page.
const (
	tabLimits  = "limits"
	tabUsage   = "usage"
	tabDenials = "denials"
	tabAudit   = "audit"
)

// subjectTab is a link to a tab.
type subjectTab struct{ Value, Name, Count string }

// Tabs returns the tabs with the number of their rows.
func (view *subjectView) Tabs() []subjectTab {
	denied := int64(0) // a row may stand for many
	for i := range view.Denied {
		denied += view.Denied[i].times
	}
	denials := grouped(denied)
	if view.AllDenied {
		denials += "+"
	}
	count := func(n, most int) string {
		if n >= most {
			return itoa(int64(most)) + "+"
		}
		return itoa(int64(n))
	}
	return []subjectTab{
		{tabLimits, "Limits", itoa(int64(len(view.Limits)))}, {tabUsage, "Usage", ""},
		{tabDenials, "Denials", denials}, {tabAudit, "Audit trail", count(len(view.Trail), mostSubjectAudit)},
	}
}

// TabPath returns the address of a tab, of the same counters and period.
func (view *subjectView) TabPath(tab string) string {
	return view.with(tab, view.Period.Value, view.Log)
}

// PeriodPath returns the address of this tab for another period.
func (view *subjectView) PeriodPath(period string) string {
	return view.with(view.Tab, period, view.Log)
}

func (view *subjectView) with(tab, period string, logarithmic bool) string {
	values, _ := url.ParseQuery(view.Query) // written by askedQuery
	if tab != tabLimits {
		values.Set("tab", tab)
	}
	if period != periods[0].Value {
		values.Set("period", period)
	}
	if logarithmic {
		values.Set("scale", scaleLog)
	}
	return withCursor(view.Path, values, "")
}

// LiveChart returns the address of the stream that updates the chart; "" if it is not live.
func (view *subjectView) LiveChart() string {
	if view.Period.Grain != usage.Minute {
		return ""
	}
	values := url.Values{"subject": {view.Subject}}
	if view.Log {
		values.Set("scale", scaleLog)
	}
	return "/live/subject?" + values.Encode()
}

// subjectTotal is the usage of a subject in one period.
type subjectTotal struct {
	Name            string
	Allowed, Denied int64
	Missing         int64 // how many more checks there may have been
}

// atLeast returns the total with what is known of the shorter periods before it, which are part of
// it: steps of minutes may know more than those of hours.
func (t subjectTotal) atLeast(shorter []subjectTotal) subjectTotal {
	if n := len(shorter); n > 0 {
		allowed, denied := max(t.Allowed, shorter[n-1].Allowed), max(t.Denied, shorter[n-1].Denied)
		t.Missing = max(0, t.Missing-(allowed-t.Allowed)-(denied-t.Denied))
		t.Allowed, t.Denied = allowed, denied
	}
	return t
}

// subjectMetered is the metered usage of a subject under one rule.
type subjectMetered struct {
	Rule, Name     string
	Units, Overage int64
}

// subjectSpan returns the grains of a period for the chart of one subject. Usage has a list of
// subjects for each grain, so a week has the grains of a day, and not those of an hour.
func subjectSpan(now time.Time, p period) stretch {
	s := stretchUntil(now, p.Grain, p.Grains)
	if p.Grain == usage.Hour && p.Grains > 48 {
		s = stretchUntil(now, usage.Day, p.Grains/24)
	}
	return s
}

// readFrom returns where the history begins: with the previous period, if it is stored.
func (s stretch) readFrom() time.Time {
	if s.Before {
		return s.earlier()
	}
	return s.From
}

// subjectHistory is what is kept about a subject in a period.
type subjectHistory struct {
	span    stretch
	items   []tenants.UsageItem
	missing map[time.Time]int64
}

// readHistory reads the usage of a subject: of the busiest ones of each grain, of metered rules and
// of recent denials.
func (d *dashboard) readHistory(ctx context.Context, a tenants.Actor, subject string, s stretch) (*subjectHistory, error) {
	report, err := d.Store.UsageOfSubject(ctx, a, subject, tenants.UsageQuery{Grain: s.Grain, From: s.readFrom(), To: s.To})
	if err != nil {
		return nil, err
	}
	steps := map[time.Time]tenants.SubjectStep{}
	for _, step := range report.Steps {
		step.Start = step.Start.UTC()
		steps[step.Start] = step
	}
	if s.Grain != usage.Minute {
		if err := d.addMetered(ctx, a, subject, s, steps); err != nil {
			return nil, err
		}
	}
	d.addRecentDenials(ctx, a.TenantID(), subject, s, steps)
	out := &subjectHistory{span: s, missing: map[time.Time]int64{}}
	for start, step := range steps {
		out.items = append(out.items, tenants.UsageItem{Start: start, Subject: subject, Counts: step.Counts})
		if step.Error > 0 {
			out.missing[start] = step.Error
		}
	}
	return out, nil
}

// mostMeteredItems is how many metered hours of a subject are read.
const mostMeteredItems = 1000

// addMetered takes allowed checks from metered rules, which count each of them. A check may match
// several rules, so the rule with the most checks counts.
func (d *dashboard) addMetered(ctx context.Context, a tenants.Actor, subject string, s stretch, steps map[time.Time]tenants.SubjectStep) error {
	query := tenants.MeteredQuery{From: s.readFrom().Truncate(time.Hour), To: s.To, Subject: subject, Open: true}
	_, items, _, err := d.Store.MeteredUsage(ctx, a, query, tenants.Page{Limit: mostMeteredItems})
	if err != nil {
		return err
	}
	type key struct {
		start time.Time
		rule  string
	}
	sums := map[key]int64{}
	for i := range items {
		k := key{items[i].Start.UTC().Truncate(s.Grain.Duration()), items[i].Rule}
		sums[k] += items[i].Checks
	}
	for k, checks := range sums {
		step := steps[k.start]
		if more := checks - step.Allowed; more > 0 {
			step.Start, step.Allowed, step.Listed = k.start, checks, true
			step.Error = max(0, step.Error-more)
			steps[k.start] = step
		}
	}
	return nil
}

// addRecentDenials takes denials that instances remember, where usage knows fewer.
func (d *dashboard) addRecentDenials(ctx context.Context, tenant uuid.UUID, subject string, s stretch, steps map[time.Time]tenants.SubjectStep) {
	list := d.recent(ctx, tenant, recent.Query{Subject: subject, Denied: true, Since: s.readFrom()})
	sums := map[time.Time]int64{}
	for i := range list.Decisions {
		sums[list.Decisions[i].At.UTC().Truncate(s.Grain.Duration())] += 1 + list.Decisions[i].Repeats
	}
	for start, denied := range sums {
		step := steps[start]
		if more := denied - step.Denied; more > 0 {
			step.Start, step.Denied, step.Listed = start, denied, true
			step.Error = max(0, step.Error-more)
			steps[start] = step
		}
	}
}

// chart draws the history, and what was counted since the page is open.
func (h *subjectHistory) chart(title string, live *recent.Watched) chart {
	c := newChart(title, h.span, h.items)
	for i := range c.Bars {
		c.Bars[i].Missing = h.missing[c.Bars[i].Start]
	}
	for start := range h.missing {
		c.BeforeUnknown = c.BeforeUnknown || start.Before(c.From)
	}
	if live != nil {
		c.countLive(live)
	}
	return c
}

// countLive takes the numbers of the minutes in which all decisions were counted. Of a minute that
// began before, it takes the greater number.
func (c *chart) countLive(live *recent.Watched) {
	counted := map[time.Time]recent.WatchedMinute{}
	for _, m := range live.Minutes {
		counted[time.UnixMilli(m.StartMS).UTC()] = m
	}
	for i := range c.Bars {
		b := &c.Bars[i]
		m := counted[b.Start]
		if !live.Since.IsZero() && !b.Start.Before(live.Since) {
			b.Allowed, b.Denied, b.Missing = m.Allowed, m.Denied, 0
			continue
		}
		b.Missing = max(0, b.Missing-max(0, m.Allowed+m.Denied-b.Allowed-b.Denied))
		b.Allowed, b.Denied = max(b.Allowed, m.Allowed), max(b.Denied, m.Denied)
	}
	c.Allowed, c.Denied = 0, 0
	for i := range c.Bars {
		c.Allowed, c.Denied = c.Allowed+c.Bars[i].Allowed, c.Denied+c.Bars[i].Denied
	}
	c.draw()
}

// source says where the numbers of the chart come from.
func (c *chart) source(live *recent.Watched) string {
	text := ""
	if n := c.Unknowns(); n > 0 {
		text = "Usage keeps the busiest subjects of each " + c.Grain.String() + ". In " + plural(int64(n), "step", "steps") + ", this subject was not among them."
	}
	switch {
	case live == nil:
	case live.Since.IsZero():
		text += " Live counts are not complete: " + watching{live.Answered, live.Instances}.Words() + " answered."
	default:
		text += " Counted live by " + watching{live.Answered, live.Instances}.Words() + " since " + spoken(live.Since, "clock-second") + "."
	}
	return text
}

// comparableLimit returns the limit that the bars of a chart can be compared with: of an enforced
// rule for all resources, or of the rule that denies, whose window is no longer than a bar.
func comparableLimit(limits []check.RuleDecision, grain usage.Grain) *check.RuleDecision {
	var best *check.RuleDecision
	for i := range limits {
		r := &limits[i]
		switch {
		case r.Unlimited || r.Uncounted || r.Mode != limit.Enforce || r.WindowMS <= 0 || r.WindowMS > grain.Duration().Milliseconds():
		case r.Rule.Resource != "*" && r.Allowed:
		case best == nil, best.Allowed && !r.Allowed, best.Allowed == r.Allowed && perGrain(r, r.Limit, grain) < perGrain(best, best.Limit, grain):
			best = r
		}
	}
	return best
}

// perGrain returns how many units a limit allows in one grain.
func perGrain(r *check.RuleDecision, units int64, grain usage.Grain) int64 {
	return perWindow(units, r.WindowMS, grain)
}

// perWindow returns how many units a limit per window allows in one grain.
func perWindow(units, windowMS int64, grain usage.Grain) int64 {
	most := float64(units) * float64(grain.Duration().Milliseconds()) / float64(windowMS)
	return int64(min(most, math.MaxInt64/4))
}

// limitLineOf returns the line of the limit; nil if none can be compared.
func (d *dashboard) limitLineOf(ctx context.Context, a tenants.Actor, s stretch, subject string, limits []check.RuleDecision, kept *keptTrail) (*limitLine, error) {
	r := comparableLimit(limits, s.Grain)
	if r == nil {
		return nil, nil
	}
	scale := func(units int64) int64 { return perGrain(r, units, s.Grain) }
	text := limitText(r.Rule, limit.Limit{Limit: r.Limit, Burst: r.Burst})
	if r.WindowMS != s.Grain.Duration().Milliseconds() {
		text += ", " + grouped(scale(r.Limit)) + " per " + s.Grain.String()
	}
	limitsThen, err := d.limitsOf(ctx, a, s, subject, r, kept)
	if err != nil {
		return nil, err
	}
	line := &limitLine{Text: nameOr(r.Rule.Name, r.Rule.Slug) + ": " + text}
	return line, d.turns.do(ctx, a.TenantID(), func() { line.Parts = limitsThen.parts(s, r.Limit, scale) })
}

// readSubjectChart reads the chart of a subject's page.
func (d *dashboard) readSubjectChart(ctx context.Context, v *visit, view *subjectView, limits []check.RuleDecision) error {
	drawn, err := d.subjectChart(ctx, v.actor(), view.Subject, view.Period, limits, v.now, &keptTrail{})
	if err != nil {
		return err
	}
	var live *recent.Watched
	if view.Period.Grain == usage.Minute {
		live = d.watch(ctx, v.actor().TenantID(), view.Subject)
	}
	drawn.log, drawn.scale = view.Log, view.with(view.Tab, view.Period.Value, !view.Log)
	if err := d.turns.do(ctx, v.actor().TenantID(), func() { view.Chart = drawn.at(v.now, live) }); err != nil {
		return err
	}
	for _, p := range periods {
		view.Chart.Periods = append(view.Chart.Periods, chartPeriod{p.Name, view.PeriodPath(p.Value), p.Value == view.Period.Value})
	}
	view.DeniedSince = view.Chart.deniedSince()
	return nil
}

// drawnSubject has all parts of a subject's chart except for what is counted live.
type drawnSubject struct {
	subjectHistory
	title string
	marks []chartMark
	line  *limitLine
	page  string // of the decisions
	zoom  string // of a part of the period
	scale string // of the other kind of scale
	log   bool
}

// at draws the chart. now is in the last grain.
func (s *drawnSubject) at(now time.Time, live *recent.Watched) chart {
	s.span.Now = now
	c := s.chart(s.title, live)
	c.Marks, c.Limit, c.Decisions = s.marks, s.line, s.page
	c.Log, c.Scale, c.Zoom = s.log, s.scale, s.zoom
	c.Source = c.source(live)
	return c
}

func (d *dashboard) subjectChart(ctx context.Context, a tenants.Actor, subject string, p period, limits []check.RuleDecision, now time.Time, kept *keptTrail) (*drawnSubject, error) {
	span := subjectSpan(now, p)
	history, err := d.readHistory(ctx, a, subject, span)
	if err != nil {
		return nil, err
	}
	out := &drawnSubject{
		subjectHistory: *history, title: "Checks per " + span.Grain.String(),
		page: "/decisions?" + url.Values{"show": {"all"}, "subject": {subject}}.Encode(),
		zoom: zoomFrom(subjectURL(subject)+"?period="+p.Value, url.Values{"period": {p.Value}, "subject": {subject}}),
	}
	if out.marks, err = d.subjectMarks(ctx, a, span, subject, kept); err != nil {
		return nil, err
	}
	out.line, err = d.limitLineOf(ctx, a, span, subject, limits, kept)
	return out, err
}

// watch counts a subject on all instances while its page is open.
func (d *dashboard) watch(ctx context.Context, tenant uuid.UUID, subject string) *recent.Watched {
	ctx, cancel := context.WithTimeout(ctx, recentWithin)
	defer cancel()
	live := d.Recent.Watch(ctx, tenant, subject)
	return &live
}

// subjectSlow is the number of ticks between two reads of a subject's stored usage.
const subjectSlow = 20

// liveSubject updates the chart of a subject's page.
func (d *dashboard) liveSubject(w http.ResponseWriter, r *http.Request, v *visit) error {
	subject := r.URL.Query().Get("subject")
	if limit.ValidName(subject) != nil {
		return tenants.ErrNotFound
	}
	actor := tenants.AsSystem(v.actor().TenantID(), "live") // outlives this visit, and only reads
	scale := r.URL.Query().Get("scale")
	var drawn *drawnSubject
	var kept keptTrail
	return d.live(w, r, v, "subject "+subject+" "+strconv.FormatBool(scale == scaleLog), func(ctx context.Context, tick int) ([]part, error) {
		now := d.Now()
		if drawn == nil || tick%subjectSlow == 0 || !now.Before(drawn.span.To) {
			policy, err := d.Policies.Get(ctx, actor.TenantID())
			if err != nil {
				return nil, err
			}
			limits, err := d.inspect(ctx, policy, check.Request{Subject: subject})
			if err != nil {
				return nil, err
			}
			if err := d.renew(ctx, actor, &kept, policy.Version(), subject); err != nil {
				return nil, err
			}
			if drawn, err = d.subjectChart(ctx, actor, subject, periods[0], limits.Rules, now, &kept); err != nil {
				return nil, err
			}
			drawn.log = scale == scaleLog
		}
		live, c := d.watch(ctx, actor.TenantID(), subject), chart{}
		if err := d.turns.do(ctx, actor.TenantID(), func() { c = drawn.at(now, live) }); err != nil {
			return nil, err
		}
		return []part{{"sums", chartSums(&c)}, {"plot", chartPlot(&c)}, {"series", chartSeries(&c)}}, nil
	})
}

// readTotals reads the table of the tab about usage.
func (d *dashboard) readTotals(ctx context.Context, v *visit, view *subjectView) error {
	for _, p := range periods {
		span := subjectSpan(v.now, p)
		history, err := d.readHistory(ctx, v.actor(), view.Subject, span)
		if err != nil {
			return err
		}
		c := history.chart("", nil)
		total := subjectTotal{Name: "Last " + p.Name, Allowed: c.Allowed, Denied: c.Denied}
		for i := range c.Bars {
			total.Missing += c.Bars[i].Missing
		}
		view.Totals = append(view.Totals, total.atLeast(view.Totals))
	}
	now := v.now.UTC()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	query := tenants.MeteredQuery{From: month, To: now.Truncate(time.Hour).Add(time.Hour), Subject: view.Subject, Sum: true, Open: true}
	_, items, _, err := d.Store.MeteredUsage(ctx, v.actor(), query, tenants.Page{Limit: mostMeteredItems})
	names := d.ruleNames(ctx, v.actor().TenantID())
	for i := range items {
		view.Metered = append(view.Metered, subjectMetered{items[i].Rule, names.Of(items[i].Rule), items[i].Units, items[i].OverageUnits})
	}
	return err
}
