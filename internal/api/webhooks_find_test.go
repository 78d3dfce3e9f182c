package api

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/tenants"
)

// hooks are the webhooks of an instance with a place for each request, and an endpoint of a tenant.
func hooks(t *testing.T) (s *checkStack, w *webhooks, path string, id uuid.UUID) {
	t.Helper()
	s = newCheckStack(t)
	endpoint := s.contract.call(s.key, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "stripe", "signing_secrets": []string{stripeSecret}}).ok(201).json()
	return s, newWebhooks(s.lane.server.Load()), "/v1/billing/endpoints/" + endpoint["id"].(string), uuid.MustParse(endpoint["id"].(string))
}

// from looks up an endpoint as for a request from an address.
func (w *webhooks) from(ctx context.Context, address string, id uuid.UUID) *Problem {
	w.capacity.enter()
	defer w.capacity.leave()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/webhooks/stripe/"+id.String(), strings.NewReader("{}"))
	r.RemoteAddr = address + ":1234"
	_, leave, p := w.endpoint(r, id.String(), tenants.StripeProvider)
	if p == nil {
		leave()
	}
	return p
}

// stale makes an endpoint one that was looked up long ago.
func (w *webhooks) stale(id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known[id].until = time.Time{}
}

// holdLookups takes all turns of unknown clients.
func (w *webhooks) holdLookups(t *testing.T) (leave func()) {
	t.Helper()
	var turns []func()
	for range webhookLookups {
		turn, err := w.unknown.Take(t.Context(), origin.WithinHost("192.0.2.9")[0])
		require.NoError(t, err)
		turns = append(turns, turn)
	}
	return func() {
		for _, turn := range turns {
			turn()
		}
	}
}

// Whatever unknown clients send, the events of an endpoint that this instance knows are received.
// Before, they competed with requests for random ids after a second, and were refused.
func TestRandomIdsDoNotDelayKnownEndpoints(t *testing.T) {
	s, w, path, id := hooks(t)
	require.Nil(t, w.from(t.Context(), "198.51.100.1", id))
	for range 2 * webhookRemember {
		w.forget(uuid.New())
	}
	require.Len(t, w.absent, webhookAbsents)
	defer w.holdLookups(t)()
	for i := range maxArriving { // each of a network of its own
		_, _ = w.capacity.webhooks.Take(origin.WithinHost(fmt.Sprintf("198.18.%d.%d", i/256, i%256)), maxArriving, maxArriving)
	}
	for range 2 {
		w.stale(id)
		require.Nil(t, w.from(t.Context(), "198.51.100.1", id), "it is looked up in the turns of its tenant")
	}
	require.Equal(t, http.StatusServiceUnavailable, w.from(t.Context(), "198.51.100.2", uuid.New()).Status)

	s.contract.call(s.key, http.MethodDelete, path, nil).ok(204)
	w.stale(id)
	for range 2 { // it is looked up once
		require.Equal(t, codeNotFound, w.from(t.Context(), "198.51.100.1", id).Code)
	}
	require.Empty(t, w.known)
	require.True(t, w.isAbsent(id))
}

// The first event of an endpoint waits for its turn by the network of its sender, and is not in
// flight meanwhile. Before, requests for random ids from 64 networks had all places.
func TestFirstEventsWaitAmongRandomIds(t *testing.T) {
	_, w, _, id := hooks(t)
	let := w.holdLookups(t)
	for i := range 2 * webhookBodies { // as unknown clients that wait
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		r.RemoteAddr = fmt.Sprintf("198.18.%d.1:1234", i)
		_, ok := w.capacity.takeWaiting(w.capacity.webhooks, r)
		require.True(t, ok)
	}
	first := make(chan *Problem, 1)
	go func() { first <- w.from(t.Context(), "198.51.100.1", id) }()
	for w.unknown.Waiting() == 0 && len(first) == 0 {
		runtime.Gosched()
	}
	require.Empty(t, first, "it waits")
	require.Zero(t, w.capacity.inFlight.Load())
	let()
	require.Nil(t, <-first)
	require.Zero(t, w.capacity.inFlight.Load())
	require.Equal(t, 2*webhookBodies, w.capacity.webhooks.Taken())
}

// An instance remembers a bounded number of endpoints.
func TestRememberedEndpointsAreBounded(t *testing.T) {
	t.Parallel()
	e := newWebhookEndpoints()
	for range webhookRemember + 10 {
		e.remember(tenants.Webhook{Endpoint: uuid.New()})
	}
	require.Len(t, e.known, webhookRemember)
}

// The verification of an event waits for the tenant's turn among all short work: an event of 256
// KiB takes ten milliseconds of a processor.
func TestWebhooksTakeTurns(t *testing.T) {
	s, _, _, id := hooks(t)
	short := s.lane.server.Load().capacity.bodies.small
	var leave []func()
	for range short.Most() {
		done, err := short.Take(t.Context(), limit.TenantID{byte(len(leave)), 1})
		require.NoError(t, err)
		leave = append(leave, done)
	}
	body := subscriptionEvent("evt_1", "ada", "price_pro", time.Now())
	answered := make(chan answer)
	go func() {
		answered <- s.contract.call("", http.MethodPost, "/v1/webhooks/stripe/"+id.String(), body, stripeSignature(body, stripeSecret, time.Now()))
	}()
	require.Eventually(t, func() bool { return short.Waiting() == 1 }, time.Minute, time.Millisecond)
	for _, done := range leave {
		done()
	}
	(<-answered).ok(200)
}
