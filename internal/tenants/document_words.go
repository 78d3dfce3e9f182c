package tenants

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"weir/internal/limit"
	"weir/internal/route"
)

// DocumentChange is one change of a document.
type DocumentChange struct {
	Action string // create, update or delete
	Kind   string // tenant, rule, route, plan, plan_limit, plan_version, subject, override or portal
	Name   string // the slug or subject; PLAN/RULE of a plan_limit, PLAN/NUMBER of a plan_version, SUBJECT/RULE of an override
	Text   string // as a sentence
	// Before and After are fields by their JSON names: the changed fields of an update, or all
	// fields of a creation or deletion. Nil if there are none.
	Before, After map[string]any
}

// field is one field of an object in JSON.
type field struct {
	name  string
	value any
}

func (r *revision) create(kind, name, more string, after []field) {
	r.changes = append(r.changes, DocumentChange{
		Action: "create", Kind: kind, Name: name, Text: "Create " + title(kind, name) + more + ".", After: asMap(after),
	})
}

func (r *revision) remove(kind, name, more string, before []field) {
	r.changes = append(r.changes, DocumentChange{
		Action: "delete", Kind: kind, Name: name, Text: "Delete " + title(kind, name) + more + ".", Before: asMap(before),
	})
}

// update records a change if fields differ, and reports whether they do.
func (r *revision) update(kind, name string, before, after []field) bool {
	was, is := map[string]any{}, map[string]any{}
	var words []string
	for i, b := range before {
		if a := after[i]; !reflect.DeepEqual(a.value, b.value) {
			was[b.name], is[a.name] = b.value, a.value
			words = append(words, fmt.Sprintf("%s from %s to %s", b.name, spoken(b.value), spoken(a.value)))
		}
	}
	if len(words) == 0 {
		return false
	}
	r.changes = append(r.changes, DocumentChange{
		Action: "update", Kind: kind, Name: name, Before: was, After: is,
		Text: "Change " + title(kind, name) + ": " + strings.Join(words, ", ") + ".",
	})
	return true
}

// title returns the name of an object in a sentence.
func title(kind, name string) string {
	owner, rule := name, ""
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		owner, rule = name[:i], name[i+1:]
	}
	switch kind {
	case "plan_limit":
		return fmt.Sprintf("the limit of plan %s for rule %s", owner, rule)
	case "plan_version":
		return fmt.Sprintf("version %s of plan %s", rule, owner)
	case "override":
		return fmt.Sprintf("the override of subject %q for rule %s", owner, rule)
	case "endpoint":
		return "billing endpoint " + name
	case "price":
		return "the mapping of price " + name
	case "portal":
		return "the settings of the customer page"
	case "subject":
		return fmt.Sprintf("subject %q", name)
	}
	return kind + " " + name
}

const maxSpoken = 60 // characters of a value in a sentence; the data has the complete value

func spoken(value any) string {
	text, err := json.Marshal(value)
	if err != nil { // only texts and numbers: cannot fail
		panic(err)
	}
	if utf8.RuneCount(text) > maxSpoken {
		return string([]rune(string(text))[:maxSpoken]) + "..."
	}
	if value == nil {
		return "none"
	}
	return string(text)
}

func asMap(fields []field) map[string]any {
	m := make(map[string]any, len(fields))
	for _, f := range fields {
		m[f.name] = f.value
	}
	return m
}

// textOrNil and numberOrNil return nil (null in JSON) for values that are not set.
func textOrNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func numberOrNil(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

func shareOrNil(s limit.Portion) any {
	if value := s.Value(); value != nil {
		return *value
	}
	return nil
}

func timeOrNil(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func ruleFields(r *limit.Rule) []field {
	fields := make([]field, len(limit.Fields))
	for i := range limit.Fields {
		fields[i] = field{limit.Fields[i].Name, limit.Fields[i].Get(r)}
	}
	return fields
}

func routeFields(r route.Route) []field {
	u := routeParams([16]byte{}, [16]byte{}, r, 0) // in the form of the database
	return []field{
		{"slug", r.Slug}, {"name", u.Name}, {"description", u.Description}, {"subject", u.Subject}, {"hash", u.Hash},
		{"no_subject", u.NoSubject}, {"resources", u.Resources}, {"default_resource", u.DefaultResource}, {"cost", u.Cost},
		{"attributes", u.Attributes}, {"denied_status", u.DeniedStatus}, {"fail", u.Fail},
	}
}

func limitFields(l limit.Limit) []field {
	return []field{{"limit", numberOrNil(l.Limit)}, {"burst", numberOrNil(l.Burst)}, {"unlimited", l.Unlimited}}
}

// planLimitFields are those of the limit of a plan.
func planLimitFields(l limit.Limit) []field {
	return append(limitFields(l), field{"warn_at", shareOrNil(l.WarnAt)}, field{"overage", textOrNil(l.Overage.String())}, field{"metering", textOrNil(l.Metering.String())})
}

// planFields includes the limits only if requested, because they are compared one by one.
func planFields(p *Plan, limits bool) []field {
	fields := []field{{"slug", p.Slug}, {"name", p.Name}, {"description", p.Description}, {"default", p.Default}, {"on_change", cmp.Or(p.OnChange, OnChangeCarry)}, {"fail", cmp.Or(p.Fail, FailClosed)}, {"bounds", p.Bounds.words()}, {"newest_version", max(p.NewestVersion, 1)}}
	if limits {
		all := make(map[string]any, len(p.Limits))
		for slug, l := range p.Limits {
			all[slug] = asMap(planLimitFields(l))
		}
		fields = append(fields, field{"limits", all})
		if len(p.Older) > 0 {
			older := make(map[string]any, len(p.Older))
			for _, v := range p.Older {
				older[strconv.Itoa(v.Number)] = asMap(versionFields(v.Limits))
			}
			fields = append(fields, field{"older_versions", older})
		}
	}
	return fields
}

// laterVersion returns nil (null in JSON) for the first version of a plan, which nearly all
// subjects have.
func laterVersion(number int) any {
	if number <= 1 {
		return nil
	}
	return number
}

// versionFields are the limits of a version of a plan, by the slugs of the rules.
func versionFields(limits map[string]limit.Limit) (fields []field) {
	for _, slug := range slices.Sorted(maps.Keys(limits)) {
		fields = append(fields, field{slug, asMap(planLimitFields(limits[slug]))})
	}
	return fields
}

func overrideFields(o Override) []field {
	return append(limitFields(o.Limit),
		field{"reason", o.Reason}, field{"starts_at", timeOrNil(o.StartsAt)}, field{"expires_at", timeOrNil(o.ExpiresAt)})
}

// subjectFields includes the overrides only if requested, because they are compared one by one.
func subjectFields(s *Subject, overrides bool) []field {
	fields := []field{
		{"subject", s.Subject}, {"plan", textOrNil(s.Plan)}, {"plan_version", laterVersion(s.PlanVersion)}, {"state", s.State.String()}, {"labels", labelsOf(s.Labels)},
		{"billing_ref", textOrNil(s.BillingRef)}, {"cycle_anchor", timeOrNil(anchorOf(s.CycleAnchor))}, {"multiplier", s.multiplier()},
	}
	if overrides {
		all := make(map[string]any, len(s.Overrides))
		for _, o := range s.Overrides {
			all[o.Rule] = asMap(overrideFields(o))
		}
		fields = append(fields, field{"overrides", all})
	}
	return fields
}
