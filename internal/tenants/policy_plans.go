package tenants

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// smallPlans is up to how many limits the plans of a tenant are read at any time. Larger ones, of
// up to MaxPlanLimits, take 7 to 25 MB while they are read, and one tenant at a time is read. The
// number is not known before, so it is what there would be if each version had a limit for each
// rule.
const smallPlans = 20_000

var errLargePlans = errors.New("the tenant's plans are large")

// planLimitsSQL reads the limits of all versions of plans, those of a version one after the other.
// The number 0 is the newest version. With a join, Postgres would send the slug of a rule once for
// each limit.
const planLimitsSQL = `
SELECT plan_id, 0 AS number, rule_id, coalesce(limit_units, 0), coalesce(burst_units, 0), unlimited, warn_at, overage, metering
FROM plan_limits WHERE tenant_id = $1
UNION ALL
SELECT plan_id, number, rule_id, coalesce(limit_units, 0), coalesce(burst_units, 0), unlimited, warn_at, overage, metering
FROM plan_version_limits WHERE tenant_id = $1
ORDER BY plan_id, number`

// loadPlans reads all versions of the plans. slugs has those of the rules.
func loadPlans(ctx context.Context, tx pgx.Tx, q *db.Queries, tenant uuid.UUID, slugs map[uuid.UUID]string, most int) ([]check.PlanData, error) {
	plans, err := q.PolicyPlans(ctx, tenant)
	if err != nil {
		return nil, err
	}
	older, err := q.PolicyPlanVersions(ctx, tenant)
	if err != nil {
		return nil, err
	}
	if (len(plans)+len(older))*len(slugs) > most {
		return nil, errLargePlans
	}
	data := make([]check.PlanData, len(plans))
	index := make(map[uuid.UUID]*check.PlanData, len(plans))
	for i, p := range plans {
		bounds, err := boundsOf(p.Bounds)
		if err != nil {
			return nil, err
		}
		data[i] = check.PlanData{Slug: p.Slug, Default: p.IsDefault, Limits: map[string]limit.Limit{}, Version: int(p.NewestVersion), FailOpen: p.Fail == FailOpen, Counters: bounds.Counters, RecordBytes: bounds.RecordBytes}
		index[p.ID] = &data[i]
	}
	for _, o := range older { // sorted by number
		plan := index[o.PlanID]
		plan.Older = append(plan.Older, check.PlanVersionData{Number: int(o.Number), Limits: map[string]limit.Limit{}})
	}
	err = eachPlanVersion(ctx, tx, tenant, func(id uuid.UUID, number int, limits []ruleLimit) {
		of := make(map[string]limit.Limit, len(limits))
		for i := range limits {
			of[slugs[limits[i].rule]] = limits[i].limit
		}
		plan := index[id]
		if number == 0 {
			plan.Limits = of
			return
		}
		i, _ := slices.BinarySearchFunc(plan.Older, number, func(v check.PlanVersionData, n int) int { return cmp.Compare(v.Number, n) })
		plan.Older[i].Limits = of
	})
	return data, err
}

type ruleLimit struct {
	rule  uuid.UUID
	limit limit.Limit
}

// eachPlanVersion calls each for every version of a plan that has limits. limits is valid only
// during the call: those of one version are collected, so that its map gets the size that it needs.
func eachPlanVersion(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, each func(plan uuid.UUID, number int, limits []ruleLimit)) error {
	rows, err := tx.Query(ctx, planLimitsSQL, tenant)
	if err != nil {
		return err
	}
	var (
		plan, rule        pgtype.UUID // read without garbage, unlike uuid.UUID
		current           uuid.UUID
		number, of        int
		units, burst      int64
		unlimited         bool
		warnAt            *float64
		overage, metering *string
		collected         []ruleLimit
	)
	_, err = pgx.ForEachRow(rows, []any{&plan, &number, &rule, &units, &burst, &unlimited, &warnAt, &overage, &metering}, func() error {
		if len(collected) > 0 && (plan.Bytes != current || number != of) {
			each(current, of, collected)
			collected = collected[:0]
		}
		current, of = plan.Bytes, number
		collected = append(collected, ruleLimit{rule.Bytes, planLimitOf(&units, &burst, unlimited, warnAt, overage, metering)})
		return nil
	})
	if err == nil && len(collected) > 0 {
		each(current, of, collected)
	}
	return err
}
