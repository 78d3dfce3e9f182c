package tenants

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// keptLimits are the limits of versions of plans at the instants of changes, by their id and the
// rule. Those of plans that had none are empty.
type keptLimits map[int64]map[string]limit.Limit

// keptAtOnce is how many of them are in memory for a tenant. A version has up to MaxRules limits,
// and most changes that wait are between the same two.
const keptAtOnce = 4

// keptLimitsSQL reads kept limits, and those of rules that still exist. Those without any are a row
// without a rule.
const keptLimitsSQL = `
SELECT k.id, r.slug, l.limit_units, l.burst_units, l.overage
FROM counter_change_limits k
LEFT JOIN LATERAL unnest(k.rule_ids, k.limit_units, k.burst_units, k.overages) AS l(rule_id, limit_units, burst_units, overage) ON true
LEFT JOIN rules r ON r.tenant_id = k.tenant_id AND r.id = l.rule_id
WHERE k.tenant_id = $1 AND k.id = ANY($2::bigint[])`

// of returns kept limits, or nil if there are none with the id.
func (k keptLimits) of(id *int64) map[string]limit.Limit {
	if id == nil {
		return nil
	}
	return k[*id]
}

// gone reports whether limits that a change names were deleted.
func (k keptLimits) gone(id *int64) bool { return id != nil && k[*id] == nil }

// readKept adds the limits that a change names to kept, which has others of the tenant, and reads
// those of rules unless own has them. Limits of plans may have been deleted if another server has
// carried out the change.
func (s *Store) readKept(ctx context.Context, row *db.CounterChangesRow, kept keptLimits, own *ownLimits) error {
	var missing []int64
	for _, id := range []*int64{row.FromLimits, row.ToLimits} {
		if id != nil && kept[*id] == nil {
			missing = append(missing, *id)
		}
	}
	noOwn := row.Action == OnChangeScale && own.now == nil
	if len(missing) == 0 && !noOwn {
		return nil
	}
	if len(kept)+len(missing) > keptAtOnce {
		maps.DeleteFunc(kept, func(id int64, _ map[string]limit.Limit) bool {
			return (row.FromLimits == nil || *row.FromLimits != id) && (row.ToLimits == nil || *row.ToLimits != id)
		})
	}
	return s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		if noOwn {
			if err := own.read(ctx, tx, row.TenantID); err != nil {
				return err
			}
		}
		if len(missing) == 0 {
			return nil
		}
		return kept.read(ctx, tx, row.TenantID, missing)
	})
}

func (k keptLimits) read(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, ids []int64) error {
	rows, err := tx.Query(ctx, keptLimitsSQL, tenant, ids)
	if err != nil {
		return err
	}
	var (
		id            int64
		rule, overage *string
		units, burst  *int64
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &rule, &units, &burst, &overage}, func() error {
		if k[id] == nil {
			k[id] = map[string]limit.Limit{}
		}
		if rule != nil {
			k[id][*rule] = planLimitOf(units, burst, units == nil, nil, overage, nil)
		}
		return nil
	})
	return err
}

// approvedOf returns the limits that the subject of a change had by automatic approvals, by rule.
func approvedOf(row *db.CounterChangesRow) (map[string]limit.Limit, error) {
	if row.Approved == nil {
		return nil, nil
	}
	var stored map[string][2]*int64
	if err := json.Unmarshal(row.Approved, &stored); err != nil {
		return nil, err
	}
	approved := make(map[string]limit.Limit, len(stored))
	for rule, of := range stored {
		approved[rule] = limitOf(of[0], of[1], false)
	}
	return approved, nil
}

// purgedTenants is of how many tenants kept limits are deleted at once: their changes wait, and
// each may have 1000 rows of 1000 limits.
const purgedTenants = 20

// purgeKeptLimits deletes limits of plans that no pending change names, of some tenants. The result
// is most if there may be more.
func purgeKeptLimits(ctx context.Context, q *db.Queries, most int32) (int64, error) {
	locked, err := q.LockTenantsWithUnusedLimits(ctx, purgedTenants)
	if err != nil || len(locked) == 0 {
		return 0, err
	}
	// A statement of its own, because it must see the changes until the tenants were locked.
	if err := q.DeleteUnusedLimits(ctx, locked); err != nil || len(locked) < purgedTenants {
		return 0, err
	}
	return int64(most), nil
}
