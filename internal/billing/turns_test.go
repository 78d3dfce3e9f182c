package billing_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"weir/internal/billing"
	"weir/internal/subscription"
	"weir/internal/tenants"
)

const slowKey = "rk_test_slowslow"

// slowProvider does not answer requests with slowKey until the test ends, and counts them.
type slowProvider struct {
	asked *atomic.Int64
	end   chan struct{}
}

func (s slowProvider) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Authorization") != "Bearer "+slowKey {
		return http.DefaultTransport.RoundTrip(r)
	}
	s.asked.Add(1)
	select {
	case <-s.end:
	case <-r.Context().Done():
	}
	return nil, context.Canceled
}

// slowTenant is a tenant with an endpoint whose provider does not answer.
func (s *stack) slowTenant(slug string) (tenants.Actor, tenants.BillingEndpoint) {
	s.t.Helper()
	a, _ := s.db.Tenant(slug)
	key := slowKey
	e, err := s.store.CreateBillingEndpoint(s.t.Context(), a, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromMetadata + "user"},
		tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, APIKey: &key})
	require.NoError(s.t, err)
	return a, e
}

// receiveAt stores an event for an endpoint of any tenant.
func (s *stack) receiveAt(a tenants.Actor, e tenants.BillingEndpoint, body []byte) {
	s.t.Helper()
	event, err := subscription.ParseStripe(body)
	require.NoError(s.t, err)
	_, err = s.store.StoreBillingEvent(s.t.Context(), tenants.Webhook{Tenant: a.TenantID(), Endpoint: e.ID, Provider: e.Provider}, event, body)
	require.NoError(s.t, err)
}

// runSlow runs a runner until the test ends, with a provider that answers slowKey not at all.
func (s *stack) runSlow(url string) *atomic.Int64 {
	slow := slowProvider{&atomic.Int64{}, make(chan struct{})}
	runner := billing.New(billing.Options{Store: s.store, StripeURL: url, HTTP: &http.Client{Transport: slow}, Every: 10 * time.Millisecond})
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); runner.Run(ctx) }()
	s.t.Cleanup(func() {
		close(slow.end)
		stop()
		<-ended
	})
	return slow.asked
}

// Tenants whose provider does not answer, more of them than there are places, delay the events of
// nobody else, whether the provider must be asked about them or not.
func TestEventsDuringASlowProvider(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	s.db.Exec("UPDATE billing_endpoints SET reconcile_at = NULL") // no comparisons
	for i := range 8 {
		a, e := s.slowTenant(fmt.Sprintf("slow-%d", i))
		s.db.Exec("UPDATE billing_endpoints SET reconcile_at = NULL")
		for n := range 30 {
			s.receiveAt(a, e, s.event("customer.subscription.updated", sub(fmt.Sprintf("sub_%d", n), "cus_1", "active", "", "price_pro")))
		}
	}
	asked := s.runSlow(fake.url)
	require.Eventually(t, func() bool { return asked.Load() == 8 }, time.Minute, 10*time.Millisecond, "each waits for its provider")
	for i, price := range []string{"price_pro", "price_scale", "price_pro"} {
		if i > 0 {
			s.pass(time.Second)
		}
		s.receive(s.event("customer.subscription.updated", sub("sub_1", "cus_1", "active", "ada", price)))
		require.Eventually(t, func() bool { return "price_"+s.plan("ada") == price }, time.Minute, 10*time.Millisecond)
	}
	fake.put("sub_2", "cus_2", stripe.SubscriptionStatusActive, map[string]string{"user": "bob"}, "price_pro")
	s.receive(s.event("customer.subscription.updated", sub("sub_2", "cus_2", "active", "", "price_pro")))
	require.Eventually(t, func() bool { return s.plan("bob") == "pro" }, time.Minute, 10*time.Millisecond, "its provider is asked")
	require.Equal(t, int64(8), asked.Load(), "the others still wait")
}

// Tenants whose comparison does not end delay that of nobody else.
func TestComparisonsDuringASlowProvider(t *testing.T) {
	fake := newFakeStripe(t)
	fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "ada"}, "price_pro")
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	s.db.Exec("UPDATE billing_endpoints SET reconcile_at = reconcile_at + interval '1 hour'")
	for i := range 3 {
		_, _ = s.slowTenant(fmt.Sprintf("slow-%d", i))
	}
	asked := s.runSlow(fake.url)
	require.Eventually(t, func() bool { return asked.Load() == 3 }, time.Minute, 10*time.Millisecond)
	s.pass(time.Hour)
	require.Eventually(t, func() bool { return s.plan("ada") == "pro" }, time.Minute, 10*time.Millisecond)
}
