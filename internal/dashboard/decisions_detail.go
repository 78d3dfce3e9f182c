package dashboard

import (
	"context"
	"hash/fnv"
	"net/url"
	"strconv"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/recent"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// decisionKey identifies equal decisions, which are one row if they follow each other.
type decisionKey struct{ subject, resource, rule, code, cost string }

func keyOf(d *recent.Decision) decisionKey {
	return decisionKey{d.Subject, d.Resource, d.Rule, string(d.Code), itoa(d.Cost)}
}

// sum returns a short hash of the key, for addresses.
func (k decisionKey) sum() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.Join([]string{k.subject, k.resource, k.rule, k.code, k.cost}, "\x00"))) // never fails
	return strconv.FormatUint(uint64(h.Sum32()), 36)
}

// Pick identifies the row in an address: decisions are kept in memory and have no ID.
func (r *decisionRow) Pick() string {
	return strconv.FormatInt(r.At.UnixMicro(), 36) + "-" + keyOf(&r.decision).sum()
}

// is reports whether pick was an identifier of the row: a row gets later, equal denials.
func (r *decisionRow) is(pick string) bool {
	at, sum, _ := strings.Cut(pick, "-")
	micros, err := strconv.ParseInt(at, 36, 64)
	return err == nil && sum == keyOf(&r.decision).sum() && r.first.UnixMicro() <= micros && micros <= r.last.UnixMicro()
}

// picked marks the row that the address names, and returns it; nil for none.
func (view *decisionsView) picked() *decisionRow {
	for i := range view.Rows {
		if r := &view.Rows[i]; view.Filter.Pick != "" && r.is(view.Filter.Pick) {
			r.Picked = true
			return r
		}
	}
	return nil
}

// Title says in a few words what happened.
func (r *decisionRow) Title() string {
	switch {
	case r.Allowed:
		return "Allowed"
	case r.times > 1:
		return strings.Replace(r.Repeats, " times ", " denials ", 1)
	}
	return "Denied"
}

// Limited reports whether the limit of a rule denied the check, with nothing left.
func (r *decisionRow) Limited() bool {
	d := &r.decision
	return !r.Allowed && r.Rule != "" && d.Code == check.RateLimitExceeded && !d.Penalized && d.Remaining == 0
}

// Counted reports whether the decision knows how much of a limit was used.
func (r *decisionRow) Counted() bool {
	d := &r.decision
	return d.Rule != "" && d.Quota > 0 && !d.Uncounted && d.Code != check.SubjectBlocked
}

// Used is the share of the limit that was used, in thousandths.
func (r *decisionRow) Used() int64 {
	return 1000 * (r.decision.Quota - r.decision.Remaining) / r.decision.Quota
}

// UsedText is the same in numbers.
func (r *decisionRow) UsedText() string {
	return grouped(r.decision.Quota-r.decision.Remaining) + " of " + grouped(r.decision.Quota)
}

// Over is the tone of what was denied in addition.
func (r *decisionRow) Over() string {
	if r.Allowed {
		return ""
	}
	return "denied"
}

// Told says how long the application was told to wait.
func (r *decisionRow) Told() string {
	if r.Allowed || r.Again == "" {
		return ""
	}
	most := retryText(&r.decision)
	if r.least > 0 && r.most > r.least {
		least, longest := shortMS(r.least), shortMS(r.most)
		if least != longest {
			return "Each request was told to wait " + least + " to " + longest + "."
		}
	}
	wait, waits := strings.CutPrefix(most, "in ")
	switch {
	case waits && r.times > 1:
		return "Each request was told to wait " + wait + "."
	case waits:
		return "The request was told to wait " + wait + "."
	case r.decision.RetryAfterMS == limit.NeverMS:
		return "No wait helps."
	}
	return "Checks are allowed again " + most + "."
}

func shortMS(ms int64) string { return short(time.Duration(ms) * time.Millisecond) }

// Units is the cost in words.
func (r *decisionRow) Units() string {
	text := plural(r.decision.Cost, "unit", "units")
	if r.times > 1 {
		text += " each"
	}
	return text
}

// First is the time of the first of the equal decisions.
func (r *decisionRow) First() string { return r.first.UTC().Format(exactClock) }

// exactClock is a time of day with milliseconds.
const exactClock = "15:04:05.000 UTC"

// Note is a sentence about the decision for a ticket or a mail to the customer.
func (r *decisionRow) Note() string {
	text := r.Day() + ", " + r.Clock() + " UTC: " + r.Subject + ", " + r.Resource
	if r.Allowed {
		text += ", was allowed"
	} else {
		text += ", was denied"
	}
	if r.Rule != "" {
		text += " by " + r.Name
	}
	return strings.Join(strings.Fields(text+". "+r.Why+" "+r.Told()), " ")
}

// Tester returns the page that tests the same check now.
func (r *decisionRow) Tester() string {
	return "/tester?" + url.Values{"subject": {r.Subject}, "resource": {r.Resource}, "cost": {itoa(r.decision.Cost)}}.Encode()
}

// sentenceOf returns what a rule says now; "" if it was deleted.
func (d *dashboard) sentenceOf(ctx context.Context, a tenants.Actor, rule string) string {
	policy, err := d.Policies.Get(ctx, a.TenantID())
	if err != nil {
		return "" // the panel works without it
	}
	for r := range policy.EachRule() {
		if r.Slug == rule {
			return ruleSentence(r)
		}
	}
	return ""
}

// decisionMinutes is the length of the chart above the decisions.
const decisionMinutes = 60

// decisionChart returns the checks of the last hour, or of the hour around the chosen period, by
// minute. It follows the filters that usage has for any tenant: the rule and the resource.
func (d *dashboard) decisionChart(ctx context.Context, a tenants.Actor, f *decisionFilter, now time.Time) (*chart, error) {
	end := now
	if until := f.Span.To; !until.IsZero() && until.Before(now.Add(-decisionMinutes*time.Minute/2)) {
		end = until.Add(decisionMinutes / 2 * time.Minute)
	}
	s := stretchUntil(end, usage.Minute, decisionMinutes)
	s.Now, s.Before = now, false
	query, title := tenants.UsageQuery{Rule: f.Rule, Resource: f.Resource}, "Checks in the last hour"
	if end.Before(now) {
		title = "Checks around the chosen time"
	}
	if s.From.Before(now.Add(-tenants.UsageRetention(usage.Minute))) {
		empty := newChart(title, s, nil)
		return &empty, nil
	}
	c, err := d.series(ctx, a, title, s, query)
	if err != nil {
		return nil, err
	}
	c.Decisions = "/decisions?" + decisionQuery(withBounds(f.values, "", ""))
	if c.Decisions == "/decisions?" {
		c.Decisions += "show=denied"
	}
	return &c, nil
}

// Chosen reports whether the list is restricted to a time with this grain.
func (view *decisionsView) Chosen(b *bar) bool {
	from, to := view.Filter.Span.From, view.Filter.Span.To
	return !from.IsZero() && !to.IsZero() && !b.Start.Before(from) && b.Start.Before(to)
}

// LimitText is the limit, with its origin unless that is the rule.
func (r *decisionRow) LimitText() string { return grouped(r.decision.Quota) + r.source }

// Whole is the time at which the full quota was available again.
func (r *decisionRow) Whole() string {
	d := &r.decision
	if !r.Counted() || d.ResetAfterMS <= 0 {
		return ""
	}
	return "in " + shortMS(d.ResetAfterMS)
}

// The area of a low chart, in percent of its height.
const stackTop, stackBottom = 9.0, 72.0

// MostStacked is the top of the scale of a chart that stacks denied on allowed checks.
func (c *chart) MostStacked() int64 {
	most := int64(0)
	for i := range c.Bars {
		most = max(most, c.Bars[i].Allowed+c.Bars[i].Denied)
	}
	return roundScale(most)
}

// Stacked returns the columns of a grain: its allowed checks, and the denied ones above them.
func (c *chart) Stacked(b *bar, most int64) (allowed, denied column) {
	const space = stackBottom - stackTop
	up := float64(b.Allowed) / float64(max(most, 1)) * space
	over := float64(b.Denied) / float64(max(most, 1)) * space
	if b.Denied > 0 {
		over = max(over, 2)
	}
	return column{percentage(stackBottom - up), percentage(up)}, column{percentage(max(0, stackBottom-up-over)), percentage(over)}
}
