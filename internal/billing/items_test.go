package billing_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"weir/internal/billing"
	"weir/internal/tenants"
)

// addOns returns prices that no plan is mapped to.
func addOns(count int) (prices []string) {
	for n := range count {
		prices = append(prices, fmt.Sprintf("price_add_on_%d", n))
	}
	return prices
}

// partial returns a subscription of whose items an event has only the first ones.
func partial(status string, prices ...string) obj {
	out := sub("sub_1", "cus_1", status, "ada", prices...)
	out["items"].(obj)["has_more"] = true
	return out
}

// An event has only the first items of a subscription with many. The others are fetched, since one
// of them may be that of the plan.
func TestManyItems(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, fake)
	ada := map[string]string{"user": "ada"}
	fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, ada, append(addOns(11), "price_pro")...)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", partial("active", addOns(firstItems)...))))
	require.Equal(t, "pro", s.plan("ada"))

	// So does the comparison with the provider.
	fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, ada, append(addOns(25), "price_scale")...)
	endpoint, err := s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
	require.NoError(t, err)
	sum, err := s.runner.Reconcile(t.Context(), s.a.TenantID(), endpoint, false, nil)
	require.NoError(t, err)
	require.Equal(t, billing.Summary{Subscriptions: 1, Repaired: 1}, sum)
	require.Equal(t, "scale", s.plan("ada"))
}

// Without an API key, or while the provider cannot be asked, nobody knows which plan the other
// items give: the event is parked and says what to do, and the customer keeps the plan. The end
// of a subscription needs no items.
func TestManyItemsWithoutTheProvider(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, nil)
	s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pro")))
	require.Equal(t, "pro", s.plan("ada"))
	for _, prices := range [][]string{addOns(firstItems), append(addOns(firstItems-1), "price_scale")} {
		s.pass(time.Hour)
		parked := s.send(s.event("customer.subscription.updated", partial("active", prices...)))
		s.outcome(tenants.EventParked, parked)
		require.Equal(t, "only the first 10 items of the subscription are known, and another one may give the plan: "+
			"add an api_key with read access to subscriptions to the endpoint, then replay the event", parked.Why)
		require.Equal(t, "ada", parked.Subject)
		require.Equal(t, "pro", s.plan("ada"))
	}
	s.pass(time.Hour)
	s.outcome(tenants.EventParked, s.send(s.event("invoice.paid", invoice("sub_1"))))
	s.pass(time.Hour)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.deleted", partial("canceled", addOns(firstItems)...))))
	require.Equal(t, "free", s.plan("ada"))

	// Once there is a key, a replay fetches the items.
	fake := newFakeStripe(t)
	fake.now = s.now
	s.pass(time.Hour)
	parked := s.send(s.event("customer.subscription.updated", partial("active", addOns(firstItems)...)))
	s.outcome(tenants.EventParked, parked)
	fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "ada"}, append(addOns(11), "price_scale")...)
	_, err := s.store.EditBillingEndpoint(t.Context(), s.a, s.endpoint.ID, tenants.Match{}, func(*tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
		return tenants.BillingSecrets{APIKey: &fake.key}, nil
	})
	require.NoError(t, err)
	runner := billing.New(billing.Options{Store: s.store, StripeURL: fake.url})
	replayed, err := runner.Replay(t.Context(), s.a, parked.ID)
	require.NoError(t, err)
	s.outcome(tenants.EventApplied, replayed)
	require.Equal(t, "scale", s.plan("ada"))
}

// The subscriptions of all endpoints of Stripe in a mode decide together: the end of one does not
// take the plan that another one gives.
func TestSubscriptionsOfTwoEndpoints(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, nil)
	first := s.endpoint
	second, err := s.store.CreateBillingEndpoint(t.Context(), s.a, tenants.BillingEndpoint{
		Provider: tenants.StripeProvider, SubjectFrom: first.SubjectFrom, FallbackPlan: "late",
	}, tenants.BillingSecrets{Signing: []string{"whsec_second"}})
	require.NoError(t, err)
	_, _, err = s.store.PutBillingPrice(t.Context(), s.a, tenants.BillingPrice{Price: "price_second", Endpoint: second.ID, Plan: "scale", Priority: 1}, tenants.Match{})
	require.NoError(t, err)
	send := func(to tenants.BillingEndpoint, typ, id, status, price string) {
		s.endpoint = to
		s.pass(time.Minute)
		s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription."+typ, sub(id, "cus_"+id, status, "ada", price))))
	}
	send(first, "created", "sub_1", "active", "price_pro")
	require.Equal(t, "pro", s.plan("ada"))
	send(second, "created", "sub_2", "active", "price_second")
	require.Equal(t, "scale", s.plan("ada"), "its priority is higher")
	send(first, "updated", "sub_1", "active", "price_pro")
	require.Equal(t, "scale", s.plan("ada"))
	send(second, "deleted", "sub_2", "canceled", "price_second")
	require.Equal(t, "pro", s.plan("ada"), "the first one gives it")
	send(first, "deleted", "sub_1", "canceled", "price_pro")
	require.Equal(t, "free", s.plan("ada"))
}
