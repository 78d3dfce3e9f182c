package tenants

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// BillingWork is an event with the data for deciding whether to query the provider.
type BillingWork struct {
	Event    BillingEvent
	Parsed   subscription.Event
	Endpoint BillingEndpoint
	State    subscription.State // of its subscription
	Subject  string             // its subject; "" if unknown
	// GrantsCredits means that a price of the endpoint stands for credits.
	GrantsCredits bool
	// Unfetched means that the provider was asked for the subscription and did not answer. A parked
	// event is then processed again.
	Unfetched bool
}

// BillingWork reads an event. Errors: ErrNotFound, ErrUnavailable.
func (s *Store) BillingWork(ctx context.Context, tenant, event uuid.UUID) (w BillingWork, err error) {
	err = s.read(ctx, AsSystem(tenant, "billing"), func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.BillingEventByID(ctx, db.BillingEventByIDParams{TenantID: tenant, ID: event})
		if err != nil {
			return err
		}
		w.Event = billingEventOf(row)
		if w.Endpoint, err = readBillingEndpoint(ctx, q, tenant, row.EndpointID); err != nil {
			return err
		}
		w.Parsed = parseStored(w.Endpoint.Provider, w.Event)
		if w.Parsed.Purchase != nil {
			w.GrantsCredits, err = q.EndpointGrantsCredits(ctx, db.EndpointGrantsCreditsParams{TenantID: tenant, EndpointID: row.EndpointID})
			if err != nil {
				return err
			}
		}
		if w.Parsed.Subscription == "" {
			return nil
		}
		sub, err := q.BillingSubscription(ctx, db.BillingSubscriptionParams{
			TenantID: tenant, EndpointID: row.EndpointID, Subscription: w.Parsed.Subscription,
		})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		w.Subject = sub.Subject
		return json.Unmarshal(sub.State, &w.State)
	})
	return w, err
}

// parseStored parses a stored event again.
func parseStored(provider string, e BillingEvent) subscription.Event {
	if len(e.Body) == 0 { // it was decided when it was received
		return subscription.Event{ID: e.ProviderID, Type: e.Type, At: e.ProviderAt, Customer: e.Customer, Subscription: e.Subscription, Subject: e.Subject, Why: e.Why}
	}
	var parsed subscription.Event
	var err error
	if provider == GenericProvider {
		parsed, err = subscription.ParseGeneric(e.Body, e.ProviderID, e.ProviderAt, e.ReceivedAt)
	} else {
		parsed, err = subscription.ParseStripe(e.Body)
	}
	if err != nil { // an earlier release parsed it differently
		parsed = subscription.Event{ID: e.ProviderID, Type: e.Type, At: e.ProviderAt, Kind: subscription.Unreadable, Why: err.Error()}
	}
	return parsed
}

// AsProvider returns a billing system as an actor in one tenant, through an endpoint. what names
// the event or the other reason.
func AsProvider(tenant uuid.UUID, e BillingEndpoint, what string) Actor {
	return Actor{tenant: tenant, kind: ProviderActor, id: e.ID, name: e.Provider + " " + what, scopes: everyScope}
}

// SettleBillingEvent decides the outcome of an event, applies it and records it, all of it or
// nothing. fetched is the current subscription of the provider, or nil if it was not queried. A
// processed event is not processed again, unless replayedBy is set. Errors: ErrNotFound,
// ErrUnavailable.
func (s *Store) SettleBillingEvent(ctx context.Context, w BillingWork, tenant uuid.UUID, fetched *subscription.Fetched, replayedBy string) (out BillingEvent, err error) {
	reason := w.Event.Type
	if replayedBy != "" {
		reason += ", replayed by " + replayedBy
	}
	ctx = WithReason(ctx, reason)
	a := AsProvider(tenant, w.Endpoint, w.Event.ProviderID)
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		row, err := c.LockBillingEvent(ctx, db.LockBillingEventParams{TenantID: tenant, ID: w.Event.ID})
		if err != nil {
			return err
		}
		if out = billingEventOf(row); row.DueAt == nil && replayedBy == "" {
			return nil
		}
		endpoint, err := readBillingEndpoint(ctx, c.Queries, tenant, row.EndpointID)
		if err != nil {
			return err
		}
		st := c.settle(endpoint)
		st.fetched, st.attempts, st.unfetched = fetched, row.Attempts, w.Unfetched
		st.received = row.ReceivedAt
		st.continues = row.WaitsFor == "time" && replayedBy == ""
		verdict, err := st.event(ctx, &w.Parsed)
		if err != nil {
			return err
		}
		st.fetchAgain(&verdict)
		before := out
		out.Outcome, out.Why, out.SettledAt = verdict.outcome, verdict.why, &c.now
		if replayedBy != "" {
			if err := c.recordEvent("replay", before, out); err != nil {
				return err
			}
		}
		out.Customer, out.Subscription, out.Subject = w.Parsed.Customer, w.Parsed.Subscription, cmp.Or(verdict.subject, w.Parsed.Subject)
		attempts := row.Attempts + 1
		if verdict.unfinished {
			attempts = 0
		}
		return c.SettleBillingEvent(ctx, db.SettleBillingEventParams{
			TenantID: tenant, ID: row.ID, Attempts: attempts, Outcome: &out.Outcome, Why: shortWhy(out.Why), SettledAt: &c.now, DueAt: verdict.due,
			WaitsFor: verdict.waits, Customer: out.Customer, Subscription: out.Subscription, Subject: out.Subject,
		})
	})
	return out, err
}

func shortWhy(why string) string { return strings.ToValidUTF8(why[:min(len(why), maxWhy)], "") }
