package billing_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"weir/internal/billing"
	"weir/internal/tenants"
)

// logged is what was logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A comparison that makes no progress for too long ends, and the endpoint and the log say so.
func TestComparisonWithoutProgress(t *testing.T) {
	fake := newFakeStripe(t)
	fake.key = slowKey
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	slow := slowProvider{&atomic.Int64{}, make(chan struct{})}
	defer close(slow.end)
	var log logged
	s.run(billing.Options{
		StripeURL: fake.url, HTTP: &http.Client{Transport: slow}, CompareFor: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "billing: cannot reconcile") }, time.Minute, 10*time.Millisecond)
	require.Contains(t, log.String(), "no progress")
	e, err := s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
	require.NoError(t, err)
	require.Equal(t, "the comparison made no progress for too long; it begins again", e.ReconcileError)
	require.True(t, e.ReconcileFailedAt.Equal(s.now()))
	require.Nil(t, e.ReconciledAt)
}

// A comparison keeps its claim as long as it makes progress, so no other instance begins it again.
func TestLongComparisonKeepsItsClaim(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	for i := range 330 {
		fake.put(fmt.Sprintf("sub_%d", i), fmt.Sprintf("cus_%d", i), stripe.SubscriptionStatusActive, map[string]string{"user": fmt.Sprint("u", i)}, "price_pro")
	}
	claims := make(chan bool, 10)
	fake.set(func(f *fakeStripe) {
		f.listing = func(page int) {
			if page == 1 {
				return
			}
			s.pass(59 * time.Minute)
			mine, err := s.store.ClaimReconcile(context.WithoutCancel(t.Context()), s.a.TenantID(), s.endpoint.ID, time.Hour)
			if err != nil {
				t.Error(err)
			}
			claims <- mine
		}
	})
	s.run(billing.Options{StripeURL: fake.url})
	for range 3 {
		select {
		case claimed := <-claims:
			require.False(t, claimed)
		case <-time.After(time.Minute):
			require.Fail(t, "no comparison")
		}
	}
	require.Eventually(t, func() bool {
		e, err := s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
		require.NoError(t, err)
		return e.ReconciledAt != nil
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, 4, fake.lists())
}
