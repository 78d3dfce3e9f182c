package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// staleWhy is the reason for which an event has no effect.
func (st *settling) staleWhy(s *subscription.State) string {
	of := "subscription"
	if st.endpoint.Provider == GenericProvider {
		of = "subject"
	}
	why := "a newer event of the " + of + " was received before"
	if s.Newest != nil && strings.HasPrefix(s.Newest.Event, subscription.FetchedEvent) {
		return "the subscription was fetched from the provider after this event, at " + time.Unix(s.Newest.At, 0).UTC().Format(time.RFC3339)
	}
	if s.Newest != nil {
		why += fmt.Sprintf(": %s of %s", s.Newest.Event, time.Unix(s.Newest.At, 0).UTC().Format(time.RFC3339))
	}
	return why
}

// observe stores what was fetched.
func (st *settling) observe(ctx context.Context, row *db.BillingSubscription, state *subscription.State, facts *subscription.Facts) error {
	f := st.fetched
	if f.Snapshot == nil { // the provider has deleted it
		state.Gone = st.now.Unix()
		return nil
	}
	state.Observe(f.Snapshot)
	row.Customer = f.Snapshot.Customer
	changed := false
	switch gone := max(state.Gone, facts.Gone); {
	case f.Gone && facts.Gone == 0:
		facts.Gone, changed = f.Snapshot.At, true
	case !f.Gone && gone != 0 && f.Snapshot.At > gone: // the provider did not know it before
		changed = facts.Gone != 0
		state.Gone, facts.Gone = 0, 0
	}
	if f.Metadata != nil && facts.Describe(f.Snapshot.At, subscription.Description{Event: f.Snapshot.Event, Rank: 1, Metadata: f.Metadata}) {
		changed = true
	}
	if !changed {
		return nil
	}
	if facts.Passed != nil { // the parts that were processed had other facts
		facts.Passed = &subscription.Passed{}
	}
	return st.putFacts(ctx, row.Customer, *facts)
}

func (st *settling) state(ctx context.Context, name string) (row db.BillingSubscription, state subscription.State, err error) {
	row, err = st.BillingSubscription(ctx, db.BillingSubscriptionParams{TenantID: st.tenant, EndpointID: st.endpoint.ID, Subscription: name})
	if errors.Is(err, pgx.ErrNoRows) {
		return db.BillingSubscription{TenantID: st.tenant, EndpointID: st.endpoint.ID, Subscription: name}, state, nil
	}
	if err != nil {
		return row, state, err
	}
	err = json.Unmarshal(row.State, &state)
	if err == nil { // in the form of this package, for comparison
		row.State, err = json.Marshal(state)
	}
	return row, state, err
}

func (st *settling) facts(ctx context.Context, customer string) (f subscription.Facts, err error) {
	if customer == "" {
		return f, nil
	}
	text, err := st.BillingCustomer(ctx, db.BillingCustomerParams{TenantID: st.tenant, EndpointID: st.endpoint.ID, Customer: customer})
	if errors.Is(err, pgx.ErrNoRows) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(text, &f)
}

func (st *settling) putFacts(ctx context.Context, customer string, f subscription.Facts) error {
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return st.PutBillingCustomer(ctx, db.PutBillingCustomerParams{
		TenantID: st.tenant, EndpointID: st.endpoint.ID, Customer: customer, Facts: text,
	})
}
