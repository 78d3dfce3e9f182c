package tenants_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// column returns the first column of a query by the owner.
func column[T any](t *testing.T, d *tenantstest.Database, query string, args ...any) (out []T) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, query, args...)
		require.NoError(t, err)
		out, err = pgx.CollectRows(rows, pgx.RowTo[T])
		require.NoError(t, err)
	})
	return out
}

// addEndedRules adds usage in an hour of rules that had a meter in it and were deleted.
func addEndedRules(d *tenantstest.Database, a tenants.Actor, hour time.Time, rules int) {
	d.Exec(`WITH added AS (
			INSERT INTO metered_totals (tenant_id, start, rule, units, overage_units, free_units, billed_units, checks, late_units, unattributed_units)
			SELECT $1, $2, 'r' || n, 1, 0, 0, 0, 1, 0, 0 FROM generate_series(1, $3::int) AS n RETURNING rule)
		INSERT INTO ended_meters (tenant_id, rule, until, meter_event, kind) SELECT $1, rule, $2::timestamptz + interval '1 hour', 'calls', 'units' FROM added`,
		a.TenantID(), hour, rules)
}

// refusePushes makes Postgres fail to create the push of a rule, '%': of any, until it is reverted.
func refusePushes(d *tenantstest.Database, rule string) (revert func()) {
	d.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$`)
	d.Exec(fmt.Sprintf("CREATE TRIGGER refuse BEFORE INSERT ON metered_pushes FOR EACH ROW WHEN (NEW.rule LIKE '%s') EXECUTE FUNCTION refuse()", rule))
	return func() { d.Exec("DROP FUNCTION refuse CASCADE") }
}

// createPushes creates all pushes of sealed hours in pages, and returns their number.
func createPushes(t *testing.T, s *tenants.Store, most int32) (pages int) {
	t.Helper()
	for more := true; more; pages++ {
		var err error
		more, err = s.CreateMeterPushes(t.Context(), most)
		require.NoError(t, err)
	}
	return pages
}

// pushesOf returns the pushes of a tenant: hour, rule, meter and what is invoiced.
func pushesOf(t *testing.T, d *tenantstest.Database, a tenants.Actor) []string {
	t.Helper()
	return column[string](t, d, `SELECT to_char(start, 'HH24') || ' ' || rule || ' ' || meter_event || ' ' || kind
		FROM metered_pushes WHERE tenant_id = $1 ORDER BY start, rule`, a.TenantID())
}

// An hour is sealed although its pushes, of whichever tenant, cannot be created, and writers write.
func TestSealingIsApartFromPushes(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	start := openHours(t, d, 3)
	addEndedRules(d, a, start, 10)
	w := newMeterWriter()
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch(meterRow(b, start, "ada", "api", 20))))
	revert := refusePushes(d, "%")
	sealed, err := d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.NotNil(t, sealed)
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch(meterRow(b, start, "ada", "api", 20))))

	for range 2 {
		more, err := d.Store.CreateMeterPushes(t.Context(), 4)
		require.Error(t, err)
		require.False(t, more)
	}
	revert()
	createPushes(t, d.Store, 4)
	require.Len(t, pushesOf(t, d, a), 10)
}

// However many rules with a meter a tenant has in an hour, a transaction creates a page of pushes,
// and deletes a page of meters that have ended. Nothing is lost or created twice at the end of a
// page: not if a page fails, or another hour is sealed meanwhile.
func TestPushesAreCreatedInPages(t *testing.T) {
	t.Parallel()
	const most, rules = 4, 13
	d, a, b := two(t)
	start := openHours(t, d, 4)
	for n := range 6 { // more tenants than a page looks at
		idle, _ := d.Tenant(fmt.Sprint("idle-", n))
		if n == 3 {
			addEndedRules(d, idle, start, 2)
		}
	}
	for n, actor := range []tenants.Actor{a, b} {
		addEndedRules(d, actor, start, rules)
		addEndedRules(d, actor, start.Add(2*time.Hour), n*most)
	}
	left := func() int { return column[int](t, d, "SELECT count(*) FROM ended_meters")[0] }
	place := func() string {
		return column[string](t, d, "SELECT pushes_until || ' ' || pushes_tenant || ' ' || pushes_rule FROM metering_state")[0]
	}
	d.Exec("UPDATE metering_state SET sealed_until = $1", start.Add(time.Hour))

	before := left()
	revert := refusePushes(d, "r6")
	var err error
	for more := true; more; {
		more, err = d.Store.CreateMeterPushes(t.Context(), most)
	}
	require.Error(t, err)
	failed := place()
	made := column[int](t, d, "SELECT count(*) FROM metered_pushes")[0]
	_, err = d.Store.CreateMeterPushes(t.Context(), most)
	require.Error(t, err)
	require.Equal(t, failed, place(), "a page that fails is repeated")
	require.Equal(t, made, column[int](t, d, "SELECT count(*) FROM metered_pushes")[0])
	require.Equal(t, before, left(), "they are needed")
	revert()

	_, err = d.Store.CreateMeterPushes(t.Context(), most)
	require.NoError(t, err)
	d.Exec("UPDATE metering_state SET sealed_until = $1", start.Add(3*time.Hour)) // in the middle
	for more := true; more; {
		before = left()
		more, err = d.Store.CreateMeterPushes(t.Context(), most)
		require.NoError(t, err)
		require.LessOrEqual(t, before-left(), most)
	}
	require.LessOrEqual(t, slices.Max(column[int](t, d, "SELECT count(*) FROM metered_pushes GROUP BY xmin::text")), most)
	require.Zero(t, left())
	require.Len(t, pushesOf(t, d, a), rules)
	require.Len(t, pushesOf(t, d, b), rules+most)
	require.Len(t, column[string](t, d, "SELECT rule FROM metered_pushes"), 2*rules+most+2)
	require.Equal(t, []bool{true}, column[bool](t, d, "SELECT pushes_until = sealed_until FROM metering_state"))
	require.Equal(t, 1, createPushes(t, d.Store, most), "nothing is left")
}

// Several servers create the pushes of an hour once.
func TestPushesByManyServers(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	start := openHours(t, d, 4)
	for n := range 3 {
		addEndedRules(d, a, start.Add(time.Duration(n)*time.Hour), 11)
		addEndedRules(d, b, start.Add(time.Duration(n)*time.Hour), 3)
	}
	var all errgroup.Group
	for range 4 {
		all.Go(func() error {
			for range 20 {
				_, _ = d.Store.SealMetering(t.Context()) // another one may be looking
				if _, err := d.Store.CreateMeterPushes(t.Context(), 3); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	createPushes(t, d.Store, 3)
	require.Len(t, pushesOf(t, d, a), 33)
	require.Len(t, pushesOf(t, d, b), 9)
}

// Pushes are the same whether they are created when their hour is sealed or later, after the meters
// of rules have changed, and although an instance of an earlier release seals hours meanwhile.
func TestPushesOfRulesThatChangeAfterSealing(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	start := openHours(t, d, 2)
	metered := func(slug string, kind limit.Metering, meter string) limit.Rule {
		r := rule(slug)
		r.Metering, r.MeterEvent = kind, meter
		return r
	}
	put := func(slug string, kind limit.Metering, meter string) {
		t.Helper()
		_, _, err := s.PutRule(t.Context(), a, metered(slug, kind, meter), tenants.Match{})
		require.NoError(t, err)
	}
	remove := func(slug string) {
		t.Helper()
		require.NoError(t, s.DeleteRule(t.Context(), a, slug, tenants.Match{}))
	}
	w := newMeterWriter()
	batch := w.batch()
	for _, slug := range []string{"changed", "created", "deleted", "first", "kept", "lost-before", "none", "recreated"} {
		if slug != "created" && slug != "first" {
			put(slug, limit.MeterUnits, "old")
		}
		batch.Rows = append(batch.Rows, meterRow(a, start, "ada", slug, 20))
	}
	put("first", limit.MeterUnits, "")
	d.Exec("DELETE FROM ended_meters") // as if they had their meter before the hour
	require.NoError(t, s.WriteMetered(t.Context(), batch))
	remove("lost-before")
	d.Exec("UPDATE ended_meters SET until = $1", start) // before the hour, of which late units are
	sealed, err := s.SealMetering(t.Context())
	require.NoError(t, err)
	require.True(t, sealed.After(start))

	put("changed", limit.MeterOverage, "new")
	put("changed", limit.MeterOverage, "newest")
	put("created", limit.MeterUnits, "new")
	remove("deleted")
	put("first", limit.MeterUnits, "new")
	put("lost-before", limit.MeterUnits, "new")
	put("none", limit.MeterNone, "")
	remove("recreated")
	put("recreated", limit.MeterUnits, "new")

	// As an earlier release seals: it creates the pushes of the hours that it seals, and deletes
	// all meters that ended until then.
	asSystem := func(statement string, args ...any) {
		t.Helper()
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, "SET ROLE weir_system")
			require.NoError(t, err)
			_, err = conn.Exec(ctx, statement, args...)
			require.NoError(t, err)
		})
	}
	later := sealed.Add(3 * time.Hour)
	d.Exec(`INSERT INTO metered_totals (tenant_id, start, rule, units, overage_units, free_units, billed_units, checks, late_units, unattributed_units)
		VALUES ($1, $2, 'kept', 7, 0, 0, 0, 1, 0, 0)`, a.TenantID(), *sealed)
	asSystem("UPDATE metering_state SET sealed_until = $1", later)
	asSystem("INSERT INTO metered_pushes (tenant_id, id, start, rule, meter_event, kind, due_at) VALUES ($1, gen_random_uuid(), $2, 'kept', 'old', 'units', now())",
		a.TenantID(), *sealed)
	asSystem("DELETE FROM ended_meters WHERE until <= $1", later)

	createPushes(t, s, 3)
	of := func(hour time.Time, rest string) string { return hour.UTC().Format("15") + " " + rest }
	require.Equal(t, []string{
		of(start, "changed old units"), of(start, "deleted old units"), of(start, "kept old units"), of(start, "none old units"),
		of(start, "recreated old units"), of(*sealed, "kept old units"),
	}, pushesOf(t, d, a))
	require.Empty(t, column[string](t, d, "SELECT rule FROM ended_meters"), "all hours that it knows of are done")
	put("kept", limit.MeterNone, "")
	put("kept", limit.MeterUnits, "new")
	require.Equal(t, []string{"old"}, column[string](t, d, "SELECT meter_event FROM ended_meters"), "no note of a first meter once nothing is missing")
}

// A rule that gets its first meter sends the present hour and later ones, and none before: also
// those that are not sealed yet.
func TestFirstMeterBeginsWithThePresentHour(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	start := openHours(t, d, 2)
	put := func(slug, meter string) {
		t.Helper()
		r := rule(slug)
		r.Metering, r.MeterEvent = limit.MeterUnits, meter
		_, _, err := s.PutRule(t.Context(), a, r, tenants.Match{})
		require.NoError(t, err)
	}
	w := newMeterWriter()
	write := func(hour time.Time, slugs ...string) {
		t.Helper()
		batch := w.batch()
		for _, slug := range slugs {
			batch.Rows = append(batch.Rows, meterRow(a, hour, "ada", slug, 20))
		}
		require.NoError(t, s.WriteMetered(t.Context(), batch))
	}
	put("kept", "old")
	put("regained", "old")
	d.Exec("DELETE FROM ended_meters") // as if they had their meter before
	put("regained", "")
	d.Exec("UPDATE ended_meters SET until = $1", start.Add(time.Hour))
	put("first", "")
	for hour := range 2 {
		write(start.Add(time.Duration(hour)*time.Hour), "created", "first", "kept", "regained")
	}
	put("first", "new")
	put("created", "new")
	put("regained", "new")
	present := time.Now().UTC().Truncate(time.Hour)
	write(present, "created", "first", "kept", "regained")
	d.Exec("UPDATE metering_state SET sealed_until = $1", present.Add(time.Hour))
	createPushes(t, s, 4)

	of := func(hour time.Time, rest string) string { return hour.Format("15") + " " + rest }
	require.ElementsMatch(t, []string{
		of(start, "kept old units"), of(start, "regained old units"), of(start.Add(time.Hour), "kept old units"),
		of(present, "created new units"), of(present, "first new units"), of(present, "kept old units"), of(present, "regained new units"),
	}, pushesOf(t, d, a))
}
