package tenants

import (
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// What is read of a plan. The limits of all versions of a large plan are megabytes, which only a
// document needs. Most other operations need the limits of the newest version (readPlan), or none
// (planHead).

func planRow(ctx context.Context, q *db.Queries, tenant uuid.UUID, slug string) (db.Plan, error) {
	if !limit.ValidSlug(slug) {
		return db.Plan{}, ErrNotFound
	}
	row, err := q.PlanBySlug(ctx, db.PlanBySlugParams{TenantID: tenant, Slug: slug})
	return row, translate(err)
}

// planHead returns a plan without its limits. Its older versions have numbers only.
func planHead(ctx context.Context, q *db.Queries, tenant uuid.UUID, slug string) (Plan, error) {
	row, err := planRow(ctx, q, tenant, slug)
	if err != nil {
		return Plan{}, err
	}
	plans, err := planHeads(ctx, q, tenant, []db.Plan{row})
	if err != nil {
		return Plan{}, err
	}
	return plans[0], nil
}

// planHeads is planHead for several plans.
func planHeads(ctx context.Context, q *db.Queries, tenant uuid.UUID, rows []db.Plan) ([]Plan, error) {
	plans, err := plansOf(rows)
	if err != nil {
		return nil, err
	}
	byID := plansByID(plans)
	versions, err := q.PlanVersions(ctx, db.PlanVersionsParams{TenantID: tenant, PlanIds: slices.Collect(maps.Keys(byID))})
	for _, v := range versions {
		p := byID[v.PlanID]
		p.Older = append(p.Older, PlanVersion{Number: int(v.Number), Limits: map[string]limit.Limit{}, PublishedAt: v.PublishedAt})
	}
	return plans, err
}

// readPlan is planHead with the limits of the newest version.
func readPlan(ctx context.Context, q *db.Queries, tenant uuid.UUID, slug string) (Plan, error) {
	row, err := planRow(ctx, q, tenant, slug)
	if err != nil {
		return Plan{}, err
	}
	plans, err := withLimits(ctx, q, tenant, []db.Plan{row})
	if err != nil {
		return Plan{}, err
	}
	return plans[0], nil
}

// withLimits is readPlan for several plans.
func withLimits(ctx context.Context, q *db.Queries, tenant uuid.UUID, rows []db.Plan) ([]Plan, error) {
	plans, err := planHeads(ctx, q, tenant, rows)
	if err != nil {
		return nil, err
	}
	return plans, readLimits(ctx, q, tenant, plans, nil)
}

// withNewest returns plans with the limits of their newest versions for some rules, and without
// older versions. Nil rules: for all.
func withNewest(ctx context.Context, q *db.Queries, tenant uuid.UUID, rows []db.Plan, rules []string) ([]Plan, error) {
	plans, err := plansOf(rows)
	if err != nil {
		return nil, err
	}
	return plans, readLimits(ctx, q, tenant, plans, rules)
}

// readLimits reads the limits of the newest versions for some rules. Nil rules: for all.
func readLimits(ctx context.Context, q *db.Queries, tenant uuid.UUID, plans []Plan, rules []string) error {
	byID := plansByID(plans)
	limits, err := q.PlanLimits(ctx, db.PlanLimitsParams{TenantID: tenant, PlanIds: slices.Collect(maps.Keys(byID)), Rules: rules})
	for _, l := range limits {
		byID[l.PlanID].Limits[l.Slug] = planLimitOf(l.LimitUnits, l.BurstUnits, l.Unlimited, l.WarnAt, l.Overage, l.Metering)
	}
	return err
}

// withAllLimits is withLimits with the limits of the older versions, too.
func withAllLimits(ctx context.Context, q *db.Queries, tenant uuid.UUID, rows []db.Plan) ([]Plan, error) {
	plans, err := withLimits(ctx, q, tenant, rows)
	if err != nil {
		return nil, err
	}
	versions := map[uuid.UUID]map[int32]*PlanVersion{} // of the plans that have any
	for i := range plans {
		p := &plans[i]
		for j := range p.Older {
			if versions[p.ID] == nil {
				versions[p.ID] = map[int32]*PlanVersion{}
			}
			versions[p.ID][int32(p.Older[j].Number)] = &p.Older[j] // a number of the database
		}
	}
	if len(versions) == 0 {
		return plans, nil
	}
	limits, err := q.PlanVersionLimits(ctx, db.PlanVersionLimitsParams{TenantID: tenant, PlanIds: slices.Collect(maps.Keys(versions))})
	for _, l := range limits {
		versions[l.PlanID][l.Number].Limits[l.Slug] = planLimitOf(l.LimitUnits, l.BurstUnits, l.Unlimited, l.WarnAt, l.Overage, l.Metering)
	}
	return plans, err
}

func plansByID(plans []Plan) map[uuid.UUID]*Plan {
	byID := make(map[uuid.UUID]*Plan, len(plans))
	for i := range plans {
		byID[plans[i].ID] = &plans[i]
	}
	return byID
}

func plansOf(rows []db.Plan) (plans []Plan, err error) {
	plans = make([]Plan, len(rows))
	for i, row := range rows {
		if plans[i], err = planOf(row); err != nil {
			return nil, err
		}
	}
	return plans, nil
}

func planOf(row db.Plan) (Plan, error) {
	bounds, err := boundsOf(row.Bounds)
	return Plan{
		ID: row.ID, Slug: row.Slug, Name: row.Name, Description: row.Description, Default: row.IsDefault, OnChange: row.OnChange, Fail: row.Fail, Bounds: bounds,
		NewestVersion: int(row.NewestVersion), Limits: map[string]limit.Limit{}, Version: row.Version, CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
	}, err
}
