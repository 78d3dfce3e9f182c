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

// readDays are the lists of some days, as a transaction saw them.
type readDays struct {
	known   map[time.Time]dayList // decoded before
	changed []dayRow
}

// dayRow is a row with its list, which is not decoded, or without it.
type dayRow struct {
	Start   time.Time
	Version string
	Top     []byte
}

// read reads the lists of the days from from (inclusive) until to (exclusive). Those that have not
// changed are taken from memory.
func (c *dayLists) read(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, from, to time.Time) (out readDays, err error) {
	args := pgx.NamedArgs{"tenant": tenant, "from": from, "to": to}
	const where = "tenant_id = @tenant AND grain = 'day' AND start >= @from AND start < @to"
	rows, err := tx.Query(ctx, "SELECT start, xmin::text AS version, NULL::jsonb AS top FROM usage_subjects WHERE "+where, args)
	if err != nil {
		return out, err
	}
	present, err := pgx.CollectRows(rows, pgx.RowToStructByName[dayRow])
	if err != nil {
		return out, err
	}
	known := c.get(tenant)
	out.known = make(map[time.Time]dayList, len(present))
	var stale []time.Time
	for _, r := range present {
		if day, cached := known[r.Start.UTC()]; cached && day.version == r.Version {
			out.known[r.Start.UTC()] = day
		} else {
			stale = append(stale, r.Start)
		}
	}
	if len(stale) == 0 {
		return out, nil
	}
	args["stale"] = stale
	if rows, err = tx.Query(ctx, "SELECT start, xmin::text AS version, top FROM usage_subjects WHERE "+where+" AND start = ANY(@stale)", args); err != nil {
		return out, err
	}
	out.changed, err = pgx.CollectRows(rows, pgx.RowToStructByName[dayRow])
	return out, err
}

// isLong reports whether it is long work to decode the lists.
func (d *readDays) isLong() bool {
	size := 0
	for i := range d.changed {
		size += len(d.changed[i].Top)
	}
	return size > shortLists
}

// decode returns the lists, and keeps those that it decodes. The result must not be changed.
func (c *dayLists) decode(tenant uuid.UUID, read readDays) ([]usage.TopSubjects, error) {
	days := read.known
	for _, r := range read.changed {
		top, err := decodeTop(r.Top)
		if err != nil {
			return nil, err
		}
		days[r.Start.UTC()] = dayList{r.Version, top}
	}
	if len(read.changed) > 0 {
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
