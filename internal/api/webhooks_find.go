package api

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/tenants"
)

// Endpoints are looked up in Postgres by the random ids of their addresses, which anybody can guess
// without end. So an instance remembers the tenant of each endpoint that it has found. From then
// on, events of the endpoint wait only for those of its own tenant. Requests for other ids wait for
// their turn by the network of the sender.

const (
	webhookLookups = 2 // concurrent ones of unknown ids, and as many of known endpoints

	webhookFresh    = time.Second      // how long an endpoint is used without a lookup: changes take effect within this time
	webhookAgain    = time.Second / 10 // how often at most it is looked up before that, for a secret that is not known yet
	webhookAbsent   = 5 * time.Second  // how long an id without an endpoint is cached
	webhookRemember = 50_000           // endpoints
	webhookAbsents  = 1000             // ids without one; those that are guessed would never be used again
)

// webhookEndpoints are the endpoints that an instance knows.
type webhookEndpoints struct {
	unknown   *places.Turns[netip.Prefix]   // to look up ids that are not known
	refreshes *places.Turns[limit.TenantID] // to look up known endpoints again

	mu     sync.Mutex
	known  map[uuid.UUID]*knownWebhook
	absent map[uuid.UUID]time.Time // until when
}

// knownWebhook is an endpoint as it was looked up.
type knownWebhook struct {
	tenants.Webhook
	until time.Time // from then on, only its tenant counts
	again time.Time // when it may be looked up again before that
	// refusal means that the refusal of an event was recorded since the lookup.
	refusal bool
}

func newWebhookEndpoints() *webhookEndpoints {
	return &webhookEndpoints{
		unknown: places.NewTurns[netip.Prefix](webhookLookups, webhookLookups, 0),
		// The second lookup of a tenant would often be of the same endpoint.
		refreshes: places.NewTurns[limit.TenantID](webhookLookups, 1, 0),
		known:     map[uuid.UUID]*knownWebhook{}, absent: map[uuid.UUID]time.Time{},
	}
}

// endpoint returns the endpoint of a path, with a place for its event. If there is no problem, the
// caller must call leave once.
func (w *webhooks) endpoint(r *http.Request, text, provider string) (known *knownWebhook, leave func(), p *Problem) {
	id, err := objectID(text)
	if err != nil || id.Version() != 4 {
		return nil, nil, noWebhook()
	}
	known, fresh := w.remembered(id)
	if known == nil {
		if known, p = w.discover(r, id); p != nil {
			return nil, nil, p
		}
		fresh = true
	}
	if known.Provider != provider {
		return nil, nil, noWebhook()
	}
	leave, ok := w.place(known.Tenant)
	if !ok {
		return nil, nil, busyWebhook()
	}
	if !fresh { // with the place, so that few events of a tenant wait
		if known, p = w.refresh(r.Context(), known); p != nil {
			leave()
			return nil, nil, p
		}
	}
	return known, leave, nil
}

// remembered returns the endpoint with this id if it was found before. If it is not fresh, it must
// be looked up again before it is used.
func (e *webhookEndpoints) remembered(id uuid.UUID) (known *knownWebhook, fresh bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known = e.known[id]
	return known, known != nil && time.Now().Before(known.until)
}

// isAbsent reports whether an id had no endpoint a moment ago.
func (e *webhookEndpoints) isAbsent(id uuid.UUID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Now().Before(e.absent[id])
}

// discover looks up an id for the first time. The request is not in flight while it waits for its
// turn, so those of many networks can wait.
func (w *webhooks) discover(r *http.Request, id uuid.UUID) (*knownWebhook, *Problem) {
	if w.isAbsent(id) {
		return nil, noWebhook()
	}
	leave, ok := w.capacity.takeWaiting(w.capacity.webhooks, r)
	if !ok {
		w.capacity.refuse()
		return nil, overloaded()
	}
	defer leave()
	w.capacity.leave()
	known, p := w.discoverInTurn(r, id)
	if entered := w.capacity.enter(); p == nil && !entered {
		w.capacity.refuse()
		p = overloaded()
	}
	return known, p
}

func (w *webhooks) discoverInTurn(r *http.Request, id uuid.UUID) (*knownWebhook, *Problem) {
	ctx := r.Context()
	done, err := w.unknown.TakeWithin(ctx, networksOf(r)[0], webhookWait)
	if err != nil {
		return nil, busyWebhook()
	}
	defer done()
	if known, fresh := w.remembered(id); fresh { // another request was faster
		return known, nil
	}
	return w.lookUp(ctx, id)
}

// refresh looks up an endpoint again that was found before. Events of the same tenant wait for
// it, and use its result.
func (w *webhooks) refresh(ctx context.Context, known *knownWebhook) (*knownWebhook, *Problem) {
	done, err := w.refreshes.TakeWithin(ctx, known.Tenant, webhookWait)
	if err != nil {
		return nil, busyWebhook()
	}
	defer done()
	if other, fresh := w.remembered(known.Endpoint); fresh {
		return other, nil
	}
	if w.isAbsent(known.Endpoint) {
		return nil, noWebhook()
	}
	return w.lookUp(ctx, known.Endpoint)
}

// again looks up an endpoint again that was looked up a moment ago. It returns nil if that was done
// less than webhookAgain ago, so forged events cause few lookups.
func (w *webhooks) again(ctx context.Context, known *knownWebhook) *knownWebhook {
	done, err := w.refreshes.TakeWithin(ctx, known.Tenant, webhookWait)
	if err != nil {
		return nil
	}
	defer done()
	if other, fresh := w.remembered(known.Endpoint); fresh && other != known {
		return other // another request was faster
	}
	now := time.Now()
	if now.Before(known.again) {
		return nil
	}
	fresh, p := w.lookUp(ctx, known.Endpoint)
	if p != nil {
		return nil
	}
	w.mu.Lock()
	fresh.refusal, fresh.until, fresh.again = known.refusal, known.until, now.Add(webhookAgain)
	w.mu.Unlock()
	return fresh
}

// lookUp reads an endpoint from Postgres, and remembers it, or that there is none.
func (w *webhooks) lookUp(ctx context.Context, id uuid.UUID) (*knownWebhook, *Problem) {
	found, err := w.Store.Webhook(ctx, id)
	switch {
	case errors.Is(err, tenants.ErrNotFound):
		w.forget(id)
		return nil, noWebhook()
	case err != nil: // the next request tries again
		if !errors.Is(err, tenants.ErrUnavailable) {
			w.logger.ErrorContext(ctx, "webhook endpoint cannot be used", "endpoint", id, "error", err)
		}
		return nil, problemOf(err)
	}
	return w.remember(found), nil
}

// remember keeps an endpoint that was found. Only another one that was found replaces it.
func (e *webhookEndpoints) remember(found tenants.Webhook) *knownWebhook {
	known := &knownWebhook{Webhook: found, until: time.Now().Add(webhookFresh)}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known[found.Endpoint] == nil {
		makeRoom(e.known, webhookRemember)
	}
	e.known[found.Endpoint] = known
	return known
}

// forget notes that an id has no endpoint.
func (e *webhookEndpoints) forget(id uuid.UUID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.known, id)
	makeRoom(e.absent, webhookAbsents)
	e.absent[id] = time.Now().Add(webhookAbsent)
}

// makeRoom removes an arbitrary entry if there are so many.
func makeRoom[V any](entries map[uuid.UUID]V, most int) {
	if len(entries) < most {
		return
	}
	for id := range entries {
		delete(entries, id)
		return
	}
}
