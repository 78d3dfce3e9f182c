package tenants

import (
	"context"

	"weir/internal/tenants/db"
)

// The writes of plans, their limits and their versions: see audit_writes.go.

// InsertPlan creates a plan.
func (c *change) InsertPlan(ctx context.Context, p db.InsertPlanParams) (row db.Plan, err error) {
	if _, err = c.touch(ctx, auditPlan, p.ID.String(), true); err == nil {
		row, err = c.Queries.InsertPlan(ctx, p)
	}
	return row, err
}

// UpdatePlan replaces a plan without its limits.
func (c *change) UpdatePlan(ctx context.Context, p db.UpdatePlanParams) (row db.Plan, err error) {
	if _, err = c.touch(ctx, auditPlan, p.ID.String(), false); err == nil {
		row, err = c.Queries.UpdatePlan(ctx, p)
	}
	return row, err
}

// ClearDefaultPlan makes the default plan an ordinary plan.
func (c *change) ClearDefaultPlan(ctx context.Context, p db.ClearDefaultPlanParams) error {
	ids, err := c.trail.queries.AuditDefaultPlan(ctx, p.TenantID)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := c.touch(ctx, auditPlan, id.String(), false); err != nil {
			return err
		}
	}
	return c.Queries.ClearDefaultPlan(ctx, p)
}

// DeletePlan deletes a plan with its limits and versions.
func (c *change) DeletePlan(ctx context.Context, p db.DeletePlanParams) error {
	if err := c.touchVersion(ctx, p.ID, everyVersion); err != nil {
		return err
	}
	return c.Queries.DeletePlan(ctx, p)
}

// KeepPlanVersion stores the newest version of a plan as an older one.
func (c *change) KeepPlanVersion(ctx context.Context, p db.KeepPlanVersionParams) error {
	if err := c.touchVersion(ctx, p.PlanID, p.Number); err != nil {
		return err
	}
	c.trail.index[auditName{auditPlan, p.PlanID.String()}].action = "publish"
	return c.Queries.KeepPlanVersion(ctx, p)
}

// KeepPlanLimits is KeepPlanVersion for the limits.
func (c *change) KeepPlanLimits(ctx context.Context, p db.KeepPlanLimitsParams) error {
	if _, err := c.touch(ctx, auditPlan, p.PlanID.String(), false); err != nil {
		return err
	}
	return c.Queries.KeepPlanLimits(ctx, p)
}

// PublishPlan gives a plan its next version.
func (c *change) PublishPlan(ctx context.Context, p db.PublishPlanParams) error {
	if _, err := c.touch(ctx, auditPlan, p.ID.String(), false); err != nil {
		return err
	}
	return c.Queries.PublishPlan(ctx, p)
}

// PutPlanVersion creates an older version of a plan.
func (c *change) PutPlanVersion(ctx context.Context, p db.PutPlanVersionParams) error {
	if err := c.touchVersion(ctx, p.PlanID, p.Number); err != nil {
		return err
	}
	return c.Queries.PutPlanVersion(ctx, p)
}

// PutPlanVersionLimits sets limits of an older version.
func (c *change) PutPlanVersionLimits(ctx context.Context, p db.PutPlanVersionLimitsParams) error {
	if err := c.touchVersion(ctx, p.PlanID, p.Number); err != nil {
		return err
	}
	return c.Queries.PutPlanVersionLimits(ctx, p)
}

// ClearPlanVersionLimits deletes the limits of an older version.
func (c *change) ClearPlanVersionLimits(ctx context.Context, p db.ClearPlanVersionLimitsParams) error {
	if err := c.touchVersion(ctx, p.PlanID, p.Number); err != nil {
		return err
	}
	return c.Queries.ClearPlanVersionLimits(ctx, p)
}

// DeletePlanVersion deletes an older version of a plan.
func (c *change) DeletePlanVersion(ctx context.Context, p db.DeletePlanVersionParams) error {
	if err := c.touchVersion(ctx, p.PlanID, p.Number); err != nil {
		return err
	}
	return c.Queries.DeletePlanVersion(ctx, p)
}

// UpsertPlanLimits sets limits of a plan.
func (c *change) UpsertPlanLimits(ctx context.Context, p db.UpsertPlanLimitsParams) error {
	if _, err := c.touch(ctx, auditPlan, p.PlanID.String(), false); err != nil {
		return err
	}
	return c.Queries.UpsertPlanLimits(ctx, p)
}

// DeletePlanLimits deletes limits of a plan.
func (c *change) DeletePlanLimits(ctx context.Context, p db.DeletePlanLimitsParams) error {
	if _, err := c.touch(ctx, auditPlan, p.PlanID.String(), false); err != nil {
		return err
	}
	return c.Queries.DeletePlanLimits(ctx, p)
}
