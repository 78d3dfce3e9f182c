package tenants

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// BillingTask is a task that is due: an event to process, a subscription whose grace period ends,
// or an endpoint to compare with its provider.
type BillingTask struct {
	Tenant       uuid.UUID
	Event        uuid.UUID // the nil UUID: none
	Endpoint     uuid.UUID
	Subscription string
}

// BillingDue has the tasks that are due at an instant, those of the tenants in turn, those of each
// tenant oldest first.
type BillingDue struct {
	Events, Subscriptions, Reconciles []BillingTask
	Looks                             []BillingLook
	More                              bool // there are more events, of a tenant or in all
}

// dueOfTenant is the maximum number of due events of a tenant that are returned at once.
const dueOfTenant = 20

// DueBilling returns the tasks that are due, up to most of each kind, and up to 20 events of each
// tenant. Several servers may call it concurrently: each task is executed once.
func (s *Store) DueBilling(ctx context.Context, most int) (due BillingDue, err error) {
	if err := s.FollowClock(ctx); err != nil {
		return BillingDue{}, err
	}
	now := s.instant()
	looks := db.UnseenBillingSubjectsParams{After: s.turns.looks.after(), LookAt: turnsLookedAt, Most: int32(most)}
	var unseen db.UnseenBillingSubjectsRow
	var passed func()
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) (err error) {
		if unseen, err = q.UnseenBillingSubjects(ctx, looks); err != nil {
			return err
		}
		due, passed, err = s.dueBilling(ctx, tx, q, now, most)
		return err
	})
	if err != nil {
		return BillingDue{}, err
	}
	due.Looks = looksOf(unseen, due.Events)
	s.turns.looks.passed(unseen.Next)
	passed()
	return due, nil
}

// dueBilling reads the tasks of one step. passed records that they were read.
func (s *Store) dueBilling(ctx context.Context, tx pgx.Tx, q *db.Queries, now time.Time, most int) (due BillingDue, passed func(), err error) {
	limit := int32(most)
	events, err := s.turns.events.step(ctx, tx, billingEventTasks, now, most, nil)
	if err != nil {
		return due, nil, err
	}
	rows, err := q.DueBillingEvents(ctx, db.DueBillingEventsParams{Tenants: events.tenants, Now: &now, OfTenant: dueOfTenant, Most: limit})
	if err != nil {
		return due, nil, err
	}
	due.More = isFull(rows, most, dueOfTenant, func(r db.DueBillingEventsRow) uuid.UUID { return r.TenantID })
	for _, row := range rows {
		due.Events = append(due.Events, BillingTask{Tenant: row.TenantID, Event: row.ID})
	}
	subscriptions, err := s.turns.subscriptions.step(ctx, tx, billingSubscriptionTasks, now, most, nil)
	if err != nil {
		return due, nil, err
	}
	ended, err := q.DueBillingSubscriptions(ctx, db.DueBillingSubscriptionsParams{
		Tenants: subscriptions.tenants, Now: &now, OfTenant: subscriptions.share(most), Most: limit,
	})
	if err != nil {
		return due, nil, err
	}
	for _, row := range ended {
		due.Subscriptions = append(due.Subscriptions, BillingTask{Tenant: row.TenantID, Endpoint: row.EndpointID, Subscription: row.Subscription})
	}
	reconciles, err := s.turns.reconciles.step(ctx, tx, billingReconcileTasks, now, most, nil)
	if err != nil {
		return due, nil, err
	}
	compared, err := q.DueBillingReconciles(ctx, db.DueBillingReconcilesParams{
		Tenants: reconciles.tenants, Now: &now, OfTenant: reconciles.share(most), Most: limit,
	})
	for _, row := range compared {
		due.Reconciles = append(due.Reconciles, BillingTask{Tenant: row.TenantID, Endpoint: row.ID})
	}
	return due, func() {
		s.turns.events.passed(events.last)
		s.turns.subscriptions.passed(subscriptions.last)
		s.turns.reconciles.passed(reconciles.last)
	}, err
}

// MostBillingBacklog is up to how many unprocessed events are counted. Each instance does it twice
// a second.
const MostBillingBacklog = 10_000

// BillingBacklog returns the number of unprocessed events, at most MostBillingBacklog, and how long
// the one that is due for the longest time has waited.
func (s *Store) BillingBacklog(ctx context.Context) (events int64, oldest time.Duration, err error) {
	now := s.instant()
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := enableSort(ctx, tx, "off"); err != nil { // else see turn.step
			return err
		}
		row, err := q.BillingBacklog(ctx, db.BillingBacklogParams{Now: &now, Most: MostBillingBacklog})
		if err != nil || row.Events == 0 {
			return err
		}
		events, oldest = row.Events, now.Sub(row.Oldest)
		return nil
	})
	return events, oldest, err
}
