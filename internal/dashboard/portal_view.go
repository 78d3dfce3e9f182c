package dashboard

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// portalView is the page of one customer.
type portalView struct {
	portalFrame
	Path           string
	Subject        string
	Plan, PlanName string
	State          string
	Limits         []portalLimit
	More           int // limits that are not shown
	Degraded       bool
	Chart          chart
	Next           *portalPlan
	Requests       []portalRequest
	Credits        []portalCredits
	Metered        []portalMetered
	MeteredSince   moment
	CanRequest     bool
	Said           string
	Sent           *form
	Now            moment
	Ends           moment
}

// portalLimit is one limit in words.
type portalLimit struct {
	Rule, Name, Words    string
	Short                string // the limit as in a table
	Unlimited, Uncounted bool
	Used, Quota          int64
	Share                int64 // used, in thousandths
	Denies, Near         bool
	Raised               bool    // by an override that ends
	RaisedUntil          *moment // when it does
	Next                 *moment // when the next request is allowed, if it denies
	Full                 *moment // when the limit is fully available again; nil: it is
	Open                 bool    // a request for it is open
	Overage              int64   // units beyond the limit, which the rule allows
	HasCredits           bool    // some are left
	Credits              int64   // prepaid units that are left
	limit                limit.Limit
}

// UsedText returns the usage in words.
func (l *portalLimit) UsedText() string { return grouped(l.Used) + " of " + grouped(l.Quota) + " used" }

// Over returns the class of the part of the meter beyond its mark.
func (l *portalLimit) Over() string {
	if l.Denies {
		return "denied"
	}
	return ""
}

// portalPlan compares the limits of another plan with the customer's own.
type portalPlan struct {
	Name, Description string
	Rows              []portalPlanRow
}

type portalPlanRow struct{ Name, Now, Then string }

type portalRequest struct {
	Rule, Asked, State, Tone, Answer string
	At                               moment
	Until                            *moment
}

const (
	mostPortalLimits   = 60
	mostPortalRequests = 10
	portalDays         = 30  // of history
	nearShare          = 800 // in thousandths: near the limit, unless the rule says when to warn
)

// portalHome shows the page, or with fragment=limits only the part that updates itself.
func (d *dashboard) portalHome(w http.ResponseWriter, r *http.Request, visit *tenants.PortalVisit) error {
	return d.showPortal(w, r, visit, http.StatusOK, &form{})
}

func (d *dashboard) showPortal(w http.ResponseWriter, r *http.Request, visit *tenants.PortalVisit, status int, f *form) error {
	policy, err := d.Policies.Get(r.Context(), visit.Tenant)
	if err != nil {
		return err
	}
	now := d.Now()
	v := portalView{
		portalFrame: portalFrameOf(&visit.FollowedLink), Path: portalPath + visit.ID.String(), Subject: visit.Subject,
		CanRequest: visit.Portal.Requests, Sent: f, Now: moment{now}, Ends: moment{visit.ExpiresAt},
	}
	if visit.Portal.Logo != nil {
		v.Logo = v.Path + "/logo?v=" + tenants.LogoHash(visit.Portal.Logo)[:16]
		visit.Portal.Logo = nil // a browser that does not read the page would keep it in memory
	}
	limits, err := d.inspect(r.Context(), policy, check.Request{Subject: visit.Subject})
	if err != nil {
		return err
	}
	subject, err := d.Store.SubjectByName(r.Context(), visit.Actor(), visit.Subject)
	if err != nil && !errors.Is(err, tenants.ErrNotFound) {
		return err
	}
	v.fill(&limits, subject.CycleAnchor != nil)
	if err := d.readPortalRequests(r.Context(), visit, &v, &subject); err != nil {
		return err
	}
	if r.URL.Query().Get("fragment") == "limits" {
		return d.renderRows(len(limits.Rules), w, r, http.StatusOK, portalLive(&v))
	}
	v.Refresh = true
	if r.URL.Query().Get("sent") == "1" && len(v.Requests) > 0 {
		v.Said = v.Requests[0].said(v.Brand)
	}
	if err := d.readPortalPlans(r.Context(), visit, &v, &limits); err != nil {
		return err
	}
	if err := d.readPortalCredits(r.Context(), visit, &v); err != nil {
		return err
	}
	if err := d.readPortalMetered(r.Context(), visit, &v); err != nil {
		return err
	}
	if v.Chart, err = d.series(r.Context(), visit.Actor(), "Last 30 days", stretchUntil(now, usage.Day, portalDays), tenants.UsageQuery{Subject: visit.Subject}); err != nil {
		return err
	}
	v.Chart.Before = false
	return d.renderRows(len(limits.Rules), w, r, status, portalHomePage(&v))
}

// requestApproved is the state of an approved request, on the customer page.
const requestApproved = "approved"

// said is the message after a request was sent.
func (q *portalRequest) said(brand string) string {
	if q.State == requestApproved {
		return "Approved: " + q.Rule + " is now " + q.Asked + "."
	}
	return "Your request was sent to " + brand + "."
}

// fill fills in the limits, those that deny first. A rule in shadow denies nothing, so its limit is
// not the customer's business; neither are rules that count several customers together.
func (v *portalView) fill(limits *check.SubjectLimits, anchored bool) {
	// By the clock of the counters: with another one, a window that ends at midnight ends at 23:59.
	now := time.UnixMilli(limits.NowMS)
	v.Plan, v.State, v.Degraded = limits.Plan, limits.State.String(), limits.Degraded
	for i := range limits.Rules {
		if r := &limits.Rules[i]; r.Mode == limit.Enforce {
			v.Limits = append(v.Limits, portalLimitOf(r, anchored, now))
		}
	}
	for _, h := range limits.Hidden {
		if h.Reason == check.MissingValues && h.Rule.Mode == limit.Enforce {
			rule := *h.Rule
			rule.By = h.Missing
			v.Limits = append(v.Limits, portalLimit{Rule: rule.Slug, Name: nameOr(rule.Name, rule.Slug), Words: portalWords(&rule, limit.Limit{}, anchored), Uncounted: true})
		}
	}
	slices.SortStableFunc(v.Limits, func(a, b portalLimit) int { return a.rank() - b.rank() })
	if v.More = len(v.Limits) - mostPortalLimits; v.More > 0 {
		v.Limits = v.Limits[:mostPortalLimits]
	}
}

// rank orders limits: those that deny, those near their limit, the others, and those without a
// counter.
func (l *portalLimit) rank() int {
	switch {
	case l.Denies:
		return 0
	case l.Near:
		return 1
	case l.Unlimited:
		return 3
	case l.Uncounted:
		return 4
	}
	return 2
}

func portalLimitOf(r *check.RuleDecision, anchored bool, now time.Time) portalLimit {
	l := portalLimit{
		Rule: r.Rule.Slug, Name: nameOr(r.Rule.Name, r.Rule.Slug), Unlimited: r.Unlimited, Uncounted: r.Uncounted, Quota: r.Quota,
		Used: max(r.Quota-r.Remaining, 0) + r.Overage, Overage: r.Overage, HasCredits: r.HasCredits && !r.Degraded && r.Credits > 0, Credits: r.Credits, Raised: r.Source == "override", limit: limit.Limit{Limit: r.Limit, Burst: r.Burst, Unlimited: r.Unlimited},
	}
	l.Words, l.Short = portalWords(r.Rule, l.limit, anchored), limitText(r.Rule, l.limit)
	if r.Unlimited || r.Uncounted {
		return l
	}
	l.Share = int64(1000 * float64(min(l.Used, l.Quota)) / float64(max(l.Quota, 1)))
	l.Denies, l.Near = !r.Allowed, r.Allowed && (r.Warning || r.WarnAt == 0 && l.Share >= nearShare)
	after := func(ms int64) *moment { return &moment{now.Add(time.Duration(ms) * time.Millisecond)} }
	if l.Denies && r.RetryAfterMS > 0 {
		l.Next = after(r.RetryAfterMS)
	}
	if r.ResetAfterMS > 0 {
		l.Full = after(r.ResetAfterMS)
	}
	return l
}

// portalWords describes a limit to the customer whom it limits. anchored: the customer has a
// billing cycle; the windows of others follow the calendar.
func portalWords(r *limit.Rule, l limit.Limit, anchored bool) string {
	rule := *r
	if !anchored {
		rule.Anchor = limit.AnchorCalendar
	}
	if l.Unlimited {
		return "Unlimited " + onResources(rule.Resource) + "."
	}
	if l.Limit > 0 {
		rule.Limit, rule.Burst = l.Limit, l.Burst
	}
	words := "You can use " + amount(&rule) + " " + onResources(rule.Resource)
	if own := slices.DeleteFunc(slices.Clone(rule.By), func(by string) bool { return by == "subject" }); len(own) > 0 {
		words += ", for " + strings.ToLower(countedBy(own)) + " separately"
	}
	words = strings.Replace(words, "the time of each subject’s cycle anchor", "the time of day at which your billing cycle begins", 1)
	words = strings.Replace(words, "each subject’s", "your", 1)
	if rule.Penalty.MS > 0 {
		words += ". Exceeding it blocks for " + exactly(rule.Penalty.MS, true)
	}
	return words + "."
}

// customerLimit is limitText in words for the customer.
func customerLimit(r *limit.Rule, l limit.Limit) string {
	plain := l
	plain.WarnAt, plain.Overage, plain.Metering = 0, limit.OverageDeny, 0
	rule := *r
	rule.Overage = limit.OverageDeny
	text := limitText(&rule, plain)
	if l.Metering == limit.PlanMeterUnits {
		text += ", billed by use"
	}
	switch {
	case l.Overage != limit.OverageAllow:
	case l.Metering == limit.PlanMeterOverage:
		text += ", more is billed"
	default:
		text += ", more is possible"
	}
	return text
}

// readPortalRequests reads the customer's own requests, and until when limits are raised.
func (d *dashboard) readPortalRequests(ctx context.Context, visit *tenants.PortalVisit, v *portalView, subject *tenants.Subject) error {
	list, _, err := d.Store.LimitRequests(ctx, visit.Actor(), tenants.LimitRequestFilter{Subject: visit.Subject}, tenants.Page{Limit: mostPortalRequests})
	if err != nil {
		return err
	}
	names := map[string]string{}
	for i := range v.Limits {
		names[v.Limits[i].Rule] = v.Limits[i].Name
	}
	for i := range list {
		q := &list[i]
		row := portalRequest{Rule: nameOr(names[q.Rule], q.Rule), Asked: grouped(q.Asked), State: "waiting for an answer", Tone: "warn", Answer: q.Answer, At: moment{q.CreatedAt}}
		switch q.State {
		case tenants.RequestApproved:
			row.State, row.Tone, row.Asked, row.Until = requestApproved, "good", grouped(q.Granted), momentOf(q.GrantedUntil)
		case tenants.RequestRefused:
			row.State, row.Tone = "refused", "bad"
		}
		v.Requests = append(v.Requests, row)
	}
	for i := range v.Limits {
		l := &v.Limits[i]
		l.Open = slices.ContainsFunc(list, func(q tenants.LimitRequest) bool { return q.Rule == l.Rule && q.State == tenants.RequestOpen })
		for _, o := range subject.Overrides {
			if o.Rule == l.Rule && l.Raised {
				l.RaisedUntil = momentOf(o.ExpiresAt)
			}
		}
	}
	return nil
}

// readPortalPlans reads the customer's plan, and the next one that the tenant offers.
func (d *dashboard) readPortalPlans(ctx context.Context, visit *tenants.PortalVisit, v *portalView, limits *check.SubjectLimits) error {
	if limits.Plan == "" {
		return nil
	}
	own, err := d.Store.PlanBySlug(ctx, visit.Actor(), limits.Plan)
	if err != nil && !errors.Is(err, tenants.ErrNotFound) {
		return err
	}
	v.PlanName = nameOr(own.Name, limits.Plan)
	offered := visit.Portal.OfferedPlans
	next := slices.Index(offered, limits.Plan) + 1
	if next == 0 || next == len(offered) { // not one of them, or the largest
		return nil
	}
	plan, err := d.Store.PlanBySlug(ctx, visit.Actor(), offered[next])
	if errors.Is(err, tenants.ErrNotFound) { // it was deleted a moment ago
		return nil
	}
	if err != nil {
		return err
	}
	v.Next = &portalPlan{Name: nameOr(plan.Name, plan.Slug), Description: plan.Description}
	for i := range limits.Rules {
		r := &limits.Rules[i]
		if r.Mode != limit.Enforce {
			continue
		}
		then, set := plan.Limits[r.Rule.Slug]
		if !set {
			then = limit.Limit{Limit: r.Rule.Limit, Burst: r.Rule.Burst}
		}
		row := portalPlanRow{
			Name: nameOr(r.Rule.Name, r.Rule.Slug), Then: customerLimit(r.Rule, then),
			Now: limitText(r.Rule, limit.Limit{Limit: r.Limit, Burst: r.Burst, Unlimited: r.Unlimited}),
		}
		if row.Now != row.Then {
			v.Next.Rows = append(v.Next.Rows, row)
		}
	}
	return nil
}
