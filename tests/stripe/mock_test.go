// Package stripe holds the client of internal/subscription, and the fake of the tests of
// internal/billing, to the OpenAPI document of Stripe's API. The document and the server that
// answers by it are those of stripe-mock, Stripe's own mock server. It is a separate module, so
// that these do not become dependencies of the product.
package stripe

import (
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-mock/embedded"
	"github.com/stripe/stripe-mock/server"

	"weir/internal/subscription"
)

const key = "rk_test_abcdefgh"

// stub is stripe-mock: it refuses a request that its document does not describe, and answers others
// with canned objects.
var stub = sync.OnceValues(func() (*server.StubServer, error) {
	document, err := server.LoadSpec(embedded.OpenAPISpec, "")
	if err != nil {
		return nil, err
	}
	fixtures, err := server.LoadFixtures(embedded.OpenAPIFixtures, "")
	if err != nil {
		return nil, err
	}
	return server.NewStubServer(fixtures, document, false, false)
})

// mock is a running stripe-mock that remembers what it answered.
type mock struct {
	url string

	mu       sync.Mutex
	answered map[string]int // the status of the last answer, by method and path
}

func newMock(t *testing.T) *mock {
	t.Helper()
	handler, err := stub()
	require.NoError(t, err)
	m := &mock{answered: map[string]int{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recorded := httptest.NewRecorder()
		handler.HandleRequest(recorded, r)
		answer := recorded.Result()
		m.mu.Lock()
		m.answered[r.Method+" "+r.URL.Path] = answer.StatusCode
		m.mu.Unlock()
		for name, values := range answer.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body)
	}))
	t.Cleanup(s.Close)
	m.url = s.URL
	return m
}

// Stripe's own mock server accepts every request of the client, and the client reads every answer.
func TestClientAgainstStripeMock(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	c := subscription.NewClient(key, m.url, nil)
	ctx := t.Context()

	one, err := c.Subscription(ctx, "sub_1")
	require.NoError(t, err)
	require.Equal(t, "sub_1", one.ID)
	require.NotEmpty(t, one.Snapshot.Customer)
	require.NotEmpty(t, one.Snapshot.Items)
	require.NotEmpty(t, one.Snapshot.Items[0].Price)

	var all []subscription.Fetched
	require.NoError(t, c.Subscriptions(ctx, "", func(f subscription.Fetched) error { all = append(all, f); return nil }))
	require.NotEmpty(t, all)
	require.NotEmpty(t, all[0].Snapshot.Customer)

	known, err := c.KnowsCustomer(ctx, "cus_1")
	require.NoError(t, err)
	require.True(t, known)

	for _, purchase := range []string{"cs_1", "in_1"} {
		_, err := c.Lines(ctx, purchase)
		require.NoError(t, err)
	}
	require.NoError(t, c.Purchases(ctx, time.Now().Add(-time.Hour), "", func(e subscription.Event, body []byte) error {
		return nil
	}))
	failed := c.SendMeterEvent(ctx, subscription.MeterEvent{Name: "api_requests", Customer: "cus_1", Value: 25, At: time.Now(), Identifier: "id_1"})
	require.Nil(t, failed)

	require.Equal(t, map[string]int{
		"GET /v1/subscriptions/sub_1": 200, "GET /v1/subscriptions": 200, "GET /v1/customers/cus_1": 200,
		"GET /v1/checkout/sessions/cs_1/line_items": 200,
		"GET /v1/invoices/in_1/lines":               200, "GET /v1/events": 200, "POST /v1/billing/meter_events": 200,
	}, m.answered)
	require.Equal(t, 6, reflect.TypeFor[*subscription.Client]().NumMethod(), "a call of the client is missing here")
}
