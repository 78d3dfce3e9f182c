package tenants_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// While Postgres is unavailable, each operation fails soon, and works again afterwards.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	p := newProxy(t, d.URL)
	s := d.Open(tenants.Config{DatabaseURL: p.url})
	mustRule(t, s, a, rule("r"))
	operations := map[string]func(context.Context) error{
		"ping":     s.Ping,
		"read":     func(ctx context.Context) error { return second(s.RuleBySlug(ctx, a, "r")) },
		"write":    func(ctx context.Context) error { return s.DeleteRule(ctx, a, "none", tenants.Match{}) },
		"operator": func(ctx context.Context) error { return second(s.TenantBySlugOrID(ctx, operator, "tenant-a")) },
		"policy":   func(ctx context.Context) error { return second(s.LoadPolicy(ctx, a.TenantID())) },
		"subjects": func(ctx context.Context) error {
			return second(s.LoadSubjects(ctx, a.TenantID(), 0, func(check.SubjectData) {}))
		},
		"login": func(ctx context.Context) error { return second(s.VerifyPassword(ctx, "a@example.com", "password")) },
		"idempotent": func(ctx context.Context) error {
			return second(s.Idempotent(ctx, a, "k", [32]byte{}, answers(200, nil)))
		},
		"secrets": func(ctx context.Context) error { return second(s.Secrets(ctx)) },
	}
	p.cut()
	for name, operation := range operations {
		require.ErrorIs(t, operation(t.Context()), tenants.ErrUnavailable, name)
	}
	p.restore()
	require.Eventually(t, func() bool { return s.Ping(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
	_, err := s.RuleBySlug(t.Context(), a, "r")
	require.NoError(t, err)
}

// An address that accepts connections but does not answer must not block requests for long.
func TestSilentPostgres(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	s, err := tenants.Open(t.Context(), tenants.Config{DatabaseURL: "postgres://u:p@" + l.Addr().String() + "/weir?sslmode=disable"})
	require.NoError(t, err, "a server may start before its database")
	defer s.Close()
	require.ErrorIs(t, s.Ping(t.Context()), tenants.ErrUnavailable, "it gives up by itself")
}

func TestOpenBadURL(t *testing.T) {
	t.Parallel()
	for _, config := range []tenants.Config{
		{DatabaseURL: "postgres://u:secret@host:port/db"},
		{DatabaseURL: "postgres://localhost/db", ListenURL: "postgres://u:secret@host:port/db"},
	} {
		_, err := tenants.Open(t.Context(), config)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "secret")
	}
}

// A locked table must not block a request for longer than the lock timeout.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	release := blockLookups(t, d)
	defer release()
	_, _, err := d.Store.Keys(t.Context(), a, tenants.Page{}) // while the table is still locked
	require.ErrorIs(t, err, tenants.ErrUnavailable)
}

// A server whose database is read-only (a standby, a full disk) can still read.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustRule(t, d.Store, a, rule("r"))
	d.Exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$")
	s := d.Open(tenants.Config{})
	_, err := s.RuleBySlug(t.Context(), a, "r")
	require.NoError(t, err)
	_, err = s.CreateRule(t.Context(), a, rule("q"))
	require.ErrorIs(t, err, tenants.ErrUnavailable)
}

// If the client has disconnected, the database is not reported as the cause.
func TestCancelled(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Store.RuleBySlug(ctx, a, "r")
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, tenants.ErrUnavailable)
}

// A login without the roles, or a database without them, counts as unavailable: the log has the
// reason, and clients may retry.
func TestLoginWithoutRoles(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	url := loginURL(t, d)
	d.Exec("REVOKE weir_app FROM " + loginName(t, url))
	s := d.Open(tenants.Config{DatabaseURL: url})
	_, err := s.Tenant(t.Context(), operator)
	require.ErrorIs(t, err, tenants.ErrUnavailable)
	require.ErrorContains(t, err, "weir_app")
	require.NoError(t, s.Ping(t.Context()))
}
