package tenants_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// A change with many writes holds up no changes of other tenants. Each change here waits for a row
// that it writes, which the test has locked, as if the change had many more to write. Meanwhile
// another tenant's change ends.
func TestLongChangesHoldUpNobody(t *testing.T) {
	t.Parallel()
	limits := func(n int64) map[string]limit.Limit {
		return map[string]limit.Limit{"r": {Limit: n}, "q": {Limit: n}}
	}
	const planLimits, subjects = "SELECT FROM plan_limits FOR UPDATE", "SELECT FROM subjects FOR UPDATE"
	for name, test := range map[string]struct {
		lock   string
		change func(ctx context.Context, s *tenants.Store, a tenants.Actor) error
	}{
		"create a plan": {"SELECT FROM rules FOR UPDATE", func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			return second(s.CreatePlan(ctx, a, tenants.Plan{Slug: "new", Limits: limits(1)}))
		}},
		"replace a plan": {planLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			_, _, err := s.PutPlan(ctx, a, tenants.Plan{Slug: "pro", Limits: limits(7)}, tenants.Match{})
			return err
		}},
		"edit a plan": {planLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			return second(s.EditPlan(ctx, a, "pro", tenants.Match{}, func(p *tenants.Plan) error { p.Limits = limits(8); return nil }))
		}},
		"set a limit": {planLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			_, _, err := s.PutPlanLimit(ctx, a, "pro", "r", limit.Limit{Limit: 9}, tenants.Match{})
			return err
		}},
		"delete a limit": {planLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			return s.DeletePlanLimit(ctx, a, "pro", "r", tenants.Match{})
		}},
		"publish a version": {planLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			return second(s.PublishPlan(ctx, a, "pro", limits(7), tenants.Match{}))
		}},
		"delete a version": {"SELECT FROM plan_version_limits FOR UPDATE", func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			return s.DeletePlanVersion(ctx, a, "pro", 1, tenants.Match{})
		}},
		"delete a plan": {planLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			return s.DeletePlan(ctx, a, "pro", tenants.Match{})
		}},
		"delete a rule": {planLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			return s.DeleteRule(ctx, a, "r", tenants.Match{})
		}},
		"migrate subjects": {subjects, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			if _, err := s.CreatePlanMigration(ctx, a, tenants.NewPlanMigration{Plan: "free", To: "pro"}); err != nil {
				return err
			}
			_, _, err := s.RunPlanMigrations(ctx)
			return err
		}},
		"schedule a migration": {subjects, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
			if _, err := s.CreatePlanMigration(ctx, a, tenants.NewPlanMigration{Plan: "free", To: "pro", AtCycleEnd: true}); err != nil {
				return err
			}
			_, _, err := s.RunPlanMigrations(ctx)
			return err
		}},
		"delete a tenant": {planLimits, func(ctx context.Context, s *tenants.Store, _ tenants.Actor) error {
			return s.DeleteTenant(ctx, tenants.AsOperator("test"), "tenant-a", tenants.Match{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, a, b := two(t)
			mustRule(t, d.Store, a, rule("r"))
			mustRule(t, d.Store, a, rule("q"))
			mustPlan(t, d.Store, a, "free")
			mustPlan(t, d.Store, a, "pro")
			_, _, err := d.Store.PutPlan(t.Context(), a, tenants.Plan{Slug: "pro", Limits: limits(5)}, tenants.Match{})
			require.NoError(t, err)
			mustSubject(t, d.Store, a, tenants.Subject{Subject: "ada", Plan: "free"})
			_, err = d.Store.PublishPlan(t.Context(), a, "pro", limits(6), tenants.Match{})
			require.NoError(t, err)

			patient := d.Open(tenants.Config{Operation: 5 * time.Minute})
			ended := make(chan error, 1)
			whileLocked(t, d, test.lock, func(ctx context.Context) {
				ended <- test.change(ctx, patient, a)
			}, func() {
				_, err := d.Open(tenants.Config{Operation: 5 * time.Second}).CreateRule(t.Context(), b, rule("r"))
				require.NoError(t, err)
			})
			require.NoError(t, <-ended)
		})
	}
}

// whileLocked calls do once waiting, in its own goroutine, waits for the locks of a statement.
func whileLocked(t *testing.T, d *tenantstest.Database, statement string, waiting func(ctx context.Context), do func()) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = tx.Exec(ctx, statement)
		require.NoError(t, err)
		go waiting(ctx)
		require.Eventually(t, func() bool {
			var waits bool
			err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))`).Scan(&waits)
			return err == nil && waits
		}, time.Minute, 5*time.Millisecond)
		do()
	})
}

// The rows of a change that takes its number last have another number. No version of an object is
// used twice nevertheless.
func TestVersionsOfLongChanges(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	mustRule(t, s, a, rule("r"))
	plan := mustPlan(t, s, a, "pro")
	var last int64
	for n := range int64(5) {
		mustRule(t, s, b, rule([]string{"a", "b", "c", "d", "e"}[n])) // numbers in between
		out, _, err := s.PutPlanLimit(t.Context(), a, "pro", "r", limit.Limit{Limit: n + 1}, at(max(last, plan.Version)))
		require.NoError(t, err)
		require.Greater(t, out.Version, max(last, plan.Version))
		require.LessOrEqual(t, out.Version, versionsOf(t, d, a).policy)
		_, _, err = s.PutPlanLimit(t.Context(), a, "pro", "r", limit.Limit{Limit: 100}, at(last))
		require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
		last = out.Version
	}
}

// Most operations need no limits of older versions, which are megabytes. They do not wait for a
// lock of the table.
func TestFewReadOlderVersions(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustRule(t, s, a, rule("r"))
	mustPlan(t, s, a, "free")
	_, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "pro", Limits: limitsOf(5)})
	require.NoError(t, err)
	mustPublish(t, s, a, "pro", 6)
	hurried := d.Open(tenants.Config{Operation: 5 * time.Second})
	ctx := t.Context()
	d.Conn(func(background context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(background)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(background) }()
		_, err = tx.Exec(background, "LOCK TABLE plan_version_limits")
		require.NoError(t, err)
		for name, do := range map[string]func() error{
			"a plan":    func() error { return second(hurried.PlanBySlug(ctx, a, "pro")) },
			"all plans": func() error { _, _, err := hurried.Plans(ctx, a, tenants.Page{}); return err },
			"a limit": func() error {
				_, _, err := hurried.PutPlanLimit(ctx, a, "pro", "r", limit.Limit{Limit: 7}, tenants.Match{})
				return err
			},
			"a name": func() error {
				return second(hurried.EditPlan(ctx, a, "pro", tenants.Match{}, func(p *tenants.Plan) error { p.Name = "Pro"; return nil }))
			},
			"a subject": func() error {
				_, _, err := hurried.PutSubject(ctx, a, tenants.Subject{Subject: "ada", Plan: "pro", GivePlanVersion: 1}, tenants.Match{})
				return err
			},
			"an import": func() error {
				return second(hurried.ImportSubjects(ctx, a, numbered([]tenants.SubjectLine{{Subject: "bob", Plan: ptr("pro")}}), tenants.ImportMode{}))
			},
			"the reach": func() error { return second(hurried.PlanReach(ctx, a, "pro", "r")) },
			"a migration": func() error {
				_, _, err := hurried.MigrationSubjects(ctx, a, tenants.NewPlanMigration{Plan: "pro", FromVersion: 1}, 10)
				return err
			},
		} {
			require.NoError(t, do(), name)
		}
	})
}
