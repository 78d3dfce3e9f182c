package tenants

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// The outcomes of an event.
const (
	EventApplied   = "applied"
	EventDuplicate = "duplicate" // it was received before
	EventStale     = "stale"     // a newer event was received before
	EventParked    = "parked"    // it waits for missing data
	EventIgnored   = "ignored"   // nothing follows from it
	EventFailed    = "failed"    // it cannot be applied
)

// EventOutcomes lists the outcomes.
var EventOutcomes = []string{EventApplied, EventDuplicate, EventStale, EventParked, EventIgnored, EventFailed}

// BillingEvent is an event of a billing system with its outcome.
type BillingEvent struct {
	ID           uuid.UUID
	Endpoint     uuid.UUID
	ProviderID   string // the provider's id of the event
	Type         string
	ProviderAt   time.Time // the provider's own time
	ReceivedAt   time.Time
	Outcome      string // "": it was not looked at yet
	Why          string
	SettledAt    *time.Time
	Customer     string
	Subscription string
	Subject      string
	DuplicateOf  *uuid.UUID
	Deliveries   int // how often it was received; for a duplicate, how often it was repeated
	Body         []byte
}

// BillingEventFilter selects the events that meet all of its conditions.
type BillingEventFilter struct {
	Endpoint *uuid.UUID
	Outcome  string // one of EventOutcomes; "": any
	Subject  string
	Customer string
	Type     string
}

func (f BillingEventFilter) validate() error {
	for _, c := range []struct{ field, text string }{{"subject", f.Subject}, {"customer", f.Customer}, {"type", f.Type}} {
		if len(c.text) > 256 || !plain(c.text) {
			return invalid(c.field, plainUpTo(256))
		}
	}
	return nil
}

// StoreBillingEvent stores a verified event. first reports whether it was not received before.
// SettleBillingEvent decides its outcome later, unless nothing can follow from it: such an event is
// decided here, and its body is not kept. Errors: ErrUnavailable; ErrNotFound if the endpoint was
// deleted since it was looked up; *BillingVolumeError; ErrWrongMode, also if w is older than the
// event that determined the mode.
func (s *Store) StoreBillingEvent(ctx context.Context, w Webhook, e subscription.Event, body []byte) (first bool, err error) {
	now := s.instant()
	a := AsSystem(w.Tenant, "billing")
	p := db.InsertBillingEventParams{
		TenantID: w.Tenant, ID: newID(), EndpointID: w.Endpoint, ProviderID: e.ID, Type: e.Type, ProviderAt: e.At, ReceivedAt: now,
		Body: body, Customer: e.Customer, Subscription: e.Subscription, Subject: e.Subject, DueAt: &now,
	}
	if WithoutEffect(&e) {
		ignored := EventIgnored
		p.Body, p.DueAt, p.Outcome, p.Why, p.SettledAt = []byte{}, nil, &ignored, shortWhy(e.Why), &now
	}
	err = s.inTenant(ctx, a, func(ctx context.Context, q *db.Queries) error {
		of, err := q.CountBillingEvent(ctx, db.CountBillingEventParams{
			TenantID: w.Tenant, EndpointID: w.Endpoint, ProviderID: e.ID, Day: dayOf(now), Bytes: sizeOf(&e, p.Body),
			MostEvents: s.volume.Events, MostBytes: s.volume.Bytes,
		})
		switch {
		case err != nil:
			return err
		case !of.Received && !of.Counted:
			return &BillingVolumeError{s.volume, untilNextDay(now)}
		}
		first = false
		if !of.Received {
			rows, err := q.InsertBillingEvent(ctx, p)
			if err != nil {
				return err
			}
			first = rows == 1 // else another request has stored it meanwhile
		}
		if !first {
			return q.RecordBillingDuplicate(ctx, db.RecordBillingDuplicateParams{
				TenantID: w.Tenant, ID: newID(), EndpointID: w.Endpoint, ProviderID: e.ID, Now: now,
			})
		}
		rows, err := q.RecordBillingEndpointEvent(ctx, db.RecordBillingEndpointEventParams{TenantID: w.Tenant, ID: w.Endpoint, At: &now, Live: e.Live})
		if err == nil && rows == 0 {
			return ErrWrongMode
		}
		return err
	})
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "23503" { // foreign_key_violation
		return false, ErrNotFound
	}
	return first && err == nil, err
}

// BillingEvents lists events, newest first, and returns where the next page begins.
func (s *Store) BillingEvents(ctx context.Context, a Actor, f BillingEventFilter, p Page) (out []BillingEvent, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	if err := f.validate(); err != nil {
		return nil, "", err
	}
	sql, args := billingEventsSQL(a.tenant, f, after, p.most())
	err = s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByName[db.BillingEvent])
		if err != nil {
			return err
		}
		found, next = cut(p, found, func(r db.BillingEvent) uuid.UUID { return r.ID })
		out = make([]BillingEvent, len(found))
		for i, row := range found {
			out[i] = billingEventOf(row)
		}
		return nil
	})
	return out, next, err
}

// billingEventsSQL selects a page of events, without their bodies. The statement contains only the
// given conditions, so that Postgres plans for them.
func billingEventsSQL(tenant uuid.UUID, f BillingEventFilter, after *uuid.UUID, most int32) (sql string, args []any) {
	args = []any{tenant}
	where := "tenant_id = $1"
	add := func(condition string, value any) {
		args = append(args, value)
		where += " AND " + condition + " $" + strconv.Itoa(len(args))
	}
	if after != nil {
		add("id <", *after)
	}
	if f.Endpoint != nil {
		add("endpoint_id =", *f.Endpoint)
	}
	for _, c := range []struct{ column, text string }{
		{"outcome", f.Outcome}, {"subject", f.Subject}, {"customer", f.Customer}, {"type", f.Type},
	} {
		if c.text != "" {
			add(c.column+" =", c.text)
		}
	}
	args = append(args, most)
	return `SELECT tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, ''::bytea AS body, customer, subscription, subject,
    outcome, why, settled_at, due_at, attempts, waits_for, duplicate_of, deliveries
FROM billing_events WHERE ` + where + " ORDER BY id DESC LIMIT $" + strconv.Itoa(len(args)), args
}

// BillingEventByID returns an event with its body, or ErrNotFound.
func (s *Store) BillingEventByID(ctx context.Context, a Actor, id uuid.UUID) (out BillingEvent, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.BillingEventByID(ctx, db.BillingEventByIDParams{TenantID: a.tenant, ID: id})
		out = billingEventOf(row)
		return err
	})
	return out, err
}

func billingEventOf(row db.BillingEvent) BillingEvent {
	e := BillingEvent{
		ID: row.ID, Endpoint: row.EndpointID, ProviderID: row.ProviderID, Type: row.Type, ProviderAt: row.ProviderAt, ReceivedAt: row.ReceivedAt,
		Why: row.Why, SettledAt: row.SettledAt, Customer: row.Customer, Subscription: row.Subscription, Subject: row.Subject,
		DuplicateOf: row.DuplicateOf, Deliveries: int(row.Deliveries), Body: row.Body,
	}
	if row.Outcome != nil {
		e.Outcome = *row.Outcome
	}
	return e
}

// UnappliedEvents are the numbers of billing events that were not applied. The sum of Parked and
// Failed is at most MostUnapplied, or MostUnappliedOfAll.
type UnappliedEvents struct {
	Parked    int64
	Scheduled int64 // of the parked ones: those that take effect at a time that they name
	Failed    int64
}

const (
	// MostUnapplied is up to how many events of a tenant are counted.
	MostUnapplied = 10_000
	// MostUnappliedOfAll is up to how many events of all tenants are counted.
	MostUnappliedOfAll = 100_000
)

// UnappliedEvents counts a tenant's billing events that were not applied.
func (s *Store) UnappliedEvents(ctx context.Context, a Actor) (out UnappliedEvents, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.CountUnappliedEvents(ctx, db.CountUnappliedEventsParams{TenantID: a.tenant, Most: MostUnapplied})
		out = UnappliedEvents{Parked: row.Parked, Scheduled: row.Scheduled, Failed: row.Failed}
		return err
	})
	return out, err
}

// AllUnappliedEvents counts the billing events of all tenants that were not applied, without those
// that take effect at a time that they name.
func (s *Store) AllUnappliedEvents(ctx context.Context) (out UnappliedEvents, err error) {
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := enableSort(ctx, tx, "off"); err != nil { // else see turn.step
			return err
		}
		row, err := q.CountAllUnappliedEvents(ctx, MostUnappliedOfAll)
		out = UnappliedEvents{Parked: row.Parked, Failed: row.Failed}
		return err
	})
	return out, err
}

// DismissBillingEvent settles an event that is parked or has failed without applying it: it becomes
// ignored and waits for nothing. It changes no plan, and a replay undoes it. Errors: ErrForbidden,
// ErrNotFound; *ConflictError for an event with another outcome.
func (s *Store) DismissBillingEvent(ctx context.Context, a Actor, event uuid.UUID) (out BillingEvent, err error) {
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		row, err := c.LockBillingEvent(ctx, db.LockBillingEventParams{TenantID: c.tenant, ID: event})
		if err != nil {
			return err
		}
		before := billingEventOf(row)
		if before.Outcome != EventParked && before.Outcome != EventFailed {
			return &ConflictError{CodeConflict, "only an event that is parked or has failed can be dismissed; this one is " + cmp.Or(before.Outcome, "not processed yet")}
		}
		out = before
		out.Outcome, out.SettledAt = EventIgnored, &c.now
		out.Why = shortWhy("dismissed by " + c.actor.label() + "; it was " + before.Outcome + ": " + before.Why)
		if err := c.recordEvent("dismiss", before, out); err != nil {
			return err
		}
		return c.DismissBillingEvent(ctx, db.DismissBillingEventParams{TenantID: c.tenant, ID: event, Why: out.Why, SettledAt: out.SettledAt})
	})
	return out, err
}

// recordEvent writes a row of the trail about an event whose outcome changes by the decision of an
// actor.
func (c *change) recordEvent(action string, before, after BillingEvent) error {
	fields := func(e BillingEvent) json.RawMessage {
		text, _ := json.Marshal(struct { // of texts, so it cannot fail
			Outcome string `json:"outcome"`
			Why     string `json:"why"`
		}{e.Outcome, e.Why})
		return text
	}
	c.trail.actions = append(c.trail.actions, auditRow{
		action: action, kind: auditEvent, target: before.ProviderID, before: fields(before), after: fields(after),
	})
	return nil
}

// postponeFor returns how long to wait before an event is processed again, by the number of
// attempts.
func postponeFor(attempts int32) time.Duration {
	return min(time.Second<<min(attempts, 12), time.Hour)
}

// PostponeBillingEvent schedules an event for later, because a service was unavailable.
func (s *Store) PostponeBillingEvent(ctx context.Context, tenant, event uuid.UUID, why string) error {
	return s.inTenant(ctx, AsSystem(tenant, "billing"), func(ctx context.Context, q *db.Queries) error {
		row, err := q.BillingEventByID(ctx, db.BillingEventByIDParams{TenantID: tenant, ID: event})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		due := s.instant().Add(postponeFor(row.Attempts))
		return q.PostponeBillingEvent(ctx, db.PostponeBillingEventParams{
			TenantID: tenant, ID: event, DueAt: &due, Why: strings.ToValidUTF8(why[:min(len(why), maxWhy)], ""),
		})
	})
}

const maxWhy = 500 // bytes
