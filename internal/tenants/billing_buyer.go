package tenants

import (
	"cmp"
	"context"
	"strings"
	"time"

	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// Whose credits a purchase grants. Events arrive in any order, and a customer may pay for several
// subjects. So a purchase waits for what says whose it is: credits that another subject has spent
// cannot be moved.

const (
	// checkoutWait is how long an invoice waits for the checkout that it may come from, after
	// it arrived. There need not be one, so it is shorter than the time until a notice about
	// parked events. Later, the newest checkout that has arrived decides.
	checkoutWait = 45 * time.Second
	// checkoutBefore is how long after its checkout an invoice is paid at the latest.
	checkoutBefore = 10 * time.Minute
	// wokenOfSubscription is the maximum number of events that a subscription makes due at once.
	// An event of a customer does that for many subscriptions.
	wokenOfSubscription = 20
)

// undescribed reports whether the subject of a subscription is unknown because nothing has
// described it yet: its metadata may name the subject, before anything else does.
func (st *settling) undescribed(newest *subscription.Snapshot) bool {
	return newest == nil && st.endpoint.Provider == StripeProvider && strings.HasPrefix(st.endpoint.SubjectFrom, FromMetadata)
}

// sell grants the credits of a purchase, or parks it until its subject is known.
func (st *settling) sell(ctx context.Context, e *subscription.Event, v verdict, sold []sale) (verdict, error) {
	if e.Kind == subscription.PaymentMade && st.undescribed(st.newest) {
		return st.awaitSubscription(e), nil
	}
	// An invoice is that of a subscription. A checkout says itself for whom it is; the customer may
	// have subscriptions of others.
	subject := v.subject
	if subject == "" || e.Kind == subscription.Linked {
		buyer, err := st.buyer(ctx, e)
		if err != nil {
			return verdict{}, err
		}
		if v.outcome == EventFailed {
			subject = ""
		}
		subject = cmp.Or(buyer, subject)
	}
	switch {
	case subject == "" && e.Customer == "":
		return parked("", "%s names neither a subject nor a customer; grant the credits yourself, and dismiss the event", e.Purchase.ID), nil
	case subject == "":
		return parked("subject", "%s", st.unknown(e.Customer)), nil
	}
	until, err := st.checkoutDue(ctx, e)
	if err != nil {
		return verdict{}, err
	}
	if until != nil {
		v := parked("subject", "%s may come from a checkout that has not arrived yet and says whose it is; it is processed again at %s",
			e.Purchase.ID, until.Format(time.RFC3339))
		v.due = until
		return v, nil
	}
	return st.grantSales(ctx, e, subject, sold)
}

// awaitSubscription is the verdict about an invoice whose subscription nothing has described yet.
func (st *settling) awaitSubscription(e *subscription.Event) verdict {
	v := parked(waitsSubscription, "subscription %s says whose the credits of %s are, and no event of it has arrived; they are granted then", e.Subscription, e.Purchase.ID)
	switch {
	case st.endpoint.APIKeyHint == "":
		v.why += ". If none arrives, give the endpoint an api_key, or grant the credits yourself and dismiss this event"
	case !st.unfetched:
		v.why += ", but the provider does not know it. Grant the credits yourself and dismiss this event if it does not arrive"
	}
	return v
}

// waitsSubscription is what an event waits for whose subscription nothing has described yet.
const waitsSubscription = "subscription"

// checkoutDue returns until when an invoice waits because a checkout may still arrive that says
// whose it is; nil: it does not wait.
func (st *settling) checkoutDue(ctx context.Context, e *subscription.Event) (*time.Time, error) {
	until := st.received.Add(checkoutWait)
	if !st.now.Before(until) || st.endpoint.SubjectFrom == FromCustomer || e.Customer == "" || !e.Purchase.Invoice() {
		return nil, nil
	}
	metadata, since := e.Purchase.Metadata, e.At.Add(-checkoutBefore)
	if st.newest != nil {
		metadata = st.newest.Metadata
		created := time.Unix(st.newest.Created, 0)
		if created.Before(since) { // it was renewed
			return nil, nil
		}
		since = created
	}
	facts, err := st.facts(ctx, e.Customer)
	if err != nil {
		return nil, err
	}
	key, fromMetadata := strings.CutPrefix(st.endpoint.SubjectFrom, FromMetadata)
	if facts.LinkedAt >= since.Unix() || fromMetadata && cmp.Or(metadata[key], facts.Metadata[key]) != "" {
		return nil, nil
	}
	return &until, nil
}

// buyer returns the subject of a purchase, or "" if it is not known.
func (st *settling) buyer(ctx context.Context, e *subscription.Event) (string, error) {
	facts, err := st.facts(ctx, e.Customer)
	if err != nil {
		return "", err
	}
	facts.Reference = cmp.Or(e.Purchase.Subject, facts.Reference)
	registered, err := st.registered(ctx, e.Customer)
	return facts.Subject(st.endpoint.SubjectFrom, &subscription.Snapshot{Metadata: e.Purchase.Metadata}, e.Customer, registered), err
}

// wakeSubscription makes events due that wait for a subscription, or for its subject, if it has one
// now. If there are more, each of these wakes others: none of them waits for that again.
func (st *settling) wakeSubscription(ctx context.Context, row *db.BillingSubscription) error {
	if row.Subject == "" || st.endpoint.Provider == GenericProvider {
		return nil
	}
	return st.WakeBillingSubscription(ctx, db.WakeBillingSubscriptionParams{
		TenantID: st.tenant, EndpointID: st.endpoint.ID, Subscription: row.Subscription, Most: wokenOfSubscription, Now: &st.now,
	})
}
