package tenants

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Loops execute the pending tasks of all tenants in steps. A step takes the first tasks of each
// tenant in turn: the first one of each, then the second one of each, and so on. Its cost does not
// depend on how many tasks a tenant has, and is bounded however many tenants there are.
//
// A step finds its tenants with turnsSQL. Usually few tasks are due, and their tenants are those of
// the step. Else the step goes through the tenants that have tasks,
// in the order of their ids, and the next step continues behind the last one. So each of them comes
// in turn. After them, the tenants with the oldest tasks fill the step, so that those with a
// backlog do not wait until the loop has gone through all others.
//
// Example with 3 tasks in a step: the tenant a has a million due tasks, and b, c, d and e have one
// each. The first step takes one of a, b and c each, the second one those of d and e, and one of a.

const (
	// turnsLookedAt is the number of tenants with pending tasks among which a step looks for those
	// whose tasks are due. A look takes some microseconds.
	turnsLookedAt = 10_000
	turnsFailed   = 100 // of so many tenants that fail, the cause is none of them, and the round ends
	leastShare    = 10  // tasks of a tenant that a step reads at least

	// In the loops of plans, tasks of tenants are executed one after the other. A tenant has
	// turnTime of a step, and then the next one follows. What is left is done in the next step.
	turnTime = 250 * time.Millisecond
	// turnLock is how long a task waits there for a tenant that is locked: one that is locked often
	// would use all of its time with that, and one that is locked for long is left for the round.
	turnLock = 200 * time.Millisecond
	// Of the tenants that were left in lateRounds rounds, one in each round is waited for longer,
	// because the locks of one may never be free for long. After lateReported, that is an error.
	lateRounds   = 5
	lateLock     = 2 * time.Second
	lateReported = 30
)

// errLocked means that a tenant was locked for longer than a loop waits.
var errLocked = errors.New("the tenant is locked by other changes")

// lateTenants are those that were locked in the last rounds of a loop.
type lateTenants struct {
	mu     sync.Mutex
	rounds map[uuid.UUID]int
}

// lateRound is one round.
type lateRound struct {
	of      *lateTenants
	patient bool // a tenant was waited for longer
}

// lock returns how long to wait for the locks of a tenant.
func (r *lateRound) lock(tenant uuid.UUID) time.Duration {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.patient || r.of.rounds[tenant] < lateRounds {
		return turnLock
	}
	r.patient = true
	return lateLock
}

// note notes the result for a tenant. It returns the error, or nil for a tenant that is only left
// for this round. late reports whether it is.
func (r *lateRound) note(tenant uuid.UUID, err error) (late bool, failed error) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if !errors.Is(err, errLocked) {
		delete(r.of.rounds, tenant)
		return false, err
	}
	if r.of.rounds == nil {
		r.of.rounds = map[uuid.UUID]int{}
	}
	if r.of.rounds[tenant]++; r.of.rounds[tenant]%lateReported != 0 {
		return true, nil
	}
	return true, err
}

// turnTimes are the times that tenants have used of a step.
type turnTimes struct {
	each time.Duration
	used map[uuid.UUID]time.Duration
}

func (s *Store) newTurnTimes() turnTimes {
	return turnTimes{each: s.turnTime, used: map[uuid.UUID]time.Duration{}}
}

// over reports whether the tenant has used its time.
func (t *turnTimes) over(tenant uuid.UUID) bool { return t.used[tenant] > t.each }

// count counts the time since a task of the tenant began.
func (t *turnTimes) count(tenant uuid.UUID, began time.Time) {
	t.used[tenant] += max(time.Since(began), 1)
}

// turn is where a loop continues. Each server has its own.
type turn struct {
	mu   sync.Mutex
	last uuid.UUID
}

// turnsSQL finds the tenants of a step. oldest are the first of the tasks that are due, of all
// tenants. If they are all that are due, their tenants are all that have one. Else turn finds the
// tenants with pending tasks in order, behind the one where the last step ended, by one look into
// an index for each: due reports whether its first task is due. The last column is where the
// following step begins.
const turnsSQL = `
WITH RECURSIVE oldest AS MATERIALIZED (
    SELECT tenant_id, {at} AS at FROM {table} WHERE {oldest} ORDER BY {at} LIMIT @most::int
), turn AS (
    SELECT @after::uuid AS tenant_id, false AS due, 0 AS looked, 0 AS found WHERE (SELECT count(*) FROM oldest) = @most::int
    UNION ALL
    SELECT n.tenant_id, n.due, turn.looked + 1, turn.found + n.due::int FROM turn CROSS JOIN LATERAL (
        SELECT x.tenant_id, {due} AND {active} AS due FROM {table} x
        WHERE x.tenant_id > turn.tenant_id AND {pending} ORDER BY x.tenant_id, x.{at} LIMIT 1
    ) AS n WHERE turn.looked < @look_at::int AND turn.found < @most::int
)
SELECT array(SELECT tenant_id FROM turn WHERE due ORDER BY looked)::uuid[],
    array(SELECT x.tenant_id FROM (SELECT tenant_id, min(at) AS at FROM oldest GROUP BY tenant_id) AS x WHERE {active} ORDER BY x.at)::uuid[],
    (SELECT tenant_id FROM turn WHERE looked = @look_at::int OR found = @most::int ORDER BY looked DESC LIMIT 1)`

// tasks is the SQL that finds the tenants with due tasks of one loop.
type tasks string

// tasksOf returns the SQL for the tasks of a table that are executed in the order of a column.
// Tasks that fulfil the condition pending have an index by tenant and this column. The oldest of
// all tenants are those with the condition oldest, by another index. The condition due is about x,
// the first pending task of a tenant; active, about its tenant.
func tasksOf(table, at, pending, oldest, due, active string) tasks {
	return tasks(strings.NewReplacer("{table}", table, "{at}", at, "{pending}", pending, "{oldest}", oldest, "{due}", due, "{active}", active).Replace(turnsSQL))
}

const (
	// A tenant that was deleted may have tasks still, and is not among tenants any more. The state
	// is looked up for each tenant; with EXISTS, Postgres may read all tenants for a hash table.
	existingTenants = "(SELECT t.state FROM tenants t WHERE t.id = x.tenant_id) IS NOT NULL"
	activeTenants   = "coalesce((SELECT t.state FROM tenants t WHERE t.id = x.tenant_id) = 'active', false)"
)

var (
	billingEventTasks        = tasksOf("billing_events", "due_at", "due_at IS NOT NULL", "due_at <= @now", "x.due_at <= @now", existingTenants)
	billingSubscriptionTasks = tasksOf("billing_subscriptions", "due_at", "due_at IS NOT NULL", "due_at <= @now", "x.due_at <= @now", existingTenants)
	billingReconcileTasks    = tasksOf("billing_endpoints", "reconcile_at", "reconcile_at IS NOT NULL", "reconcile_at <= @now", "x.reconcile_at <= @now", existingTenants)
	duePlanTasks             = tasksOf("subjects", "next_plan_at", "next_plan_at IS NOT NULL", "next_plan_at <= @now", "x.next_plan_at <= @now", activeTenants)
	counterChangeTasks       = tasksOf("counter_changes", "id", "true", "true", "true", activeTenants)
	meterPushTasks           = tasksOf("metered_pushes", "due_at", "due_at IS NOT NULL", "due_at <= now()", "x.due_at <= now()", existingTenants)
	// Migrations that cannot continue now are among the oldest, too. A tenant has at most one open
	// migration for each plan, which bounds the look at those of one tenant.
	planMigrationTasks = tasksOf("plan_migrations", "starts_at", "ended_at IS NULL", "ended_at IS NULL", `EXISTS (
            SELECT FROM plan_migrations m
            WHERE m.tenant_id = x.tenant_id AND m.ended_at IS NULL AND (m.starts_at <= @now OR m.state = 'canceling')
                AND (m.state <> 'waiting' OR NOT EXISTS (SELECT FROM subjects s WHERE s.tenant_id = m.tenant_id AND s.migration_id = m.id)))`, activeTenants)
)

// step is what a loop does at once.
type step struct {
	tenants []uuid.UUID // in the order of their turns; never nil, which would be NULL
	last    uuid.UUID   // after which the next step begins
}

// step finds the tenants of the next step, in which up to most tasks are executed. Those in without
// are left out. After the step was read completely, passed must be called with it.
func (t *turn) step(ctx context.Context, tx pgx.Tx, of tasks, now time.Time, most int, without []uuid.UUID) (out step, err error) {
	// While the statistics of a table are old, the planner would sort all due tasks for the first
	// ones.
	if err := enableSort(ctx, tx, "off"); err != nil {
		return step{}, err
	}
	var inTurn, withOldest []uuid.UUID
	var last *uuid.UUID
	row := tx.QueryRow(ctx, string(of), pgx.NamedArgs{"after": t.after(), "now": now, "look_at": turnsLookedAt, "most": most})
	if err := row.Scan(&inTurn, &withOldest, &last); err != nil {
		return step{}, err
	}
	if err := enableSort(ctx, tx, "on"); err != nil {
		return step{}, err
	}
	if last != nil {
		out.last = *last
	}
	seen := make(map[uuid.UUID]bool, len(inTurn)+len(withOldest)+len(without))
	for _, tenant := range without {
		seen[tenant] = true
	}
	out.tenants = []uuid.UUID{}
	for _, tenant := range slices.Concat(inTurn, withOldest) {
		if !seen[tenant] {
			seen[tenant] = true
			out.tenants = append(out.tenants, tenant)
		}
	}
	return out, nil
}

// enableSort says whether the following statements of a transaction may sort rows that an index has
// in their order.
func enableSort(ctx context.Context, tx pgx.Tx, value string) error {
	_, err := tx.Exec(ctx, "SELECT set_config('enable_sort', $1, true)", value)
	return err
}

// after returns the tenant after which the next step begins.
func (t *turn) after() uuid.UUID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// passed records the last tenant of a step; uuid.Nil: there is none behind it.
func (t *turn) passed(last uuid.UUID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = last
}

// share returns how many tasks of each tenant a step reads that executes most of them. It bounds
// their sum, and leaves few places empty where one tenant has many and the others have few.
func (s *step) share(most int) int32 {
	return int32(min(most, max(leastShare, 2*most/max(len(s.tenants), 1))))
}

// isFull reports whether tasks may be left after a step: it has as many as it may have, of all
// tenants or of one.
func isFull[T any](tasks []T, most int, share int32, tenant func(T) uuid.UUID) bool {
	count := map[uuid.UUID]int32{}
	for _, task := range tasks {
		if count[tenant(task)]++; count[tenant(task)] == share {
			return true
		}
	}
	return len(tasks) == most
}

// failedTenants are the tenants whose tasks failed in a round, and the first error.
type failedTenants struct {
	tenants []uuid.UUID
	first   error
	inARow  int
}

// mostInARow is how many tenants fail one after the other until it is hardly their fault. Each may
// take seconds.
const mostInARow = 10

// add adds a tenant; err is nil if it is only left for this round.
func (f *failedTenants) add(tenant uuid.UUID, err error) {
	f.tenants = append(f.tenants, tenant)
	f.inARow++
	if f.first == nil {
		f.first = err
	}
}

// note notes the result of a tenant's task, and reports whether it seems that every other one would
// fail, too, because the database does not answer.
func (f *failedTenants) note(tenant uuid.UUID, err error) (all bool) {
	if err == nil {
		f.inARow = 0
		return false
	}
	f.add(tenant, err)
	return f.inARow >= mostInARow
}

func (f *failedTenants) has(tenant uuid.UUID) bool { return slices.Contains(f.tenants, tenant) }
