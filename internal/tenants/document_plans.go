package tenants

import (
	"fmt"
	"maps"
	"slices"

	"weir/internal/limit"
)

// Plans with their limits and versions in a document.

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
		if now := r.plans[r.Plans[i].Slug]; r.before.tenant.Slug != PlatformSlug {
			r.problems = append(r.problems, fieldsOfTiersOnly(now.old, now.Plan, fmt.Sprintf("plans.%d.", i))...)
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
	r.checkRoomForPlans()
}

// checkRoomForPlans refuses a document that adds plans or limits beyond those that a tenant may
// have.
func (r *revision) checkRoomForPlans() {
	if now := len(r.plans); now > MaxPlans && now > len(r.before.plans) {
		r.wrong("plans", limit.Wrong("Remove plans from the document, or delete some that are no longer needed.",
			"would give the tenant %d plans; it may have %d", now, MaxPlans))
	}
	before, now := 0, 0
	for i := range r.before.plans {
		before += len(r.before.plans[i].Limits)
		for _, v := range r.before.plans[i].Older {
			before += len(v.Limits)
		}
	}
	for _, plan := range r.plans {
		now += len(plan.Limits)
		for _, v := range plan.Older {
			for slug := range v.Limits {
				if _, stays := r.rules[slug]; stays { // else they are deleted with the rule
					now++
				}
			}
		}
	}
	if now > MaxPlanLimits && now > before {
		r.wrong("plans", tooManyPlanLimits(int64(now)))
	}
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
