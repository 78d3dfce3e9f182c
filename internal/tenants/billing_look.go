package tenants

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// wokenAtOnce is the maximum number of waiting events of an endpoint that are looked at in one
// statement.
const wokenAtOnce = 1000

// BillingLook is a look at the waiting events of an endpoint that is due: some wait for a subject,
// and subjects have changed, or a price was mapped.
type BillingLook struct {
	Tenant, Endpoint uuid.UUID

	version int64 // of the tenant's subjects
	looked  int64 // the version of the last look; negative: a price was mapped, and it is the mark of that
}

// looksOf returns the looks at the events of the unseen endpoints. A tenant with enough due events
// waits: there is no use in waking more than are processed.
func looksOf(unseen db.UnseenBillingSubjectsRow, due []BillingTask) (out []BillingLook) {
	count := map[uuid.UUID]int{}
	for _, task := range due {
		count[task.Tenant]++
	}
	for i, tenant := range unseen.Tenants {
		if count[tenant] < dueOfTenant {
			out = append(out, BillingLook{tenant, unseen.Endpoints[i], unseen.Versions[i], unseen.Looked[i]})
		}
	}
	return out
}

// startedLook is an unfinished look at the waiting events of an endpoint. The next part of it
// follows the last event that was looked at.
type startedLook struct {
	version  int64 // of the tenant's subjects when the look began: later ones may be missed
	mark     int64 // of a look at events that wait for a price; 0: at those that wait for a subject
	customer string
	event    uuid.UUID
}

// LookAtBilling looks at some waiting events of an endpoint, and wakes those that can be applied
// now. more reports whether there are more to look at. Another server may do the same at the same
// time: events are woken once or twice. After an error, the next look is at the same events. Error:
// ErrUnavailable.
func (s *Store) LookAtBilling(ctx context.Context, e BillingLook) (more bool, err error) {
	now := s.instant()
	look := startedLook{version: e.version, mark: min(e.looked, 0)}
	if began, ok := s.looks.Load(e.Endpoint); ok && began.(startedLook).mark == look.mark {
		look = began.(startedLook)
	}
	next := look
	err = s.inTenant(ctx, AsSystem(e.Tenant, "billing"), func(ctx context.Context, q *db.Queries) error {
		last, err := wakeBilling(ctx, q, e, look, now)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if more = last.Looked == wokenAtOnce; more {
			next.customer, next.event = last.Customer, last.ID
			return nil
		}
		// The look is recorded with the last of the events.
		if look.mark < 0 {
			return q.RecordBillingPricesLook(ctx, db.RecordBillingPricesLookParams{TenantID: e.Tenant, ID: e.Endpoint, Seen: look.mark})
		}
		return q.RecordBillingEndpointLook(ctx, db.RecordBillingEndpointLookParams{TenantID: e.Tenant, ID: e.Endpoint, Version: look.version})
	})
	switch {
	case err != nil:
		return false, err
	case more:
		s.looks.Store(e.Endpoint, next)
	default:
		s.looks.Delete(e.Endpoint)
	}
	if look.mark < 0 && !more { // it may also have events that wait for a subject
		e.looked = 0
		return s.LookAtBilling(ctx, e)
	}
	return more, nil
}

// wakeBilling wakes the next events of a look.
func wakeBilling(ctx context.Context, q *db.Queries, e BillingLook, look startedLook, now time.Time) (db.WakeBillingSubjectsRow, error) {
	p := db.WakeBillingSubjectsParams{
		TenantID: e.Tenant, EndpointID: e.Endpoint, AfterCustomer: look.customer, AfterID: look.event, Most: wokenAtOnce, Now: &now,
	}
	if look.mark == 0 {
		return q.WakeBillingSubjects(ctx, p)
	}
	last, err := q.WakeBillingPrices(ctx, db.WakeBillingPricesParams(p))
	return db.WakeBillingSubjectsRow(last), err
}
