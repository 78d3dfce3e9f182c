package tenants

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"weir/internal/usage"
)

const (
	// fewItems is how many items of a report are decoded without a turn.
	fewItems = 200
	// shortItems is how many are decoded as short work: they take some milliseconds.
	shortItems = 5_000
)

// usageColumns are the items of a report as Postgres sent them: one array for each column. So
// 50,000 items take hardly any time of a processor while they are read. They are decoded later, so
// that no connection to Postgres waits for a processor.
type usageColumns struct {
	items  int // one more than maxUsageItems if there are too many
	fields []pgconn.FieldDescription
	arrays [10]pgtype.UndecodedBytes
}

// read reads the items that a query selects.
func (c *usageColumns) read(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, q *UsageQuery) error {
	columns, where, args := usageSelection(tenant, q)
	rows, err := tx.Query(ctx, fmt.Sprintf(`SELECT count(*), array_agg(start), array_agg(rule), array_agg(plan), array_agg(resource),
		array_agg(allowed), array_agg(denied), array_agg(shadow_denied), array_agg(degraded), array_agg(cost_allowed), array_agg(cost_denied)
		FROM (SELECT %s,
			sum(allowed)::bigint AS allowed, sum(denied)::bigint AS denied,
			sum(shadow_denied)::bigint AS shadow_denied, sum(degraded)::bigint AS degraded,
			least(sum(cost_allowed), 9223372036854775807)::bigint AS cost_allowed,
			least(sum(cost_denied), 9223372036854775807)::bigint AS cost_denied
			FROM usage_%ss WHERE %s GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4 LIMIT @most) AS items`,
		columns, q.Grain, where), args)
	if err != nil {
		return err
	}
	targets := []any{&c.items}
	for i := range c.arrays {
		targets = append(targets, &c.arrays[i])
	}
	_, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		c.fields = slices.Clone(row.FieldDescriptions()[1:])
		return struct{}{}, row.Scan(targets...)
	})
	return err
}

// usageSelection returns the four columns of the key of a query's items, its condition, and the
// arguments of both.
func usageSelection(tenant uuid.UUID, q *UsageQuery) (columns, where string, args pgx.NamedArgs) {
	args = pgx.NamedArgs{"tenant": tenant, "from": q.From, "to": q.To, "most": maxUsageItems + 1}
	conditions, key := []string{"tenant_id = @tenant", "start >= @from", "start < @to"}, []string{"start"}
	if q.Sum {
		key[0] = "@from::timestamptz AS start"
	}
	for _, part := range []struct {
		column, only string
		by           bool
	}{{"rule", q.Rule, q.ByRule}, {"plan", q.Plan, q.ByPlan}, {"resource", q.Resource, q.ByResource}} {
		switch {
		case part.only != "":
			conditions = append(conditions, part.column+" = @"+part.column)
			args[part.column] = part.only
		case part.column == "rule" && part.by && q.Rules != nil:
			conditions = append(conditions, "rule = ANY(@rules)")
			args["rules"] = q.Rules
		case part.column == "rule" && part.by:
			conditions = append(conditions, "rule <> ''")
		case part.column == "rule":
			conditions = append(conditions, "rule = ''")
		}
		if part.by {
			key = append(key, part.column)
		} else {
			key = append(key, "'' AS "+part.column)
		}
	}
	if q.Grain == usage.Minute {
		conditions = append(conditions, "slot = ANY(@slots)") // excludes the tables of other days
		args["slots"] = usageSlotsOf(q.From, q.To)
	}
	return strings.Join(key, ", "), strings.Join(conditions, " AND "), args
}

func usageSlotsOf(from, to time.Time) (slots []int16) {
	for day := from.Truncate(24 * time.Hour); day.Before(to) && len(slots) < usageSlots; day = day.Add(24 * time.Hour) {
		slots = append(slots, usageSlot(day))
	}
	return slots
}

// decodeItems decodes items in a turn of the tenant, if they are many. Error: ErrTooManyReports.
func (s *Store) decodeItems(ctx context.Context, tenant uuid.UUID, c *usageColumns) (items []UsageItem, err error) {
	if c.items <= fewItems {
		return c.decode()
	}
	err = s.inTurn(ctx, tenant, c.items > shortItems, func() (err error) {
		items, err = c.decode()
		return err
	})
	return items, err
}

func (c *usageColumns) decode() ([]UsageItem, error) {
	if c.items == 0 {
		return nil, nil // and the arrays are NULL
	}
	var starts []time.Time
	var keys [3][]string
	var counts [6][]int64
	targets := []any{&starts}
	for i := range keys {
		targets = append(targets, &keys[i])
	}
	for i := range counts {
		targets = append(targets, &counts[i])
	}
	types := pgtype.NewMap() // that of the connection is in use by others
	for i, target := range targets {
		if err := types.Scan(c.fields[i].DataTypeOID, c.fields[i].Format, c.arrays[i], target); err != nil {
			return nil, fmt.Errorf("read the column %s of usage: %w", c.fields[i].Name, err)
		}
	}
	items := make([]UsageItem, c.items)
	for i := range items {
		items[i] = UsageItem{Start: starts[i].UTC(), Rule: keys[0][i], Plan: keys[1][i], Resource: keys[2][i], Counts: usage.Counts{
			Allowed: counts[0][i], Denied: counts[1][i], ShadowDenied: counts[2][i], Degraded: counts[3][i],
			CostAllowed: counts[4][i], CostDenied: counts[5][i],
		}}
	}
	return items, nil
}
