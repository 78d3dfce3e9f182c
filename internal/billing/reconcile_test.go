package billing_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"weir/internal/billing"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// If the provider's API is available, it settles events that are not conclusive.
func TestAskTheProvider(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	ada := map[string]string{"user": "ada"}

	// Two changes within one second have no order.
	fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, ada, "price_scale")
	later := s.event("customer.subscription.updated", sub("sub_1", "cus_1", "active", "ada", "price_scale"))
	earlier := s.event("customer.subscription.updated", sub("sub_1", "cus_1", "active", "ada", "price_pro"))
	s.send(later)
	asked := fake.requests()
	s.send(earlier)
	require.Greater(t, fake.requests(), asked)
	require.Equal(t, "scale", s.plan("ada"), "although the id of the earlier event is greater")

	// An invoice of a subscription that no event has described.
	fake.put("sub_2", "cus_2", stripe.SubscriptionStatusActive, map[string]string{"user": "bob"}, "price_pro")
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", invoice("sub_2"))))
	require.Equal(t, "pro", s.plan("bob"))

	// An unknown format.
	fake.put("sub_3", "cus_3", stripe.SubscriptionStatusActive, map[string]string{"user": "cy"}, "price_pro")
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.updated", obj{"id": "sub_3", "customer": "cus_3", "status": "dreaming"})))
	require.Equal(t, "pro", s.plan("cy"))
	s.pass(-time.Minute)
	stale := s.send(s.event("customer.subscription.updated", sub("sub_3", "cus_3", "active", "cy", "price_scale")))
	s.outcome(tenants.EventStale, stale)
	require.Contains(t, stale.Why, "the subscription was fetched from the provider after this event, at ")
	s.pass(time.Minute)

	// An outage of the provider does not stop conclusive events.
	fake.mu.Lock()
	fake.broken = true
	fake.mu.Unlock()
	s.pass(time.Hour)
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.updated", obj{"id": "sub_4", "customer": "cus_4", "status": "dreaming"})))
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_5", "cus_5", "active", "eve", "price_pro"))))
	require.Equal(t, "pro", s.plan("eve"))
}

// An event that was parked because the provider did not answer is applied when it answers again.
// One of a subscription that the provider does not know stays parked.
func TestAskTheProviderAgain(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "ada"}, "price_pro")
	fake.set(func(fake *fakeStripe) { fake.broken = true })
	unreadable := s.send(s.event("customer.subscription.updated", obj{"id": "sub_1", "customer": "cus_1", "status": "dreaming"}))
	s.outcome(tenants.EventParked, unreadable)
	require.Contains(t, unreadable.Why, "could not be fetched; it is requested again")
	require.NotContains(t, unreadable.Why, "add an API key")
	for range 3 {
		s.pass(time.Hour)
		require.NoError(t, s.runner.Once(t.Context()))
		require.Equal(t, unreadable.Why, s.last().Why)
	}
	fake.set(func(fake *fakeStripe) { fake.broken = false })
	s.pass(time.Hour)
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventApplied, s.last())
	require.Equal(t, "pro", s.plan("ada"))

	unknown := s.send(s.event("customer.subscription.updated", obj{"id": "sub_2", "customer": "cus_2", "status": "dreaming"}))
	s.outcome(tenants.EventParked, unknown)
	require.Contains(t, unknown.Why, "and the provider does not know the subscription")
	asked := fake.requests()
	s.pass(24 * time.Hour)
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, asked, fake.requests(), "it does not ask again")
}

// Events can be lost. A comparison finds, reports and repairs wrong plans.
func TestReconcile(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, fake)
	s.send(s.event("customer.subscription.created", sub("sub_gone", "cus_gone", "active", "gone", "price_pro")))
	s.send(s.event("customer.subscription.created", sub("sub_0", "cus_0", "active", "user-0", "price_pro")))
	s.pass(time.Hour)
	for i := range 230 { // more than two pages
		price := "price_pro"
		if i == 0 {
			price = "price_scale"
		}
		fake.put(fmt.Sprintf("sub_%d", i), fmt.Sprintf("cus_%d", i), stripe.SubscriptionStatusActive, map[string]string{"user": fmt.Sprintf("user-%d", i)}, price)
	}
	fake.set(func(fake *fakeStripe) { fake.deleted = []string{"cus_gone"} })
	fake.put("sub_other", "cus_other", stripe.SubscriptionStatusActive, nil, "price_other")

	endpoint, err := s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
	require.NoError(t, err)
	var reported []string
	report := func(_ billing.Summary, r tenants.ReconcileResult) { reported = append(reported, r.Changes...) }
	sum, err := s.runner.Reconcile(t.Context(), s.a.TenantID(), endpoint, true, report)
	require.NoError(t, err)
	require.Equal(t, billing.Summary{Subscriptions: 232, Repaired: 231, Problems: 1}, sum)
	require.Contains(t, reported, `subject "user-0" moved from pro to scale`)
	require.Contains(t, reported, `subject "gone" moved from pro to free`)
	require.Equal(t, "pro", s.plan("user-0"), "a dry run changes nothing")
	require.Equal(t, "", s.plan("user-7"))

	sum, err = s.runner.Reconcile(t.Context(), s.a.TenantID(), endpoint, false, nil)
	require.NoError(t, err)
	require.Equal(t, 231, sum.Repaired)
	require.Equal(t, "scale", s.plan("user-0"))
	require.Equal(t, "pro", s.plan("user-7"))
	require.Equal(t, "free", s.plan("gone"))
	s.pass(time.Second)
	sum, err = s.runner.Reconcile(t.Context(), s.a.TenantID(), endpoint, false, nil)
	require.NoError(t, err)
	require.Zero(t, sum.Repaired)

	mine, err := s.store.ClaimReconcile(t.Context(), s.a.TenantID(), endpoint.ID, time.Hour)
	require.NoError(t, err)
	require.False(t, mine, "it was just compared")
	s.pass(24 * time.Hour)
	mine, err = s.store.ClaimReconcile(t.Context(), s.a.TenantID(), endpoint.ID, time.Hour)
	require.NoError(t, err)
	require.True(t, mine, "a day later it is due")
	mine, err = s.store.ClaimReconcile(t.Context(), s.a.TenantID(), endpoint.ID, time.Hour)
	require.NoError(t, err)
	require.False(t, mine, "one instance does it")
}

// With the API key of another account, the provider knows none of the customers. They keep their
// plans. A customer whom the provider knows again, such as one of test data that came back, has the
// plan again.
func TestAPIKeyOfAnotherAccount(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, fake)
	s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pro")))
	s.send(s.event("customer.subscription.created", sub("sub_2", "cus_2", "active", "bob", "price_pro")))
	fake.set(func(fake *fakeStripe) { fake.deleted = []string{"cus_2"} })
	s.pass(time.Hour)
	compare := func() (billing.Summary, tenants.BillingEndpoint) {
		endpoint, err := s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
		require.NoError(t, err)
		sum, err := s.runner.Reconcile(t.Context(), s.a.TenantID(), endpoint, false, nil)
		require.NoError(t, err)
		endpoint, err = s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
		require.NoError(t, err)
		s.pass(time.Hour)
		return sum, endpoint
	}
	sum, endpoint := compare()
	require.Equal(t, billing.Summary{Subscriptions: 2, Repaired: 1, Problems: 1, Foreign: 1}, sum)
	require.Contains(t, endpoint.ReconcileError, "1 of 2 subscriptions were not compared, and their subjects keep their plans: for each, Stripe knows neither")
	require.Equal(t, "pro", s.plan("ada"))
	require.Equal(t, "free", s.plan("bob"), "Stripe knows that this one was deleted")

	fake.set(func(fake *fakeStripe) { fake.deleted, fake.now = nil, s.now })
	for _, n := range []string{"1", "2"} {
		fake.put("sub_"+n, "cus_"+n, stripe.SubscriptionStatusActive, map[string]string{"user": map[string]string{"1": "ada", "2": "bob"}[n]}, "price_scale")
	}
	sum, endpoint = compare()
	require.Equal(t, billing.Summary{Subscriptions: 2, Repaired: 2}, sum)
	require.Empty(t, endpoint.ReconcileError)
	require.Equal(t, "scale", s.plan("ada"))
	require.Equal(t, "scale", s.plan("bob"))
}

// A running server compares an endpoint with the provider when it has a new API key, when somebody
// requests it, and a day after the last time. Of two instances, one does it.
func TestDailyComparison(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	for n, price := range []string{"price_pro", "price_scale", "price_pro"} {
		fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "ada"}, price)
		if n == 0 {
			working, stop := context.WithCancel(context.WithoutCancel(t.Context()))
			var instances sync.WaitGroup
			for range 2 {
				runner := billing.New(billing.Options{Store: s.store, StripeURL: fake.url, Every: 10 * time.Millisecond})
				instances.Go(func() { runner.Run(working) })
			}
			defer instances.Wait()
			defer stop()
		} else if n == 1 {
			s.pass(24 * time.Hour)
		} else {
			s.pass(time.Hour)
			_, err := s.store.RequestReconcile(t.Context(), s.a, s.endpoint.ID)
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool {
			e, err := s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
			require.NoError(t, err)
			return e.ReconciledAt != nil && e.ReconciledAt.Equal(s.now())
		}, time.Minute, 10*time.Millisecond)
		require.Equal(t, strings.TrimPrefix(price, "price_"), s.plan("ada"))
		require.Equal(t, n+1, fake.lists(), "one instance compares, once a day and on request")
	}
	rows, _, err := s.store.Audit(t.Context(), s.a, tenants.AuditFilter{Kind: "endpoint", Action: "compare"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, s.endpoint.ID.String(), rows[0].Target)
}

// The endpoint says when and why the last comparison failed, without secrets, until one succeeds.
func TestFailedComparison(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	endpoint := func() tenants.BillingEndpoint {
		e, err := s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
		require.NoError(t, err)
		return e
	}
	compare := func(dryRun bool) error {
		_, err := s.runner.Reconcile(t.Context(), s.a.TenantID(), endpoint(), dryRun, nil)
		return err
	}
	fake.set(func(fake *fakeStripe) { fake.broken = true })
	require.Error(t, compare(true))
	require.Empty(t, endpoint().ReconcileError, "a dry run changes nothing")
	require.Error(t, compare(false))
	require.Equal(t, "list subscriptions: Stripe answered 400 broken", endpoint().ReconcileError)
	require.True(t, endpoint().ReconcileFailedAt.Equal(s.now()))
	require.Nil(t, endpoint().ReconciledAt)

	key := fake.key
	fake.set(func(fake *fakeStripe) { fake.broken, fake.key = false, "rk_test_another" })
	s.pass(time.Hour)
	require.Error(t, compare(false))
	require.Equal(t, "list subscriptions: Stripe answered 401 invalid_request_error; it does not know the API key. Set a valid one", endpoint().ReconcileError)
	require.True(t, endpoint().ReconcileFailedAt.Equal(s.now()), "it has the newest failure")

	fake.set(func(fake *fakeStripe) { fake.key = key })
	require.NoError(t, compare(false))
	require.Empty(t, endpoint().ReconcileError)
	require.Nil(t, endpoint().ReconcileFailedAt)

	// Without the right to read events, only purchases are not compared.
	for name, rule := range map[string]string{"price_pack": "pack"} {
		r := limit.NewRule(rule)
		r.Limit, r.Window = 10, limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}
		_, err := s.store.CreateRule(t.Context(), s.a, r)
		require.NoError(t, err)
		_, _, err = s.store.PutBillingPrice(t.Context(), s.a, tenants.BillingPrice{Price: name, Credits: &tenants.PriceCredits{Rule: rule, Units: 5}}, tenants.Match{})
		require.NoError(t, err)
	}
	fake.set(func(fake *fakeStripe) { fake.noEvents = true })
	s.pass(time.Hour)
	require.NoError(t, compare(false))
	require.True(t, endpoint().ReconciledAt.Equal(s.now()))
	require.Contains(t, endpoint().ReconcileError, "plans were compared, but purchases were not: list events: Stripe answered 403")

	none := ""
	_, err := s.store.EditBillingEndpoint(t.Context(), s.a, s.endpoint.ID, tenants.Match{}, func(*tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
		return tenants.BillingSecrets{APIKey: &none}, nil
	})
	require.NoError(t, err)
	require.Empty(t, endpoint().ReconcileError, "without a key, nothing is compared any more")
	require.Nil(t, endpoint().ReconcileFailedAt)
}

// A comparison can be requested by those who manage billing, for an endpoint of their tenant that
// has an API key.
func TestWhoRequestsComparisons(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	var conflict *tenants.ConflictError
	_, err := s.store.RequestReconcile(t.Context(), s.a, s.endpoint.ID)
	require.ErrorAs(t, err, &conflict)
	require.Contains(t, conflict.Detail, "no API key")
	other, _ := s.db.Tenant("tenant-b")
	_, err = s.store.RequestReconcile(t.Context(), other, s.endpoint.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = s.store.RequestReconcile(t.Context(), s.a, uuid.New())
	require.ErrorIs(t, err, tenants.ErrNotFound)
}
