package billing_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/billing"
	"weir/internal/tenants"
)

// run runs a runner until the test ends.
func (s *stack) run(o billing.Options) {
	s.t.Helper()
	o.Store, o.Every = s.store, 10*time.Millisecond
	runner := billing.New(o)
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); runner.Run(ctx) }()
	s.t.Cleanup(func() {
		stop()
		<-ended
	})
}

// lost makes the provider list a purchase of that time, the event of which never arrives.
func (s *stack) lost(fake *fakeStripe, id string, at time.Time) {
	s.t.Helper()
	body := eventAt(at, "evt_"+id, "invoice.paid", bill(id, false, nil, "price_pack"))
	fake.set(func(f *fakeStripe) { f.events = append([]json.RawMessage{body}, f.events...) })
}

// A purchase whose event was lost is found by the first comparison that can read events, however
// many others have compared only plans since. A comparison that somebody requests looks as far
// back as the provider can.
func TestPurchaseLostWhileEventsCannotBeRead(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	s.sellCredits("price_pack", 100, 0)
	compared := func() tenants.BillingEndpoint {
		t.Helper()
		var e tenants.BillingEndpoint
		require.Eventually(t, func() bool {
			var err error
			e, err = s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
			require.NoError(t, err)
			return e.ReconciledAt != nil && e.ReconciledAt.Equal(s.now())
		}, time.Minute, 10*time.Millisecond)
		return e
	}
	received := func() int {
		t.Helper()
		list, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{}, tenants.Page{})
		require.NoError(t, err)
		return len(list)
	}
	s.run(billing.Options{StripeURL: fake.url})
	compared()
	fake.set(func(f *fakeStripe) { f.noEvents = true })
	s.pass(24 * time.Hour)
	s.lost(fake, "in_1", s.now())
	for range 6 {
		require.Contains(t, compared().ReconcileError, "purchases were not")
		s.pass(24 * time.Hour)
	}
	compared()
	fake.set(func(f *fakeStripe) { f.noEvents = false })
	s.pass(24 * time.Hour)
	require.Empty(t, compared().ReconcileError)
	require.Equal(t, 1, received())
	require.Eventually(t, func() bool { return len(s.credits("ada")) == 1 }, time.Minute, 10*time.Millisecond)

	s.pass(24 * time.Hour)
	compared()
	s.lost(fake, "in_2", s.now().Add(-5*24*time.Hour))
	s.pass(24 * time.Hour)
	compared()
	require.Equal(t, 1, received(), "later than the provider sends events")
	s.pass(time.Hour)
	_, err := s.store.RequestReconcile(t.Context(), s.a, s.endpoint.ID)
	require.NoError(t, err)
	compared()
	require.Equal(t, 2, received())
	require.Eventually(t, func() bool { return len(s.credits("ada")) == 2 }, time.Minute, 10*time.Millisecond)
}

// A comparison that is requested while another one runs follows it, with the purchases of 30 days.
func TestComparisonRequestedDuringAnother(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, newFakeStripe(t))
	ctx, tenant := t.Context(), s.a.TenantID()
	claim := func() bool {
		t.Helper()
		mine, err := s.store.ClaimReconcile(ctx, tenant, s.endpoint.ID, time.Hour)
		require.NoError(t, err)
		return mine
	}
	record := func(began time.Time) {
		t.Helper()
		s.pass(time.Minute)
		require.NoError(t, s.store.RecordReconcile(ctx, tenant, s.endpoint.ID, began, "", true))
	}
	since := func() time.Time {
		t.Helper()
		e, err := s.store.BillingEndpointByID(ctx, s.a, s.endpoint.ID)
		require.NoError(t, err)
		require.True(t, e.ReconciledAt.Equal(s.now()))
		e.CreatedAt = time.Time{}
		_, since, err := s.store.PurchasesSince(ctx, tenant, e, false)
		require.NoError(t, err)
		return since
	}
	require.True(t, claim())
	began := s.now()
	s.pass(time.Minute)
	_, err := s.store.RequestReconcile(ctx, s.a, s.endpoint.ID)
	require.NoError(t, err)
	record(began)
	require.True(t, since().Equal(s.now().Add(-30*24*time.Hour)))
	require.True(t, claim(), "it is due")
	record(s.now())
	require.True(t, since().Equal(s.now().Add(-3*24*time.Hour)))
	require.False(t, claim())
}

// An endpoint that loses its API key during a comparison is not compared again.
func TestComparisonOfAnEndpointThatLosesItsKey(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, newFakeStripe(t))
	began := s.now()
	mine, err := s.store.ClaimReconcile(t.Context(), s.a.TenantID(), s.endpoint.ID, time.Hour)
	require.NoError(t, err)
	require.True(t, mine)
	s.db.Exec("UPDATE billing_endpoints SET api_key = NULL, api_key_hint = '', reconcile_at = NULL") // as UpdateBillingEndpoint does
	require.NoError(t, s.store.RecordReconcile(t.Context(), s.a.TenantID(), s.endpoint.ID, began, "", true))
	s.pass(48 * time.Hour)
	due, err := s.store.DueBilling(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, due.Reconciles)
}
