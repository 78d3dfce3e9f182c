package tenants_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// number returns the number that a query finds.
func number(t *testing.T, d *tenantstest.Database, sql string, args ...any) (n int) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		require.NoError(t, conn.QueryRow(ctx, sql, args...).Scan(&n))
	})
	return n
}

// refuseDeletes makes each deletion of the tenant's rows of a table fail, and returns a function
// that returns how many there were.
func refuseDeletes(t *testing.T, d *tenantstest.Database, table string, of tenants.Actor) (tries func() int) {
	t.Helper()
	d.Exec("CREATE SEQUENCE tries") // it counts what is rolled back, too
	d.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN PERFORM nextval('public.tries'); RAISE 'refused'; END $$`)
	d.Exec("CREATE TRIGGER refuse BEFORE DELETE ON " + table + " FOR EACH ROW WHEN (OLD.tenant_id = " + quoted(of.TenantID()) + ") EXECUTE FUNCTION refuse()")
	return func() int { return number(t, d, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tries") }
}

// A tenant that is being changed keeps the traces of its own deleted subjects until the next purge,
// and no others, however many it has.
func TestLockedTenantDelaysNoTombstones(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	const many = 5001 // more than one statement looks at
	add := func(of tenants.Actor, n, days int) {
		d.Exec(`INSERT INTO subject_tombstones (tenant_id, subject, deleted_at, version)
			SELECT $1, 's' || n, now() - $3::int * interval '1 day', n FROM generate_series(1, $2::int) n`, of.TenantID(), n, days)
	}
	add(a, many, 3)
	add(b, 10, 2)
	left := func(of tenants.Actor) int {
		return number(t, d, "SELECT count(*) FROM subject_tombstones WHERE tenant_id = $1", of.TenantID())
	}
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = tx.Exec(ctx, "SELECT FROM tenants WHERE id = $1 FOR NO KEY UPDATE", a.TenantID())
		require.NoError(t, err)
		require.NoError(t, d.Store.Purge(t.Context()))
		require.Equal(t, []int{many, 0}, []int{left(a), left(b)})
	})
	require.Equal(t, 10, number(t, d, "SELECT subjects_history_from FROM tenants WHERE id = $1", b.TenantID()))
	require.NoError(t, d.Store.Purge(t.Context()))
	require.Zero(t, left(a))
	require.Equal(t, many, number(t, d, "SELECT subjects_history_from FROM tenants WHERE id = $1", a.TenantID()))
}

// A tenant whose invitations cannot be withdrawn is tried once. Those of others are withdrawn, and
// people without a tenant are deleted.
func TestPurgePeopleDespiteATenant(t *testing.T) {
	t.Parallel()
	d, a, b, now, _ := sessionStack(t)
	s, ctx := d.Store, t.Context()
	gone, err := s.CreateMember(ctx, a, "gone@example.com", "correct horse", tenants.Viewer)
	require.NoError(t, err)
	require.NoError(t, s.RemoveMember(ctx, a, gone.ID, tenants.Match{}))
	for _, email := range []string{"x@example.com", "y@example.com", "z@example.com"} {
		require.NoError(t, second(s.InviteMember(ctx, a, email, tenants.Viewer)))
	}
	require.NoError(t, second(s.InviteMember(ctx, b, "w@example.com", tenants.Viewer)))
	require.NoError(t, second(s.PurgePeople(ctx)))
	tries := refuseDeletes(t, d, "members", a)
	*now = now.Add(tenants.InvitationLife + tenants.PeopleRetention + time.Millisecond)
	purged, err := s.PurgePeople(ctx)
	require.ErrorContains(t, err, "withdraw expired invitations of "+a.TenantID().String())
	require.Equal(t, tenants.PurgedPeople{Invitations: 1, People: 1}, purged)
	require.Equal(t, 1, tries())
}

// A tenant whose old audit rows cannot be deleted is tried once, and those of others are deleted.
func TestPurgeAuditDespiteATenant(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	rows := func(of tenants.Actor) int {
		return number(t, d, "SELECT count(*) FROM audit WHERE tenant_id = $1", of.TenantID())
	}
	had, tries := rows(a), refuseDeletes(t, d, "audit", a)
	require.Positive(t, rows(b))
	removed, err := d.Store.PurgeAudit(t.Context(), time.Now().Add(time.Hour))
	require.ErrorContains(t, err, a.TenantID().String())
	require.Positive(t, removed)
	require.Equal(t, []int{had, 0}, []int{rows(a), rows(b)})
	require.Equal(t, 1, tries())
}

// If ten trails fail one after the other, the rest is for the next purge: each may take seconds. It
// begins behind them.
func TestPurgeAuditEndsIfAllFail(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	for i := range 12 {
		d.Tenant(fmt.Sprintf("tenant-%d", i))
	}
	const tenth = "(SELECT id FROM tenants ORDER BY id OFFSET 9 LIMIT 1)"
	d.Exec("CREATE SEQUENCE tries")
	d.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN PERFORM nextval('public.tries'); RAISE 'refused'; END $$`)
	d.Exec("DO $do$ BEGIN EXECUTE format('CREATE TRIGGER refuse BEFORE DELETE ON audit FOR EACH ROW WHEN (OLD.tenant_id <= %L) EXECUTE FUNCTION refuse()', " + tenth + "); END $do$")
	removed, err := d.Store.PurgeAudit(t.Context(), time.Now().Add(time.Hour))
	require.ErrorContains(t, err, "refused")
	require.Zero(t, removed)
	require.Equal(t, 10, number(t, d, "SELECT last_value FROM tries"))
	removed, err = d.Store.PurgeAudit(t.Context(), time.Now().Add(time.Hour))
	require.ErrorContains(t, err, "refused")
	require.Positive(t, removed)
	require.Equal(t, 20, number(t, d, "SELECT last_value FROM tries"))
	require.Zero(t, number(t, d, "SELECT count(*) FROM audit WHERE tenant_id > "+tenth))
}

// A tenant whose keys cannot be deleted is tried once, and those of others are deleted.
func TestPurgeKeysDespiteATenant(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	ended := time.Now().Add(-time.Hour)
	addKeys(d, a, 5100, &ended, nil)
	addKeys(d, b, 5100, &ended, nil)
	tries := refuseDeletes(t, d, "api_keys", a)
	removed, err := d.Store.PurgeKeys(t.Context())
	require.ErrorContains(t, err, "refused")
	require.EqualValues(t, 100, removed)
	require.Equal(t, 1, tries())

	d.Exec("DROP TRIGGER refuse ON api_keys")
	long := time.Now().Add(-tenants.KeyRetention - time.Hour)
	addKeys(d, b, 10, &long, nil)
	removed, err = d.Store.PurgeKeys(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 110, removed)
}

// A tenant whose rows exceed the retention of its tier, and cannot be deleted, is tried once, too.
func TestPurgeTiersDespiteATenant(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Now().UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	platform, err := d.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	require.NoError(t, d.Store.ProposeTiers(t.Context(), platform))
	for _, slug := range []string{"tenant-a", "tenant-b"} {
		mustSubject(t, d.Store, tenants.AsSystem(platform.ID, "test"), tenants.Subject{Subject: slug, Plan: "free"})
	}
	rows := func(of tenants.Actor) int {
		return number(t, d, "SELECT count(*) FROM audit WHERE tenant_id = $1", of.TenantID())
	}
	hadA, hadB, tries := rows(a), rows(b), refuseDeletes(t, d, "audit", a)
	now.nowMS += 31 * 24 * time.Hour.Milliseconds()
	removed, err := d.Store.PurgeTiers(t.Context())
	require.ErrorContains(t, err, a.TenantID().String())
	require.EqualValues(t, hadB, removed)
	require.Equal(t, []int{hadA, 0}, []int{rows(a), rows(b)})
	require.Equal(t, 1, tries())
}
