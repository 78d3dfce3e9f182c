package tenants_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A tenant that is locked, by its changes or by its resets, is left soon: the changes of others
// follow in the same round, however long statements may wait otherwise.
func TestPlansOfALockedTenant(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]string{
		"a change": "SELECT FROM tenants WHERE id = $1 FOR UPDATE",
		"a reset":  "SELECT FROM audit_heads WHERE tenant_id = $1 FOR UPDATE",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, a, b := two(t)
			dueSince(t, d, a, 600, time.Hour)
			dueSince(t, d, b, 2, time.Minute)
			for _, actor := range []tenants.Actor{a, b} {
				mustRule(t, d.Store, actor, rule("r"))
				mustPublish(t, d.Store, actor, "pro", 20)
				_, err := d.Store.CreatePlanMigration(t.Context(), actor, tenants.NewPlanMigration{Plan: "pro"})
				require.NoError(t, err)
			}
			patient := d.Open(tenants.Config{Operation: 10 * time.Minute})
			patient.SetTurnTime(time.Hour)
			d.Conn(func(ctx context.Context, conn *pgx.Conn) {
				tx, err := conn.Begin(ctx)
				require.NoError(t, err)
				defer func() { _ = tx.Rollback(ctx) }()
				_, err = tx.Exec(ctx, lock, a.TenantID())
				require.NoError(t, err)
				soon, cancel := context.WithTimeout(ctx, 2*time.Minute)
				defer cancel()
				moved, _, err := patient.RunPlanMigrations(soon)
				require.NoError(t, err, "it is left for the round")
				require.Equal(t, 2, moved)
				d.Exec("UPDATE subjects SET next_plan_at = now() - interval '1 minute', next_plan_id = plan_id WHERE tenant_id = $1", b.TenantID())
				applied, more, err := patient.ApplyDuePlans(soon)
				require.NoError(t, err)
				require.Equal(t, 2, applied)
				require.False(t, more)
			})
		})
	}
}

// The changes of a tenant that take long are interrupted by those of others.
func TestPlanChangesTakeTurns(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	s.SetTurnTime(0) // each task is a whole turn
	dueSince(t, d, a, 3, time.Hour)
	dueSince(t, d, b, 1, time.Minute)
	for _, want := range []int{2, 1, 1} {
		applied, more, err := s.ApplyDuePlans(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, applied)
		list, _, err := s.ScheduledPlans(t.Context(), a, tenants.Page{Limit: 10})
		require.NoError(t, err)
		require.Equal(t, len(list) > 0, more)
	}

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
	moved, more, err := s.RunPlanMigrations(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, moved, "one of each tenant")
	require.True(t, more)
	require.Equal(t, 4, runAll(t, s))
}
