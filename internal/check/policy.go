package check

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/route"
)

// PolicyData has the rules, plans and routes of one tenant, as a PolicySource reads them.
type PolicyData struct {
	Slug string // slug of the tenant
	// Partitions is the number of hash tags over which the tenant's counters are spread; 0 is 1.
	Partitions int
	// PartitionsBefore is what it was before it changed at PartitionsChanged; 0: no change is in
	// progress.
	PartitionsBefore  int
	PartitionsChanged time.Time
	Version           int64 // the tenant's policy version at the read
	Rules             []limit.Rule
	Plans             []PlanData
	Routes            []route.Route
}

// PlanData is a plan and the limits that it sets, by slugs of rules.
type PlanData struct {
	Slug    string
	Default bool
	Limits  map[string]limit.Limit // of the newest version
	Version int                    // number of the newest version; 0: the plan has one version
	Older   []PlanVersionData
	// FailOpen admits checks of a tenant over its quota; of a plan of the operator's tenant.
	FailOpen bool
	// Counters bounds the counters of a tenant that are alive at the same time; 0: no bound of the
	// plan. Of a plan of the operator's tenant.
	Counters int64
	// RecordBytes bounds the bytes of its records that are alive, in the same way (package budget).
	RecordBytes int64
}

// PlanVersionData is an older version of a plan.
type PlanVersionData struct {
	Number int
	Limits map[string]limit.Limit
}

// SubjectData is a registered subject.
type SubjectData struct {
	Subject string
	Plan    string // "": the tenant's default
	// PlanVersion is the version of the plan. 0, and a version that the policy lacks, is the
	// newest.
	PlanVersion int
	State       SubjectState
	// CycleAnchor is where the windows of rules with the anchor "subject" begin; nil: calendar
	// windows.
	CycleAnchor *time.Time
	// Multiplier multiplies the limits of the plan, within their ranges; 0 or 1: no change.
	Multiplier int64
	Overrides  []OverrideData
	// Grants are prepaid units that may be left, in the order in which they are spent.
	Grants  []GrantData
	Deleted bool // only in changes: remove the subject
}

// GrantData is prepaid units of one subject for one rule.
type GrantData struct {
	Rule string // slug
	limit.Grant
}

// OverrideData is the limit of one subject for one rule, with its period.
type OverrideData struct {
	Rule      string // slug
	Limit     limit.Limit
	StartsAt  time.Time // zero: immediately
	ExpiresAt time.Time // zero: never; at this instant it is no longer active
}

// Policy is the compiled configuration that decides a tenant's checks: which rules match a
// resource, and which limits apply. It is immutable, except for the registered subjects, which are
// changed one by one.
type Policy struct {
	tenant   limit.TenantID
	slug     string
	version  int64
	rules    []compiledRule // by slug, as in every answer
	exact    map[string][]int32
	prefixes map[string][]int32
	lengths  []int // of the prefixes, without duplicates
	plans    map[string]*planNumbers
	fallback *planNumbers // the default plan; nil if the tenant has no plans
	routes   map[string]*route.Compiled
	subjects *subjects
	places   *places
	size     int64 // bytes, without the subjects
}

type compiledRule struct {
	rule    limit.Rule
	by      *byList
	name    engine.KeyName // the rule's part of keys
	id      string         // the same, as used in counters
	grouped bool
	number  number       // the rule's own limit
	cycle   *limit.Cycle // for a calendar window; otherwise nil
	credits bool         // checks can spend credits beyond its limits
}

// number is the limit that applies to a subject under a rule, with its source.
type number struct {
	numbers   limit.Numbers
	unlimited bool
	source    string        // "rule", "plan:SLUG", "override"
	warnAt    limit.Portion // checks beyond it carry a warning; 0: none does
	metering  limit.PlanMetering
}

// Tenant returns the tenant of the policy.
func (p *Policy) Tenant() limit.TenantID { return p.tenant }

// Version returns the version of the configuration when the rules and plans were read.
func (p *Policy) Version() int64 { return p.version }

// TierBounds bound what a tenant may have alive in Redis at the same time; 0: no bound of its tier.
type TierBounds struct{ Counters, RecordBytes int64 }

// TierCounters returns how many counters the tenant with this slug may have alive at the same time,
// by its tier in this policy of the operator's tenant; 0: no bound of the tier.
func (p *Policy) TierCounters(slug string) int64 { return p.tierBounds(slug).Counters }

// PlanCounters returns how many counters a tenant with this plan of the operator's tenant ("": the
// default plan) may have alive; 0: no bound. It is not known if there is no such plan.
func (p *Policy) PlanCounters(slug string) (bound int64, known bool) {
	plan, known := p.plan(slug, nil)
	if plan == nil {
		return 0, known
	}
	return plan.bounds.Counters, known
}

func (p *Policy) tierBounds(slug string) TierBounds {
	subject, _ := p.subjects.Load(slug)
	plan, _ := p.plan("", subject)
	if plan == nil {
		return TierBounds{}
	}
	return plan.bounds
}

// CounterBound returns how many counters the tenant may have alive at the same time, by its tier;
// 0: no bound of the tier. It is not known while the tenant or the operator's tenant is not loaded.
func (p *Policies) CounterBound(platform, tenant limit.TenantID) (bound int64, known bool) {
	bounds, known := p.boundsOf(platform, tenant)
	return bounds.Counters, known
}

// RecordBound returns how many bytes of records the tenant may have alive at the same time, as
// CounterBound does for counters.
func (p *Policies) RecordBound(platform, tenant limit.TenantID) (bytes int64, known bool) {
	bounds, known := p.boundsOf(platform, tenant)
	return bounds.RecordBytes, known
}

func (p *Policies) boundsOf(platform, tenant limit.TenantID) (bounds TierBounds, known bool) {
	own, tiers := p.Loaded(tenant), p.Loaded(platform)
	switch {
	case tenant == platform:
		return TierBounds{}, true
	case own == nil || tiers == nil:
		return TierBounds{}, false
	}
	return tiers.tierBounds(own.slug), true
}

// Places returns the beginnings of the keys of a tenant with several partitions, or nil if it has
// one or is not loaded.
func (p *Policies) Places(tenant limit.TenantID) []string {
	if own := p.Loaded(tenant); own != nil && len(own.places.prefixes) > 1 {
		return own.places.prefixes
	}
	return nil
}

// HasPlan reports whether a check may name this plan; "" (no plan) is always valid.
func (p *Policy) HasPlan(slug string) bool { return slug == "" || p.plans[slug] != nil }

// Route returns the route with this slug, or nil.
func (p *Policy) Route(slug []byte) *route.Compiled { return p.routes[string(slug)] }

// Rules returns the number of rules, including those that are off.
func (p *Policy) Rules() int { return len(p.rules) }

// EachRule yields the rules by slug, including those that are off. They must not be changed.
func (p *Policy) EachRule() iter.Seq[*limit.Rule] {
	return func(yield func(*limit.Rule) bool) {
		for i := range p.rules {
			if !yield(&p.rules[i].rule) {
				return
			}
		}
	}
}

// Metered returns the rules whose units are recorded exactly, of the subjects of any plan.
func (p *Policy) Metered() map[string]bool {
	out := map[string]bool{}
	for i := range p.rules {
		if p.rules[i].rule.Metering != limit.MeterNone {
			out[p.rules[i].rule.Slug] = true
		}
	}
	for _, plan := range p.plans {
		for _, version := range append([]*planNumbers{plan}, plan.older...) {
			for i := range p.rules {
				if n := version.number(int32(i)); n != nil && n.metering > limit.PlanMeterNone { // at most MaxRules
					out[p.rules[i].rule.Slug] = true
				}
			}
		}
	}
	return out
}

// CompilePolicy compiles data into a Policy without registered subjects: add them with AddSubject.
func CompilePolicy(keys Keys, tenant limit.TenantID, data PolicyData) (*Policy, error) {
	p := &Policy{
		tenant: tenant, slug: data.Slug, version: data.Version,
		exact: map[string][]int32{}, prefixes: map[string][]int32{},
		plans:    make(map[string]*planNumbers, len(data.Plans)),
		subjects: &subjects{credits: creditKeys{keys, tenant}}, places: keys.placesOf(tenant, &data),
	}
	rules := slices.Clone(data.Rules)
	slices.SortFunc(rules, func(a, b limit.Rule) int { return strings.Compare(a.Slug, b.Slug) })
	byLists := byLists{tenant: tenant, places: p.places, lists: map[string]*byList{}}
	bySlug := make(map[string]int, len(rules))
	p.rules = make([]compiledRule, len(rules))
	for i := range rules {
		r := &rules[i]
		if errs := r.Validate(); len(errs) > 0 {
			return nil, fmt.Errorf("rule %s: %w", r.Slug, errs[0])
		}
		if _, twice := bySlug[r.Slug]; twice {
			return nil, fmt.Errorf("duplicate rule %q", r.Slug)
		}
		bySlug[r.Slug] = i
		p.rules[i] = compiledRule{
			rule: *r, by: byLists.of(r.By), name: keys.ruleID(tenant, r),
			number: number{numbers: r.Numbers(), source: "rule", warnAt: r.WarnAt}, credits: r.SpendsCredits(),
		}
		cycle, err := r.Cycle()
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.Slug, err)
		}
		p.rules[i].cycle = cycle
		p.rules[i].id = string(p.rules[i].name.Append(nil))
		if r.Mode != limit.Off { // there can be any number of them for a resource
			p.index(int32(i), r.Resource)
		}
	}
	groupRules(p.rules)
	for i := range data.Plans {
		plan, err := p.compilePlan(&data.Plans[i], bySlug)
		if err != nil {
			return nil, err
		}
		p.plans[plan.slug] = plan
		if data.Plans[i].Default {
			p.fallback = plan
		}
	}
	if err := p.compileRoutes(data.Routes); err != nil {
		return nil, err
	}
	p.size = p.measure()
	return p, nil
}

func (p *Policy) compileRoutes(routes []route.Route) error {
	if len(routes) > 0 {
		p.routes = make(map[string]*route.Compiled, len(routes))
	}
	for i := range routes {
		compiled, err := route.Compile(routes[i])
		if err != nil {
			return fmt.Errorf("route %s: %w", routes[i].Slug, err)
		}
		if p.routes[routes[i].Slug] != nil {
			return fmt.Errorf("duplicate route %q", routes[i].Slug)
		}
		p.routes[routes[i].Slug] = compiled
	}
	return nil
}

func (p *Policy) index(i int32, pattern string) {
	prefix, isPrefix := strings.CutSuffix(pattern, "*")
	if !isPrefix {
		p.exact[pattern] = append(p.exact[pattern], i)
		return
	}
	p.prefixes[prefix] = append(p.prefixes[prefix], i)
	if !slices.Contains(p.lengths, len(prefix)) {
		p.lengths = append(p.lengths, len(prefix))
	}
}

// matching appends the indexes of the rules whose pattern matches resource and that are not off, in
// the order of the rules. There are at most MaxMatchingRules.
func (p *Policy) matching(to []int32, resource string) []int32 {
	to = append(to, p.exact[resource]...)
	for _, n := range p.lengths {
		if n <= len(resource) {
			to = append(to, p.prefixes[resource[:n]]...)
		}
	}
	slices.Sort(to)
	return to
}

// Matching returns how many rules are evaluated for a resource, and how long their slugs are
// together.
func (p *Policy) Matching(resource string) (rules, slugs int) {
	var buf [limit.MaxMatchingRules]int32
	for _, i := range p.matching(buf[:0], resource) {
		rules++
		slugs += len(p.rules[i].rule.Slug)
	}
	return rules, slugs
}

// with returns n with the limit and burst of l.
func (n number) with(l limit.Limit, source string) number {
	n.source, n.unlimited = source, l.Unlimited
	if l.WarnAt != 0 {
		n.warnAt = l.WarnAt
	}
	if l.Overage != limit.OverageUnset {
		n.numbers.Overage = l.Overage == limit.OverageAllow
	}
	if l.Metering != limit.MeterAsRule {
		n.metering = l.Metering
	}
	if l.Unlimited {
		return n
	}
	n.numbers.Limit = l.Limit
	if n.numbers.Algorithm.Bucket() {
		n.numbers.Burst = l.Burst
		if l.Burst == 0 {
			n.numbers.Burst = l.Limit
		}
	}
	return n
}

// times returns n with its limit and burst multiplied, by a factor that both ranges allow, so that
// a bucket takes as long to refill as before.
func (n number) times(factor int64) number {
	if n.unlimited {
		return n
	}
	factor = n.numbers.Algorithm.Factor(n.numbers.Limit, n.numbers.Burst, factor)
	n.numbers.Limit *= factor
	n.numbers.Burst *= factor
	return n
}

// plan returns the plan of a check: the plan that it names, or else the subject's plan, or else the
// tenant's default plan (nil if the tenant has none). ok is false for an unknown name.
func (p *Policy) plan(named string, s *subjectEntry) (plan *planNumbers, ok bool) {
	if named != "" {
		plan, ok = p.plans[named]
		return plan, ok
	}
	if s != nil && s.plan != "" {
		// A subject may still name a plan that was just deleted: it then has the default plan.
		if plan, ok = p.plans[s.plan]; ok {
			return plan.ofVersion(s.planVersion), true
		}
	}
	return p.fallback, true
}

// number returns what applies to a subject under rule i at an instant: the subject's override, or
// else the limit of the plan, or else the rule's own limit. An override replaces only the number:
// warnings, overage and metering are up to the plan, or else the rule.
func (p *Policy) number(i int32, plan *planNumbers, s *subjectEntry, nowMS int64) number {
	r := &p.rules[i]
	if o := s.override(r.rule.Slug, nowMS); o != nil {
		n := r.number.with(o.limit, "override")
		if p := plan.number(i); p != nil {
			n.warnAt, n.numbers.Overage, n.metering = p.warnAt, p.numbers.Overage, p.metering
		}
		return n
	}
	if n := plan.number(i); n != nil {
		if s != nil && s.multiplier > 1 {
			return n.times(s.multiplier)
		}
		return *n
	}
	return r.number
}

// AddSubject adds a registered subject to the policy, or removes a deleted one.
func (p *Policy) AddSubject(d SubjectData) { p.subjects.store(d) }
