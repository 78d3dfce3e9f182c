package tenants

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/usage"
)

// maxCachedTenants is the maximum number of tenants whose lists are in memory. A month of full
// lists takes less than 1 MB.
const maxCachedTenants = 16

// dayLists are the decoded lists of the busiest subjects of tenants, by day. Lists of past days
// rarely change, so a page decodes only the list of the present day. The zero value is ready to
// use.
type dayLists struct {
	mu      sync.Mutex
	tenants map[uuid.UUID]map[time.Time]dayList
}

type dayList struct {
	version string // of the row
	top     usage.TopSubjects
}

// read returns the lists of the days from from (inclusive) until to (exclusive), as the transaction
// sees them. The result must not be changed.
func (c *dayLists) read(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, from, to time.Time) ([]usage.TopSubjects, error) {
	args := pgx.NamedArgs{"tenant": tenant, "from": from, "to": to}
	const where = "tenant_id = @tenant AND grain = 'day' AND start >= @from AND start < @to"
	type row struct {
		Start   time.Time
		Version string
		Top     []byte
	}
	rows, err := tx.Query(ctx, "SELECT start, xmin::text AS version, NULL::jsonb AS top FROM usage_subjects WHERE "+where, args)
	if err != nil {
		return nil, err
	}
	present, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
	if err != nil {
		return nil, err
	}
	known := c.get(tenant)
	days := make(map[time.Time]dayList, len(present))
	var stale []time.Time
	for _, r := range present {
		if day, cached := known[r.Start.UTC()]; cached && day.version == r.Version {
			days[r.Start.UTC()] = day
		} else {
			stale = append(stale, r.Start)
		}
	}
	if len(stale) > 0 {
		args["stale"] = stale
		rows, err := tx.Query(ctx, "SELECT start, xmin::text AS version, top FROM usage_subjects WHERE "+where+" AND start = ANY(@stale)", args)
		if err != nil {
			return nil, err
		}
		changed, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
		if err != nil {
			return nil, err
		}
		for _, r := range changed {
			top, err := decodeTop(r.Top)
			if err != nil {
				return nil, err
			}
			days[r.Start.UTC()] = dayList{r.Version, top}
		}
		c.put(tenant, days)
	}
	out := make([]usage.TopSubjects, 0, len(days))
	for _, day := range days {
		out = append(out, day.top)
	}
	return out, nil
}

func (c *dayLists) get(tenant uuid.UUID) map[time.Time]dayList {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tenants[tenant]
}

// put keeps the lists of a tenant, in place of those of any other one if there are too many.
func (c *dayLists) put(tenant uuid.UUID, days map[time.Time]dayList) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tenants == nil {
		c.tenants = map[uuid.UUID]map[time.Time]dayList{}
	}
	for other := range c.tenants {
		if _, kept := c.tenants[tenant]; kept || len(c.tenants) < maxCachedTenants {
			break
		}
		delete(c.tenants, other)
	}
	c.tenants[tenant] = days
}
