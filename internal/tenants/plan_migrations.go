package tenants

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// PlanMigration gives the subjects of a plan the newest version of a plan.
type PlanMigration struct {
	ID          uuid.UUID
	Plan        string // slug of the plan that they have
	FromVersion int    // the version that they have; 0 for any, except the newest if To is the same plan
	To          string // slug; subjects get the version that is newest at their change
	StartsAt    time.Time
	AtCycleEnd  bool   // each subject at the end of its monthly cycle (CycleEnd)
	State       string // one of the constants Migration...
	Subjects    int64  // number of subjects at its creation
	Moved       int64
	Waiting     int64 // subjects whose change is scheduled
	CreatedBy   string
	CreatedAt   time.Time
	EndedAt     *time.Time
}

// The states of a migration. It is scheduled until it starts, runs until all subjects are moved or
// scheduled, and waits for the scheduled ones.
const (
	MigrationScheduled = "scheduled"
	MigrationRunning   = "running"
	MigrationWaiting   = "waiting"
	MigrationDone      = "done"
	MigrationCanceling = "canceling"
	MigrationCanceled  = "canceled"
)

// NewPlanMigration has the options of a new migration.
type NewPlanMigration struct {
	Plan        string    // slug
	FromVersion int       // 0: any
	To          string    // slug; "": the same plan
	StartsAt    time.Time // zero: now
	AtCycleEnd  bool
}

// pastTolerance is how far in the past a time may be that is to come: clocks differ.
const pastTolerance = 5 * time.Minute

// notPast refuses a time in the past. The change would be made at once, which nobody who sends such
// a time expects. insteadNow says how to make the change at once.
func notPast(field, insteadNow string, at, now time.Time) error {
	if at.Before(now.Add(-pastTolerance)) {
		return invalid(field, limit.Wrong("Send a later time. "+insteadNow, "must not be in the past: it is %s now", now.UTC().Format(time.RFC3339)))
	}
	return nil
}

func (in *NewPlanMigration) validate(now time.Time) error {
	if in.StartsAt.IsZero() {
		return nil
	}
	if y := in.StartsAt.Year(); y < 1 || y > maxYear {
		return invalid("at", notAnyYear)
	}
	return notPast("at", "For a migration now, omit it.", in.StartsAt, now)
}

// migrationSource selects the subjects that a migration moves.
type migrationSource struct {
	plan, to    Plan
	fromVersion *int32
	below       int32 // they have a version below this
}

func (in *NewPlanMigration) source(ctx context.Context, q *db.Queries, tenant uuid.UUID) (m migrationSource, err error) {
	if m.plan, err = planHead(ctx, q, tenant, in.Plan); err != nil {
		return m, err
	}
	m.to, m.below = m.plan, math.MaxInt32
	if in.To != "" && in.To != in.Plan {
		if m.to, err = planHead(ctx, q, tenant, in.To); errors.Is(err, ErrNotFound) {
			return m, invalid("to", noSuchPlan)
		}
		if err != nil {
			return m, err
		}
	} else {
		m.below = int32(m.plan.NewestVersion) // within the range of the database
	}
	if in.FromVersion == 0 {
		return m, nil
	}
	if in.FromVersion != m.plan.NewestVersion && m.plan.older(in.FromVersion) == nil {
		return m, invalid("from_version", noSuchVersion)
	}
	if m.to.ID == m.plan.ID && in.FromVersion == m.plan.NewestVersion {
		return m, invalid("from_version", limit.Wrong("Omit it, or name another plan in to.", "is the newest version of this plan, to which subjects are migrated"))
	}
	from := int32(in.FromVersion) // within the range of the database
	m.fromVersion = &from
	return m, nil
}

func (m *migrationSource) count(ctx context.Context, q *db.Queries, tenant uuid.UUID) (int64, error) {
	return q.CountMigrating(ctx, db.CountMigratingParams{TenantID: tenant, PlanID: &m.plan.ID, FromVersion: m.fromVersion, Below: m.below})
}

// MigrationSubjects returns the number of subjects that a migration would move, and up to most of
// their names. Errors: as CreatePlanMigration.
func (s *Store) MigrationSubjects(ctx context.Context, a Actor, in NewPlanMigration, most int) (total int64, names []string, err error) {
	if err := in.validate(s.instant()); err != nil {
		return 0, nil, err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		m, err := in.source(ctx, q, a.tenant)
		if err != nil {
			return err
		}
		if total, err = m.count(ctx, q, a.tenant); err != nil {
			return err
		}
		rows, err := q.Migrating(ctx, db.MigratingParams{
			TenantID: a.tenant, PlanID: &m.plan.ID, FromVersion: m.fromVersion, Below: m.below, ScheduledToo: true, Most: int32(most), // a constant
		})
		for _, row := range rows {
			names = append(names, row.Subject)
		}
		return err
	})
	return total, names, err
}

// CreatePlanMigration creates a migration, which RunPlanMigrations executes. Errors: ErrNotFound,
// *InvalidError, *ConflictError with CodeMigrationRunning while another migration of the plan is
// running.
func (s *Store) CreatePlanMigration(ctx context.Context, a Actor, in NewPlanMigration) (out PlanMigration, err error) {
	if err := in.validate(s.instant()); err != nil {
		return out, err
	}
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		m, err := in.source(ctx, c.Queries, c.tenant)
		if err != nil {
			return err
		}
		open, err := c.OpenMigrationOfPlan(ctx, db.OpenMigrationOfPlanParams{TenantID: c.tenant, PlanID: m.plan.ID})
		if err != nil {
			return err
		}
		if open {
			return &ConflictError{CodeMigrationRunning, "a migration of this plan has not ended: wait for its end, or cancel it"}
		}
		subjects, err := m.count(ctx, c.Queries, c.tenant)
		if err != nil {
			return err
		}
		starts, state := c.now, MigrationRunning
		if at := stored(&in.StartsAt); at.After(c.now) {
			starts, state = *at, MigrationScheduled
		}
		row, err := c.InsertPlanMigration(ctx, db.InsertPlanMigrationParams{
			TenantID: c.tenant, ID: newID(), PlanID: m.plan.ID, FromVersion: m.fromVersion, ToPlanID: m.to.ID, StartsAt: starts,
			AtCycleEnd: in.AtCycleEnd, State: state, Subjects: subjects, CreatedBy: c.actor.label(),
		})
		if err != nil {
			return err
		}
		out, err = readMigration(ctx, c.Queries, c.tenant, in.Plan, row.ID)
		return err
	})
	return out, err
}

// PlanMigrationByID returns a migration of a plan, or ErrNotFound.
func (s *Store) PlanMigrationByID(ctx context.Context, a Actor, plan string, id uuid.UUID) (out PlanMigration, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = readMigration(ctx, q, a.tenant, plan, id)
		return err
	})
	return out, err
}

// PlanMigrations lists the migrations of a plan, newest first, and returns where the next page
// begins. Errors: ErrNotFound.
func (s *Store) PlanMigrations(ctx context.Context, a Actor, plan string, p Page) (out []PlanMigration, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if _, err := planRow(ctx, q, a.tenant, plan); err != nil {
			return err
		}
		rows, err := q.PlanMigrations(ctx, db.PlanMigrationsParams{TenantID: a.tenant, Slug: plan, After: after, Most: p.most()})
		if err != nil {
			return err
		}
		rows, next = cut(p, rows, func(r db.PlanMigrationsRow) uuid.UUID { return r.ID })
		for _, row := range rows {
			out = append(out, migrationOf(db.PlanMigrationRow(row)))
		}
		return nil
	})
	return out, next, err
}

// CancelPlanMigration cancels a migration: moved subjects keep their new plan, and the changes that
// it scheduled are canceled. Errors: ErrNotFound, *ConflictError with CodeMigrationEnded.
func (s *Store) CancelPlanMigration(ctx context.Context, a Actor, plan string, id uuid.UUID) (out PlanMigration, err error) {
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		m, err := readMigration(ctx, c.Queries, c.tenant, plan, id)
		switch {
		case err != nil:
			return err
		case m.State == MigrationCanceling:
			out = m
			return nil
		case m.State == MigrationCanceled:
			return &ConflictError{CodeMigrationEnded, "this migration was canceled before"}
		case m.EndedAt != nil:
			return &ConflictError{CodeMigrationEnded, "this migration has ended: to undo it, migrate the subjects to another plan"}
		}
		if _, err := c.cancelWaiting(ctx, &m); err != nil {
			return err
		}
		out, err = readMigration(ctx, c.Queries, c.tenant, plan, id)
		return err
	})
	return out, err
}

func readMigration(ctx context.Context, q *db.Queries, tenant uuid.UUID, plan string, id uuid.UUID) (PlanMigration, error) {
	if !limit.ValidSlug(plan) {
		return PlanMigration{}, ErrNotFound
	}
	row, err := q.PlanMigration(ctx, db.PlanMigrationParams{TenantID: tenant, Slug: plan, ID: id})
	if err != nil {
		return PlanMigration{}, translate(err)
	}
	return migrationOf(row), nil
}

func migrationOf(row db.PlanMigrationRow) PlanMigration {
	m := PlanMigration{
		ID: row.ID, Plan: row.PlanSlug, To: row.ToSlug, StartsAt: row.StartsAt, AtCycleEnd: row.AtCycleEnd, State: row.State,
		Subjects: row.Subjects, Moved: row.Moved, Waiting: row.Waiting, CreatedBy: row.CreatedBy, CreatedAt: row.CreatedAt, EndedAt: row.EndedAt,
	}
	if row.FromVersion != nil {
		m.FromVersion = int(*row.FromVersion)
	}
	return m
}

const (
	migrationBatch = 500 // subjects that one transaction moves, or fewer with many overrides
	openMigrations = 100
	// migrationChanges is how many changes of counters of a tenant may wait when a batch is moved.
	// They are carried out at a pace, and not during an outage of Redis.
	migrationChanges = 10_000
)

// errMigrationWaits means that a migration may not move subjects now, and is left as it is.
var errMigrationWaits = errors.New("the migration waits")

// RunPlanMigrations executes the due part of the migrations of all tenants, and returns the number
// of moved subjects. more reports whether more can be done immediately. Several servers may call it
// concurrently. A tenant has turnTime in a round, and those of others follow. After an error, or if
// the tenant is locked, its other migrations wait for the next round. If one may not move subjects
// now (mayMigrate), the others wait, too, because they may be about the same subjects, and in this
// order. Errors: ErrUnavailable, and those of tenants.
func (s *Store) RunPlanMigrations(ctx context.Context) (moved int, more bool, err error) {
	if err := s.FollowClock(ctx); err != nil {
		return 0, false, err
	}
	open, err := s.openPlanMigrations(ctx)
	if err != nil {
		return 0, false, fmt.Errorf("list plan migrations: %w", err)
	}
	more = len(open) == openMigrations
	times, round, done := s.newTurnTimes(), lateRound{of: &s.late.migrations}, 0
	var without failedTenants
	for _, m := range open {
		for left := !without.has(m.TenantID); left; {
			if times.over(m.TenantID) {
				more = true
				break
			}
			var n int
			var failed error
			began := time.Now()
			n, left, failed = s.migrateBatch(ctx, m.TenantID, m.Slug, m.ID, round.lock(m.TenantID))
			times.count(m.TenantID, began)
			moved += n
			waits := errors.Is(failed, errMigrationWaits)
			if waits {
				failed = nil
			}
			late, failed := round.note(m.TenantID, failed)
			if failed != nil {
				failed = fmt.Errorf("migrate subjects of plan %s of tenant %s: %w", m.Slug, m.TenantID, failed)
			}
			if waits || late || failed != nil {
				without.add(m.TenantID, failed) // each of its migrations could wait for the same lock
				break
			}
			done++
		}
	}
	return moved, more && done > 0, without.first
}

// openPlanMigrations lists the migrations of one step.
func (s *Store) openPlanMigrations(ctx context.Context) (open []db.OpenPlanMigrationsRow, err error) {
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		now := s.instant()
		step, err := s.turns.migrations.step(ctx, tx, planMigrationTasks, now, openMigrations, nil)
		if err != nil {
			return err
		}
		open, err = q.OpenPlanMigrations(ctx, db.OpenPlanMigrationsParams{
			Tenants: step.tenants, Now: now, OfTenant: step.share(openMigrations), Most: openMigrations,
			AuditDay: s.auditDay, Today: dayOf(now), Tomorrow: dayOf(now.AddDate(0, 0, 1)),
		})
		if err == nil {
			s.turns.migrations.passed(step.last)
		}
		return err
	})
	return open, err
}

// migrateBatch executes a part of a migration. It waits only so long for the locks of the tenant.
// left reports whether more can be done now.
func (s *Store) migrateBatch(ctx context.Context, tenant uuid.UUID, plan string, id uuid.UUID, wait time.Duration) (moved int, left bool, err error) {
	err = s.changeInTurn(ctx, AsSystem(tenant, "plan migration"), wait, func(ctx context.Context, c *change) error {
		m, err := readMigration(ctx, c.Queries, c.tenant, plan, id)
		if errors.Is(err, ErrNotFound) || err == nil && (m.EndedAt != nil || m.State == MigrationScheduled && m.StartsAt.After(c.now)) {
			return nil // deleted with its plan, ended, or another server was faster
		}
		if err != nil {
			return err
		}
		switch m.State {
		case MigrationCanceling:
			left, err = c.cancelWaiting(ctx, &m)
		case MigrationWaiting:
			if m.Waiting == 0 {
				err = c.progress(ctx, &m, MigrationDone, 0)
			}
		default:
			moved, left, err = c.migrate(ctx, &m)
		}
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return moved, left, nil
}

// migrate moves some subjects, or schedules their change.
func (c *change) migrate(ctx context.Context, m *PlanMigration) (moved int, left bool, err error) {
	in := NewPlanMigration{Plan: m.Plan, To: m.To}
	source, err := in.source(ctx, c.Queries, c.tenant)
	if err != nil {
		return 0, false, err
	}
	if from := int32(m.FromVersion); from > 0 { // within the range of the database; the version may have been deleted
		source.fromVersion = &from
	}
	rows, err := c.Migrating(ctx, db.MigratingParams{
		TenantID: c.tenant, PlanID: &source.plan.ID, FromVersion: source.fromVersion, Below: source.below,
		ScheduledToo: !m.AtCycleEnd, Most: migrationBatch,
	})
	if err != nil {
		return 0, false, err
	}
	if len(rows) == 0 {
		state := MigrationDone
		if m.Waiting > 0 {
			state = MigrationWaiting
		}
		return 0, false, c.progress(ctx, m, state, 0)
	}
	if err := c.mayMigrate(ctx, m, &source.to); err != nil {
		return 0, false, err
	}
	version, err := c.nextAtEnd(ctx, parts{subjects: true})
	if err != nil {
		return 0, false, err
	}
	names, ends := make([]string, len(rows)), make([]string, len(rows))
	for i, row := range rows {
		names[i], ends[i] = row.Subject, CycleEnd(row.CycleAnchor, c.now).Format(time.RFC3339Nano)
	}
	if names, err = c.fewOverrides(ctx, names); err != nil {
		return 0, false, err
	}
	ends = ends[:len(names)]
	if m.AtCycleEnd {
		err = c.ScheduleMigration(ctx, db.ScheduleMigrationParams{
			TenantID: c.tenant, Subjects: names, Ats: ends, NextPlanID: &source.to.ID, MigrationID: &m.ID, Version: version,
		})
	} else {
		moved = len(names)
		err = c.MigrateSubjects(ctx, db.MigrateSubjectsParams{
			TenantID: c.tenant, Subjects: names, PlanID: &source.to.ID, PlanVersion: int32(source.to.NewestVersion), Version: version, // a number of the database
		})
		if err == nil {
			err = c.DeleteCustomersOverrides(ctx, db.DeleteCustomersOverridesParams{TenantID: c.tenant, Subjects: names})
		}
	}
	if err != nil {
		return 0, false, err
	}
	return moved, true, c.progress(ctx, m, MigrationRunning, moved)
}

// mayMigrate refuses with errMigrationWaits to move subjects to a plan. A few requests in advance
// can migrate all subjects of a tenant again and again. So their rows are bounded when they are
// moved: by the bytes of the trail and day, like an import of that size, and by the changes of
// counters that wait. What a migration has scheduled for the end of a cycle is executed in any
// case: it was counted when it was scheduled, once for each subject.
func (c *change) mayMigrate(ctx context.Context, m *PlanMigration, to *Plan) error {
	head, err := c.LockAuditHead(ctx, db.LockAuditHeadParams{TenantID: c.tenant, Genesis: genesis[:]})
	if err != nil {
		return err
	}
	if day := auditDayOf(&head, c.auditDay, c.now); day.bytes >= day.most {
		return errMigrationWaits
	}
	if m.AtCycleEnd || to.OnChange == OnChangeCarry {
		return nil // writes no changes of counters
	}
	full, err := c.MoreCounterChanges(ctx, db.MoreCounterChangesParams{TenantID: c.tenant, Most: migrationChanges})
	if err == nil && full {
		err = errMigrationWaits
	}
	return err
}

// cancelWaiting cancels some of the changes that a migration scheduled. With the last of them, the
// migration is canceled.
func (c *change) cancelWaiting(ctx context.Context, m *PlanMigration) (left bool, err error) {
	names, err := c.WaitingForMigration(ctx, db.WaitingForMigrationParams{TenantID: c.tenant, MigrationID: &m.ID, Most: migrationBatch})
	if err != nil {
		return false, err
	}
	few, err := c.fewOverrides(ctx, names)
	if err != nil {
		return false, err
	}
	if len(few) > 0 {
		version, err := c.nextAtEnd(ctx, parts{subjects: true})
		if err != nil {
			return false, err
		}
		err = c.CancelMigrationOf(ctx, db.CancelMigrationOfParams{TenantID: c.tenant, Subjects: few, Version: version})
		if err != nil {
			return false, err
		}
	}
	if len(names) < migrationBatch && len(few) == len(names) {
		return false, c.progress(ctx, m, MigrationCanceled, 0)
	}
	return true, c.progress(ctx, m, MigrationCanceling, 0)
}

// progress records the state of a migration, and the number of subjects that were moved since.
func (c *change) progress(ctx context.Context, m *PlanMigration, state string, moved int) error {
	var ended *time.Time
	if state == MigrationDone || state == MigrationCanceled {
		ended = &c.now
	}
	return c.UpdatePlanMigration(ctx, db.UpdatePlanMigrationParams{TenantID: c.tenant, ID: m.ID, State: state, Moved: int64(moved), EndedAt: ended})
}

// countMigrated records that a change that a migration scheduled was executed.
func (c *change) countMigrated(ctx context.Context, migration *uuid.UUID) error {
	if migration == nil {
		return nil
	}
	return c.CountMigrated(ctx, db.CountMigratedParams{TenantID: c.tenant, ID: *migration})
}
