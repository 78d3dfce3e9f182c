package dashboard

import (
	"cmp"
	"context"
	"slices"
	"time"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// keptUsage is the usage of a period of which no decision is kept any more.
type keptUsage struct {
	Allowed, Denied int64
	Rules, Subjects []keptDenials
}

// keptDenials are the denials of one rule or one subject.
type keptDenials struct {
	Name, Link string
	Denied     int64
}

// mostKept is how many rules, and how many subjects, the page names.
const mostKept = 5

// keptUsage reads the usage of the chosen period, if the page has no decisions of it. It is nil for
// a page with decisions, or without a period that has ended or is stored.
func (d *dashboard) keptUsage(ctx context.Context, a tenants.Actor, view *decisionsView, now time.Time) (*keptUsage, error) {
	f := &view.Filter
	if len(view.Rows) > 0 || f.Span.From.IsZero() || f.Span.To.IsZero() {
		return nil, nil
	}
	grain := usage.Minute
	if f.Span.To.Sub(f.Span.From) > 3*time.Hour {
		grain = usage.Hour
	}
	s := newStretch(now, grain, f.Span.From, f.Span.To)
	if s.From.Before(now.Add(-tenants.UsageRetention(grain))) {
		return nil, nil
	}
	out := &keptUsage{}
	query := tenants.UsageQuery{Grain: grain, From: s.From, To: s.To, Rule: f.Rule, Resource: f.Resource}
	report, err := d.Store.Usage(ctx, a, query)
	if err != nil {
		return nil, err
	}
	for i := range report.Items {
		out.Allowed, out.Denied = out.Allowed+report.Items[i].Allowed, out.Denied+report.Items[i].Denied
	}
	query.ByRule = true
	if report, err = d.Store.Usage(ctx, a, query); err != nil {
		return nil, err
	}
	names := d.ruleNames(ctx, a.TenantID())
	out.Rules = keptOf("rule", report.Items)
	for i := range out.Rules {
		out.Rules[i].Name = names.Of(out.Rules[i].Name)
	}
	if f.Rule == "" && f.Resource == "" { // usage has no subjects of a rule or a resource
		report, err = d.Store.Usage(ctx, a, tenants.UsageQuery{Grain: grain, From: s.From, To: s.To, BySubject: true, DeniedFirst: true})
		out.Subjects = keptOf("subject", report.Items)
	}
	return out, err
}

// keptOf sums up denials, most first.
func keptOf(by string, items []tenants.UsageItem) (out []keptDenials) {
	for _, g := range usageGroups(by, items, true) {
		if g.Denied > 0 && g.Name != "" && len(out) < mostKept {
			out = append(out, keptDenials{g.Name, usageLink(by, g.Name), g.Denied})
		}
	}
	slices.SortStableFunc(out, func(a, b keptDenials) int { return cmp.Compare(b.Denied, a.Denied) })
	return out
}
