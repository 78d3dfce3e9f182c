package tenants

import (
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
func (c *change) revise(ctx context.Context, d *Document, how Apply, logo *preparedLogo) (*revision, error) {
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
	if err := r.revisePortal(logo); err != nil {
		return nil, err
	}
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

// revisePortal compares the settings of the customer page with the document. If its logo was not
// prepared, the error is unpreparedLogo.
func (r *revision) revisePortal(logo *preparedLogo) error {
	if r.EditPortal == nil {
		return nil
	}
	now := r.before.portal
	now.FrameOrigins, now.OfferedPlans = slices.Clone(now.FrameOrigins), slices.Clone(now.OfferedPlans)
	r.EditPortal(&now)
	fields := now.clean(func(slug string) bool { return r.plans[slug] != nil && !r.plans[slug].goes })
	wrong, err := now.cleanLogo(&r.before.portal, logo)
	if err != nil {
		return err
	}
	r.problems = append(r.problems, prefixed("portal.", append(fields, wrong...))...)
	if r.update("portal", "customer page", portalFields(&r.before.portal), portalFields(&now)) {
		r.newPortal = &now
	}
	return nil
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
