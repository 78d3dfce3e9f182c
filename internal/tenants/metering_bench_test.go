package tenants_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/usage"
)

// BenchmarkMeteringMillion writes an hour of a million metered subjects to Postgres, in batches as
// an instance writes them: first all of them new, then each once more.
func BenchmarkMeteringMillion(b *testing.B) {
	const subjects, batch = 1_000_000, 5000
	d := tenantstest.New(b)
	a, _ := d.Tenant("tenant-a")
	now := time.Now().UTC().Truncate(time.Hour)
	rows := make([]usage.MeterRow, 0, subjects)
	for i := range subjects {
		rows = append(rows, meterRow(a, now, fmt.Sprintf("customer_%07d", i), "api", 1))
	}
	for b.Loop() {
		w := newMeterWriter()
		for _, metric := range []string{"s-insert", "s-update"} {
			began := time.Now()
			for at := 0; at < subjects; at += batch {
				require.NoError(b, d.Store.WriteMetered(b.Context(), w.batch(rows[at:at+batch]...)))
			}
			b.ReportMetric(time.Since(began).Seconds(), metric)
		}
		report, _, _, err := d.Store.MeteredUsage(b.Context(), a, tenants.MeteredQuery{From: now.Add(-time.Hour), Open: true}, tenants.Page{})
		require.NoError(b, err)
		require.EqualValues(b, 2*subjects, report.Totals[0].Units)
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			var bytes float64
			require.NoError(b, conn.QueryRow(ctx, "SELECT pg_total_relation_size('metered_usage')").Scan(&bytes))
			b.ReportMetric(bytes/subjects, "B-row")
			_, err := conn.Exec(ctx, "TRUNCATE metered_usage, metered_totals")
			require.NoError(b, err)
		})
	}
}

// BenchmarkWriteMetered writes batches of 5 000 subjects that have a row. It reports the
// allocations for each row.
func BenchmarkWriteMetered(b *testing.B) {
	const batch = 5000
	d := tenantstest.New(b)
	a, _ := d.Tenant("tenant-a")
	now := time.Now().UTC().Truncate(time.Hour)
	rows := make([]usage.MeterRow, 0, batch)
	for i := range batch {
		rows = append(rows, meterRow(a, now, fmt.Sprintf("customer_%07d", i), "api", 1))
	}
	w := newMeterWriter()
	require.NoError(b, d.Store.WriteMetered(b.Context(), w.batch(rows...)))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n := 0
	for b.Loop() {
		require.NoError(b, d.Store.WriteMetered(b.Context(), w.batch(rows...)))
		n++
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(n*batch), "allocs/row")
}
