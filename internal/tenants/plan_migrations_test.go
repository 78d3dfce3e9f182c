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

// mustSubjects creates n subjects with a plan.
func mustSubjects(t *testing.T, s *tenants.Store, a tenants.Actor, plan string, n int) {
	t.Helper()
	lines := make([]tenants.SubjectLine, n)
	for i := range lines {
		lines[i] = tenants.SubjectLine{Line: i + 1, Subject: fmt.Sprintf("%s-%03d", plan, i), Plan: &plan}
	}
	_, err := s.ImportSubjects(t.Context(), a, lines, tenants.ImportMode{})
	require.NoError(t, err)
}

// Migrations that were scheduled in advance move the subjects of a tenant from plan to plan. Once
// the trail of a day is full, the others wait for the next day. A migration that was canceled ends,
// and those of other tenants continue.
func TestMigrationsWaitForTheNextDay(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 0, 0, 0, 0, time.UTC)
	const most, subjects = 300_000, 510
	d := tenantstest.NewWith(t, tenants.Config{Now: func() time.Time { return at }, AuditDay: most})
	s, ctx := d.Store, t.Context()
	s.SetTurnTime(time.Hour)
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	plans := []string{"one", "two", "three", "four", "five", "six"}
	for _, slug := range plans {
		mustPlan(t, s, a, slug)
		mustPlan(t, s, b, slug)
	}
	mustSubjects(t, s, a, "one", subjects)
	var last tenants.PlanMigration
	for i := range len(plans) - 1 {
		var err error
		last, err = s.CreatePlanMigration(ctx, a, tenants.NewPlanMigration{Plan: plans[i], To: plans[i+1], StartsAt: at.Add(time.Duration(24+i) * time.Hour)})
		require.NoError(t, err)
	}

	at = at.AddDate(0, 0, 1).Add(12 * time.Hour) // all are due
	before, _ := volumeOf(t, s, a)
	moved := runAll(t, s)
	require.Greater(t, moved, subjects)
	rows, _ := volumeOf(t, s, a)
	require.LessOrEqual(t, (rows-before)*300, most+500*500, "one batch more at most")
	require.Less(t, moved, 3*subjects)
	mustSubject(t, s, b, tenants.Subject{Subject: "ada", Plan: "one"})
	_, err := s.CreatePlanMigration(ctx, b, tenants.NewPlanMigration{Plan: "one", To: "two"})
	require.NoError(t, err)
	require.Equal(t, 1, runAll(t, s), "that of the other tenant")
	_, err = s.CancelPlanMigration(ctx, a, "five", last.ID)
	require.NoError(t, err)

	for range 5 {
		at = at.AddDate(0, 0, 1)
		moved += runAll(t, s)
	}
	require.Equal(t, 4*subjects, moved)
	require.Equal(t, "five 1", versionOf(t, s, a, "one-000"))
}

// While very many changes of counters of a tenant wait, its migrations that would add more of them
// wait, too. One that changes no counters does not.
func TestMigrationsWaitForCounters(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	for slug, onChange := range map[string]string{"one": tenants.OnChangeReset, "two": tenants.OnChangeReset, "three": tenants.OnChangeCarry} {
		_, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: slug, OnChange: onChange})
		require.NoError(t, err)
	}
	mustSubject(t, s, a, tenants.Subject{Subject: "resets", Plan: "one"})
	mustSubject(t, s, a, tenants.Subject{Subject: "carries", Plan: "two"})
	d.Exec("DELETE FROM counter_changes")
	d.Exec("INSERT INTO counter_changes (tenant_id, subject, action, from_plan, to_plan) SELECT $1, 'ada', 'reset', 'one', 'two' FROM generate_series(1, 10001)", a.TenantID())
	_, err := s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "two", To: "three"})
	require.NoError(t, err)
	_, err = s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "one", To: "two"})
	require.NoError(t, err)
	require.Equal(t, 1, runAll(t, s))
	require.Equal(t, "one 1", versionOf(t, s, a, "resets"))
	require.Equal(t, "three 1", versionOf(t, s, a, "carries"))

	d.Exec("DELETE FROM counter_changes WHERE id = (SELECT min(id) FROM counter_changes WHERE tenant_id = $1)", a.TenantID())
	require.Equal(t, 1, runAll(t, s))
	require.Equal(t, "two 1", versionOf(t, s, a, "resets"))
}
