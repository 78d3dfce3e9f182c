package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"weir/internal/check"
	"weir/internal/tenants"
)

// The limit of a subject over time follows from the present one and the audit trail: of the rule,
// of the plans, of the plan that the subject had, and of its override.

// fieldsFrom are the fields of a limit from an instant until the next one; nil: there was no limit.
type fieldsFrom struct {
	From   time.Time
	Fields map[string]json.RawMessage
}

// history goes back from the present fields over changes, the newest first. The result is in the
// order of time.
func history(now map[string]json.RawMessage, changes []tenants.LimitChange, from time.Time) []fieldsFrom {
	var out []fieldsFrom
	for i := range changes {
		was, is := nested(changes[i].Before), nested(changes[i].After)
		if was == nil && is == nil {
			continue
		}
		after := maps.Clone(now)
		if after == nil && is != nil { // it has ended since
			after = map[string]json.RawMessage{}
		}
		maps.Copy(after, is)
		out = append(out, fieldsFrom{changes[i].At, after})
		before := maps.Clone(after)
		if before == nil {
			before = map[string]json.RawMessage{}
		}
		for name := range is {
			delete(before, name)
		}
		maps.Copy(before, was)
		if now = before; len(now) == 0 || now["limit"] == nil && now["unlimited"] == nil && now["plan"] == nil {
			now = nil
		}
	}
	out = append(out, fieldsFrom{from, now})
	slices.Reverse(out)
	return out
}

// fieldsAt returns the fields at an instant.
func fieldsAt(list []fieldsFrom, t time.Time) map[string]json.RawMessage {
	for i := len(list) - 1; i > 0; i-- {
		if !list[i].From.After(t) {
			return list[i].Fields
		}
	}
	return list[0].Fields
}

// nested returns the fields of an object; nil if there is none.
func nested(raw json.RawMessage) (object map[string]json.RawMessage) {
	_ = json.Unmarshal(raw, &object)
	return object
}

// numberIn returns the limit of fields; 0 for none, or an unlimited one.
func numberIn(fields map[string]json.RawMessage) (n int64) {
	_ = json.Unmarshal(fields["limit"], &n)
	return n
}

// timeIn returns an instant of fields; nil for none.
func timeIn(fields map[string]json.RawMessage, name string) (t *time.Time) {
	_ = json.Unmarshal(fields[name], &t)
	return t
}

// limitThen has the fields of a limit that matter here, as the trail writes them.
type limitThen struct {
	Limit     int64      `json:"limit,omitempty"`
	Unlimited bool       `json:"unlimited,omitempty"`
	StartsAt  *time.Time `json:"starts_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// fieldsOf writes an object in the form of the trail.
func fieldsOf(v any) map[string]json.RawMessage {
	raw, _ := json.Marshal(v) // of numbers, texts and times
	return nested(raw)
}

// subjectLimits has the limits of a subject under one rule in a period.
type subjectLimits struct {
	rule     []limitPart // the newest first
	override []fieldsFrom
	plan     []fieldsFrom // the slug of the subject's own plan, in the field "plan"
	defaults []fieldsFrom // that of the tenant's default plan
	plans    map[string][]fieldsFrom
}

// at returns the limit at an instant; 0: not known, or none.
func (l *subjectLimits) at(t time.Time) int64 {
	if o := fieldsAt(l.override, t); o != nil {
		starts, ends := timeIn(o, "starts_at"), timeIn(o, "expires_at")
		if (starts == nil || !starts.After(t)) && (ends == nil || ends.After(t)) {
			return numberIn(o)
		}
	}
	var plan string
	for _, of := range [][]fieldsFrom{l.defaults, l.plan} {
		_ = json.Unmarshal(fieldsAt(of, t)["plan"], &plan) // null, as an absent one, leaves it
	}
	if of := l.plans[plan]; of != nil {
		if fields := fieldsAt(of, t); fields != nil {
			return numberIn(fields)
		}
	}
	for _, p := range l.rule {
		if !t.Before(p.From) && t.Before(p.To) {
			return p.Limit
		}
	}
	return 0
}

// parts returns the limit over time, in checks per grain. If the present one differs from now, as
// with an older version of a plan, only that is known.
func (l *subjectLimits) parts(s stretch, now int64, scale func(int64) int64) (out []limitPart) {
	if len(l.rule) > 0 {
		l.rule[0].To = s.To // it may have been read for an earlier period
	}
	if l.at(s.Now) != now {
		return []limitPart{{s.Now.Truncate(s.Grain.Duration()), s.To, scale(now)}}
	}
	instants := []time.Time{s.From}
	for _, p := range l.rule {
		instants = append(instants, p.From, p.To)
	}
	for _, list := range append(slices.Collect(maps.Values(l.plans)), l.override, l.plan, l.defaults) {
		for _, f := range list {
			instants = append(instants, f.From)
			for _, t := range []*time.Time{timeIn(f.Fields, "starts_at"), timeIn(f.Fields, "expires_at")} {
				if t != nil {
					instants = append(instants, *t)
				}
			}
		}
	}
	instants = slices.DeleteFunc(instants, func(t time.Time) bool { return t.Before(s.From) || !t.Before(s.To) })
	slices.SortFunc(instants, time.Time.Compare)
	for i, from := range instants {
		to := s.To
		if i+1 < len(instants) {
			to = instants[i+1]
		}
		n := l.at(from)
		if n == 0 || !from.Before(to) {
			continue
		}
		if last := len(out) - 1; last >= 0 && out[last].To.Equal(from) && out[last].Limit == scale(n) {
			out[last].To = to
		} else {
			out = append(out, limitPart{from, to, scale(n)})
		}
	}
	return out
}

// readLimits reads the limits of a subject under a rule in a period.
func (d *dashboard) readLimits(ctx context.Context, a tenants.Actor, s stretch, subject string, r *check.RuleDecision) (*subjectLimits, error) {
	out, rule := &subjectLimits{plans: map[string][]fieldsFrom{}}, r.Rule.Slug
	var err error
	if out.rule, err = d.limitParts(ctx, a, s, rule, r.Rule.Limit, func(n int64) int64 { return n }); err != nil {
		return nil, err
	}
	var override map[string]json.RawMessage
	registered, err := d.Store.SubjectByName(ctx, a, subject)
	if err != nil && !errors.Is(err, tenants.ErrNotFound) {
		return nil, err
	}
	for _, o := range registered.Overrides {
		if o.Rule == rule {
			override = fieldsOf(limitThen{o.Limit.Limit, o.Limit.Unlimited, o.StartsAt, o.ExpiresAt})
		}
	}
	trail, err := d.Store.LimitTrail(ctx, a, tenants.LimitTrailQuery{
		Subject: subject, Rule: rule, Plan: registered.Plan, From: s.From, To: s.To, Most: mostMarks,
	})
	if err != nil {
		return nil, err
	}
	return out, d.turns.do(ctx, a.TenantID(), func() {
		out.override = history(override, trail.Overrides, s.From)
		out.plan = history(planField(registered.Plan), trail.Plans, s.From)
		out.defaults = history(planField(trail.DefaultNow), trail.Defaults, s.From)
		for slug, plan := range trail.Limits {
			var now map[string]json.RawMessage
			if plan.Now != nil {
				now = fieldsOf(limitThen{Limit: plan.Now.Limit, Unlimited: plan.Now.Unlimited})
			}
			out.plans[slug] = history(now, plan.Changes, s.From)
		}
	})
}

// planField returns the fields that name a plan; nil for none.
func planField(slug string) map[string]json.RawMessage {
	if slug == "" {
		return nil
	}
	return fieldsOf(map[string]string{"plan": slug})
}

// keptTrail keeps what a live chart has read of the trail until something changes that is in it: a
// rule or a plan, with the version of the policy, or the subject.
type keptTrail struct {
	version, subject int64 // the sequence of the subject's newest row
	rule             string
	limits           *subjectLimits
	marks            []chartMark
}

// renew forgets what was kept if it is of another version.
func (d *dashboard) renew(ctx context.Context, a tenants.Actor, kept *keptTrail, version int64, subject string) error {
	rows, _, err := d.Store.Audit(ctx, a, tenants.AuditFilter{Kind: "subject", Target: subject}, tenants.Page{Limit: 1})
	if err != nil {
		return err
	}
	newest := int64(0)
	if len(rows) > 0 {
		newest = rows[0].Sequence
	}
	if kept.version != version || kept.subject != newest {
		*kept = keptTrail{version: version, subject: newest}
	}
	return nil
}

// limitsOf returns the limits under a rule, as kept or read now.
func (d *dashboard) limitsOf(
	ctx context.Context, a tenants.Actor, s stretch, subject string, r *check.RuleDecision, kept *keptTrail,
) (*subjectLimits, error) {
	if kept.limits == nil || kept.rule != r.Rule.Slug {
		limits, err := d.readLimits(ctx, a, s, subject, r)
		if err != nil {
			return nil, err
		}
		kept.rule, kept.limits = r.Rule.Slug, limits
	}
	return kept.limits, nil
}

// subjectMarks returns the marks of a subject's chart, as kept or read now.
func (d *dashboard) subjectMarks(ctx context.Context, a tenants.Actor, s stretch, subject string, kept *keptTrail) ([]chartMark, error) {
	if kept.marks == nil {
		filters := []tenants.AuditFilter{{Kind: "rule"}, {Kind: "plan"}, {Kind: "subject", Target: subject}}
		marks, err := d.marks(ctx, a, s, filters...)
		if err != nil {
			return nil, err
		}
		kept.marks = append([]chartMark{}, marks...) // not nil
	}
	kept.marks = slices.DeleteFunc(kept.marks, func(m chartMark) bool { return m.At.Before(s.From) })
	return slices.Clone(kept.marks), nil
}
