package api

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
)

// SimulatePlan is a plan of a simulation.
type SimulatePlan struct {
	Slug    string                    `json:"slug" doc:"1 to 63 of a-z, 0-9 and -"`
	Default bool                      `json:"default,omitempty" doc:"The plan of subjects without a plan. At most one plan may be the default; without one, such subjects have no plan"`
	Limits  map[string]PlanLimitInput `json:"limits,omitempty" doc:"By the slug of one of the rules; an omitted rule keeps its own limit"`
}

// SimulateSubject is a registered subject of a simulation.
type SimulateSubject struct {
	Subject   string                      `json:"subject" minLength:"1" maxLength:"256"`
	Plan      string                      `json:"plan,omitempty" minLength:"1" doc:"Slug of one of the plans; default: the default plan"`
	State     string                      `json:"state,omitempty" enum:"active,blocked,exempt" doc:"Default active"`
	Overrides map[string]SimulateOverride `json:"overrides,omitempty" doc:"By the slug of one of the rules"`
}

// SimulateOverride is the limit of a subject for a rule, for a part of the simulated time.
type SimulateOverride struct {
	LimitInput
	StartsAtMS  *int64 `json:"starts_at_ms,omitempty" minimum:"0" maximum:"99999999999999" doc:"Milliseconds after start_ms; default: from the start"`
	ExpiresAtMS *int64 `json:"expires_at_ms,omitempty" minimum:"1" maximum:"99999999999999" doc:"Milliseconds after start_ms; default: never"`
}

// simulatedNumbers validates the limits of plans and overrides for the rules of a simulation.
type simulatedNumbers struct {
	rules map[string]*limit.Rule
	plans map[string]bool
	errs  []ProblemField
}

func (n *simulatedNumbers) wrong(pointer string, p *limit.Problem) {
	n.errs = append(n.errs, wrongField(pointer, p))
}

// limit validates and returns the limit of a body for the rule with this slug.
func (n *simulatedNumbers) limit(rule string, in interface {
	patch(limit.Limit, string, *[]ProblemField) limit.Limit
}, at string) limit.Limit {
	r, known := n.rules[rule]
	if !known {
		n.wrong(at, limit.MustBe("the slug of one of the rules"))
		return limit.Limit{}
	}
	before := len(n.errs)
	lim := in.patch(limit.Limit{}, at, &n.errs)
	// The errors of an invalid rule are reported already.
	if len(n.errs) == before && len(r.Validate()) == 0 {
		n.errs = append(n.errs, below(at, problemFields(lim.Validate(r)))...)
	}
	return lim
}

// plan validates that a slug is one of the plans; "" is no plan.
func (n *simulatedNumbers) plan(slug, at string) {
	if slug != "" && !n.plans[slug] {
		n.wrong(at, limit.MustBe("the slug of one of the plans"))
	}
}

// numbers sets the plans and subjects of s, which already has the rules.
func (in *SimulateInput) numbers(s *check.Simulation) []ProblemField {
	n := simulatedNumbers{rules: map[string]*limit.Rule{}, plans: map[string]bool{}}
	for i := range s.Policy.Rules {
		n.rules[s.Policy.Rules[i].Slug] = &s.Policy.Rules[i]
	}
	defaults := 0
	for i, p := range in.Plans {
		at := "/plans/" + strconv.Itoa(i)
		switch {
		case !limit.ValidSlug(p.Slug):
			n.wrong(at+"/slug", limit.InvalidSlug)
		case n.plans[p.Slug]:
			n.wrong(at+"/slug", limit.Duplicate)
		}
		n.plans[p.Slug] = true
		if p.Default {
			if defaults++; defaults > 1 {
				n.wrong(at+"/default", limit.Wrong("Set it to false for the others.", "can be true for one plan only"))
			}
		}
		plan := check.PlanData{Slug: p.Slug, Default: p.Default, Limits: map[string]limit.Limit{}}
		for _, rule := range slices.Sorted(maps.Keys(p.Limits)) {
			plan.Limits[rule] = n.limit(rule, p.Limits[rule], at+"/limits/"+escapePointer(rule))
		}
		s.Policy.Plans = append(s.Policy.Plans, plan)
	}
	seen := map[string]bool{}
	for i := range in.Subjects {
		at := "/subjects/" + strconv.Itoa(i)
		subject := &in.Subjects[i]
		if wrong := limit.ValidName(subject.Subject); wrong != nil {
			n.wrong(at+"/subject", wrong)
		} else if seen[subject.Subject] {
			n.wrong(at+"/subject", limit.Duplicate)
		}
		seen[subject.Subject] = true
		n.plan(subject.Plan, at+"/plan")
		s.Subjects = append(s.Subjects, n.subject(subject, s.StartMS, at))
	}
	n.askedPlans(in)
	return n.errs
}

func (n *simulatedNumbers) subject(in *SimulateSubject, startMS int64, at string) check.SubjectData {
	out := check.SubjectData{Subject: in.Subject, Plan: in.Plan}
	if in.State != "" {
		out.State, _ = check.ParseSubjectState(in.State) // the schema lists the names
	}
	for _, rule := range slices.Sorted(maps.Keys(in.Overrides)) {
		place := at + "/overrides/" + escapePointer(rule)
		o := in.Overrides[rule]
		data := check.OverrideData{Rule: rule, Limit: n.limit(rule, o.LimitInput, place)}
		if o.StartsAtMS != nil {
			data.StartsAt = time.UnixMilli(startMS + *o.StartsAtMS)
		}
		if o.ExpiresAtMS != nil {
			data.ExpiresAt = time.UnixMilli(startMS + *o.ExpiresAtMS)
			if o.StartsAtMS != nil && *o.ExpiresAtMS <= *o.StartsAtMS {
				n.wrong(place+"/expires_at_ms", limit.MustBe("later than starts_at_ms"))
			}
		}
		out.Overrides = append(out.Overrides, data)
	}
	return out
}

// askedPlans validates the plans of the requests.
func (n *simulatedNumbers) askedPlans(in *SimulateInput) {
	for i := range in.Requests {
		n.plan(in.Requests[i].Plan, strings.Join([]string{"/requests", strconv.Itoa(i), "plan"}, "/"))
	}
	if in.Traffic != nil {
		n.plan(in.Traffic.Plan, "/traffic/plan")
	}
}
