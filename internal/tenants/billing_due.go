package tenants

import (
	"context"
	"errors"
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
	More                              bool // there are more events, of a tenant or in all, or to be woken
}

const (
	dueOfTenant = 20   // maximum number of due events of a tenant that are returned at once
	wokenAtOnce = 1000 // maximum number of waiting events of an endpoint that are looked at in one statement
)

// unseenEndpoint is an endpoint with events that wait for a subject, where subjects have changed,
// or one where a price was mapped.
type unseenEndpoint struct {
	tenant, id uuid.UUID
	version    int64 // of the tenant's subjects
	looked     int64 // the version of the last look; negative: a price was mapped, and it is the mark of that
}

func unseenOf(row db.UnseenBillingSubjectsRow) (out []unseenEndpoint) {
	for i, tenant := range row.Tenants {
		out = append(out, unseenEndpoint{tenant, row.Endpoints[i], row.Versions[i], row.Looked[i]})
	}
	return out
}

// subjectsLook is an unfinished look at the events of an endpoint that wait for a subject. The next
// part of it follows the last event that was looked at.
type subjectsLook struct {
	version  int64 // of the tenant's subjects when the look began: later ones may be missed
	mark     int64 // of a look at events that wait for a price; 0: at those that wait for a subject
	customer string
	event    uuid.UUID
}

// DueBilling returns the tasks that are due, up to most of each kind, and up to 20 events of each
// tenant. Before, it wakes some of the events that wait for a subject, if subjects have changed.
// Several servers may call it concurrently: each task is executed once.
func (s *Store) DueBilling(ctx context.Context, most int) (due BillingDue, err error) {
	now := s.instant()
	looks := db.UnseenBillingSubjectsParams{After: s.turns.looks.after(), LookAt: turnsLookedAt, Most: int32(most)}
	var unseen db.UnseenBillingSubjectsRow
	var passed func()
	read := func(ctx context.Context, tx pgx.Tx, q *db.Queries) (err error) {
		due, passed, err = s.dueBilling(ctx, tx, q, now, most)
		return err
	}
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) (err error) {
		if unseen, err = q.UnseenBillingSubjects(ctx, looks); err != nil {
			return err
		}
		return read(ctx, tx, q)
	})
	if err != nil {
		return BillingDue{}, err
	}
	if len(unseen.Tenants) > 0 {
		left := s.lookAtSubjects(ctx, unseenOf(unseen), due.Events, now)
		if err := s.asSystem(ctx, pgx.ReadOnly, read); err != nil {
			return BillingDue{}, err
		}
		due.More = due.More || left
	}
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

// lookAtSubjects wakes some events of each endpoint whose customers have subjects now. left reports
// whether more can be looked at immediately. An error of one tenant does not stop the others. A
// tenant with enough due events waits: there is no use in waking more than are processed.
func (s *Store) lookAtSubjects(ctx context.Context, unseen []unseenEndpoint, due []BillingTask, now time.Time) (left bool) {
	count := map[uuid.UUID]int{}
	for _, task := range due {
		count[task.Tenant]++
	}
	failed := map[uuid.UUID]bool{}
	for _, e := range unseen {
		if failed[e.tenant] || count[e.tenant] >= dueOfTenant {
			continue
		}
		more, err := s.lookAtSubjectsOf(ctx, e, now)
		if err != nil {
			failed[e.tenant] = true
			if ctx.Err() == nil {
				s.log.WarnContext(ctx, "cannot look at billing events that wait for subjects; retrying", "tenant", e.tenant, "endpoint", e.id, "error", err)
			}
			continue
		}
		left = left || more
	}
	return left
}

// lookAtSubjectsOf looks at up to wokenAtOnce events of one endpoint. The look is recorded with the
// last of them. Another server may do the same at the same time: events are woken once or twice.
func (s *Store) lookAtSubjectsOf(ctx context.Context, e unseenEndpoint, now time.Time) (more bool, err error) {
	look := subjectsLook{version: e.version, mark: min(e.looked, 0)}
	if began, ok := s.looks.Load(e.id); ok && began.(subjectsLook).mark == look.mark {
		look = began.(subjectsLook)
	}
	next := look
	err = s.inTenant(ctx, AsSystem(e.tenant, "billing"), func(ctx context.Context, q *db.Queries) error {
		last, err := wakeBilling(ctx, q, e, look, now)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if more = last.Looked == wokenAtOnce; more {
			next.customer, next.event = last.Customer, last.ID
			return nil
		}
		if look.mark < 0 {
			return q.RecordBillingPricesLook(ctx, db.RecordBillingPricesLookParams{TenantID: e.tenant, ID: e.id, Seen: look.mark})
		}
		return q.RecordBillingEndpointLook(ctx, db.RecordBillingEndpointLookParams{TenantID: e.tenant, ID: e.id, Version: look.version})
	})
	switch {
	case err != nil:
		return false, err // the same part again
	case more:
		s.looks.Store(e.id, next)
	default:
		s.looks.Delete(e.id)
	}
	if look.mark < 0 && !more { // it may also have events that wait for a subject
		e.looked = 0
		return s.lookAtSubjectsOf(ctx, e, now)
	}
	return more, nil
}

// wakeBilling wakes the next events of a look.
func wakeBilling(ctx context.Context, q *db.Queries, e unseenEndpoint, look subjectsLook, now time.Time) (db.WakeBillingSubjectsRow, error) {
	p := db.WakeBillingSubjectsParams{
		TenantID: e.tenant, EndpointID: e.id, AfterCustomer: look.customer, AfterID: look.event, Most: wokenAtOnce, Now: &now,
	}
	if look.mark == 0 {
		return q.WakeBillingSubjects(ctx, p)
	}
	last, err := q.WakeBillingPrices(ctx, db.WakeBillingPricesParams(p))
	return db.WakeBillingSubjectsRow(last), err
}

// BillingBacklog returns the number of unprocessed events, at most MostUnappliedOfAll, and how long
// the one that is due for the longest time has waited.
func (s *Store) BillingBacklog(ctx context.Context) (events int64, oldest time.Duration, err error) {
	now := s.instant()
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := enableSort(ctx, tx, "off"); err != nil { // else see turn.step
			return err
		}
		row, err := q.BillingBacklog(ctx, db.BillingBacklogParams{Now: &now, Most: MostUnappliedOfAll})
		if err != nil || row.Events == 0 {
			return err
		}
		events, oldest = row.Events, now.Sub(row.Oldest)
		return nil
	})
	return events, oldest, err
}
