package usage

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
)

// meterRows meters a unit of each of n new subjects of a tenant under one rule.
func (r *meterRig) meterRows(tenant limit.TenantID, name string, n int) {
	for i := range n {
		r.meter.Add(tenant, fmt.Sprint(name, i), "api", Metered{Units: 1, Checks: 1}, r.Clock())
	}
}

// unattributed returns a tenant's units without a subject.
func (l *meterLedger) unattributed(tenant limit.TenantID) (n int64) {
	for key, row := range l.rows {
		if key.Tenant == tenant && key.Subject == "" {
			n += row.Units
		}
	}
	return n
}

// However many rows some tenants have, another one with few keeps its subjects, in the shards and
// behind them.
func TestMeterShares(t *testing.T) {
	const most = 64 << 20
	for name, rounds := range map[string]int{"in the shards": 1, "behind them": 8} {
		t.Run(name, func(t *testing.T) {
			r := newMeterRig(t, MeterOptions{MaxBytes: most}, check.PolicyData{})
			r.ledger.away = errAway
			few, greedy := limit.TenantID{9}, []limit.TenantID{{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}}
			for round := range rounds {
				for _, tenant := range greedy {
					r.meterRows(tenant, fmt.Sprintf("%s-%d-", strings.Repeat("x", 230), round), 8000)
				}
				r.meterRows(few, fmt.Sprintf("customer-%d-", round), 25)
				if rounds > 1 {
					require.Error(t, r.meter.flush(context.Background(), false))
				}
			}
			require.LessOrEqual(t, r.meter.bytes(), int64(most*7/5), "with what tenants with few rows may have in addition")
			r.ledger.away = nil
			r.flush()
			require.Zero(t, r.ledger.unattributed(few))
			require.EqualValues(t, rounds*(8*8000+25), r.ledger.units())
			for _, tenant := range greedy[4:] {
				require.Positive(t, r.ledger.unattributed(tenant))
			}
			require.Zero(t, r.meter.bytes())
		})
	}
}

// A tenant that uses the service alone has most of the memory, and what it leaves is for others.
func TestMeterSharesOfPool(t *testing.T) {
	p := newMeterPool(4000, 1000, 100)
	fill := func(tenant byte) (n int64) {
		for p.take(limit.TenantID{tenant}, 1) {
			n++
		}
		return n
	}
	require.EqualValues(t, 3000, fill(1))
	require.EqualValues(t, 750, fill(2))
	require.EqualValues(t, 187, fill(3))
	require.EqualValues(t, 100, fill(4))
	for tenant := range byte(9) {
		require.EqualValues(t, 100, fill(5+tenant), "until 5000 are taken")
	}
	require.EqualValues(t, 63, fill(20))
	require.EqualValues(t, 5000, p.taken)
	p.add(limit.TenantID{20}, -63)
	require.Len(t, p.held, 13)
}

// The rows of tenants take turns: those of one with few rows are in the next batch, although
// another tenant has many, and tenants with many rows have as many in each batch. A batch says how
// far it is complete when the last row of a drain is in it.
func TestMeterTakesTurns(t *testing.T) {
	r := newMeterRig(t, MeterOptions{}, check.PolicyData{})
	many, few, some := limit.TenantID{1}, limit.TenantID{2}, limit.TenantID{3}
	r.meterRows(many, "s", 9000)
	first := r.Clock()
	r.meter.drain(first)
	require.Equal(t, map[limit.TenantID]int{many: 5000}, r.nextByTenant(time.Time{}))

	r.Now.Add(1000)
	r.meterRows(few, "f", 3)
	r.meterRows(some, "g", 4000)
	r.meterRows(many, "t", 6000)
	second := r.Clock()
	r.meter.drain(second)
	sizes := r.nextByTenant(time.Time{})
	require.Equal(t, 3, sizes[few])
	require.InDelta(t, sizes[many], sizes[some], 3)
	require.Equal(t, maxBatchRows, sizes[few]+sizes[some]+sizes[many])

	sizes = r.nextByTenant(first.Add(-time.Second))
	require.InDelta(t, 4000-2498, sizes[some], 3, "all that is left")
	require.Equal(t, maxBatchRows, sizes[some]+sizes[many])
	require.InDelta(t, 4003, r.nextByTenant(second.Add(-time.Second))[many], 3)
	require.Empty(t, r.meter.waiting.lines)
}

// A flush ends after a second, so that the next one drains the shards.
func TestMeterLongFlush(t *testing.T) {
	r := newMeterRig(t, MeterOptions{}, check.PolicyData{})
	sink := &slowMeterSink{r.ledger, func() { r.Now.Add(600) }}
	r.meter.sink = sink
	r.meterRows(limit.TenantID{1}, "s", 30_000)
	r.flush()
	require.EqualValues(t, 10_000, r.ledger.units())
	r.meterRows(limit.TenantID{2}, "customer", 10)
	r.flush()
	require.EqualValues(t, 20_000, r.ledger.units())
	require.Equal(t, Metered{Units: 1, Checks: 1}, r.ledger.rows[MeterKey{Tenant: limit.TenantID{2}, StartMS: Hour.start(r.Now.Load()), Subject: "customer9", Rule: "api"}])
	require.NoError(t, r.meter.flush(context.Background(), true))
	require.EqualValues(t, 30_010, r.ledger.units(), "the last one writes everything")
}

type slowMeterSink struct {
	*meterLedger
	wait func()
}

func (s *slowMeterSink) WriteMetered(ctx context.Context, b *MeterBatch) error {
	s.wait()
	return s.meterLedger.WriteMetered(ctx, b)
}

// nextByTenant returns how many rows of each tenant the next batch has, which is complete until an
// instant.
func (r *meterRig) nextByTenant(complete time.Time) map[limit.TenantID]int {
	b := r.meter.next(r.Clock(), false)
	require.Equal(r.T, complete, b.CompleteUntil)
	n := map[limit.TenantID]int{}
	for i := range b.Rows {
		n[b.Rows[i].Tenant]++
	}
	return n
}

// Units that the sink records without their subject are counted and logged, once an hour.
func TestMeterBeyondTheBoundOfTheSink(t *testing.T) {
	var logged strings.Builder
	r := newMeterRig(t, MeterOptions{Logger: slog.New(slog.NewTextHandler(&logged, nil))}, check.PolicyData{})
	r.meter.sink = boundingMeterSink{r.ledger}
	for range 3 {
		r.meterRows(limit.TenantID{1}, "s", 10)
		r.flush()
	}
	require.EqualValues(t, 30-3, testutil.ToFloat64(r.meter.metrics.unattributed))
	require.Equal(t, 1, strings.Count(logged.String(), "too many subjects in the hour"))
	require.Contains(t, logged.String(), limit.TenantID{1}.String())
	require.Zero(t, r.meter.bytes())
}

// boundingMeterSink keeps the subject of the first row of a batch only.
type boundingMeterSink struct{ *meterLedger }

func (s boundingMeterSink) WriteMetered(ctx context.Context, b *MeterBatch) error {
	if len(b.Rows) > 0 {
		b.Beyond = b.Rows[1:]
	}
	return s.meterLedger.WriteMetered(ctx, b)
}
