package tenants_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// A tenant with endless subjects creates rows up to a bound for each hour. Units of further
// subjects are in the totals only. Rows that there are, other hours and other tenants are recorded
// as ever.
func TestMeteredSubjectsAreBounded(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	d.Store.BoundMetered(1500)
	start := openHours(t, d, 3)
	w := newMeterWriter()
	rows := func(of tenants.Actor, hour time.Time, from, to int) (out []usage.MeterRow) {
		for i := from; i < to; i++ {
			out = append(out, meterRow(of, hour, fmt.Sprintf("s%04d", i), "api", 1))
		}
		return out
	}
	write := func(beyond int, rows ...usage.MeterRow) {
		t.Helper()
		batch := w.batch(rows...)
		require.NoError(t, d.Store.WriteMetered(t.Context(), batch))
		require.Len(t, batch.Beyond, beyond)
		require.Equal(t, rows, batch.Rows, "a batch that is written again is the same")
	}
	requireRows := func(of tenants.Actor, hour time.Time, items int, units, unattributed int64) {
		t.Helper()
		report, got := meteredOf(t, d.Store, of, tenants.MeteredQuery{From: hour, To: hour.Add(time.Hour), Open: true})
		require.Len(t, got, items)
		require.Equal(t, units, report.Totals[0].Units)
		require.Equal(t, unattributed, report.Totals[0].UnattributedUnits)
	}
	write(0, rows(a, start, 0, 1000)...)
	write(0, rows(a, start, 0, 1000)...)
	write(500, append(rows(a, start, 0, 2000), rows(b, start, 0, 10)...)...)
	write(1, append(rows(a, start, 1400, 1500), rows(a, start, 3000, 3001)...)...)
	requireRows(a, start, 1500, 1000+1000+2000+100+1, 501)
	requireRows(b, start, 10, 10, 0)
	write(0, rows(a, start.Add(time.Hour), 2000, 2010)...)
	requireRows(a, start.Add(time.Hour), 10, 10, 0)

	tier(t, d.Store, tenants.Bounds{Counters: 1000})
	write(1, rows(a, start, 4000, 4001)...)
	tier(t, d.Store, tenants.Bounds{Counters: 1600})
	write(20, rows(a, start, 5000, 5120)...)
	requireRows(a, start, 1600, 4101+1+120, 501+1+20)
}
