package billing_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"weir/internal/billing"
	"weir/internal/tenants"
)

// endlessLists is a provider that always has one subscription more for the keys that begin with
// endlessKey.
type endlessLists struct {
	mu     sync.Mutex
	begun  map[string]int // lists, by key
	listed map[string]int // subscriptions, by key
}

const endlessKey = "rk_test_endless_"

func (e *endlessLists) RoundTrip(r *http.Request) (*http.Response, error) {
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !strings.HasPrefix(key, endlessKey) {
		return http.DefaultTransport.RoundTrip(r)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.URL.Query().Get("starting_after") == "" {
		e.begun[key]++
	}
	e.listed[key]++
	body, err := json.Marshal(obj{"object": "list", "has_more": true, "data": []obj{sub(fmt.Sprint("sub_", e.listed[key]), "cus_1", "active", "", "price_pro")}})
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}, "Date": {time.Now().UTC().Format(http.TimeFormat)}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, err
}

// counts returns the lists that were begun, and how many subscriptions each key has.
func (e *endlessLists) counts() (begun int, listed map[string]int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	listed = map[string]int{}
	for key, n := range e.listed {
		begun += e.begun[key]
		listed[key] = n
	}
	return begun, listed
}

// Comparisons that progress but do not end, as many as there are places, pause for another one,
// and continue after it where they were.
func TestLongComparisonsGiveWay(t *testing.T) {
	const long = 8
	fake := newFakeStripe(t)
	fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "ada"}, "price_pro")
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	s.db.Exec("UPDATE billing_endpoints SET reconcile_at = reconcile_at + interval '1 hour'")
	for i := range long {
		a, _ := s.db.Tenant(fmt.Sprint("endless-", i))
		key := fmt.Sprint(endlessKey, i)
		_, err := s.store.CreateBillingEndpoint(t.Context(), a, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromMetadata + "user"},
			tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, APIKey: &key})
		require.NoError(t, err)
	}
	endless := &endlessLists{begun: map[string]int{}, listed: map[string]int{}}
	s.run(billing.Options{StripeURL: fake.url, HTTP: &http.Client{Transport: endless}, CompareTurn: time.Nanosecond})
	require.Eventually(t, func() bool { begun, _ := endless.counts(); return begun == long }, time.Minute, 10*time.Millisecond)
	s.pass(time.Hour)
	require.Eventually(t, func() bool { return s.plan("ada") == "pro" }, time.Minute, 10*time.Millisecond)
	_, before := endless.counts()
	require.Eventually(t, func() bool {
		begun, listed := endless.counts()
		for key, n := range listed {
			if n < before[key]+2 {
				return false
			}
		}
		return begun == long
	}, time.Minute, 10*time.Millisecond, "each continues behind its last subscription")
}
