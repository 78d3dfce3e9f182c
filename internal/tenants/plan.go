package tenants

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// Plan is a billing tier: the limits that it sets for rules.
type Plan struct {
	ID                      uuid.UUID
	Slug, Name, Description string
	Default                 bool // the plan of subjects without their own plan
	// OnChange is what happens to the counters of a subject that gets the plan: one of OnChanges;
	// "" means carry.
	OnChange string
	// Fail is the answer to checks of a tenant over its quota, for a plan of the operator's tenant:
	// FailClosed or FailOpen; "" means FailClosed. Plans of other tenants have FailClosed.
	Fail string
	// Bounds are what a tenant in this tier may have, of a plan of the operator's tenant.
	Bounds     Bounds
	NotDefault bool // for a write: the plan must not stay the default; never set in results
	// Limits are by slug of the rule. As an input, nil keeps the limits, and other values replace
	// all of them.
	Limits map[string]limit.Limit // of the newest version
	// NewestVersion is the number of the newest version. Subjects that get the plan get that
	// version.
	NewestVersion int
	// Older are the other versions, newest first. Only those of a document have limits. As an
	// input, only in a document, they are added to the existing ones.
	Older     []PlanVersion
	Version   int64 // increased by changes of its limits, too
	CreatedAt time.Time
	UpdatedAt time.Time
}

// The bounds of a tenant's plans, which every instance reads at each change of its policy. A tenant
// that exceeds one from before keeps what it has, but can add nothing.
const (
	MaxPlans      = 1_000
	MaxPlanLimits = 100_000 // in all versions of all plans
)

// checkRoomForPlan returns how many plans the tenant has, and refuses one more if these are all
// that it may have.
func (c *change) checkRoomForPlan(ctx context.Context) (plans int64, err error) {
	if plans, err = c.CountPlans(ctx, c.tenant); err != nil {
		return 0, err
	}
	if plans >= MaxPlans {
		return 0, invalid("slug", limit.Wrong("Delete a plan that is no longer needed.", "would be one plan too many: a tenant may have %d", MaxPlans))
	}
	return plans, nil
}

// checkRoomForLimits refuses more limits of plans than the tenant may have. field is what adds
// them.
func (c *change) checkRoomForLimits(ctx context.Context, field string, added int) error {
	if added <= 0 {
		return nil
	}
	has, err := c.CountPlanLimits(ctx, c.tenant)
	if err != nil {
		return err
	}
	if now := has + int64(added); now > MaxPlanLimits {
		return invalid(field, tooManyPlanLimits(now))
	}
	return nil
}

func tooManyPlanLimits(now int64) *limit.Problem {
	return limit.Wrong("Delete versions of plans that no subject has, or limits that are no longer needed.",
		"would give the tenant %d limits in all versions of its plans; it may have %d", now, MaxPlanLimits)
}

func (p *Plan) validate() error {
	var fields []limit.FieldError
	if !limit.ValidSlug(p.Slug) {
		fields = append(fields, limit.FieldProblem("slug", limit.InvalidSlug))
	}
	checkText(&fields, "name", p.Name, 200)
	checkText(&fields, "description", p.Description, 2000)
	if p.OnChange = cmp.Or(p.OnChange, OnChangeCarry); !slices.Contains(OnChanges, p.OnChange) {
		fields = append(fields, limit.FieldProblem("on_change", limit.OneOf(strings.Join(OnChanges, ", "))))
	}
	if p.Fail = cmp.Or(p.Fail, FailClosed); p.Fail != FailClosed && p.Fail != FailOpen {
		fields = append(fields, limit.FieldProblem("fail", limit.OneOf(FailClosed+", "+FailOpen)))
	}
	fields = append(fields, prefixed("bounds.", p.Bounds.validate())...)
	return invalidIf(fields)
}

// The answers to checks of a tenant over its quota: refuse or allow.
const (
	FailClosed = "closed"
	FailOpen   = "open"
)

// CreatePlan creates a plan. A tenant's first plan becomes its default. A later one becomes the
// default if Default is set. Errors: *InvalidError; *ConflictError with CodeSlugTaken.
func (s *Store) CreatePlan(ctx context.Context, a Actor, p Plan) (out Plan, err error) {
	if err := p.validate(); err != nil {
		return Plan{}, err
	}
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		switch _, err := planRow(ctx, c.Queries, c.tenant, p.Slug); {
		case err == nil:
			conflict := uniqueConflicts["plans_tenant_id_slug_key"]
			return &conflict
		case !errors.Is(err, ErrNotFound):
			return err
		}
		var err error
		out, err = c.createPlan(ctx, p)
		return err
	})
	return out, err
}

// PutPlan creates a plan or replaces the one with its slug; created reports which. Default false
// leaves the default unchanged. NotDefault is refused if the plan is the default. Errors:
// *InvalidError, ErrPreconditionFailed, *ConflictError with CodeDefaultPlan.
func (s *Store) PutPlan(ctx context.Context, a Actor, p Plan, m Match) (out Plan, created bool, err error) {
	if err := p.validate(); err != nil {
		return Plan{}, false, err
	}
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := c.plan(ctx, p.Slug)
		switch {
		case errors.Is(err, ErrNotFound):
			if err := m.missing(); err != nil {
				return err
			}
			created = true
			out, err = c.createPlan(ctx, p)
			return err
		case err != nil:
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		if old.Default && p.NotDefault {
			return errDefaultStays()
		}
		p.Default = p.Default || old.Default
		out, err = c.replacePlan(ctx, old, p)
		return err
	})
	return out, created && err == nil, err
}

// EditPlan calls edit to change the plan and its limits; an error of edit is returned unchanged and
// nothing changes. Errors: ErrNotFound, ErrPreconditionFailed, *InvalidError (also for another
// slug), *ConflictError with CodeDefaultPlan if edit unsets Default.
func (s *Store) EditPlan(ctx context.Context, a Actor, slug string, m Match, edit func(*Plan) error) (out Plan, err error) {
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := c.plan(ctx, slug)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		p := old
		p.Limits = maps.Clone(old.Limits)
		if err := edit(&p); err != nil {
			return err
		}
		switch {
		case p.Slug != old.Slug:
			return invalid("slug", isFixed("plan"))
		case old.Default && !p.Default:
			return errDefaultStays()
		}
		if err := p.validate(); err != nil {
			return err
		}
		out, err = c.replacePlan(ctx, old, p)
		return err
	})
	return out, err
}

func errDefaultStays() error {
	return &ConflictError{CodeDefaultPlan, "a tenant with plans has a default plan: make another plan the default instead"}
}

// DeletePlan deletes a plan with its limits. Errors: ErrNotFound, ErrPreconditionFailed,
// *ConflictError with CodeDefaultPlan while there are other plans, or with CodePlanInUse.
func (s *Store) DeletePlan(ctx context.Context, a Actor, slug string, m Match) error {
	return s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := planRow(ctx, c.Queries, c.tenant, slug)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		used, err := c.PlanHasSubjects(ctx, db.PlanHasSubjectsParams{TenantID: c.tenant, PlanID: &old.ID})
		if err != nil {
			return err
		}
		if used {
			return &ConflictError{CodePlanInUse, "subjects have this plan: give them another one first"}
		}
		paid, err := c.PlanHasBilling(ctx, db.PlanHasBillingParams{TenantID: c.tenant, PlanID: &old.ID})
		if err != nil {
			return err
		}
		if paid != nil && *paid {
			return &ConflictError{CodePlanInUse, "a price is mapped to this plan, or a billing endpoint falls back to it: change that first"}
		}
		plans, err := c.CountPlans(ctx, c.tenant)
		if err != nil {
			return err
		}
		if old.IsDefault && plans > 1 {
			return &ConflictError{CodeDefaultPlan, "this is the default plan: make another plan the default first"}
		}
		if _, err := c.nextAtEnd(ctx, parts{policy: true}); err != nil {
			return err
		}
		return c.DeletePlan(ctx, db.DeletePlanParams{TenantID: c.tenant, ID: old.ID})
	})
}

func (c *change) plan(ctx context.Context, slug string) (Plan, error) {
	return readPlan(ctx, c.Queries, c.tenant, slug)
}

// boundsOfTiersOnly is the problem of bounds in a plan that is no tier.
func boundsOfTiersOnly() *limit.Problem {
	return limit.Wrong("Omit it. The limits of the plan are in limits.", "must be omitted: only plans of the operator's tenant, which are tiers, have bounds")
}

// failOfTiersOnly is the problem of a plan that is no tier and lets checks over a quota pass.
func failOfTiersOnly() *limit.Problem {
	return limit.Wrong("Omit it. To let checks pass over a limit, set overage: allow in that limit.", "must be omitted or closed: only plans of the operator's tenant, which are tiers, can be open")
}

// fieldsOfTiersOnly are the problems of the fields of a plan that would have no effect, because the
// plan is no tier. What the plan had before, nil if it is new, may stay.
func fieldsOfTiersOnly(before *Plan, after Plan, prefix string) (problems []limit.FieldError) {
	if before == nil {
		before = &Plan{}
	}
	if after.Bounds != (Bounds{}) && after.Bounds != before.Bounds {
		problems = append(problems, limit.FieldProblem(prefix+"bounds", boundsOfTiersOnly()))
	}
	if after.Fail == FailOpen && before.Fail != FailOpen {
		problems = append(problems, limit.FieldProblem(prefix+"fail", failOfTiersOnly()))
	}
	return problems
}

// checkTier refuses fields of tiers in the plans of other tenants than the operator's.
func (c *change) checkTier(ctx context.Context, before *Plan, after Plan) error {
	problems := fieldsOfTiersOnly(before, after, "")
	if problems == nil {
		return nil
	}
	tenant, err := c.TenantByID(ctx, c.tenant)
	if err != nil {
		return err
	}
	if tenant.Slug == PlatformSlug {
		return nil
	}
	return invalidIf(problems)
}

func (c *change) createPlan(ctx context.Context, p Plan) (Plan, error) {
	if err := c.checkTier(ctx, nil, p); err != nil {
		return Plan{}, err
	}
	rules, err := c.checkLimits(ctx, nil, p.Limits)
	if err != nil {
		return Plan{}, err
	}
	plans, err := c.checkRoomForPlan(ctx)
	if err != nil {
		return Plan{}, err
	}
	if err := c.checkRoomForLimits(ctx, "limits", len(p.Limits)); err != nil {
		return Plan{}, err
	}
	p.Default = p.Default || plans == 0
	version, err := c.nextAtEnd(ctx, parts{policy: true})
	if err != nil {
		return Plan{}, err
	}
	if p.Default {
		if err := c.ClearDefaultPlan(ctx, db.ClearDefaultPlanParams{TenantID: c.tenant, Version: version}); err != nil {
			return Plan{}, err
		}
	}
	row, err := c.insertPlan(ctx, newID(), p, version)
	if err != nil {
		return Plan{}, err
	}
	out, err := planOf(row)
	if err != nil {
		return Plan{}, err
	}
	if err := c.writeLimits(ctx, out, p.Limits, rules, version); err != nil {
		return Plan{}, err
	}
	if p.Limits != nil {
		out.Limits = maps.Clone(p.Limits)
	}
	return out, nil
}

func (c *change) insertPlan(ctx context.Context, id uuid.UUID, p Plan, version int64) (db.Plan, error) {
	return c.InsertPlan(ctx, db.InsertPlanParams{
		TenantID: c.tenant, ID: id, Slug: p.Slug, Name: p.Name, Description: p.Description,
		IsDefault: p.Default, OnChange: cmp.Or(p.OnChange, OnChangeCarry), Fail: cmp.Or(p.Fail, FailClosed), Bounds: p.Bounds.encode(), NewestVersion: int32(p.NewestVersion), Version: version,
	})
}

func (c *change) updatePlan(ctx context.Context, id uuid.UUID, p Plan, version int64) (db.Plan, error) {
	return c.UpdatePlan(ctx, db.UpdatePlanParams{
		TenantID: c.tenant, ID: id, Name: p.Name, Description: p.Description, IsDefault: p.Default,
		OnChange: cmp.Or(p.OnChange, OnChangeCarry), Fail: cmp.Or(p.Fail, FailClosed), Bounds: p.Bounds.encode(), Version: version,
	})
}

// replacePlan writes p instead of old, if they differ.
func (c *change) replacePlan(ctx context.Context, old, p Plan) (Plan, error) {
	if p.Limits == nil {
		p.Limits = old.Limits
	}
	if p.Name == old.Name && p.Description == old.Description && p.Default == old.Default && p.OnChange == old.OnChange && p.Fail == old.Fail && p.Bounds == old.Bounds && maps.Equal(p.Limits, old.Limits) {
		return old, nil
	}
	if err := c.checkTier(ctx, &old, p); err != nil {
		return Plan{}, err
	}
	rules, err := c.checkLimits(ctx, old.Limits, p.Limits)
	if err != nil {
		return Plan{}, err
	}
	if err := c.checkRoomForLimits(ctx, "limits", len(p.Limits)-len(old.Limits)); err != nil {
		return Plan{}, err
	}
	version, err := c.nextAtEnd(ctx, parts{policy: true})
	if err != nil {
		return Plan{}, err
	}
	if p.Default && !old.Default {
		if err := c.ClearDefaultPlan(ctx, db.ClearDefaultPlanParams{TenantID: c.tenant, Version: version}); err != nil {
			return Plan{}, err
		}
	}
	row, err := c.updatePlan(ctx, old.ID, p, version)
	if err != nil {
		return Plan{}, err
	}
	if err := c.writeLimits(ctx, old, p.Limits, rules, version); err != nil {
		return Plan{}, err
	}
	out, err := planOf(row)
	out.Limits, out.Older = p.Limits, old.Older
	return out, err
}
