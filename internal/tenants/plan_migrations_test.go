package tenants_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A tenant that is locked costs a round one wait, however many migrations it has, and the
// migrations of others continue.
func TestMigrationsOfALockedTenant(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	for _, actor := range []tenants.Actor{a, b} {
		mustRule(t, s, actor, rule("r"))
		for _, slug := range []string{"one", "two", "three"} {
			mustPlan(t, s, actor, slug)
			mustSubject(t, s, actor, tenants.Subject{Subject: "of-" + slug, Plan: slug})
			mustPublish(t, s, actor, slug, 20)
			_, err := s.CreatePlanMigration(t.Context(), actor, tenants.NewPlanMigration{Plan: slug})
			require.NoError(t, err)
		}
	}
	impatient := d.Open(tenants.Config{Operation: 5 * time.Second})
	impatient.SetTurnTime(time.Hour)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = tx.Exec(ctx, "SELECT FROM tenants WHERE id = $1 FOR UPDATE", a.TenantID())
		require.NoError(t, err)
		_, more, err := impatient.RunPlanMigrations(ctx)
		require.NoError(t, err, "it is left for the round")
		require.False(t, more)
	})
	for _, slug := range []string{"one", "two", "three"} {
		require.Equal(t, slug+" 2", versionOf(t, s, b, "of-"+slug))
		require.Equal(t, slug+" 1", versionOf(t, s, a, "of-"+slug))
	}
}
