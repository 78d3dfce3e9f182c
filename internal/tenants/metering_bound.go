package tenants

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"weir/internal/tenants/db"
	"weir/internal/usage"
)

// maxMeteredRows is how many rows of metered usage an instance creates for one tenant and hour, or
// as many as the counters of the tenant's tier if these are more. A row is kept for 400 days, so
// subjects without end would fill the database.
const maxMeteredRows = 1_000_000

// meteredRows counts the rows of metered usage that this process has created. An instance that
// starts again counts from zero: the bound protects the database, it is not a price.
type meteredRows struct {
	most int64 // of a tenant and hour, unless its tier has more counters

	mu     sync.Mutex
	newest int64 // the newest hour, as startMS
	rows   map[meteredHour]int64
}

type meteredHour struct {
	tenant  uuid.UUID
	startMS int64
}

func hourOf(row *usage.MeterRow) meteredHour { return meteredHour{row.Tenant, row.StartMS} }

// count adds rows that were created. It forgets hours before the last one.
func (m *meteredRows) count(created []db.AddMeteredUsageRow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range created {
		hour := meteredHour{created[i].TenantID, created[i].Start.UnixMilli()}
		m.rows[hour] += created[i].NewRows
		if hour.startMS <= m.newest {
			continue
		}
		m.newest = hour.startMS
		for old := range m.rows {
			if old.startMS < m.newest-time.Hour.Milliseconds() {
				delete(m.rows, old)
			}
		}
	}
}

// within returns the rows of a batch, those beyond the bound without their subject, and beyond has
// these as they were. Rows that are known in the database are never beyond it.
func (m *meteredRows) within(ctx context.Context, q *db.Queries, rows []usage.MeterRow) (in, beyond []usage.MeterRow, err error) {
	left, err := m.left(ctx, q, rows)
	if err != nil || len(left) == 0 {
		return rows, nil, err
	}
	places, known := []int{}, db.KnownMeteredParams{}
	for i := range rows {
		row := &rows[i]
		if _, few := left[hourOf(row)]; !few || row.Subject == "" {
			continue
		}
		places = append(places, i)
		known.Tenants, known.Starts = append(known.Tenants, row.Tenant), append(known.Starts, time.UnixMilli(row.StartMS))
		known.Subjects, known.Rules = append(known.Subjects, row.Subject), append(known.Rules, row.Rule)
	}
	there, err := q.KnownMetered(ctx, known)
	if err != nil {
		return nil, nil, err
	}
	isKnown := make([]bool, len(places))
	for _, n := range there {
		isKnown[n] = true
	}
	in = append(in, rows...) // the batch stays as it is
	for n, i := range places {
		hour := hourOf(&rows[i])
		switch {
		case isKnown[n]:
		case left[hour] > 0:
			left[hour]--
		default:
			beyond = append(beyond, rows[i])
			in[i].Subject = ""
		}
	}
	return in, beyond, nil
}

// left returns how many rows may be created for the tenants and hours that have fewer left than the
// batch has rows.
func (m *meteredRows) left(ctx context.Context, q *db.Queries, rows []usage.MeterRow) (left map[meteredHour]int64, err error) {
	asked := map[meteredHour]int64{}
	for i := range rows {
		asked[hourOf(&rows[i])]++
	}
	m.mu.Lock()
	for hour, n := range asked {
		if had := m.rows[hour]; had+n > m.most {
			if left == nil {
				left = map[meteredHour]int64{}
			}
			left[hour] = m.most - had
		}
	}
	m.mu.Unlock()
	for hour := range left {
		tier, err := readTier(ctx, q, hour.tenant)
		if err != nil {
			return nil, err
		}
		left[hour] += max(tier.Bounds.Counters-m.most, 0)
		if left[hour] >= asked[hour] {
			delete(left, hour)
		}
	}
	return left, nil
}
