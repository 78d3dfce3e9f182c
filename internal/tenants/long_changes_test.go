package tenants_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/subscription"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// longChange is a change that waits for a row that it writes, which the test has locked, as if the
// change had many more to write.
type longChange struct {
	lock   string
	change func(ctx context.Context, s *tenants.Store, a tenants.Actor) error
}

func lockTrail(tenant string) string {
	return "SELECT FROM audit_heads WHERE tenant_id = (SELECT id FROM tenants WHERE slug = '" + tenant + "') FOR UPDATE"
}

func numbersOf(n int64) map[string]limit.Limit {
	return map[string]limit.Limit{"r": {Limit: n}, "q": {Limit: n}}
}

func suspend(ctx context.Context, s *tenants.Store, _ tenants.Actor) error {
	return second(s.EditTenantByRef(ctx, tenants.AsOperator("test"), "tenant-a", tenants.Match{}, func(in *tenants.Tenant) error {
		in.State = tenants.TenantSuspended
		return nil
	}))
}

const (
	lockPlanLimits = "SELECT FROM plan_limits FOR UPDATE"
	lockSubjects   = "SELECT FROM subjects FOR UPDATE"
)

var longChanges = map[string]longChange{
	// As a reset of counters has it while Redis answers.
	"wait for the trail": {lockTrail("tenant-a"), func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		return second(s.CreateRule(ctx, a, rule("new")))
	}},
	"edit a tenant": {lockTrail("tenant-a"), suspend},
	"edit a tenant, while the operator's trail is locked": {lockTrail(tenants.PlatformSlug), suspend},
	"create a tenant": {lockTrail(tenants.PlatformSlug), func(ctx context.Context, s *tenants.Store, _ tenants.Actor) error {
		_, _, _, err := s.CreateTenant(ctx, tenants.AsOperator("test"), tenants.NewTenant{Slug: "tenant-c"})
		return err
	}},
	"create a plan": {"SELECT FROM rules FOR UPDATE", func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		return second(s.CreatePlan(ctx, a, tenants.Plan{Slug: "new", Limits: numbersOf(1)}))
	}},
	"replace a plan": {lockPlanLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		_, _, err := s.PutPlan(ctx, a, tenants.Plan{Slug: "pro", Limits: numbersOf(7)}, tenants.Match{})
		return err
	}},
	"edit a plan": {lockPlanLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		return second(s.EditPlan(ctx, a, "pro", tenants.Match{}, func(p *tenants.Plan) error { p.Limits = numbersOf(8); return nil }))
	}},
	"set a limit": {lockPlanLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		_, _, err := s.PutPlanLimit(ctx, a, "pro", "r", limit.Limit{Limit: 9}, tenants.Match{})
		return err
	}},
	"delete a limit": {lockPlanLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		return s.DeletePlanLimit(ctx, a, "pro", "r", tenants.Match{})
	}},
	"publish a version": {lockPlanLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		return second(s.PublishPlan(ctx, a, "pro", numbersOf(7), tenants.Match{}))
	}},
	"delete a version": {"SELECT FROM plan_version_limits FOR UPDATE", func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		return s.DeletePlanVersion(ctx, a, "pro", 1, tenants.Match{})
	}},
	"delete a plan": {lockPlanLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		return s.DeletePlan(ctx, a, "pro", tenants.Match{})
	}},
	"delete a rule": {lockPlanLimits, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		return s.DeleteRule(ctx, a, "r", tenants.Match{})
	}},
	"migrate subjects": {lockSubjects, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		if _, err := s.CreatePlanMigration(ctx, a, tenants.NewPlanMigration{Plan: "free", To: "pro"}); err != nil {
			return err
		}
		_, _, err := s.RunPlanMigrations(ctx)
		return err
	}},
	"schedule a migration": {lockSubjects, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		if _, err := s.CreatePlanMigration(ctx, a, tenants.NewPlanMigration{Plan: "free", To: "pro", AtCycleEnd: true}); err != nil {
			return err
		}
		_, _, err := s.RunPlanMigrations(ctx)
		return err
	}},
	"delete a subject": {"SELECT FROM overrides FOR UPDATE", func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		return s.DeleteSubject(ctx, a, "ada", tenants.Match{})
	}},
	"settle a billing event": {lockSubjects, func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		e, err := s.CreateBillingEndpoint(ctx, a, tenants.BillingEndpoint{Provider: tenants.GenericProvider, SubjectFrom: tenants.FromCustomer},
			tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
		if err != nil {
			return err
		}
		body := []byte(`{"type":"subject.plan","subject":"ada","plan":"pro"}`)
		parsed, err := subscription.ParseGeneric(body, "msg_1", s.Now(), s.Now())
		if err != nil {
			return err
		}
		if _, err := s.StoreBillingEvent(ctx, tenants.Webhook{Tenant: a.TenantID(), Endpoint: e.ID, Provider: e.Provider}, parsed, body); err != nil {
			return err
		}
		list, _, err := s.BillingEvents(ctx, a, tenants.BillingEventFilter{}, tenants.Page{})
		if err != nil {
			return err
		}
		work, err := s.BillingWork(ctx, a.TenantID(), list[0].ID)
		if err != nil {
			return err
		}
		return second(s.SettleBillingEvent(ctx, work, a.TenantID(), nil, ""))
	}},
	"map a price": {"SELECT FROM billing_prices FOR UPDATE", func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		_, _, err := s.PutBillingPrice(ctx, a, tenants.BillingPrice{Price: "price_1", Plan: "pro"}, tenants.Match{})
		return err
	}},
	"delete a billing endpoint": {"SELECT FROM billing_endpoints FOR UPDATE", func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		list, _, err := s.BillingEndpoints(ctx, a, tenants.Page{})
		if err != nil {
			return err
		}
		return s.DeleteBillingEndpoint(ctx, a, list[0].ID, tenants.Match{})
	}},
	"delete a notification endpoint": {"SELECT FROM notification_endpoints FOR UPDATE", func(ctx context.Context, s *tenants.Store, a tenants.Actor) error {
		list, _, err := s.NotificationEndpoints(ctx, a, tenants.Page{})
		if err != nil {
			return err
		}
		return s.DeleteNotificationEndpoint(ctx, a, list[0].ID, tenants.Match{})
	}},
	"delete a tenant": {"SELECT FROM members FOR UPDATE", func(ctx context.Context, s *tenants.Store, _ tenants.Actor) error {
		return s.DeleteTenant(ctx, tenants.AsOperator("test"), "tenant-a", tenants.Match{})
	}},
}

// A change that takes long holds up no changes of other tenants: while it waits, another tenant's
// change ends.
func TestLongChangesHoldUpNobody(t *testing.T) {
	t.Parallel()
	for name, test := range longChanges {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, a, b := two(t)
			fillForLongChanges(t, d.Store, a)
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

// fillForLongChanges writes what the changes change.
func fillForLongChanges(t *testing.T, s *tenants.Store, a tenants.Actor) {
	t.Helper()
	require.NoError(t, second(s.EnsurePlatform(t.Context())))
	mustRule(t, s, a, rule("r"))
	mustRule(t, s, a, rule("q"))
	require.NoError(t, second(s.InviteMember(t.Context(), a, "someone@example.com", tenants.Owner)))
	mustPlan(t, s, a, "free")
	mustPlan(t, s, a, "pro")
	_, _, err := s.PutPlan(t.Context(), a, tenants.Plan{Slug: "pro", Limits: numbersOf(5)}, tenants.Match{})
	require.NoError(t, err)
	mustSubject(t, s, a, tenants.Subject{Subject: "ada", Plan: "free"})
	_, err = s.PublishPlan(t.Context(), a, "pro", numbersOf(6), tenants.Match{})
	require.NoError(t, err)
	_, _, err = s.PutOverride(t.Context(), a, "ada", tenants.Override{Rule: "q", Limit: limit.Limit{Limit: 7}}, tenants.Match{})
	require.NoError(t, err)
	endpoint, err := s.CreateBillingEndpoint(t.Context(), a, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromCustomer},
		tenants.BillingSecrets{Signing: []string{"whsec_12345678"}})
	require.NoError(t, err)
	_, _, err = s.PutBillingPrice(t.Context(), a, tenants.BillingPrice{Price: "price_1", Plan: "free", Endpoint: endpoint.ID}, tenants.Match{})
	require.NoError(t, err)
	_, _, err = s.CreateNotificationEndpoint(t.Context(), a, tenants.NotificationEndpoint{URL: "https://example.com/weir"})
	require.NoError(t, err)
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
