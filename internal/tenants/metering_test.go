package tenants_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/usage"
)

// openHours opens the last hours, as if they had just begun, and returns the first of them.
func openHours(t *testing.T, d *tenantstest.Database, hours int) time.Time {
	t.Helper()
	start := time.Now().UTC().Truncate(time.Hour).Add(-time.Duration(hours) * time.Hour)
	d.Exec("UPDATE metering_state SET sealed_until = $1, pushes_until = $1, looked_at = now(), waits_from = $1", start)
	return start
}

// meterWriter writes batches as an instance does.
type meterWriter struct {
	id       uuid.UUID
	sequence int64
	since    time.Time
}

func (w *meterWriter) batch(rows ...usage.MeterRow) *usage.MeterBatch {
	w.sequence++
	return &usage.MeterBatch{Writer: w.id, Sequence: w.sequence, Since: w.since, Acknowledged: w.sequence - 1, Rows: rows, CompleteUntil: time.Now()}
}

func newMeterWriter() *meterWriter {
	return &meterWriter{id: uuid.New(), since: time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)}
}

func meterRow(a tenants.Actor, start time.Time, subject, rule string, units int64) usage.MeterRow {
	return usage.MeterRow{
		MeterKey: usage.MeterKey{Tenant: a.TenantID(), StartMS: start.UnixMilli(), Subject: subject, Rule: rule},
		Metered:  usage.Metered{Units: units, Overage: units / 10, Checks: 1},
	}
}

// meteredOf returns all metered usage of a tenant since an instant.
func meteredOf(t *testing.T, s *tenants.Store, a tenants.Actor, q tenants.MeteredQuery) (report tenants.MeteredReport, items []tenants.MeteredItem) {
	t.Helper()
	page, next := tenants.Page{Limit: 2}, ""
	for {
		r, some, n, err := s.MeteredUsage(t.Context(), a, q, page)
		require.NoError(t, err)
		report, next = r, n
		items = append(items, some...)
		if page.After = next; next == "" {
			return report, items
		}
	}
}

// What plans invoice in place of their rule is added up, and neither the free units nor those that
// no plan knows of are invoiced twice.
func TestMeteredByPlan(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	w := newMeterWriter()
	row := func(subject string, free, billed int64) usage.MeterRow {
		r := meterRow(a, start, subject, "api", 20)
		r.Free, r.Billed = free, billed
		return r
	}
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch(row("ada", 18, 0), row("bob", 0, 18))))
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch(row("ada", 0, 18), row("cyd", 0, 0))))
	for _, sum := range []bool{false, true} {
		report, items := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start, Open: true, Sum: sum})
		invoiced := func(m limit.Metering) (out []int64) {
			for _, item := range append(items, report.Totals[0].MeteredItem) {
				out = append(out, item.Invoiced(m))
			}
			return out
		}
		require.Equal(t, []int64{22, 20, 20, 62}, invoiced(limit.MeterUnits))
		require.Equal(t, []int64{22, 20, 2, 44}, invoiced(limit.MeterOverage))
	}
	report, _ := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start, Open: true, Sum: true, Subject: "ada"})
	require.Equal(t, []int64{18, 18}, []int64{report.Totals[0].FreeUnits, report.Totals[0].BilledUnits})
}

// A batch counts once, however often it is sent, and another tenant sees nothing of it.
func TestMeteredUsage(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	start := openHours(t, d, 3)
	w := newMeterWriter()
	batch := w.batch(meterRow(a, start, "ada", "api", 20), meterRow(a, start, "bob", "api", 7), meterRow(a, start.Add(time.Hour), "ada", "api", 30),
		meterRow(a, start, "ada", "jobs", 5), meterRow(a, start, "", "api", 4), meterRow(b, start, "ada", "api", 1000))
	for range 3 {
		require.NoError(t, d.Store.WriteMetered(t.Context(), batch))
	}
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch(meterRow(a, start, "ada", "api", 10))))
	require.NoError(t, d.Store.WriteMetered(t.Context(), batch), "an older batch")

	open := tenants.MeteredQuery{From: start, Open: true}
	report, items := meteredOf(t, d.Store, a, open)
	require.Equal(t, []tenants.MeteredItem{
		{Start: start, Subject: "ada", Rule: "api", Units: 30, OverageUnits: 3, Checks: 2},
		{Start: start, Subject: "ada", Rule: "jobs", Units: 5, Checks: 1},
		{Start: start, Subject: "bob", Rule: "api", Units: 7, Checks: 1},
		{Start: start.Add(time.Hour), Subject: "ada", Rule: "api", Units: 30, OverageUnits: 3, Checks: 1},
	}, items)
	require.Equal(t, start, report.SealedUntil)
	require.Len(t, report.Totals, 2)
	require.Equal(t, tenants.MeteredTotal{
		MeteredItem: tenants.MeteredItem{Rule: "api", Units: 71, OverageUnits: 6, Checks: 5}, UnattributedUnits: 4,
	}, report.Totals[0])

	open.Sum = true
	_, items = meteredOf(t, d.Store, a, open)
	require.Equal(t, []tenants.MeteredItem{
		{Subject: "ada", Rule: "api", Units: 60, OverageUnits: 6, Checks: 3}, {Subject: "ada", Rule: "jobs", Units: 5, Checks: 1},
		{Subject: "bob", Rule: "api", Units: 7, Checks: 1},
	}, items)
	open.Subject, open.Rule = "ada", "jobs"
	_, items = meteredOf(t, d.Store, a, open)
	require.Len(t, items, 1)
	_, items = meteredOf(t, d.Store, b, tenants.MeteredQuery{From: start, Open: true})
	require.Len(t, items, 1)
	require.EqualValues(t, 1000, items[0].Units)
	_, items = meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start})
	require.Empty(t, items, "no hour is sealed")
}

// An hour is sealed when all writers have written past it. It never changes: what comes later is
// added to the first open hour.
func TestMeteringSeals(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	fast, slow := newMeterWriter(), newMeterWriter()
	require.NoError(t, d.Store.WriteMetered(t.Context(), fast.batch(meterRow(a, start, "ada", "api", 20))))
	behind := slow.batch(meterRow(a, start, "bob", "api", 5))
	behind.CompleteUntil = start.Add(90 * time.Minute)
	require.NoError(t, d.Store.WriteMetered(t.Context(), behind))
	d.Exec("UPDATE metering_state SET waits_from = now()")

	sealed, err := d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.Equal(t, start.Add(time.Hour), sealed.UTC(), "the slow writer is in the second hour")
	sealed, err = d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.Nil(t, sealed)
	_, before := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start})
	require.Len(t, before, 2)

	require.NoError(t, d.Store.WriteMetered(t.Context(), slow.batch(meterRow(a, start, "ada", "api", 3), meterRow(a, start.Add(time.Hour), "ada", "api", 4))))
	_, after := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start})
	require.Equal(t, before, after, "a sealed hour does not change")
	_, items := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start.Add(time.Hour), Open: true})
	require.Equal(t, []tenants.MeteredItem{{Start: start.Add(time.Hour), Subject: "ada", Rule: "api", Units: 7, Checks: 2, LateUnits: 3}}, items)

	last := slow.batch()
	last.Last = true
	require.NoError(t, d.Store.WriteMetered(t.Context(), last))
	require.NoError(t, d.Store.WriteMetered(t.Context(), fast.batch()))
	sealed, err = d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.True(t, sealed.After(start.Add(time.Hour)), "a writer that has ended is not waited for")
	report, _ := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start})
	require.Empty(t, report.Gaps)
	require.EqualValues(t, 32, report.Totals[0].Units)
}

// A writer that is killed leaves a gap. It holds up sealing for a minute, and closes the gap if it
// was only cut off.
func TestMeteringGap(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	killed := newMeterWriter()
	batch := killed.batch(meterRow(a, start, "ada", "api", 20))
	batch.CompleteUntil = start.Add(30 * time.Minute)
	require.NoError(t, d.Store.WriteMetered(t.Context(), batch))
	d.Exec("UPDATE metering_state SET waits_from = now()")
	sealed, err := d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.Nil(t, sealed, "it is waited for")

	d.Exec("UPDATE metering_state SET waits_from = now() - interval '2 minutes'; UPDATE metering_writers SET written_at = now() - interval '2 minutes'")
	sealed, err = d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.NotNil(t, sealed)
	report, _ := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start})
	require.Len(t, report.Gaps, 1)
	require.WithinDuration(t, batch.CompleteUntil, report.Gaps[0].From, time.Millisecond)
	require.Nil(t, report.Gaps[0].ClosedAt)

	require.NoError(t, d.Store.WriteMetered(t.Context(), killed.batch(meterRow(a, start, "ada", "api", 1))))
	report, _ = meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start})
	require.NotNil(t, report.Gaps[0].ClosedAt)
	require.EqualValues(t, 20, report.Totals[0].Units, "its units are late")
}

// After an outage of Postgres, instances get as long as usual to write. An instance that is far
// behind is not waited for without end.
func TestMeteringSealsAfterOutage(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	w := newMeterWriter()
	batch := w.batch(meterRow(a, start, "ada", "api", 20))
	batch.CompleteUntil = start
	require.NoError(t, d.Store.WriteMetered(t.Context(), batch))
	d.Exec("UPDATE metering_writers SET written_at = now() - interval '1 hour'; UPDATE metering_state SET looked_at = now() - interval '1 hour'")
	sealed, err := d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.Nil(t, sealed, "nobody could write for an hour")

	d.Exec("UPDATE metering_state SET waits_from = now() - interval '11 minutes'; UPDATE metering_writers SET written_at = now()")
	sealed, err = d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.NotNil(t, sealed, "it writes, and is ten minutes behind")
	report, _ := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start})
	require.Empty(t, report.Gaps)
}

// Concurrent writers, repeated batches and sealing lose no unit and count none twice.
func TestMeteringConcurrent(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	start := openHours(t, d, 30)
	const writers, batches = 6, 10
	var all errgroup.Group
	for n := range writers {
		all.Go(func() error {
			w := newMeterWriter()
			for i := range batches {
				var rows []usage.MeterRow
				for k := range 20 {
					k = (k*7 + n + i) % 20
					for _, tenant := range []tenants.Actor{a, b} {
						rows = append(rows, meterRow(tenant, start.Add(time.Duration(i)*time.Hour), fmt.Sprint("s", k), "api", 1))
					}
				}
				batch := w.batch(rows...)
				batch.CompleteUntil = start.Add(time.Duration(i) * time.Hour)
				var repeats errgroup.Group
				for range 2 {
					repeat := *batch // a batch has one writer
					repeats.Go(func() error {
						for {
							if err := d.Store.WriteMetered(t.Context(), &repeat); err == nil || t.Context().Err() != nil {
								return err
							}
						}
					})
				}
				if err := repeats.Wait(); err != nil {
					return err
				}
				_, _ = d.Store.SealMetering(t.Context()) // another one may be looking
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	for _, tenant := range []tenants.Actor{a, b} {
		report, items := meteredOf(t, d.Store, tenant, tenants.MeteredQuery{From: start, Open: true, Sum: true})
		require.EqualValues(t, writers*batches*20, report.Totals[0].Units)
		require.Len(t, items, 20)
		sum := int64(0)
		for _, item := range items {
			sum += item.Units
		}
		require.EqualValues(t, writers*batches*20, sum)
	}
}

// If the answer to a commit is lost, the units must still be exact.
func TestMeteringLostCommitAnswer(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 2)
	p := newCommitEater(t, d.URL)
	s := d.Open(tenants.Config{DatabaseURL: p.url})
	batch := newMeterWriter().batch(meterRow(a, start, "ada", "api", 20))
	p.armed.Store(true)
	require.ErrorIs(t, s.WriteMetered(t.Context(), batch), tenants.ErrUnavailable)
	require.EqualValues(t, 1, p.eaten.Load())
	require.NoError(t, s.WriteMetered(t.Context(), batch))
	report, _ := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start, Open: true})
	require.EqualValues(t, 20, report.Totals[0].Units)
	s.Close()
}

// A tenant that creates and deletes metered rules again and again gets no report about all of them,
// which would take hundreds of megabytes of every instance.
func TestMeteredTotalsAreBounded(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	hour := time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	d.Exec(`INSERT INTO metered_totals (tenant_id, start, rule, units, overage_units, free_units, billed_units, checks, late_units, unattributed_units)
		SELECT $1, $2, 'rule-' || n, 1, 0, 0, 0, 1, 0, 0 FROM generate_series(1, 5000) n`, a.TenantID(), hour)
	query := tenants.MeteredQuery{From: hour, Open: true}
	report, _ := meteredOf(t, d.Store, a, query)
	require.Len(t, report.Totals, 5000)
	d.Exec(`INSERT INTO metered_totals (tenant_id, start, rule, units, overage_units, free_units, billed_units, checks, late_units, unattributed_units)
		VALUES ($1, $2, 'one-more', 1, 0, 0, 0, 1, 0, 0)`, a.TenantID(), hour)
	_, err := d.Store.MeteredReport(t.Context(), a, query)
	require.ErrorContains(t, err, "gives totals of more than 5000 rules")
	query.Rule = "one-more"
	report, _ = meteredOf(t, d.Store, a, query)
	require.Len(t, report.Totals, 1)
}

// Units of a server whose clock is ahead are those of the present hour. Units of a deleted tenant
// are dropped, and its rows are removed later.
func TestMeteringClockAndDeletion(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	w := newMeterWriter()
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch(meterRow(a, time.Now().UTC().Truncate(time.Hour).Add(5*time.Hour), "ada", "api", 20), meterRow(b, time.Now(), "ada", "api", 1))))
	_, items := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: time.Now().UTC().Truncate(time.Hour).Add(-time.Hour), Open: true})
	require.Len(t, items, 1)
	require.False(t, items[0].Start.After(time.Now()))

	d.Exec("INSERT INTO deleted_tenants (id, slug, version) SELECT id, slug, version FROM tenants WHERE id = $1", a.TenantID())
	require.NoError(t, d.Store.KeepUsage(t.Context()))
	_, items = meteredOf(t, d.Store, a, tenants.MeteredQuery{Open: true})
	require.Empty(t, items)
	d.Exec("UPDATE metered_usage SET start = start - interval '401 days'; UPDATE metered_totals SET start = start - interval '401 days'")
	require.NoError(t, d.Store.KeepUsage(t.Context()))
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var rows int
		require.NoError(t, conn.QueryRow(ctx, "SELECT (SELECT count(*) FROM metered_usage) + (SELECT count(*) FROM metered_totals)").Scan(&rows))
		require.Zero(t, rows, "past the retention")
	})
}

// An export has every item, and says what may be missing. A spreadsheet executes nothing of it.
func TestExportMetered(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	rows := []usage.MeterRow{meterRow(a, start, `=cmd("x")`, "api", 20), meterRow(a, start, "", "api", 3)}
	for i := range 6000 {
		rows = append(rows, meterRow(a, start.Add(time.Hour), fmt.Sprintf("s%04d", i), "api", 1))
	}
	require.NoError(t, d.Store.WriteMetered(t.Context(), newMeterWriter().batch(rows...)))
	d.Exec("UPDATE metering_state SET sealed_until = $1", start.Add(time.Hour))
	d.Exec("INSERT INTO metering_gaps (writer, from_at, to_at) VALUES (gen_random_uuid(), $1::timestamptz, $1::timestamptz + interval '1 minute')", start)

	write := func(lines bool, q tenants.MeteredQuery) string {
		var out bytes.Buffer
		var w *tenants.MeteredWriter
		require.NoError(t, d.Store.ExportMetered(t.Context(), a, q, func(r tenants.MeteredReport) error {
			w = tenants.NewMeteredCSV(&out, r)
			if lines {
				w = tenants.NewMeteredLines(&out, r)
			}
			return w.Begin()
		}, func(items []tenants.MeteredItem) error { return w.Write(items) }))
		require.NoError(t, w.End())
		return out.String()
	}
	all := tenants.MeteredQuery{From: start, Open: true}
	table, err := csv.NewReader(strings.NewReader(write(false, all))).ReadAll()
	require.NoError(t, err)
	require.Len(t, table, 1+6001+2)
	at := start.Format(time.RFC3339)
	require.Equal(t, []string{at, `'=cmd("x")`, "api", "20", "2", "1", "0", "true", "", "0", "0"}, table[1])
	require.Equal(t, "false", table[2][7])
	require.Equal(t, []string{at, "", "api", "3"}, table[6002][:4])
	require.Contains(t, table[6003][8], "units from "+at+" until at most ")
	sealed, err := csv.NewReader(strings.NewReader(write(false, tenants.MeteredQuery{From: start}))).ReadAll()
	require.NoError(t, err)
	require.Len(t, sealed, 1+1+2)

	all.Sum = true
	lines := strings.Split(strings.TrimSpace(write(true, all)), "\n")
	require.Len(t, lines, 6001+3)
	kinds := map[string]int{}
	for _, line := range lines {
		var read struct {
			Type string
			Rows int
		}
		require.NoError(t, json.Unmarshal([]byte(line), &read))
		kinds[read.Type]++
		if read.Type == "end" {
			require.Equal(t, 6001, read.Rows)
		}
	}
	require.Equal(t, map[string]int{"usage": 6001, "unattributed": 1, "gap": 1, "end": 1}, kinds)
}

// Errors name the parameter.
func TestMeteredInvalid(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	hour := time.Now().UTC().Truncate(time.Hour)
	for field, q := range map[string]tenants.MeteredQuery{
		"from":    {From: hour.Add(time.Minute), To: hour.Add(time.Hour)},
		"to":      {From: hour, To: hour.Add(time.Second)},
		"subject": {Subject: "\x00"},
		"rule":    {Rule: "No Rule"},
	} {
		_, _, _, err := d.Store.MeteredUsage(t.Context(), a, q, tenants.Page{})
		var invalid *tenants.InvalidError
		require.ErrorAs(t, err, &invalid, field)
		require.Equal(t, field, invalid.Fields[0].Field)
	}
}
