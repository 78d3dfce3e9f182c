package billing_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"weir/internal/billing"
	"weir/internal/tenants"
)

// patient returns a runner that only counts its pauses.
func (s *stack) patient(fake *fakeStripe) (r *billing.Runner, pauses *[]time.Duration) {
	pauses = new([]time.Duration)
	return billing.New(billing.Options{Store: s.store, StripeURL: fake.url, Pause: func(_ context.Context, d time.Duration) {
		*pauses = append(*pauses, d)
	}}), pauses
}

// A list, a request and a statement that fail for a moment are tried again, each from where it was,
// and do not end the comparison.
func TestComparisonTriesAgain(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	s.sellCredits("price_pack", 100, 0)
	for i := range 250 {
		fake.put(fmt.Sprintf("sub_%d", i), fmt.Sprintf("cus_%d", i), stripe.SubscriptionStatusActive, map[string]string{"user": fmt.Sprint("u", i)}, "price_pro")
	}
	for i := range 150 {
		s.lost(fake, fmt.Sprintf("in_%d", i), s.now())
	}
	fake.set(func(f *fakeStripe) { f.busy = map[string]int{"/v1/subscriptions": 2, "/v1/events": 2} })
	s.db.Exec("CREATE SEQUENCE attempts")
	s.db.Exec(`CREATE FUNCTION fail_at_times() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN IF nextval('attempts') IN (10, 120, 121) THEN RAISE EXCEPTION 'busy' USING ERRCODE = 'lock_not_available'; END IF; RETURN NEW; END $$`)
	s.db.Exec("CREATE TRIGGER fail_at_times BEFORE INSERT ON billing_subscriptions FOR EACH ROW EXECUTE FUNCTION fail_at_times()")
	r, pauses := s.patient(fake)
	seen := map[string]int{}
	sum, err := r.Reconcile(t.Context(), s.a.TenantID(), s.endpoint, false, func(_ billing.Summary, result tenants.ReconcileResult) { seen[result.Subscription]++ })
	require.NoError(t, err)
	require.NoError(t, sum.PurchasesErr)
	require.Equal(t, 250, sum.Repaired)
	require.Equal(t, 150, sum.Recovered)
	require.Len(t, seen, 250)
	for name, times := range seen {
		require.Equal(t, 1, times, name)
	}
	require.Equal(t, []time.Duration{time.Second, time.Second, time.Second, 2 * time.Second, time.Second}, *pauses)
	require.Empty(t, s.compared().ReconcileError)
}

// What fails each time ends the comparison after a bounded number of attempts, and what no attempt
// can correct, at once.
func TestComparisonTriesAgainOnlySoOften(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "ada"}, "price_pro")
	fake.set(func(f *fakeStripe) { f.busy = map[string]int{"/v1/subscriptions": -1} })
	r, pauses := s.patient(fake)
	_, err := r.Reconcile(t.Context(), s.a.TenantID(), s.endpoint, false, nil)
	require.Error(t, err)
	require.Len(t, *pauses, 5)

	require.Contains(t, s.compared().ReconcileError, "Stripe answered 429")

	fake.set(func(f *fakeStripe) { f.busy, f.broken = nil, true })
	_, err = r.Reconcile(t.Context(), s.a.TenantID(), s.endpoint, false, nil)
	require.Error(t, err)
	require.Len(t, *pauses, 5)
}

// compared returns the endpoint with what its last comparison recorded.
func (s *stack) compared() tenants.BillingEndpoint {
	s.t.Helper()
	e, err := s.store.BillingEndpointByID(s.t.Context(), s.a, s.endpoint.ID)
	require.NoError(s.t, err)
	return e
}
