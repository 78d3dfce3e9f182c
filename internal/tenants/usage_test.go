package tenants_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/usage"
)

// usageStart returns a whole minute in the past, at the beginning of an hour.
func usageStart() time.Time { return time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour) }

func usageRow(a tenants.Actor, start time.Time, rule, plan, resource string, counts usage.Counts) usage.Row {
	return usage.Row{
		Key:    usage.Key{Tenant: a.TenantID(), StartMS: start.UnixMilli(), Rule: rule, Plan: plan, Resource: resource},
		Counts: counts,
	}
}

func usageBatch(writer uuid.UUID, rows ...usage.Row) *usage.Batch {
	return &usage.Batch{Writer: writer, ID: uuid.Must(uuid.NewV7()), Rows: rows, CompleteUntil: time.Now()}
}

func usageOf(t *testing.T, s *tenants.Store, a tenants.Actor, q tenants.UsageQuery) tenants.UsageReport {
	t.Helper()
	if q.From.IsZero() {
		q.From = time.Now().Add(-12 * time.Hour)
	}
	report, err := s.Usage(t.Context(), a, q)
	require.NoError(t, err)
	return report
}

// total returns the sum of a tenant's usage at a grain.
func total(t *testing.T, s *tenants.Store, a tenants.Actor, grain usage.Grain) (sum usage.Counts) {
	t.Helper()
	for _, item := range usageOf(t, s, a, tenants.UsageQuery{Grain: grain}).Items {
		sum.Add(item.Counts)
	}
	return sum
}

var everyCount = usage.Counts{Allowed: 1, Denied: 2, ShadowDenied: 3, Degraded: 4, CostAllowed: 5, CostDenied: 6}

// Written usage is summed per minute, hour and day, and can be grouped by each field.
func TestUsageReport(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, start := d.Store, usageStart()
	one := usage.Counts{Allowed: 1, CostAllowed: 1}
	rows := []usage.Row{
		usageRow(a, start, "", "free", "orders", everyCount),
		usageRow(a, start, "api", "free", "orders", one),
		usageRow(a, start.Add(time.Minute), "", "pro", "orders", one),
		usageRow(a, start.Add(time.Minute), "api", "pro", "", one),
		usageRow(a, start.Add(time.Hour), "", "free", "carts", one),
	}
	writer := uuid.New()
	require.NoError(t, s.WriteUsage(t.Context(), usageBatch(writer, rows...)))
	require.NoError(t, s.WriteUsage(t.Context(), usageBatch(writer, rows[0])))

	twice := everyCount
	twice.Add(everyCount)
	plus := func(c usage.Counts, more ...usage.Counts) usage.Counts {
		for _, m := range more {
			c.Add(m)
		}
		return c
	}
	minutes := usageOf(t, s, a, tenants.UsageQuery{Grain: usage.Minute})
	require.Equal(t, []tenants.UsageItem{
		{Start: start, Counts: twice}, {Start: start.Add(time.Minute), Counts: one}, {Start: start.Add(time.Hour), Counts: one},
	}, minutes.Items)
	hours := usageOf(t, s, a, tenants.UsageQuery{Grain: usage.Hour})
	require.Equal(t, []tenants.UsageItem{{Start: start, Counts: plus(twice, one)}, {Start: start.Add(time.Hour), Counts: one}}, hours.Items)
	require.Equal(t, plus(twice, one, one), total(t, s, a, usage.Day))

	require.Equal(t, []tenants.UsageItem{
		{Start: start, Rule: "api", Plan: "free", Resource: "orders", Counts: one},
		{Start: start, Rule: "api", Plan: "pro", Resource: "", Counts: one},
	}, usageOf(t, s, a, tenants.UsageQuery{Grain: usage.Hour, ByRule: true, ByPlan: true, ByResource: true}).Items)
	require.Equal(t, []tenants.UsageItem{{Start: start.Add(time.Hour), Resource: "carts", Counts: one}},
		usageOf(t, s, a, tenants.UsageQuery{Grain: usage.Hour, ByResource: true, Resource: "carts"}).Items)
	require.Equal(t, []tenants.UsageItem{{Start: start, Counts: one}},
		usageOf(t, s, a, tenants.UsageQuery{Grain: usage.Hour, Rule: "api", Plan: "pro"}).Items)
	require.Empty(t, usageOf(t, s, a, tenants.UsageQuery{Grain: usage.Minute, From: start.Add(2 * time.Minute), To: start.Add(time.Hour)}).Items)
}

// A repeated write must not bill a customer twice.
func TestUsageRepeatedBatch(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	writer, other := uuid.New(), uuid.New()
	first, second := usageBatch(writer, usageRow(a, usageStart(), "", "", "r", everyCount)), usageBatch(writer, usageRow(a, usageStart(), "", "", "r", everyCount))
	first.Subjects = []usage.Subjects{subjectsOf(a, usageStart(), "alice", 3)}
	for _, b := range []*usage.Batch{first, first, second, second, first, usageBatch(other, usageRow(a, usageStart(), "", "", "r", everyCount))} {
		require.NoError(t, d.Store.WriteUsage(t.Context(), b))
	}
	want := usage.Counts{Allowed: 3, Denied: 6, ShadowDenied: 9, Degraded: 12, CostAllowed: 15, CostDenied: 18}
	for _, grain := range usage.Grains {
		require.Equal(t, want, total(t, d.Store, a, grain), grain)
	}
	top := usageOf(t, d.Store, a, tenants.UsageQuery{Grain: usage.Hour, BySubject: true}).Items
	require.Len(t, top, 1)
	require.EqualValues(t, 3, top[0].Allowed)
}

// Many concurrent servers repeat writes with unknown outcomes: every count is stored exactly once.
func TestUsageConcurrentWriters(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	const writers, batches = 6, 8
	var all errgroup.Group
	for w := range writers {
		all.Go(func() error {
			writer := uuid.New()
			for i := range batches {
				batch := usageBatch(writer)
				for n := range 20 { // the same keys, in another order for each writer
					n = (n*7 + w + i) % 20
					for _, tenant := range []tenants.Actor{a, b} {
						batch.Rows = append(batch.Rows, usageRow(tenant, usageStart(), "", "", fmt.Sprint("r", n), everyCount))
					}
				}
				batch.Subjects = []usage.Subjects{subjectsOf(b, usageStart(), "s", 1), subjectsOf(a, usageStart(), "s", 1)}
				var repeats errgroup.Group
				for range 2 {
					repeats.Go(func() error {
						for {
							// A server retries, too. With so few connections some writers wait too
							// long for one.
							if err := d.Store.WriteUsage(t.Context(), batch); err == nil || t.Context().Err() != nil {
								return err
							}
						}
					})
				}
				if err := repeats.Wait(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	for _, tenant := range []tenants.Actor{a, b} {
		require.EqualValues(t, writers*batches*20, total(t, d.Store, tenant, usage.Day).Allowed)
		top := usageOf(t, d.Store, tenant, tenants.UsageQuery{Grain: usage.Day, BySubject: true}).Items
		require.EqualValues(t, writers*batches, top[0].Allowed)
	}
}

func subjectsOf(a tenants.Actor, start time.Time, subject string, allowed int64) usage.Subjects {
	return usage.Subjects{Tenant: a.TenantID(), StartMS: start.UnixMilli(), TopSubjects: usage.TopSubjects{
		Checks: usage.SubjectList{{Subject: subject, Counts: usage.Counts{Allowed: allowed}}},
	}}
}

// The busiest subjects of an hour are computed from its minutes, busiest first, and separately by
// denials.
func TestUsageSubjects(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	start := usageStart()
	batch := usageBatch(uuid.New())
	denied := usage.Subjects{Tenant: a.TenantID(), StartMS: start.UnixMilli(), TopSubjects: usage.TopSubjects{
		Checks: usage.SubjectList{{Subject: "mallory", Error: 2, Counts: usage.Counts{Denied: 4, CostDenied: 40}}},
		Denied: usage.SubjectList{{Subject: "mallory", Counts: usage.Counts{Denied: 4, CostDenied: 40}}},
	}}
	batch.Subjects = []usage.Subjects{
		subjectsOf(a, start, "alice", 3), subjectsOf(a, start.Add(time.Minute), "alice", 2), subjectsOf(a, start, "bob", 1), denied,
		subjectsOf(b, start, "secret-of-b", 9),
	}
	require.NoError(t, d.Store.WriteUsage(t.Context(), batch))
	names := func(q tenants.UsageQuery) (out []string) {
		report := usageOf(t, d.Store, a, q)
		require.True(t, report.Approximate)
		for _, item := range report.Items {
			out = append(out, fmt.Sprintf("%s %d+%d~%d", item.Subject, item.Allowed, item.Denied, item.Error))
		}
		return out
	}
	require.Equal(t, []string{"alice 5+0~0", "mallory 0+4~2", "bob 1+0~0"}, names(tenants.UsageQuery{Grain: usage.Hour, BySubject: true}))
	require.Equal(t, []string{"alice 3+0~0", "alice 2+0~0"}, names(tenants.UsageQuery{Grain: usage.Minute, Subject: "alice"}))
	require.Equal(t, []string{"mallory 0+4~0"}, names(tenants.UsageQuery{Grain: usage.Day, BySubject: true, DeniedFirst: true}))
	require.Empty(t, names(tenants.UsageQuery{Grain: usage.Hour, Subject: "secret-of-b"}))
}

// The sums of the busiest subjects are those of all days. What both lists of a day know of a
// subject is counted once.
func TestBusySubjects(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	now := usageStart()
	listed := func(start time.Time, top usage.TopSubjects) usage.Subjects {
		return usage.Subjects{Tenant: a.TenantID(), StartMS: start.UnixMilli(), TopSubjects: top}
	}
	day := usage.TopSubjects{
		Checks: usage.SubjectList{{Subject: "alice", Counts: usage.Counts{Allowed: 10, Denied: 2}}},
		Denied: usage.SubjectList{{Subject: "alice", Counts: usage.Counts{Denied: 3}}, {Subject: "mallory", Counts: usage.Counts{Denied: 1}}},
	}
	batch := usageBatch(uuid.New())
	batch.Subjects = []usage.Subjects{listed(now, day), listed(now.Add(-24*time.Hour), day), listed(now.Add(-5*24*time.Hour), day), subjectsOf(b, now, "secret-of-b", 9)}
	require.NoError(t, d.Store.WriteUsage(t.Context(), batch))
	sums := func(a tenants.Actor) []tenants.BusySubject {
		got, err := d.Store.BusySubjects(t.Context(), a, now.Add(-2*24*time.Hour), now.Add(time.Hour)) // now may be midnight
		require.NoError(t, err)
		return got
	}
	alice, mallory := tenants.BusySubject{Subject: "alice", Checks: 24, Denied: 6, MostChecks: 12}, tenants.BusySubject{Subject: "mallory", Checks: 2, Denied: 2, MostChecks: 1}
	for range 2 {
		require.ElementsMatch(t, []tenants.BusySubject{alice, mallory}, sums(a))
	}
	batch = usageBatch(uuid.New()) // a late part of a past day
	batch.Subjects = []usage.Subjects{subjectsOf(a, now.Add(-24*time.Hour), "alice", 5)}
	require.NoError(t, d.Store.WriteUsage(t.Context(), batch))
	alice.Checks, alice.MostChecks = 29, 17
	require.ElementsMatch(t, []tenants.BusySubject{alice, mallory}, sums(a), "what is in memory is not used any more")
	require.Equal(t, []tenants.BusySubject{{Subject: "secret-of-b", Checks: 9, MostChecks: 9}}, sums(b))
}

// A tenant's usage is not visible to other tenants, in any query.
func TestUsageIsolation(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	batch := usageBatch(uuid.New(), usageRow(a, usageStart(), "", "", "r", everyCount))
	batch.Subjects = []usage.Subjects{subjectsOf(a, usageStart(), "alice", 1)}
	require.NoError(t, d.Store.WriteUsage(t.Context(), batch))
	for _, grain := range usage.Grains {
		require.Zero(t, total(t, d.Store, b, grain))
		require.NotZero(t, total(t, d.Store, a, grain))
	}
	tables := []string{"usage_minutes", "usage_hours", "usage_days", "usage_subjects"}
	asRole(t, d, "weir_app", func(ctx context.Context, tx pgx.Tx) {
		for _, tenant := range []tenants.Actor{a, b} {
			_, err := tx.Exec(ctx, "SELECT set_config('weir.tenant_id', $1, true)", tenant.TenantID().String())
			require.NoError(t, err)
			for _, table := range tables {
				var seen bool
				require.NoError(t, tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+table+")").Scan(&seen))
				require.Equal(t, tenant == a, seen, table)
			}
		}
	})
	for _, statement := range []string{
		"INSERT INTO usage_hours SELECT * FROM usage_hours", "UPDATE usage_days SET allowed = 0", "DELETE FROM usage_subjects",
		"SELECT FROM usage_minutes_0", "TRUNCATE usage_minutes_0", "SELECT batch FROM usage_writers",
	} {
		asRole(t, d, "weir_app", func(ctx context.Context, tx pgx.Tx) {
			_, err := tx.Exec(ctx, statement)
			var pgErr *pgconn.PgError
			require.ErrorAs(t, err, &pgErr, statement)
			require.Equal(t, "42501", pgErr.Code, statement)
		})
	}
}

// Usage is deleted after its retention, and not before.
func TestUsageRetention(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	const day = 24 * time.Hour
	today := time.Now().UTC().Truncate(day)
	insert := func(grain string, at time.Time) {
		columns, values := "", ""
		if grain == "minute" {
			columns, values = ", slot", fmt.Sprintf(", %d", at.Unix()/86400%5)
		}
		d.Exec(fmt.Sprintf(`INSERT INTO usage_%ss (tenant_id, start, rule, plan, resource, allowed, denied, shadow_denied, degraded, cost_allowed, cost_denied%s)
			VALUES ($1, $2, '', '', 'r', 1, 0, 0, 0, 0, 0%s)`, grain, columns, values), a.TenantID(), at)
		d.Exec("INSERT INTO usage_subjects VALUES ($1, $2, $3, '{}')", a.TenantID(), grain, at)
	}
	for grain, ages := range map[string][]time.Duration{
		"minute": {0, day, 2 * day, 3 * day}, "hour": {0, 34 * day, 36 * day, 300 * day}, "day": {0, 399 * day, 401 * day},
	} {
		for _, age := range ages {
			insert(grain, today.Add(-age))
		}
	}
	d.Exec("INSERT INTO usage_writers VALUES (gen_random_uuid(), gen_random_uuid(), now(), now() - interval '36 days', false)")
	require.NoError(t, d.Store.KeepUsage(t.Context()))
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		count := func(table string) (n int) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&n))
			return n
		}
		require.Equal(t, 3, count("usage_minutes"), "minutes are deleted by day, after two days")
		require.Equal(t, 2, count("usage_hours"))
		require.Equal(t, 2, count("usage_days"))
		require.Equal(t, 0, count("usage_writers"))
		require.NoError(t, conn.QueryRow(ctx, "SELECT FROM usage_subjects WHERE grain = 'hour' AND start = $1", today.Add(-34*day)).Scan())
		require.ErrorIs(t, conn.QueryRow(ctx, "SELECT FROM usage_subjects WHERE grain = 'hour' AND start = $1", today.Add(-36*day)).Scan(), pgx.ErrNoRows)
		require.ErrorIs(t, conn.QueryRow(ctx, "SELECT FROM usage_subjects WHERE grain = 'minute' AND start <= $1", today.Add(-3*day)).Scan(), pgx.ErrNoRows)
	})
}

// What cannot be deleted does not keep the rest, of usage and of metered usage.
func TestUsageUpkeepContinues(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 2)
	require.NoError(t, d.Store.WriteMetered(t.Context(), newMeterWriter().batch(meterRow(a, start, "ada", "api", 20))))
	d.Exec("UPDATE metered_usage SET start = start - interval '401 days'")
	d.Exec("INSERT INTO usage_hours SELECT $1, now() - interval '500 days', '', '', 'r', 1, 0, 0, 0, 0, 0", a.TenantID())
	d.Exec("INSERT INTO usage_days SELECT $1, now() - interval '500 days', '', '', 'r', 1, 0, 0, 0, 0, 0", a.TenantID())
	d.Exec("INSERT INTO usage_writers VALUES (gen_random_uuid(), gen_random_uuid(), now(), now() - interval '36 days', false)")
	left := func() (out string) {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, `SELECT concat_ws(' ', (SELECT count(*) FROM usage_hours), (SELECT count(*) FROM usage_days),
				(SELECT count(*) FROM usage_writers), (SELECT count(*) FROM metered_usage))`).Scan(&out))
		})
		return out
	}
	require.Equal(t, "1 1 1 1", left())
	d.Exec("REVOKE DELETE ON usage_hours, usage_writers FROM weir_system; REVOKE ALL ON usage_minutes FROM weir_system")
	err := d.Store.KeepUsage(t.Context())
	require.ErrorContains(t, err, "purge minutes of usage: ")
	require.ErrorContains(t, err, "purge hours of usage: ")
	require.ErrorContains(t, err, "purge writers of usage: ")
	require.Equal(t, "1 0 1 0", left())
	d.Exec("GRANT DELETE ON usage_hours, usage_writers TO weir_system; GRANT SELECT ON usage_minutes TO weir_system")
	require.NoError(t, d.Store.KeepUsage(t.Context()))
	require.Equal(t, "0 0 0 0", left())
}

// A deleted tenant's usage cannot be read any more, and is deleted. A server that does not know of
// the deletion yet and continues to write must not lose the rest of its batch.
func TestUsageOfDeletedTenant(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	write := func() {
		batch := usageBatch(uuid.New(), usageRow(a, usageStart(), "", "", "r", everyCount), usageRow(b, usageStart(), "", "", "r", everyCount))
		batch.Subjects = []usage.Subjects{subjectsOf(a, usageStart(), "alice", 1), subjectsOf(b, usageStart(), "alice", 1)}
		require.NoError(t, d.Store.WriteUsage(t.Context(), batch))
	}
	write()
	require.NoError(t, d.Store.DeleteTenant(t.Context(), tenants.AsOperator("test"), "tenant-a", tenants.Match{}))
	write()
	require.NoError(t, d.Store.KeepUsage(t.Context()))
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		for _, table := range []string{"usage_hours", "usage_days", "usage_subjects"} {
			var left []uuid.UUID
			require.NoError(t, conn.QueryRow(ctx, "SELECT array_agg(DISTINCT tenant_id) FROM "+table).Scan(&left))
			require.Equal(t, []uuid.UUID{b.TenantID()}, left, table)
		}
	})
	require.EqualValues(t, 2, total(t, d.Store, b, usage.Hour).Allowed)
}

// Only one server at a time deletes, and the others do not wait for it.
func TestUsageUpkeepAlone(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	d.Exec(`INSERT INTO usage_days SELECT $1, now() - interval '500 days', '', '', 'r' || n, 1, 0, 0, 0, 0, 0 FROM generate_series(1, 12000) n`, a.TenantID())
	rows := func() (n int) {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM usage_days").Scan(&n))
		})
		return n
	}
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock(7305418)")
		require.NoError(t, err)
		require.NoError(t, d.Store.KeepUsage(ctx))
		require.Equal(t, 12000, rows(), "another server is running it")
		require.NoError(t, tx.Rollback(ctx))
	})
	require.NoError(t, d.Store.KeepUsage(t.Context()))
	require.Zero(t, rows(), "several statements delete")
}

// Counts of a server with a wrong clock must not be stored where they are neither read nor deleted.
func TestUsageWrongClock(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	ahead, behind := time.Now().Add(1000*time.Hour).Truncate(time.Minute), time.Now().Add(-72*time.Hour).Truncate(time.Minute)
	batch := usageBatch(uuid.New(), usageRow(a, ahead, "", "", "r", everyCount), usageRow(a, behind, "", "", "r", everyCount))
	batch.Subjects = []usage.Subjects{subjectsOf(a, ahead, "alice", 1)}
	require.NoError(t, d.Store.WriteUsage(t.Context(), batch))
	require.Equal(t, everyCount, total(t, d.Store, a, usage.Minute), "one counts as now, the other is too old for minutes")
	from := time.Now().Add(-96 * time.Hour)
	require.Len(t, usageOf(t, d.Store, a, tenants.UsageQuery{Grain: usage.Hour, From: from}).Items, 2)
	require.Len(t, usageOf(t, d.Store, a, tenants.UsageQuery{Grain: usage.Minute, BySubject: true}).Items, 1)
}

// Counts that a server kept only per hour are in hours and days.
func TestUsageCoarse(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	row := usageRow(a, usageStart(), "", "", "r", everyCount)
	row.Grain = usage.Hour
	require.NoError(t, d.Store.WriteUsage(t.Context(), usageBatch(uuid.New(), row)))
	require.Zero(t, total(t, d.Store, a, usage.Minute))
	require.Equal(t, everyCount, total(t, d.Store, a, usage.Hour))
	require.Equal(t, everyCount, total(t, d.Store, a, usage.Day))

	row.Grain = usage.Day
	require.NoError(t, d.Store.WriteUsage(t.Context(), usageBatch(uuid.New(), row)))
	require.Equal(t, everyCount, total(t, d.Store, a, usage.Hour), "the checks of a day are not all in its first hour")
	require.Equal(t, 2*everyCount.Allowed, total(t, d.Store, a, usage.Day).Allowed)
}

// The sum of costs can exceed the range of the column; this must not block later usage.
func TestUsageCostStaysInRange(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	huge := usage.Counts{Denied: 1, CostDenied: 1<<63 - 1}
	writer := uuid.New()
	for range 2 {
		rows := []usage.Row{usageRow(a, usageStart(), "", "", "r", huge), usageRow(a, usageStart().Add(time.Minute), "", "", "r", huge)}
		require.NoError(t, d.Store.WriteUsage(t.Context(), usageBatch(writer, rows...)))
	}
	require.Equal(t, usage.Counts{Denied: 4, CostDenied: 1<<63 - 1}, total(t, d.Store, a, usage.Hour))
}

// Data that the database will never accept is refused permanently, so that the server continues.
func TestUsageRefused(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	err := d.Store.WriteUsage(t.Context(), usageBatch(uuid.New(), usageRow(a, usageStart(), "", "", "a\x00b", everyCount)))
	require.ErrorIs(t, err, usage.ErrRefused)
	err = d.Store.WriteUsage(t.Context(), usageBatch(uuid.New(), usageRow(a, usageStart(), "", "", "r", usage.Counts{Allowed: -1})))
	require.ErrorIs(t, err, usage.ErrRefused)
	require.Zero(t, total(t, d.Store, a, usage.Hour))
}

// A report says up to when its numbers are complete: the slowest server decides.
func TestUsageCompleteUntil(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	now := time.Now().UTC().Truncate(time.Microsecond)
	until := func() time.Time {
		return usageOf(t, d.Store, a, tenants.UsageQuery{Grain: usage.Hour}).CompleteUntil
	}
	require.WithinRange(t, until(), now, time.Now().Add(time.Second))
	fast, slow := usageBatch(uuid.New()), usageBatch(uuid.New())
	fast.CompleteUntil, slow.CompleteUntil = now, now.Add(-time.Minute)
	for _, b := range []*usage.Batch{fast, slow} {
		require.NoError(t, d.Store.WriteUsage(t.Context(), b))
	}
	require.Equal(t, now.Add(-time.Minute), until())
	// A server that has ended is not waited for, nor one that has been silent for long.
	slow.ID, slow.Last = uuid.Must(uuid.NewV7()), true
	require.NoError(t, d.Store.WriteUsage(t.Context(), slow))
	require.Equal(t, now, until())

	// One that is known not to run is waited for as long as a server may take to write.
	running, certain := []uuid.UUID{fast.Writer}, true
	d.Store.FollowWriters(func() ([]uuid.UUID, bool) { return running, certain })
	d.Exec("UPDATE usage_writers SET written_at = written_at - interval '1 minute'")
	require.Equal(t, now, until(), "it runs")
	running = nil
	require.WithinRange(t, until(), now.Add(time.Microsecond), time.Now().Add(time.Second), "it was killed")
	certain = false
	require.Equal(t, now, until(), "nobody knows")
	certain = true
	d.Exec("UPDATE usage_writers SET written_at = written_at + interval '30 seconds'")
	require.Equal(t, now, until(), "it may have written late")
	running, certain = []uuid.UUID{fast.Writer}, true
	d.Exec("UPDATE usage_writers SET written_at = written_at - interval '11 minutes'")
	require.WithinRange(t, until(), now, time.Now().Add(time.Second))
}

// The length of a period is checked before Postgres is queried.
func TestUsageQueryInvalid(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 5, 12, 30, 30, 0, time.UTC)
	d := tenantstest.NewWith(t, tenants.Config{Now: func() time.Time { return now }})
	a, _ := d.Tenant("tenant-a")
	for name, c := range map[string]struct {
		query  tenants.UsageQuery
		fields []string
	}{
		"a hundred years":       {tenants.UsageQuery{Grain: usage.Day, From: now.AddDate(-100, 0, 0)}, []string{"from"}},
		"older than minutes":    {tenants.UsageQuery{From: now.Add(-49 * time.Hour)}, []string{"from"}},
		"a thousand years on":   {tenants.UsageQuery{Grain: usage.Day, To: now.AddDate(1000, 0, 0), From: now}, []string{"to"}},
		"backwards":             {tenants.UsageQuery{From: now, To: now.Add(-time.Hour)}, []string{"to"}},
		"empty":                 {tenants.UsageQuery{From: now.Truncate(time.Minute), To: now.Truncate(time.Minute)}, []string{"to"}},
		"subject and rule":      {tenants.UsageQuery{BySubject: true, ByRule: true}, []string{"group_by"}},
		"subject of a resource": {tenants.UsageQuery{Subject: "alice", Resource: "r"}, []string{"resource"}},
		"many lists":            {tenants.UsageQuery{BySubject: true, From: now.Add(-24 * time.Hour)}, []string{"to"}},
		"top of all":            {tenants.UsageQuery{DeniedFirst: true}, []string{"top"}},
	} {
		_, err := d.Store.Usage(t.Context(), a, c.query)
		t.Log(name, err)
		requireInvalid(t, err, c.fields...)
	}
	at := func(hour, minute int) time.Time { return time.Date(2026, 3, 5, hour, minute, 0, 0, time.UTC) }
	for grain, want := range map[usage.Grain][2]time.Time{
		usage.Minute: {at(11, 30), at(12, 31)}, usage.Hour: {at(-12, 0), at(13, 0)}, usage.Day: {at(-24*29-24, 0), at(24, 0)},
	} {
		report, err := d.Store.Usage(t.Context(), a, tenants.UsageQuery{Grain: grain})
		require.NoError(t, err)
		require.Equal(t, want, [2]time.Time{report.From, report.To}, grain)
	}
}
