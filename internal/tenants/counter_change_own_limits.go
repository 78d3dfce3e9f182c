package tenants

import (
	"context"
	"maps"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
)

// ownLimits are the limits that a tenant's rules themselves had at the instants of changes. They
// are read once, behind the changes that they are for.
type ownLimits struct {
	now     map[string]limit.Limit // by rule; nil: not read yet
	edited  []editedLimit          // the newest first
	last    map[string]limit.Limit // what of has returned last
	applied int                    // how many of edited it has
}

// editedLimit is the limit that a rule had up to a change of counters, before it was edited.
type editedLimit struct {
	until int64
	rule  string
	limit limit.Limit
}

// ownLimitsSQL reads the present limits of rules, and behind them those of before. One statement
// sees both as they are at one instant.
const ownLimitsSQL = `
SELECT r.slug, NULL::bigint AS until, r.limit_units, r.burst_units, r.overage FROM rules r WHERE r.tenant_id = $1
UNION ALL
SELECT r.slug, o.until, o.limit_units, o.burst_units, o.overage
FROM counter_change_own_limits o JOIN rules r ON r.tenant_id = o.tenant_id AND r.id = o.rule_id
WHERE o.tenant_id = $1
ORDER BY until DESC NULLS FIRST`

func (o *ownLimits) read(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) error {
	rows, err := tx.Query(ctx, ownLimitsSQL, tenant)
	if err != nil {
		return err
	}
	read := ownLimits{now: map[string]limit.Limit{}}
	var (
		rule         string
		until, burst *int64
		units        int64
		overage      *string
	)
	_, err = pgx.ForEachRow(rows, []any{&rule, &until, &units, &burst, &overage}, func() error {
		of := planLimitOf(&units, burst, false, nil, overage, nil)
		if of.Overage == limit.OverageUnset {
			of.Overage = limit.OverageDeny // whatever the rule says now
		}
		if until == nil {
			read.now[rule] = of
		} else {
			read.edited = append(read.edited, editedLimit{*until, rule, of})
		}
		return nil
	})
	if err == nil {
		read.last = read.now
		*o = read
	}
	return err
}

// of returns the limits of a change, by rule. Mostly no rule was edited, and they are the same for
// many changes.
func (o *ownLimits) of(change int64) map[string]limit.Limit {
	n := 0
	for n < len(o.edited) && o.edited[n].until >= change {
		n++
	}
	if n != o.applied {
		o.last, o.applied = maps.Clone(o.now), n
		for _, e := range o.edited[:n] { // the oldest one of a rule last
			o.last[e.rule] = e.limit
		}
	}
	return o.last
}
