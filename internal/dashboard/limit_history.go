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

// history goes back from the present fields over rows of the trail, the newest first. of returns
// the part of an object that has the fields. The result is in the order of time.
func history(now map[string]json.RawMessage, rows []tenants.AuditEntry, from time.Time, of func(json.RawMessage) map[string]json.RawMessage) []fieldsFrom {
	var out []fieldsFrom
	for i := range rows {
		was, is := of(rows[i].Before), of(rows[i].After)
		if was == nil && is == nil {
			continue
		}
		after := maps.Clone(now)
		if after == nil && is != nil { // it has ended since
			after = map[string]json.RawMessage{}
		}
		maps.Copy(after, is)
		out = append(out, fieldsFrom{rows[i].At, after})
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

// nested returns the object at a path of nested objects; nil if there is none.
func nested(raw json.RawMessage, path ...string) map[string]json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return nil
	}
	if len(path) == 0 {
		return object
	}
	return nested(object[path[0]], path[1:]...)
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
	rule        []limitPart
	override    []fieldsFrom
	plan        []fieldsFrom // the slug of the subject's own plan, in the field "plan"
	plans       map[string][]fieldsFrom
	defaultPlan string
}

// at returns the limit at an instant; 0: not known, or none.
func (l *subjectLimits) at(t time.Time) int64 {
	if o := fieldsAt(l.override, t); o != nil {
		starts, ends := timeIn(o, "starts_at"), timeIn(o, "expires_at")
		if (starts == nil || !starts.After(t)) && (ends == nil || ends.After(t)) {
			return numberIn(o)
		}
	}
	plan := l.defaultPlan
	_ = json.Unmarshal(fieldsAt(l.plan, t)["plan"], &plan)
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
	if l.at(s.Now) != now {
		return []limitPart{{s.Now.Truncate(s.Grain.Duration()), s.To, scale(now)}}
	}
	instants := []time.Time{s.From}
	for _, p := range l.rule {
		instants = append(instants, p.From, p.To)
	}
	for _, list := range append(slices.Collect(maps.Values(l.plans)), l.override, l.plan) {
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
	var override, own map[string]json.RawMessage
	registered, err := d.Store.SubjectByName(ctx, a, subject)
	if err != nil && !errors.Is(err, tenants.ErrNotFound) {
		return nil, err
	}
	if registered.Plan != "" {
		own = fieldsOf(map[string]string{"plan": registered.Plan})
	}
	for _, o := range registered.Overrides {
		if o.Rule == rule {
			override = fieldsOf(limitThen{o.Limit.Limit, o.Limit.Unlimited, o.StartsAt, o.ExpiresAt})
		}
	}
	rows := func(kind, target string) ([]tenants.AuditEntry, error) {
		rows, _, err := d.Store.Audit(ctx, a, tenants.AuditFilter{Kind: kind, Target: target, From: &s.From, To: &s.To}, tenants.Page{Limit: mostMarks})
		return rows, err
	}
	changes, err := rows("subject", subject)
	if err != nil {
		return nil, err
	}
	out.override = history(override, changes, s.From, func(raw json.RawMessage) map[string]json.RawMessage { return nested(raw, "overrides", rule) })
	out.plan = history(own, changes, s.From, func(raw json.RawMessage) map[string]json.RawMessage {
		if plan, set := nested(raw)["plan"]; set {
			return map[string]json.RawMessage{"plan": plan}
		}
		return nil
	})
	plans, _, err := d.Store.Plans(ctx, a, tenants.Page{Limit: mostSuggested})
	if err != nil {
		return nil, err
	}
	for i := range plans {
		p := &plans[i]
		if p.Default {
			out.defaultPlan = p.Slug
		}
		var now map[string]json.RawMessage
		if lim, ok := p.Limits[rule]; ok {
			now = fieldsOf(limitThen{Limit: lim.Limit, Unlimited: lim.Unlimited})
		}
		changes, err := rows("plan", p.Slug)
		if err != nil {
			return nil, err
		}
		out.plans[p.Slug] = history(now, changes, s.From, func(raw json.RawMessage) map[string]json.RawMessage { return nested(raw, "limits", rule) })
	}
	return out, nil
}
