package dashboard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// keptUsage is the usage of a period of which no decision is kept any more.
type keptUsage struct {
	Allowed, Denied int64
	Rules, Subjects []keptDenials
	OfDays          bool // the subjects are those of whole days
	TooLong         bool // the period has too much usage to sum up, and nothing else is set
}

// keptDenials are the denials of one rule or one subject.
type keptDenials struct {
	Name, Link string
	Denied     int64
}

// SubjectTitle is the caption of the most denied subjects.
func (k *keptUsage) SubjectTitle() string {
	if k.OfDays {
		return "Most denied subjects of these days (UTC)"
	}
	return "Most denied subjects"
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
	from, to := f.Span.From, f.Span.To
	if !from.Before(now) {
		return nil, nil
	}
	if to.After(now) {
		to = now
	}
	grain := usage.Minute
	if to.Sub(from) > 3*time.Hour {
		grain = usage.Hour
	}
	s := newStretch(now, grain, from, to)
	if s.From.Before(now.Add(-tenants.UsageRetention(grain))) {
		return nil, nil
	}
	out, err := d.readKept(ctx, a, f, s)
	if invalid := (*tenants.InvalidError)(nil); errors.As(err, &invalid) {
		return &keptUsage{TooLong: true}, nil
	}
	return out, err
}

// hourlyKept is the longest period of which the subjects of each hour are read: longer ones have
// too many lists.
const hourlyKept = 7 * 24 * time.Hour

// readKept reads the usage of a period: sums, and lists of subjects by grain.
func (d *dashboard) readKept(ctx context.Context, a tenants.Actor, f *decisionFilter, s stretch) (*keptUsage, error) {
	query := tenants.UsageQuery{Grain: s.Grain, From: s.From, To: s.To, Rule: f.Rule, Resource: f.Resource, Sum: true}
	total, err := d.Store.Usage(ctx, a, query)
	if err != nil {
		return nil, err
	}
	out := &keptUsage{}
	for i := range total.Items {
		out.Allowed, out.Denied = out.Allowed+total.Items[i].Allowed, out.Denied+total.Items[i].Denied
	}
	query.ByRule = true
	if out.Rules, err = d.keptBy(ctx, a, "rule", query); err != nil {
		return nil, err
	}
	names := d.ruleNames(ctx, a.TenantID())
	for i := range out.Rules {
		out.Rules[i].Name = names.Of(out.Rules[i].Name)
	}
	if f.Rule == "" && f.Resource == "" { // usage has no subjects of a rule or a resource
		grain := s.Grain
		if out.OfDays = s.To.Sub(s.From) > hourlyKept; out.OfDays {
			grain = usage.Day
		}
		out.Subjects, err = d.keptBy(ctx, a, "subject", tenants.UsageQuery{Grain: grain, From: s.From, To: s.To, BySubject: true, DeniedFirst: true})
	}
	return out, err
}

// keptBy reads usage and sums up its denials by rule or by subject.
func (d *dashboard) keptBy(ctx context.Context, a tenants.Actor, by string, query tenants.UsageQuery) (out []keptDenials, err error) {
	report, err := d.Store.Usage(ctx, a, query)
	if err != nil {
		return nil, err
	}
	err = d.sumUp(ctx, a.TenantID(), len(report.Items), func() { out = keptOf(by, report.Items) })
	return out, err
}

// liveKept is the kept usage of a live page. It is read in every overviewSlow-th tick, and until
// the page has it. A read that fails is not repeated before that: each second, it would take as
// long again.
type liveKept struct {
	usage  *keptUsage
	failed bool
}

// update reads the usage if it is time. It returns an error once for a read that failed.
func (k *liveKept) update(tick int, read func() (*keptUsage, error)) error {
	if tick%overviewSlow != 0 && (k.usage != nil || k.failed) {
		return nil
	}
	kept, err := read()
	if k.failed = err != nil; k.failed {
		return err
	}
	k.usage = kept
	return nil
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
