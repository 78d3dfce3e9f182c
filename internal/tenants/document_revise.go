package tenants

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants/db"
)

// revision has all changes of a document, computed before anything is written. Invalid documents
// are therefore refused without blocking others, and a dry run is identical up to this point.
type revision struct {
	*Document
	prune    bool
	before   configuration
	changes  []DocumentChange
	problems []limit.FieldError
	tier     Tier // whose bounds new rules must fit
	overTier int  // how many of the problems are bounds of the tier

	// The state after the change, by slug.
	rules map[string]Rule
	plans map[string]*revisedPlan

	newRules, editedRules, goneRules    []Rule
	newRoutes, editedRoutes, goneRoutes []Route
	renumbered                          map[string]int // rules whose limits may no longer be valid, with their index in the document
	goneDefault                         bool           // a plan is no longer the default

	editedEndpoints []BillingEndpoint
	putPrices       []BillingPrice
	gonePrices      []string

	newPortal *Portal // nil: its settings do not change

	subjects []*revisedSubject // those in the document
	gone     []Subject
}

type revisedPlan struct {
	Plan                   // after the change
	old      *Plan         // nil: new
	edited   bool          // its own fields change
	relimits bool          // its limits change
	goes     bool          // it will be deleted
	rules    []string      // for which the document has limits
	kept     []PlanVersion // existing older versions that are not in the document
}

type revisedSubject struct {
	Subject          // from the document
	old     *Subject // nil: new
	edited  bool     // its own fields change
	put     []Override
	drop    []string // rules
}

func (r *revision) wrong(field string, p *limit.Problem) {
	r.problems = append(r.problems, limit.FieldProblem(field, p))
}

// revise compares the tenant with the document.
func (c *change) revise(ctx context.Context, d *Document, how Apply) (*revision, error) {
	before, err := readConfiguration(ctx, c.Queries, c.tenant)
	if err != nil {
		return nil, err
	}
	versions := []int64{before.version(true)}
	if d.Subjects == nil {
		versions = append(versions, before.version(false))
	}
	if err := how.Match.check(versions...); err != nil {
		return nil, err
	}
	// Errors of the document are reported together with conflicts with the existing state.
	r := &revision{Document: d, prune: how.Prune, before: before, problems: d.validate()}
	if r.tier, err = c.tierOf(ctx); err != nil {
		return nil, err
	}
	r.reviseTenant()
	r.reviseRules()
	r.reviseRoutes()
	r.revisePlans()
	r.reviseBilling()
	r.revisePortal()
	if err := c.reviseSubjects(ctx, r); err != nil {
		return nil, err
	}
	if err := c.checkRefs(ctx, r); err != nil {
		return nil, err
	}
	if err := c.checkKeptOverrides(ctx, r); err != nil {
		return nil, err
	}
	if err := c.checkGonePlans(ctx, r); err != nil {
		return nil, err
	}
	if err := c.checkCredits(ctx, r); err != nil {
		return nil, err
	}
	return r, r.refusal()
}

func (r *revision) reviseTenant() {
	old := r.before.tenant.Name
	if r.TenantName == nil {
		r.TenantName = &old
	}
	r.update("tenant", r.before.tenant.Slug, []field{{"name", old}}, []field{{"name", *r.TenantName}})
}

// revisePortal compares the settings of the customer page with the document.
func (r *revision) revisePortal() {
	if r.EditPortal == nil {
		return
	}
	now := r.before.portal
	now.FrameOrigins, now.OfferedPlans = slices.Clone(now.FrameOrigins), slices.Clone(now.OfferedPlans)
	r.EditPortal(&now)
	fields := now.clean(func(slug string) bool { return r.plans[slug] != nil && !r.plans[slug].goes })
	r.problems = append(r.problems, prefixed("portal.", append(fields, now.cleanLogo(&r.before.portal)...))...)
	if r.update("portal", "customer page", portalFields(&r.before.portal), portalFields(&now)) {
		r.newPortal = &now
	}
}

func (r *revision) reviseRules() {
	r.rules, r.renumbered = map[string]Rule{}, map[string]int{}
	for _, old := range r.before.rules {
		r.rules[old.Slug] = old
	}
	rematch := false
	named := map[string]bool{}
	for i, in := range r.Rules {
		named[in.Slug] = true
		old, had := r.rules[in.Slug]
		now := Rule{Rule: in, ID: old.ID}
		if !had {
			now.ID = newID()
			r.newRules = append(r.newRules, now)
			r.create("rule", in.Slug, "", ruleFields(&in))
		} else if !reflect.DeepEqual(ruleParams(uuid.Nil, old.ID, old.Rule, 0), ruleParams(uuid.Nil, old.ID, in, 0)) {
			r.editedRules = append(r.editedRules, now)
			r.update("rule", in.Slug, ruleFields(&old.Rule), ruleFields(&in))
			if refitted(&old.Rule, &in) != "" {
				r.renumbered[in.Slug] = i
			}
		}
		rematch = rematch || !had || old.Resource != in.Resource || old.Mode != in.Mode
		r.rules[in.Slug] = now
	}
	for _, old := range r.before.rules {
		if r.prune && r.Rules != nil && !named[old.Slug] {
			r.goneRules = append(r.goneRules, old)
			delete(r.rules, old.Slug)
			r.remove("rule", old.Slug, ", with the limits that plans give it and its overrides", ruleFields(&old.Rule))
		}
	}
	if len(r.rules) > limit.MaxRules {
		r.wrong("rules", limit.Wrong("Remove rules from the document, or delete some that are no longer needed.",
			"would give the tenant %d rules; it may have %d", len(r.rules), limit.MaxRules))
	} else if rematch {
		r.checkMatching()
	}
	r.checkTier()
}

func (r *revision) reviseRoutes() {
	old := make(map[string]Route, len(r.before.routes))
	for _, o := range r.before.routes {
		old[o.Slug] = o
	}
	named := map[string]bool{}
	for i := range r.Routes {
		in := r.Routes[i]
		named[in.Slug] = true
		before, had := old[in.Slug]
		switch {
		case !had:
			r.newRoutes = append(r.newRoutes, Route{Route: in, ID: newID()})
			r.create("route", in.Slug, "", routeFields(in))
		case !sameRoute(before.Route, in):
			r.editedRoutes = append(r.editedRoutes, Route{Route: in, ID: before.ID})
			r.update("route", in.Slug, routeFields(before.Route), routeFields(in))
		}
	}
	for _, o := range r.before.routes {
		if r.prune && r.Routes != nil && !named[o.Slug] {
			r.goneRoutes = append(r.goneRoutes, o)
			r.remove("route", o.Slug, "", routeFields(o.Route))
		}
	}
	if n := len(old) + len(r.newRoutes) - len(r.goneRoutes); n > route.MaxRoutes {
		r.wrong("routes", limit.Wrong("Remove routes from the document, or delete some that are no longer needed.",
			"would give the tenant %d routes; it may have %d", n, route.MaxRoutes))
	}
}

// checkMatching reports a rule if too many rules match one check.
func (r *revision) checkMatching() {
	if most, pattern := limit.MaxMatching(r.sortedRules()); most > limit.MaxMatchingRules {
		r.wrong(r.matchedAt(pattern), tooManyMatch(most, pattern))
	}
}

// sortedRules returns the rules after the change, by slug.
func (r *revision) sortedRules() []limit.Rule {
	all := make([]limit.Rule, 0, len(r.rules))
	for _, slug := range slices.Sorted(maps.Keys(r.rules)) {
		all = append(all, r.rules[slug].Rule)
	}
	return all
}

// matchedAt returns the field of the document that lets rules match a pattern.
func (r *revision) matchedAt(pattern string) string {
	at := slices.IndexFunc(r.Rules, func(in limit.Rule) bool { return in.Resource == pattern })
	if at < 0 { // the pattern is that of an existing rule; rules of the document match it by a prefix
		at = slices.IndexFunc(r.Rules, func(in limit.Rule) bool {
			return strings.HasPrefix(pattern, strings.TrimSuffix(in.Resource, "*"))
		})
	}
	return fmt.Sprintf("rules.%d.resource", max(at, 0))
}

func (r *revision) revisePlans() {
	r.plans = map[string]*revisedPlan{}
	for i := range r.before.plans {
		old := &r.before.plans[i]
		now := &revisedPlan{Plan: *old, old: old, goes: r.prune && r.Plans != nil}
		now.Limits = maps.Clone(old.Limits)
		for _, rule := range r.goneRules { // their limits are deleted with them
			delete(now.Limits, rule.Slug)
		}
		r.plans[old.Slug] = now
	}
	standard := r.defaultPlan()
	for i := range r.Plans {
		in := &r.Plans[i]
		now, had := r.plans[in.Slug]
		if !had {
			now = &revisedPlan{Plan: Plan{ID: newID(), Slug: in.Slug, Limits: map[string]limit.Limit{}}}
			r.plans[in.Slug] = now
		}
		now.Name, now.Description, now.OnChange, now.Fail, now.Bounds, now.goes = in.Name, in.Description, in.OnChange, in.Fail, in.Bounds, false
	}
	for i := range r.Plans {
		if now := r.plans[r.Plans[i].Slug]; r.before.tenant.Slug != PlatformSlug && now.Bounds != (Bounds{}) && (now.old == nil || now.Bounds != now.old.Bounds) {
			r.problems = append(r.problems, limit.FieldProblem(fmt.Sprintf("plans.%d.bounds", i), boundsOfTiersOnly()))
		}
	}
	for slug, now := range r.plans {
		now.Default = slug == standard
	}
	for i := range r.Plans {
		r.revisePlan(i)
	}
	for i := range r.before.plans {
		old := &r.before.plans[i]
		now := r.plans[old.Slug]
		r.goneDefault = r.goneDefault || old.Default && !now.Default
		if now.goes {
			r.remove("plan", old.Slug, ", with its limits", planFields(old, true))
			delete(r.plans, old.Slug)
		} else if !slices.ContainsFunc(r.Plans, func(p Plan) bool { return p.Slug == old.Slug }) {
			r.update("plan", old.Slug, planFields(old, false), planFields(&now.Plan, false)) // it may no longer be the default
		}
	}
	r.checkKeptLimits()
}

// defaultPlan returns the default plan after the change: that of the document, or else the current
// one, or else, if there are no plans yet, the first one of the document.
func (r *revision) defaultPlan() string {
	for i := range r.Plans {
		if r.Plans[i].Default {
			return r.Plans[i].Slug
		}
	}
	for _, old := range r.before.plans {
		if !old.Default {
			continue
		}
		stays := !r.plans[old.Slug].goes || slices.ContainsFunc(r.Plans, func(p Plan) bool { return p.Slug == old.Slug })
		if !stays && len(r.Plans) > 0 {
			r.wrong("plans", limit.Wrong("Keep the plan, or make another one the default.", "omit the default plan %s", old.Slug))
		}
		return old.Slug
	}
	if len(r.Plans) > 0 {
		return r.Plans[0].Slug
	}
	return ""
}

// revisePlan computes the changes of a plan.
func (r *revision) revisePlan(i int) {
	in := &r.Plans[i]
	now := r.plans[in.Slug]
	if in.NotDefault && now.Default && now.old != nil {
		r.wrong(fmt.Sprintf("plans.%d.default", i), limit.Wrong("Make another plan the default.", "cannot be false: this is the default plan, and the document names no other"))
	}
	r.reviseVersions(i, now)
	if now.old != nil {
		now.edited = r.update("plan", in.Slug, planFields(now.old, false), planFields(&now.Plan, false))
	}
	for _, slug := range slices.Sorted(maps.Keys(in.Limits)) {
		at := fmt.Sprintf("plans.%d.limits.%s", i, slug)
		rule, exists := r.rules[slug]
		if !exists {
			r.wrong(at, noSuchRule)
			continue
		}
		lim := in.Limits[slug]
		old, had := now.Limits[slug]
		now.rules = append(now.rules, slug)
		now.Limits[slug] = lim
		if _, renumbered := r.renumbered[slug]; had && old == lim && !renumbered {
			continue
		}
		r.problems = append(r.problems, prefixed(at+".", lim.Validate(&rule.Rule))...)
		switch {
		case now.old == nil: // part of the created plan
		case !had:
			now.relimits = true
			r.create("plan_limit", in.Slug+"/"+slug, "", planLimitFields(lim))
		case old != lim:
			now.relimits = true
			r.update("plan_limit", in.Slug+"/"+slug, planLimitFields(old), planLimitFields(lim))
		}
	}
	if r.prune && in.Limits != nil {
		for _, slug := range slices.Sorted(maps.Keys(now.Limits)) {
			if _, stays := in.Limits[slug]; !stays {
				now.relimits = true
				r.remove("plan_limit", in.Slug+"/"+slug, "", planLimitFields(now.Limits[slug]))
				delete(now.Limits, slug)
			}
		}
	}
	if now.old == nil {
		r.create("plan", in.Slug, "", planFields(&now.Plan, true))
	}
}

// reviseVersions computes the versions of a plan of the document: a greater newest_version
// publishes a version.
func (r *revision) reviseVersions(i int, now *revisedPlan) {
	in, at := &r.Plans[i], fmt.Sprintf("plans.%d.", i)
	switch {
	case now.old == nil:
		now.NewestVersion = max(in.NewestVersion, 1)
	case in.NewestVersion == 0 || in.NewestVersion == now.old.NewestVersion:
		now.kept = now.old.Older
	case in.NewestVersion < now.old.NewestVersion:
		r.wrong(at+"newest_version", limit.Wrong("Omit it, or send the present number, or a greater one to publish a new version.",
			"cannot be less than %d, the newest version of this plan", now.old.NewestVersion))
	default:
		now.NewestVersion = in.NewestVersion
		now.kept = append([]PlanVersion{{Number: now.old.NewestVersion, Limits: now.old.Limits}}, now.old.Older...)
	}
	now.Older = slices.Clone(now.kept)
	seen := map[int]bool{}
	for _, v := range in.Older {
		at, name := fmt.Sprintf("%solder_versions.%d", at, v.Number), fmt.Sprintf("%s/%d", in.Slug, v.Number)
		if v.Number < 1 || v.Number >= now.NewestVersion || seen[v.Number] {
			r.wrong(at, limit.Wrong("Send the number of an older version, each once.", "must be from 1 to %d, below newest_version", now.NewestVersion-1))
			continue
		}
		seen[v.Number] = true
		for _, slug := range slices.Sorted(maps.Keys(v.Limits)) {
			if rule, exists := r.rules[slug]; exists {
				r.problems = append(r.problems, prefixed(at+"."+slug+".", new(v.Limits[slug]).Validate(&rule.Rule))...)
			} else {
				r.wrong(at+"."+slug, noSuchRule)
			}
		}
		switch old := now.older(v.Number); {
		case now.old == nil:
			now.Older = append(now.Older, v) // part of the created plan
		case old == nil:
			now.Older, now.relimits = append(now.Older, v), true
			r.create("plan_version", name, "", versionFields(v.Limits))
		case !maps.Equal(old.Limits, v.Limits):
			r.changes = append(r.changes, DocumentChange{
				Action: "update", Kind: "plan_version", Name: name, Before: asMap(versionFields(old.Limits)), After: asMap(versionFields(v.Limits)),
				Text: "Change " + title("plan_version", name) + ".",
			})
			*old, now.relimits = v, true
		}
	}
	if len(now.Older) > MaxOlderVersions {
		r.wrong(at+"older_versions", limit.Wrong("Delete versions that no subject has.", "may be at most %d", MaxOlderVersions))
	}
}

// checkKeptLimits refuses a change of a rule that would make a limit invalid that is not in the
// document.
func (r *revision) checkKeptLimits() {
	for _, slug := range slices.Sorted(maps.Keys(r.renumbered)) {
		rule := r.rules[slug]
		for _, plan := range slices.Sorted(maps.Keys(r.plans)) {
			now := r.plans[plan]
			lim, has := now.Limits[slug]
			if has && !slices.Contains(now.rules, slug) {
				r.misfit(slug, "plan "+plan, lim.Validate(&rule.Rule))
			}
			for _, v := range now.Older {
				if lim, has := v.Limits[slug]; has {
					r.misfit(slug, fmt.Sprintf("plan %s (version %d)", plan, v.Number), lim.Validate(&rule.Rule))
				}
			}
		}
	}
}

// misfit returns the error that a changed field of a rule does not fit an existing limit.
func (r *revision) misfit(slug, whose string, problems []limit.FieldError) {
	i := r.renumbered[slug]
	name := ""
	for _, old := range r.before.rules {
		if old.Slug == slug {
			name = refitted(&old.Rule, &r.Rules[i])
		}
	}
	for _, problem := range problems {
		r.wrong(fmt.Sprintf("rules.%d.%s", i, name), misfit(whose, problem))
	}
}

func (c *change) reviseSubjects(ctx context.Context, r *revision) error {
	if slices.ContainsFunc(r.Subjects, func(in Subject) bool { return limit.ValidName(in.Subject) != nil }) {
		r.Subjects = nil // they have errors already, and Postgres could not store them
	}
	if r.Subjects == nil {
		return nil
	}
	var names []string // nil: all
	if !r.prune {
		names = make([]string, len(r.Subjects))
		for i := range r.Subjects {
			names[i] = r.Subjects[i].Subject
		}
	}
	stored, err := readSubjects(ctx, c.Queries, c.tenant, names)
	if err != nil {
		return err
	}
	if len(stored) > MaxDocumentSubjects {
		r.wrong("subjects", limit.Wrong("Apply the document without prune, or delete subjects one by one.", "cannot be pruned: the tenant has more than %d", MaxDocumentSubjects))
		return nil
	}
	old := make(map[string]*Subject, len(stored))
	for i := range stored {
		old[stored[i].Subject] = &stored[i]
	}
	for i := range r.Subjects {
		in := &r.Subjects[i]
		c.reviseSubject(r, i, old[in.Subject])
		delete(old, in.Subject)
	}
	if r.prune {
		for _, name := range slices.Sorted(maps.Keys(old)) {
			r.gone = append(r.gone, *old[name])
			r.remove("subject", name, ", with its overrides", subjectFields(old[name], true))
		}
	}
	return nil
}

// reviseSubject computes the changes of a subject; old is nil if it is not registered.
func (c *change) reviseSubject(r *revision, i int, old *Subject) {
	at := fmt.Sprintf("subjects.%d.", i)
	now := &revisedSubject{Subject: r.Subjects[i], old: old}
	r.subjects = append(r.subjects, now)
	if now.Plan != "" && (r.plans[now.Plan] == nil) {
		r.wrong(at+"plan", noSuchPlan)
	} else if now.Plan != "" {
		if p := r.plans[now.Plan].chooseVersion(&now.Subject, old); p != nil {
			r.wrong(at+"plan_version", p)
		}
	}
	if old != nil {
		now.migration = old.migration
		now.NextPlan, now.NextPlanAt = old.NextPlan, old.NextPlanAt // scheduled changes are not part of a document
		now.edited = r.update("subject", now.Subject.Subject, subjectFields(old, false), subjectFields(&now.Subject, false))
	}
	slices.SortFunc(now.Overrides, func(a, b Override) int { return cmp.Compare(a.Rule, b.Rule) })
	named := map[string]bool{}
	for _, o := range now.Overrides {
		named[o.Rule] = true
		c.reviseOverride(r, now, at+"overrides."+o.Rule, o)
	}
	if old == nil {
		r.create("subject", now.Subject.Subject, "", subjectFields(&now.Subject, true))
		return
	}
	for _, o := range old.Overrides {
		_, stays := r.rules[o.Rule]
		if r.prune && now.Overrides != nil && stays && !named[o.Rule] && !o.over(c.now) {
			now.drop = append(now.drop, o.Rule)
			r.remove("override", now.Subject.Subject+"/"+o.Rule, "", overrideFields(o))
		}
	}
}

func (c *change) reviseOverride(r *revision, now *revisedSubject, at string, o Override) {
	rule, exists := r.rules[o.Rule]
	if !exists {
		r.wrong(at, noSuchRule)
		return
	}
	o.StartsAt, o.ExpiresAt = stored(o.StartsAt), stored(o.ExpiresAt)
	var before Override
	had := false
	if now.old != nil {
		before, had = now.old.override(o.Rule)
	}
	same := had && before.same(o)
	if _, renumbered := r.renumbered[o.Rule]; !same || renumbered {
		r.problems = append(r.problems, prefixed(at+".", o.Limit.Validate(&rule.Rule))...)
	}
	if same { // an expired override may be in a document if the tenant has exactly this one
		return
	}
	r.problems = append(r.problems, prefixed(at+".", o.validate(c.now))...)
	now.put = append(now.put, o)
	switch {
	case now.old == nil: // part of the created subject
	case !had:
		r.create("override", now.Subject.Subject+"/"+o.Rule, "", overrideFields(o))
	default:
		r.update("override", now.Subject.Subject+"/"+o.Rule, overrideFields(before), overrideFields(o))
	}
}

// checkKeptOverrides refuses a change of a rule that would make an override invalid that is not in
// the document.
func (c *change) checkKeptOverrides(ctx context.Context, r *revision) error {
	for _, slug := range slices.Sorted(maps.Keys(r.renumbered)) {
		but := []string{}
		for _, s := range r.gone {
			but = append(but, s.Subject)
		}
		for _, s := range r.subjects {
			if _, given := s.override(slug); given || slices.Contains(s.drop, slug) {
				but = append(but, s.Subject.Subject)
			}
		}
		rule := r.rules[slug]
		numbers, err := c.RuleOverrideNumbers(ctx, db.RuleOverrideNumbersParams{TenantID: c.tenant, RuleID: rule.ID, Now: &c.now, But: but})
		if err != nil {
			return err
		}
		for _, n := range numbers {
			r.misfit(slug, "subject "+n.Subject, limitOf(n.LimitUnits, n.BurstUnits, n.Unlimited).Validate(&rule.Rule))
		}
	}
	return nil
}

// checkCredits refuses to delete rules for which subjects have credits, and to change them so that
// checks could not spend these.
func (c *change) checkCredits(ctx context.Context, r *revision) error {
	for _, old := range r.goneRules {
		held, err := c.creditsHeld(ctx, old.ID)
		if err != nil {
			return err
		}
		if held != "" {
			r.wrong("rules", limit.Wrong("Keep the rule, or revoke the credits first.", "omit rule %s, for which %s", old.Slug, held))
		}
	}
	before := map[string]Rule{}
	for _, old := range r.before.rules {
		before[old.Slug] = old
	}
	for i := range r.Rules {
		old, had := before[r.Rules[i].Slug]
		if !had {
			continue
		}
		field, problem, err := c.losesCredits(ctx, old, &r.Rules[i])
		if err != nil {
			return err
		}
		if problem != nil {
			r.wrong(fmt.Sprintf("rules.%d.%s", i, field), problem)
		}
	}
	return nil
}

// checkGonePlans refuses to delete plans that subjects have after the change.
func (c *change) checkGonePlans(ctx context.Context, r *revision) error {
	var ids []uuid.UUID
	for _, old := range r.before.plans {
		if r.plans[old.Slug] == nil {
			ids = append(ids, old.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	but := []string{}
	for _, s := range r.gone {
		but = append(but, s.Subject)
	}
	for _, s := range r.subjects { // their plan exists, or is reported already
		but = append(but, s.Subject.Subject)
	}
	used, err := c.DocumentPlansInUse(ctx, db.DocumentPlansInUseParams{TenantID: c.tenant, PlanIds: ids, But: but})
	if err != nil {
		return err
	}
	slices.Sort(used)
	for _, slug := range used {
		r.wrong("plans", limit.Wrong("Keep the plan, or give its subjects another one first.", "omit plan %s, which subjects have", slug))
	}
	return nil
}
