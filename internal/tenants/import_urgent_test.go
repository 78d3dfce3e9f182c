package tenants_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

const urgentKey = "hashtextextended('urgent ' || $1::text, 0)"

// An import ends when somebody changes keys, members or the tenant itself. Before, nobody could
// revoke a key that imports one file after the other, because an import holds the tenant's lock.
func TestImportsEndForUrgentChanges(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	lines := []tenants.SubjectLine{{Subject: "ada"}}
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, "SELECT pg_advisory_lock_shared("+urgentKey+")", a.TenantID())
		require.NoError(t, err)
		for _, mode := range []tenants.ImportMode{{}, {DryRun: true}} {
			_, err = d.Store.ImportSubjects(ctx, a, lines, mode)
			require.ErrorIs(t, err, tenants.ErrInterrupted)
		}
		_, err = d.Store.ImportSubjects(ctx, b, lines, tenants.ImportMode{})
		require.NoError(t, err, "of another tenant")
		_, err = conn.Exec(ctx, "SELECT pg_advisory_unlock_shared("+urgentKey+")", a.TenantID()) // Postgres may end the connection later
		require.NoError(t, err)
	})
	_, err := d.Store.SubjectByName(t.Context(), a, "ada")
	require.ErrorIs(t, err, tenants.ErrNotFound)
	counts, err := d.Store.ImportSubjects(t.Context(), a, lines, tenants.ImportMode{})
	require.NoError(t, err)
	require.Equal(t, 1, counts.Created)
}

// A revocation announces itself before it waits for the tenant's lock.
func TestRevocationsAreUrgent(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	_, secret := d.Tenant("tenant-a")
	a := d.Actor(secret)
	key, _, err := d.Store.CreateKey(t.Context(), a, tenants.NewAPIKey{Name: "importer", Scopes: []tenants.Scope{tenants.ScopeWrite}})
	require.NoError(t, err)
	revoked := make(chan error, 1)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "SELECT FROM tenants WHERE id = $1 FOR NO KEY UPDATE", a.TenantID()) // as an import
		require.NoError(t, err)
		go func() { revoked <- d.Store.RevokeKey(ctx, a, key.ID, tenants.Match{}) }()
		require.Eventually(t, func() bool {
			var free bool
			require.NoError(t, tx.QueryRow(ctx, "SELECT pg_try_advisory_lock("+urgentKey+") AND pg_advisory_unlock("+urgentKey+")", a.TenantID()).Scan(&free))
			return !free
		}, time.Minute, time.Millisecond)
		require.NoError(t, tx.Rollback(ctx))
		require.NoError(t, <-revoked)
	})
}
