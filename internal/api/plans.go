package api

import (
	"context"
	"maps"
	"slices"
	"time"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// Limit is the limit that a plan or an override sets for a rule, as the API shows it.
type Limit struct {
	Limit     *int64 `json:"limit" doc:"Units of cost per window; null if unlimited"`
	Burst     *int64 `json:"burst" doc:"Capacity of a bucket; null: the same as limit"`
	Unlimited bool   `json:"unlimited" doc:"The rule neither counts nor denies"`
}

// PlanLimit is the limit of a plan, as the API shows it.
type PlanLimit struct {
	Limit
	WarnAt   *float64 `json:"warn_at" doc:"The share of the limit beyond which checks carry a warning; null: that of the rule"`
	Overage  *string  `json:"overage" enum:"deny,allow" doc:"Whether checks beyond the limit are denied; null: as the rule says"`
	Metering *string  `json:"metering" enum:"none,units,overage" doc:"Which units of the plan's subjects are metered and invoiced; null: as the rule says"`
}

// PlanLimitInput is the limit of a plan in a body.
type PlanLimitInput struct {
	LimitInput
	WarnAt   Optional[float64] `json:"warn_at,omitempty" doc:"A check that leaves more than this share of the limit used carries a warning: 0 to 1, with at most 4 decimal places; default: the rule's own"`
	Overage  Optional[string]  `json:"overage,omitempty" enum:"deny,allow" doc:"Whether checks beyond the limit are denied: deny, or allow, which counts the excess; default: as the rule says"`
	Metering Optional[string]  `json:"metering,omitempty" enum:"none,units,overage" doc:"Which units of the plan's subjects are invoiced: units: all; overage: those beyond the limit; none: nothing is recorded; default: as the rule says"`
}

// LimitInput is a limit in a body: a number, or unlimited.
type LimitInput struct {
	Limit     Optional[int64] `json:"limit,omitempty" doc:"Units of cost per window, in the range of the rule's algorithm; required unless unlimited"`
	Burst     Optional[int64] `json:"burst,omitempty" doc:"Capacity of a bucket, 1 to 10^9; default: the limit"`
	Unlimited Optional[bool]  `json:"unlimited,omitempty" doc:"The rule neither counts nor denies; cannot be combined with limit or burst"`
}

// Plan is a billing tier, as the API shows it.
type Plan struct {
	ID            string               `json:"id" format:"uuid"`
	Slug          string               `json:"slug" doc:"Cannot be changed"`
	Name          string               `json:"name"`
	Description   string               `json:"description"`
	Default       bool                 `json:"default" doc:"The plan of subjects without a plan"`
	OnChange      string               `json:"on_change" enum:"carry,reset,scale" doc:"What happens to the counters of a subject that gets the plan"`
	Fail          string               `json:"fail" enum:"closed,open" doc:"Only of the operator's tenant, whose plans are tiers: what checks of a tenant over its quota get"`
	Bounds        TierBounds           `json:"bounds" doc:"Only of the operator's tenant, whose plans are tiers: what a tenant may have"`
	Limits        map[string]PlanLimit `json:"limits" doc:"Those of the newest version, by the slug of the rule; an omitted rule keeps its own limit"`
	NewestVersion int64                `json:"newest_version" doc:"Number of the newest version"`
	CreatedAt     time.Time            `json:"created_at"`
	UpdatedAt     time.Time            `json:"updated_at"`
	Version       int64                `json:"version"`
	Warned
}

// PlanLimitAnswer is the answer to a write of one limit of a plan.
type PlanLimitAnswer struct {
	PlanLimit
	Warned
}

// PlanFields are the optional fields of a plan.
type PlanFields struct {
	Name        Optional[string] `json:"name,omitempty" doc:"Up to 200 characters; default: the slug"`
	Description Optional[string] `json:"description,omitempty" doc:"Up to 2000 characters"`
	Default     Optional[bool]   `json:"default,omitempty" doc:"true makes it the default plan instead of the current one; false is invalid for the default plan. The first plan of a tenant is always the default"`
	OnChange    Optional[string] `json:"on_change,omitempty" enum:"carry,reset,scale" doc:"What happens to the counters of a subject that gets the plan: carry: usage is kept; reset: usage starts at zero; scale: the used share of each limit is kept, rounded up. Default carry"`
	Fail        Optional[string] `json:"fail,omitempty" enum:"closed,open" doc:"Only of the operator's tenant, whose plans are tiers: what checks of a tenant over its quota get: closed (default): 429 TENANT_QUOTA_EXCEEDED; open: they pass"`

	Bounds Optional[TierBoundsInput] `json:"bounds,omitempty" doc:"Only of the operator's tenant, whose plans are tiers: what a tenant may have. An omitted field has no bound"`
}

// PlanCreate is the body of POST /v1/plans.
type PlanCreate struct {
	Slug string `json:"slug" doc:"1 to 63 of a-z, 0-9 and -; cannot be changed later"`
	PlanFields
	Limits Optional[map[string]PlanLimitInput] `json:"limits,omitempty" doc:"By the slug of the rule"`
}

// PlanPut is the body of PUT /v1/plans/{plan}: the path names the plan.
type PlanPut struct {
	Slug Optional[string] `json:"slug,omitempty" doc:"If sent, must equal the path"`
	PlanFields
	Limits Optional[map[string]PlanLimitInput] `json:"limits,omitempty" doc:"By the slug of the rule; default: none"`
}

// PlanPatch is the merge patch of PATCH /v1/plans/{plan}.
type PlanPatch struct {
	Slug Optional[string] `json:"slug,omitempty" doc:"Cannot be changed"`
	PlanFields
	Limits Optional[map[string]Optional[PlanLimitInput]] `json:"limits,omitempty" doc:"By the slug of the rule; null deletes one"`
}

// PlanPath names a plan.
type PlanPath struct {
	Plan string `path:"plan" doc:"Slug of the plan"`
}

// PlanLimitPath names the limit of a plan for a rule.
type PlanLimitPath struct {
	PlanPath
	RulePath
}

func planLocation(slug string) string { return "/v1/plans/" + slug }

func limitAnswer(l limit.Limit) Limit {
	return Limit{Limit: optionalInt(l.Limit), Burst: optionalInt(l.Burst), Unlimited: l.Unlimited}
}

func planLimitAnswer(l limit.Limit) PlanLimit {
	return PlanLimit{Limit: limitAnswer(l), WarnAt: l.WarnAt.Value(), Overage: optionalText(l.Overage.String()), Metering: optionalText(l.Metering.String())}
}

func planAnswer(p tenants.Plan) Plan {
	return Plan{
		ID: p.ID.String(), Slug: p.Slug, Name: p.Name, Description: p.Description, Default: p.Default, OnChange: p.OnChange, Fail: p.Fail, Bounds: boundsAnswer(p.Bounds),
		Limits: limitsAnswer(p.Limits), NewestVersion: int64(p.NewestVersion), CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, Version: p.Version,
	}
}

// patch returns the limit after a merge patch. present is the zero Limit if the limit is new. An
// explicit 0 in the body is refused here, because 0 means "not given" in limit.Limit.
func (in LimitInput) patch(present limit.Limit, pointer string, errs *[]ProblemField) limit.Limit {
	for _, f := range []struct {
		name string
		n    Optional[int64]
	}{{"limit", in.Limit}, {"burst", in.Burst}} {
		if f.n.Set && !f.n.Null && f.n.Value == 0 {
			*errs = append(*errs, wrongField(pointer+"/"+f.name, limit.Wrong("To turn a rule off, set its mode to off; to deny a subject everything, block it.", "must be a whole number of at least 1")))
		}
	}
	return limit.Limit{
		Limit:     in.Limit.patch(present.Limit, 0),
		Burst:     in.Burst.patch(present.Burst, 0),
		Unlimited: in.Unlimited.patch(present.Unlimited, false),
	}
}

// patch is LimitInput.patch for the limit of a plan.
func (in PlanLimitInput) patch(present limit.Limit, pointer string, errs *[]ProblemField) limit.Limit {
	l := in.LimitInput.patch(present, pointer, errs)
	l.WarnAt = present.WarnAt
	if in.WarnAt.Null {
		l.WarnAt = 0
	} else if in.WarnAt.Set {
		share, err := limit.PortionOf(in.WarnAt.Value)
		if err != nil {
			*errs = append(*errs, wrongField(pointer+"/warn_at", limit.ProblemOf(err)))
		}
		l.WarnAt = share
	}
	l.Overage = patchName(in.Overage, present.Overage, limit.ParseOverage, pointer+"/overage", errs)
	l.Metering = patchName(in.Metering, present.Metering, limit.ParsePlanMetering, pointer+"/metering", errs)
	return l
}

// patchName returns a choice after a merge patch; null unsets it.
func patchName[T any](in Optional[string], present T, parse func(string) (T, error), pointer string, errs *[]ProblemField) (unset T) {
	switch {
	case in.Null:
		return unset
	case !in.Set:
		return present
	}
	value, err := parse(in.Value)
	if err != nil {
		*errs = append(*errs, wrongField(pointer, limit.ProblemOf(err)))
	}
	return value
}

func limitsOf(in Optional[map[string]PlanLimitInput]) (map[string]limit.Limit, []ProblemField) {
	limits := map[string]limit.Limit{}
	var errs []ProblemField
	for _, rule := range slices.Sorted(maps.Keys(in.or(nil))) {
		limits[rule] = in.Value[rule].patch(limit.Limit{}, "/limits/"+escapePointer(rule), &errs)
	}
	return limits, errs
}

func invalidIfAny(errs []ProblemField) error {
	if len(errs) == 0 {
		return nil
	}
	return invalid(errs...)
}

func (a *admin) listPlans(ctx context.Context, in *struct{ PageParams }) (*page[Plan], error) {
	return listPage(ctx, a, "plans", in.PageParams, planAnswer, func(p tenants.Page) ([]tenants.Plan, string, error) {
		return a.store.Plans(ctx, actorFrom(ctx), p)
	})
}

// planWritten returns the answer to a write.
func (a *admin) planWritten(ctx context.Context, p tenants.Plan) Plan {
	answer := planAnswer(p)
	answer.Warned = a.planWarnings(ctx, p)
	return answer
}

func newPlan(slug string, f PlanFields) (tenants.Plan, []ProblemField) {
	var errs []ProblemField
	bounds := patchBounds(tenants.Bounds{}, f.Bounds, &errs)
	return tenants.Plan{
		Slug: slug, Name: f.Name.or(slug), Description: f.Description.or(""), Default: f.Default.or(false),
		NotDefault: f.Default.given() && !f.Default.Value, OnChange: f.OnChange.or(tenants.OnChangeCarry), Fail: f.Fail.or(tenants.FailClosed), Bounds: bounds,
	}, errs
}

func (a *admin) createPlan(ctx context.Context, in *struct{ Body PlanCreate }) (*object[Plan], error) {
	p, errs := newPlan(in.Body.Slug, in.Body.PlanFields)
	limits, wrong := limitsOf(in.Body.Limits)
	if err := invalidIfAny(append(errs, wrong...)); err != nil {
		return nil, err
	}
	p.Limits = limits
	made, err := a.store.CreatePlan(ctx, actorFrom(ctx), p)
	if err != nil {
		return nil, err
	}
	return stored(a.planWritten(ctx, made), made.Version, true, planLocation(made.Slug)), nil
}

func (a *admin) getPlan(ctx context.Context, in *PlanPath) (*object[Plan], error) {
	p, err := a.store.PlanBySlug(ctx, actorFrom(ctx), in.Plan)
	if err != nil {
		return nil, err
	}
	return found(planAnswer(p), p.Version), nil
}

func (a *admin) putPlan(ctx context.Context, in *struct {
	PlanPath
	Body PlanPut
}) (*object[Plan], error) {
	p, errs := newPlan(in.Plan, in.Body.PlanFields)
	limits, wrong := limitsOf(in.Body.Limits)
	p.Limits, errs = limits, append(errs, wrong...)
	errs = append(errs, mismatch(in.Body.Slug, "/slug", in.Plan)...)
	if err := invalidIfAny(errs); err != nil {
		return nil, err
	}
	put, created, err := a.store.PutPlan(ctx, actorFrom(ctx), p, conditionsFrom(ctx).match)
	if err != nil {
		return nil, pathField(err, "/slug", "plan")
	}
	return stored(a.planWritten(ctx, put), put.Version, created, planLocation(put.Slug)), nil
}

func (a *admin) patchPlan(ctx context.Context, in *struct {
	PlanPath
	Body PlanPatch
}) (*object[Plan], error) {
	p, err := a.store.EditPlan(ctx, actorFrom(ctx), in.Plan, conditionsFrom(ctx).match, func(p *tenants.Plan) error {
		b := &in.Body
		p.Name = b.Name.patch(p.Name, p.Slug)
		p.Description = b.Description.patch(p.Description, "")
		p.Default = b.Default.patch(p.Default, false)
		p.OnChange = b.OnChange.patch(p.OnChange, tenants.OnChangeCarry)
		p.Fail = b.Fail.patch(p.Fail, tenants.FailClosed)
		errs := mismatch(b.Slug, "/slug", in.Plan)
		p.Bounds = patchBounds(p.Bounds, b.Bounds, &errs)
		p.Limits = patchLimits(p.Limits, b.Limits, &errs)
		return invalidIfAny(errs)
	})
	if err != nil {
		return nil, err
	}
	return found(a.planWritten(ctx, p), p.Version), nil
}

// patchLimits merges a patch into the limits of a plan: null removes a rule's limit, and omitted
// fields are unchanged.
func patchLimits(present map[string]limit.Limit, patch Optional[map[string]Optional[PlanLimitInput]], errs *[]ProblemField) map[string]limit.Limit {
	if patch.Null {
		return map[string]limit.Limit{}
	}
	limits := maps.Clone(present)
	if limits == nil {
		limits = map[string]limit.Limit{}
	}
	for _, rule := range slices.Sorted(maps.Keys(patch.Value)) {
		if l := patch.Value[rule]; l.Null {
			delete(limits, rule)
		} else {
			limits[rule] = l.Value.patch(limits[rule], "/limits/"+escapePointer(rule), errs)
		}
	}
	return limits
}

func (a *admin) deletePlan(ctx context.Context, in *PlanPath) error {
	return a.store.DeletePlan(ctx, actorFrom(ctx), in.Plan, conditionsFrom(ctx).match)
}

// getPlanLimit returns the limit. Its entity tag is that of the plan, as for a write.
func (a *admin) getPlanLimit(ctx context.Context, in *PlanLimitPath) (*object[PlanLimitAnswer], error) {
	p, err := a.store.PlanBySlug(ctx, actorFrom(ctx), in.Plan)
	if err != nil {
		return nil, err
	}
	lim, given := p.Limits[in.Rule]
	if !given {
		return nil, tenants.ErrNotFound
	}
	return found(PlanLimitAnswer{PlanLimit: planLimitAnswer(lim)}, p.Version), nil
}

// putPlanLimit sets the limit. Its entity tag is that of the plan, of which it is a part.
func (a *admin) putPlanLimit(ctx context.Context, in *struct {
	PlanLimitPath
	Body PlanLimitInput
}) (*object[PlanLimitAnswer], error) {
	var errs []ProblemField
	lim := in.Body.patch(limit.Limit{}, "", &errs)
	if len(errs) > 0 {
		return nil, invalid(errs...)
	}
	p, created, err := a.store.PutPlanLimit(ctx, actorFrom(ctx), in.Plan, in.Rule, lim, conditionsFrom(ctx).match)
	if err != nil {
		return nil, err
	}
	location := planLocation(p.Slug) + "/limits/" + in.Rule
	answer := PlanLimitAnswer{PlanLimit: planLimitAnswer(p.Limits[in.Rule]), Warned: a.oneLimitWarnings(ctx, in.Rule, p.Limits[in.Rule])}
	return stored(answer, p.Version, created, location), nil
}

func (a *admin) deletePlanLimit(ctx context.Context, in *PlanLimitPath) error {
	return a.store.DeletePlanLimit(ctx, actorFrom(ctx), in.Plan, in.Rule, conditionsFrom(ctx).match)
}
