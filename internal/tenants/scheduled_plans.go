package tenants

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// ScheduledPlan is a scheduled change of a subject's plan.
type ScheduledPlan struct {
	Subject     string
	Plan        string // slug of the present plan; "": the tenant's default plan
	PlanVersion int    // of the present plan; 0 without one
	NextPlan    string // slug
	At          time.Time
	AtCycleEnd  bool // At is the end of the subject's cycle, and follows its anchor
	// Event is the parked billing event that changes the plan; uuid.Nil: the subject itself says
	// so.
	Event uuid.UUID
}

// ScheduledPlans lists the scheduled plan changes, earliest first, and returns where the next page
// begins: changes of subjects, and events of the generic webhook with a later time.
func (s *Store) ScheduledPlans(ctx context.Context, a Actor, p Page) (out []ScheduledPlan, next string, err error) {
	return s.scheduledPlans(ctx, a, nil, p)
}

// ScheduledPlansOf lists the first scheduled plan changes of one subject, earliest first.
func (s *Store) ScheduledPlansOf(ctx context.Context, a Actor, subject string, most int) (out []ScheduledPlan, err error) {
	out, _, err = s.scheduledPlans(ctx, a, &subject, Page{Limit: most})
	return out, err
}

func (s *Store) scheduledPlans(ctx context.Context, a Actor, subject *string, p Page) (out []ScheduledPlan, next string, err error) {
	params := db.ScheduledPlansParams{TenantID: a.tenant, Subject: subject, Most: p.most()}
	if p.After != "" {
		at, rest, _ := strings.Cut(p.After, " ")
		event, subject, _ := strings.Cut(rest, " ")
		after, err := time.Parse(time.RFC3339Nano, at)
		afterEvent, err2 := uuid.Parse(event)
		if err := errors.Join(err, err2); err != nil {
			return nil, "", fmt.Errorf("read a cursor: %w", err) // we wrote it
		}
		params.AfterAt, params.After, params.AfterEvent = &after, subject, afterEvent
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.ScheduledPlans(ctx, params)
		if err != nil {
			return err
		}
		for _, row := range rows[:min(len(rows), p.Limit)] {
			change := ScheduledPlan{Subject: row.Subject, Plan: row.PlanSlug, NextPlan: row.NextPlanSlug, At: row.At.UTC(), AtCycleEnd: row.AtCycleEnd, Event: row.Event}
			if change.Plan != "" {
				change.PlanVersion = int(row.PlanVersion)
			}
			out = append(out, change)
		}
		if len(rows) > p.Limit {
			last := out[len(out)-1]
			next = last.At.Format(time.RFC3339Nano) + " " + last.Event.String() + " " + last.Subject
		}
		return nil
	})
	return out, next, err
}

// CycleEnd returns the end of the monthly cycle that contains an instant, for a subject with this
// cycle anchor; without an anchor, of the calendar month. It uses UTC.
func CycleEnd(anchor *time.Time, now time.Time) time.Time {
	windows, err := limit.NewCalendarWindows(limit.CalendarMonth, time.UTC)
	if anchor != nil {
		windows, err = limit.NewAnchoredWindows(limit.CalendarMonth, time.UTC, anchor.UnixMilli())
	}
	if err != nil { // a month, and an anchor in the range
		panic("tenants: " + err.Error())
	}
	return time.UnixMilli(windows.At(now.UnixMilli()).EndMS).UTC()
}

// duePlans is the maximum number of plan changes that are listed at once.
const duePlans = 500

// ApplyDuePlans gives subjects their due plans, the tenants in turn, and returns their number. A
// tenant has turnTime at once, and the others are next. After an error, or if the tenant is locked,
// its further changes wait for the next round. more reports whether more can be done immediately.
// Several servers may call it concurrently: each change is executed once,
// because the change of the plan and the removal of the schedule are one transaction. Errors:
// ErrUnavailable, and the first error of a change.
func (s *Store) ApplyDuePlans(ctx context.Context) (applied int, more bool, err error) {
	if err := s.FollowClock(ctx); err != nil {
		return 0, false, err
	}
	var first error
	var without []uuid.UUID // tenants that failed
	for {
		n, full, failed, err := s.applyDuePlans(ctx, without)
		applied += n
		if failed.first != nil && first == nil {
			first = failed.first
		}
		if err != nil {
			return applied, false, errors.Join(first, err)
		}
		if without = append(without, failed.tenants...); len(failed.tenants) == 0 || !full || len(without) >= turnsFailed {
			return applied, full && n > 0, first
		}
		// The changes of the tenants that failed may hide those of others.
	}
}

// applyDuePlans applies one page of plan changes. full means that there may be more.
func (s *Store) applyDuePlans(ctx context.Context, without []uuid.UUID) (applied int, full bool, failed failedTenants, err error) {
	due, full, err := s.duePlans(ctx, without)
	if err != nil {
		return 0, false, failed, fmt.Errorf("list due plan changes: %w", err)
	}
	times, round := s.newTurnTimes(), lateRound{of: &s.late.plans}
	for _, d := range due {
		if failed.has(d.TenantID) {
			continue
		}
		if times.over(d.TenantID) {
			full = true
			continue
		}
		began := time.Now()
		done, err := s.applyDuePlan(ctx, d.TenantID, d.Subject, round.lock(d.TenantID))
		times.count(d.TenantID, began)
		late, err := round.note(d.TenantID, err)
		if err != nil {
			err = fmt.Errorf("change the plan of a subject of tenant %s: %w", d.TenantID, err)
		}
		if late || err != nil {
			failed.add(d.TenantID, err)
			continue
		}
		if done {
			applied++
		}
	}
	return applied, full, failed, nil
}

// duePlans lists the plan changes of one step. full means that there may be more.
func (s *Store) duePlans(ctx context.Context, without []uuid.UUID) (due []db.DuePlansRow, full bool, err error) {
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		now := s.instant()
		step, err := s.turns.plans.step(ctx, tx, duePlanTasks, now, duePlans, without)
		if err != nil {
			return err
		}
		share := step.share(duePlans)
		due, err = q.DuePlans(ctx, db.DuePlansParams{Tenants: step.tenants, Now: now, OfTenant: share, Most: duePlans})
		if err != nil {
			return err
		}
		s.turns.plans.passed(step.last)
		full = isFull(due, duePlans, share, func(r db.DuePlansRow) uuid.UUID { return r.TenantID })
		return nil
	})
	return due, full, err
}

// applyDuePlan gives one subject its next plan, if it is still due. It waits only so long for the
// locks of the tenant.
func (s *Store) applyDuePlan(ctx context.Context, tenant uuid.UUID, subject string, wait time.Duration) (done bool, err error) {
	a := AsSystem(tenant, "scheduled plan change")
	err = s.changeInTurn(ctx, a, wait, func(ctx context.Context, c *change) error {
		old, err := readSubject(ctx, c.Queries, c.tenant, subject)
		if errors.Is(err, ErrNotFound) || err == nil && (old.NextPlanAt == nil || old.NextPlanAt.After(c.now)) {
			return nil // deleted, cancelled, rescheduled, or another server was faster
		}
		if err != nil {
			return err
		}
		if old.migration != nil {
			canceled, err := c.MigrationCanceled(ctx, db.MigrationCanceledParams{TenantID: c.tenant, ID: *old.migration})
			if err != nil || canceled {
				return err // and soon nothing is scheduled
			}
		}
		in := old
		in.Plan, in.GivePlanVersion, in.NextPlan, in.NextPlanAt = old.NextPlan, NewestPlanVersion, "", nil
		in.NextPlanAtCycleEnd = false
		if _, err = c.replaceSubject(ctx, old, in); err == nil {
			err = c.countMigrated(ctx, old.migration)
		}
		done = err == nil
		return err
	})
	return done && err == nil, err
}
