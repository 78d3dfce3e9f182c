package tenants_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// loop is a loop over the tasks of all tenants.
type loop struct {
	// insert stores $2 tasks of each of the tenants $1 that are due at $3.
	insert string
	// step returns the tenants of the tasks of one step, which executes none of them.
	step func(context.Context, *tenants.Store) ([]uuid.UUID, error)
	most int // tasks of a step
	// always: its tasks are due at once.
	always bool
}

func billingStep(of func(tenants.BillingDue) []tenants.BillingTask) func(context.Context, *tenants.Store) ([]uuid.UUID, error) {
	return func(ctx context.Context, s *tenants.Store) (out []uuid.UUID, err error) {
		due, err := s.DueBilling(ctx, 200)
		for _, task := range of(due) {
			out = append(out, task.Tenant)
		}
		return out, err
	}
}

var loops = map[string]loop{
	"billing events": {
		insert: `INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, due_at)
			SELECT t, gen_random_uuid(), t, 'evt' || n, 'x', $3, $3, '', $3::timestamptz FROM unnest($1::uuid[]) t, generate_series(1, $2::int) n`,
		step: billingStep(func(due tenants.BillingDue) []tenants.BillingTask { return due.Events }), most: 200,
	},
	"subscriptions": {
		insert: `INSERT INTO billing_subscriptions (tenant_id, endpoint_id, subscription, state, due_at, updated_at)
			SELECT t, t, 'sub' || n, '{}', $3::timestamptz, $3 FROM unnest($1::uuid[]) t, generate_series(1, $2::int) n`,
		step: billingStep(func(due tenants.BillingDue) []tenants.BillingTask { return due.Subscriptions }), most: 200,
	},
	"comparisons": {
		insert: `INSERT INTO billing_endpoints (tenant_id, id, provider, signing_secrets, signing_secret_hints, subject_from, grace_days, created_at, updated_at, reconcile_at, version)
			SELECT t, gen_random_uuid(), 'stripe', '', '{}', 'x', 1, $3, $3, $3::timestamptz, 1 FROM unnest($1::uuid[]) t, generate_series(1, $2::int) n`,
		step: billingStep(func(due tenants.BillingDue) []tenants.BillingTask { return due.Reconciles }), most: 200,
	},
	"scheduled plans": {
		insert: `INSERT INTO subjects (tenant_id, subject, id, version, next_plan_id, next_plan_at)
			SELECT t, 's' || n, gen_random_uuid(), 1, t, $3::timestamptz FROM unnest($1::uuid[]) t, generate_series(1, $2::int) n`,
		step: tenants.DuePlanTenants, most: 500,
	},
	"counters": {
		insert: `INSERT INTO counter_changes (tenant_id, subject, action, from_plan, to_plan, created_at)
			SELECT t, 's' || n, 'reset', 'a', 'b', $3::timestamptz FROM unnest($1::uuid[]) t, generate_series(1, $2::int) n`,
		step: tenants.CounterChangeTenants, most: 500, always: true,
	},
	"migrations": {
		insert: `WITH plan AS (INSERT INTO plans (tenant_id, id, slug, version)
				SELECT t, gen_random_uuid(), left('p' || md5(n || $3::timestamptz::text), 20), 1 FROM unnest($1::uuid[]) t, generate_series(1, $2::int) n RETURNING tenant_id, id)
			INSERT INTO plan_migrations (tenant_id, id, plan_id, to_plan_id, starts_at, at_cycle_end, state, subjects, created_by)
			SELECT tenant_id, gen_random_uuid(), id, id, $3::timestamptz, false, 'scheduled', 1, 'x' FROM plan`,
		step: tenants.OpenMigrationTenants, most: 100,
	},
	"metered pushes": {
		insert: `INSERT INTO metered_pushes (tenant_id, id, start, rule, meter_event, kind, due_at)
			SELECT t, gen_random_uuid(), $3, 'r' || n, 'm', 'units', $3::timestamptz FROM unnest($1::uuid[]) t, generate_series(1, $2::int) n`,
		step: func(ctx context.Context, s *tenants.Store) (out []uuid.UUID, err error) {
			due, err := s.DueMeterPushes(ctx, 200)
			for _, task := range due {
				out = append(out, task.Tenant)
			}
			return out, err
		}, most: 200,
	},
}

// tasks stores tasks of tenants, without the rows to which they refer.
func (l loop) tasks(d *tenantstest.Database, of []uuid.UUID, each int, due time.Time) {
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		for _, statement := range []string{"SET session_replication_role = replica", "BEGIN", l.insert, "COMMIT"} {
			var args []any
			if statement == l.insert {
				args = []any{of, each, due}
			}
			if _, err := conn.Exec(ctx, statement, args...); err != nil {
				panic(err)
			}
		}
	})
}

// ids returns the ids of tenants, in their order.
func ids(t *testing.T, d *tenantstest.Database) (out []uuid.UUID) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, "SELECT id FROM tenants ORDER BY id")
		require.NoError(t, err)
		out, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		require.NoError(t, err)
	})
	return out
}

// However many older tasks a tenant has, each step has some of another tenant. Before, only the
// oldest 20 000 tasks of all tenants were looked at, or the oldest 200.
func TestBacklogKeepsOutNobody(t *testing.T) {
	t.Parallel()
	for name, l := range loops {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := tenantstest.New(t)
			manyTenants(d, 3)
			of, now := ids(t, d), time.Now()
			l.tasks(d, of[:1], 21_000, now.Add(-time.Hour))
			l.tasks(d, of[1:], 1, now.Add(-time.Minute))
			served := map[uuid.UUID]int{}
			step, err := l.step(t.Context(), d.Store)
			require.NoError(t, err)
			for _, tenant := range step {
				served[tenant]++
			}
			require.Equal(t, 1, served[of[1]])
			require.Equal(t, 1, served[of[2]])
			require.GreaterOrEqual(t, served[of[0]], 10, "it also gets what others leave")
			require.NotEqual(t, of[0], step[1], "in turn")
		})
	}
}

// A step reads as many tasks as it executes, also while the statistics of the table say that none
// are due. Before, it read and sorted all that were.
func TestStepsWithOldStatistics(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	manyTenants(d, 1)
	d.Exec("ALTER TABLE billing_events SET (autovacuum_enabled = false)")
	loops["billing events"].tasks(d, ids(t, d), tenants.MostBillingBacklog+500, time.Now().Add(-time.Hour))
	d.Exec("UPDATE billing_events SET due_at = NULL")
	d.Exec("ANALYZE billing_events")
	d.Exec("UPDATE billing_events SET due_at = received_at")
	read, err := tenants.EventsReadForStep(t.Context(), d.Store)
	require.NoError(t, err)
	require.Positive(t, read)
	require.Less(t, read, int64(2000))
	events, waits, err := d.Store.BillingBacklog(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, tenants.MostBillingBacklog, events, "not all are counted")
	require.GreaterOrEqual(t, waits, time.Hour)
}

// If more tenants have tasks than a step has places, each of them comes in turn, although no task
// is executed. Tenants whose tasks are not due, and one with a backlog, are no obstacle.
func TestManyTenantsInTurn(t *testing.T) {
	t.Parallel()
	for name, l := range loops {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := tenantstest.New(t)
			manyTenants(d, 2000)
			of, now := ids(t, d), time.Now()
			l.tasks(d, of[:1], l.most, now.Add(-time.Hour))
			l.tasks(d, of[1:1001], 2, now.Add(-time.Minute))
			if !l.always {
				l.tasks(d, of[1001:1999], 1, now.Add(time.Hour))
			}
			l.tasks(d, of[1999:], 1, now.Add(-time.Second))
			served := map[uuid.UUID]int{}
			// A step that ends with the last tenant has fewer in turn.
			for range 1002/l.most + 1 {
				step, err := l.step(t.Context(), d.Store)
				require.NoError(t, err)
				for _, tenant := range step {
					served[tenant]++
				}
			}
			for _, tenant := range append(of[:1001:1001], of[1999]) {
				require.Positive(t, served[tenant], tenant)
			}
			require.Len(t, served, 1002, "only what is due")
		})
	}
}

// looksOf stores an event that waits for a subject, of each tenant, and a change of its subjects.
const looksOf = `WITH endpoint AS (INSERT INTO billing_endpoints (tenant_id, id, provider, signing_secrets, signing_secret_hints, subject_from, grace_days, created_at, updated_at, version)
		SELECT id, id, 'stripe', '', '{}', 'x', 1, now(), now(), 1 FROM tenants),
	subject AS (INSERT INTO subjects (tenant_id, subject, id, billing_ref, version) SELECT id, 'ada', id, 'cus_1', 1 FROM tenants)
	INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, customer, outcome, settled_at, waits_for)
	SELECT id, id, id, 'evt', 'x', now(), now(), '', 'cus_1', 'parked', now(), 'subject' FROM tenants`

// Tenants whose events that wait for a subject cannot be looked at delay the looks of nobody else,
// however many they are.
func TestLooksInTurn(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	manyTenants(d, 300)
	of := ids(t, d)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, "SET session_replication_role = replica")
		require.NoError(t, err)
		_, err = conn.Exec(ctx, looksOf)
		require.NoError(t, err)
	})
	d.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`)
	d.Exec(fmt.Sprintf("CREATE TRIGGER refuse BEFORE UPDATE ON billing_events FOR EACH ROW WHEN (OLD.tenant_id < '%s') EXECUTE FUNCTION refuse()", of[299]))
	for range 2 {
		due, err := d.Store.DueBilling(t.Context(), 200)
		require.NoError(t, err)
		for _, look := range due.Looks {
			_, err := d.Store.LookAtBilling(t.Context(), look)
			require.Equal(t, look.Tenant != of[299], err != nil)
		}
	}
	due, err := d.Store.DueBilling(t.Context(), 200)
	require.NoError(t, err)
	require.Equal(t, []tenants.BillingTask{{Tenant: of[299], Event: of[299]}}, due.Events)
}

// If more endpoints have deliveries than are listed at once, each of them is listed in turn,
// although nothing is sent. Deliveries that wait for another attempt are no obstacle.
func TestDeliveriesInTurn(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	manyTenants(d, 500)
	deliveries := loop{insert: `INSERT INTO notification_deliveries (tenant_id, id, endpoint_id, notification_id, state, due_at, began_at, created_at)
		SELECT t, gen_random_uuid(), md5(t || (n % 2)::text)::uuid, t, 'pending', $3::timestamptz, $3, $3 FROM unnest($1::uuid[]) t, generate_series(1, $2::int) n`}
	of, now := ids(t, d), time.Now()
	deliveries.tasks(d, of[:1], 1000, now.Add(-time.Hour))
	deliveries.tasks(d, of[1:150], 2, now.Add(-time.Minute))
	deliveries.tasks(d, of[150:499], 1, now.Add(time.Hour))
	deliveries.tasks(d, of[499:], 2, now.Add(-time.Second))
	served := map[tenants.DeliveryTask]bool{}
	for range 4 {
		due, err := d.Store.DueDeliveries(t.Context(), 100)
		require.NoError(t, err)
		require.LessOrEqual(t, len(due), 100)
		for _, task := range due {
			served[task] = true
		}
	}
	require.Equal(t, 302, len(served), "two of each tenant, however many each has")
}
