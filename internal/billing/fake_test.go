package billing_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"
)

// fakeStripe implements the calls of Stripe's API that the client uses: it stores subscriptions,
// and answers as Stripe's OpenAPI document says, which tests/stripe verifies.
type fakeStripe struct {
	t   *testing.T
	url string

	mu            sync.Mutex
	key           string
	subscriptions []obj             // newest first, as Stripe lists them
	deleted       []string          // customers
	lines         map[string][]obj  // of invoices and checkouts, by their ids
	events        []json.RawMessage // newest first
	noEvents      bool              // the key may not read events
	asked         int
	listed        int            // lists of subscriptions
	listing       func(page int) // is called before each of them; nil: nothing is
	broken        bool
	// busy says which request for a path is refused because there are too many; -1: each is.
	busy  map[string]int
	now   func() time.Time // the time of its responses; nil for the real time
	meter meterEvents
}

func newFakeStripe(t *testing.T) *fakeStripe {
	t.Helper()
	f := &fakeStripe{t: t, key: "rk_test_abcdefgh", meter: meterEvents{
		name: "api_requests", customers: map[string]bool{}, seen: map[string]bool{}, values: map[string]int64{}, stamps: map[int64]bool{},
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/subscriptions/{id}", f.retrieve)
	mux.HandleFunc("GET /v1/subscriptions", f.list)
	mux.HandleFunc("GET /v1/customers/{id}", f.retrieveCustomer)
	mux.HandleFunc("GET /v1/subscription_items", f.listItems)
	mux.HandleFunc("GET /v1/checkout/sessions/{id}/line_items", f.listLines)
	mux.HandleFunc("GET /v1/invoices/{id}/lines", f.listLines)
	mux.HandleFunc("GET /v1/events", f.listEvents)
	mux.HandleFunc("POST /v1/billing/meter_events", f.takeMeterEvent)
	server := httptest.NewServer(recorded(t, f.authorized(mux)))
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func (f *fakeStripe) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.asked++
		if f.now != nil {
			w.Header().Set("Date", f.now().Format(http.TimeFormat))
		}
		switch {
		case f.isBusy(r.URL.Path):
			f.fail(w, http.StatusTooManyRequests, "rate_limit")
		case f.broken:
			f.fail(w, http.StatusBadRequest, "broken")
		case r.Header.Get("Authorization") != "Bearer "+f.key:
			f.fail(w, http.StatusUnauthorized, "")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (f *fakeStripe) isBusy(path string) bool {
	left := f.busy[path]
	if left > 0 {
		f.busy[path]--
	}
	return left == 1 || left < 0
}

func (f *fakeStripe) fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	problem := obj{"type": "invalid_request_error", "message": "no"}
	if code != "" {
		problem["code"] = code
	}
	_ = json.NewEncoder(w).Encode(obj{"error": problem})
}

func (f *fakeStripe) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		f.t.Error(err)
	}
}

func (f *fakeStripe) retrieve(w http.ResponseWriter, r *http.Request) {
	for _, s := range f.subscriptions {
		if s["id"] == r.PathValue("id") {
			f.answer(w, withFirstItems(expanded(s, r.URL.Query().Get("expand[0]") == "customer")))
			return
		}
	}
	f.fail(w, http.StatusNotFound, "resource_missing")
}

// retrieveCustomer answers a customer of a subscription, or a deleted one.
func (f *fakeStripe) retrieveCustomer(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	switch {
	case slices.Contains(f.deleted, id):
		f.answer(w, obj{"id": id, "object": "customer", "deleted": true})
	case slices.ContainsFunc(f.subscriptions, func(s obj) bool { return s["customer"] == id }):
		f.answer(w, fakeCustomer(id))
	default:
		f.fail(w, http.StatusNotFound, "resource_missing")
	}
}

func (f *fakeStripe) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil || query.Get("status") != "all" {
		f.fail(w, http.StatusBadRequest, "parameter_invalid_integer")
		return
	}
	f.listed++
	if f.listing != nil {
		f.listing(f.listed)
	}
	all := []obj{}
	for _, s := range f.subscriptions {
		all = append(all, withFirstItems(expanded(s, query.Get("expand[0]") == "data.customer")))
	}
	if after := query.Get("starting_after"); after != "" {
		i := slices.IndexFunc(all, func(s obj) bool { return s["id"] == after })
		all = all[i+1:]
	}
	f.answer(w, listOf("/v1/subscriptions", all, limit))
}

// listItems answers the items of a subscription after the given one.
func (f *fakeStripe) listItems(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	for _, s := range f.subscriptions {
		items := s["items"].(obj)["data"].([]obj)
		after := slices.IndexFunc(items, func(i obj) bool { return i["id"] == query.Get("starting_after") })
		if s["id"] != query.Get("subscription") || after < 0 {
			continue
		}
		items = items[after+1:]
		f.answer(w, listOf("/v1/subscription_items", items, len(items)))
		return
	}
	f.fail(w, http.StatusNotFound, "resource_missing")
}

func (f *fakeStripe) listLines(w http.ResponseWriter, r *http.Request) {
	lines, known := f.lines[r.PathValue("id")]
	if !known {
		f.fail(w, http.StatusNotFound, "resource_missing")
		return
	}
	f.answer(w, listOf(r.URL.Path, lines, len(lines)))
}

// listEvents answers the events of the given types since the given time.
func (f *fakeStripe) listEvents(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	since, err := strconv.ParseInt(query.Get("created[gte]"), 10, 64)
	limit, err2 := strconv.Atoi(query.Get("limit"))
	if err != nil || err2 != nil || query.Get("types[0]") == "" {
		f.fail(w, http.StatusBadRequest, "parameter_invalid_integer")
		return
	}
	if f.noEvents {
		f.fail(w, http.StatusForbidden, "")
		return
	}
	var types []string
	for name, values := range query {
		if strings.HasPrefix(name, "types[") {
			types = append(types, values...)
		}
	}
	found, begun := []obj{}, query.Get("starting_after") == ""
	for _, text := range f.events {
		var e obj
		if err := json.Unmarshal(text, &e); err != nil {
			f.t.Error(err)
		}
		if begun && slices.Contains(types, e["type"].(string)) && e["created"].(float64) >= float64(since) {
			e["pending_webhooks"], e["request"] = 1, nil // as in the API, but not in the events of the tests
			found = append(found, e)
		}
		begun = begun || e["id"] == query.Get("starting_after")
	}
	f.answer(w, listOf("/v1/events", found, limit))
}

// put sets a subscription.
func (f *fakeStripe) put(id, customer string, status stripe.SubscriptionStatus, metadata map[string]string, prices ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeNow(id)
	f.subscriptions = append([]obj{fakeSubscription(id, customer, status, metadata, prices)}, f.subscriptions...)
}

// set changes how the fake behaves.
func (f *fakeStripe) set(change func(*fakeStripe)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeStripe) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeNow(id)
}

func (f *fakeStripe) removeNow(id string) {
	f.subscriptions = slices.DeleteFunc(f.subscriptions, func(old obj) bool { return old["id"] == id })
}

// lists returns how often subscriptions were listed.
func (f *fakeStripe) lists() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listed
}

func (f *fakeStripe) requests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// The client reads the fake in the same way as Stripe, which makes tests with it meaningful.
func TestFakeIsReadByStripeGo(t *testing.T) {
	t.Parallel()
	f := newFakeStripe(t)
	f.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "ada"}, "price_pro")
	backends := stripe.NewBackendsWithConfig(&stripe.BackendConfig{URL: stripe.String(f.url)})
	got, err := stripe.NewClient(f.key, stripe.WithBackends(backends)).V1Subscriptions.Retrieve(t.Context(), "sub_1", nil)
	require.NoError(t, err)
	require.Equal(t, "cus_1", got.Customer.ID)
	require.Equal(t, "price_pro", got.Items.Data[0].Price.ID)
	require.Equal(t, "prod_pro", got.Items.Data[0].Price.Product.ID)
}
