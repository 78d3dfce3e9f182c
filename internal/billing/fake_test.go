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
// and returns them in the types of stripe-go.
type fakeStripe struct {
	t   *testing.T
	url string

	mu            sync.Mutex
	key           string
	subscriptions []*stripe.Subscription // newest first, as Stripe lists them
	lines         map[string][]obj       // of invoices and checkouts, by their ids
	events        []json.RawMessage      // newest first
	noEvents      bool                   // the key may not read events
	asked         int
	listed        int // lists of subscriptions
	broken        bool
	now           func() time.Time // the time of its responses; nil for the real time
	meter         meterEvents
}

func newFakeStripe(t *testing.T) *fakeStripe {
	t.Helper()
	f := &fakeStripe{t: t, key: "rk_test_abcdefgh", meter: meterEvents{
		name: "api_requests", customers: map[string]bool{}, seen: map[string]bool{}, values: map[string]int64{}, stamps: map[int64]bool{},
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/subscriptions/{id}", f.retrieve)
	mux.HandleFunc("GET /v1/subscriptions", f.list)
	mux.HandleFunc("GET /v1/subscription_items", f.listItems)
	mux.HandleFunc("GET /v1/checkout/sessions/{id}/line_items", f.listLines)
	mux.HandleFunc("GET /v1/invoices/{id}/lines", f.listLines)
	mux.HandleFunc("GET /v1/events", f.listEvents)
	mux.HandleFunc("POST /v1/billing/meter_events", f.takeMeterEvent)
	server := httptest.NewServer(f.authorized(mux))
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
		case f.broken:
			f.fail(w, http.StatusBadRequest, "broken")
		case r.Header.Get("Authorization") != "Bearer "+f.key:
			f.fail(w, http.StatusUnauthorized, "")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (f *fakeStripe) fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"type": "invalid_request_error", "code": code, "message": "no"}})
}

func (f *fakeStripe) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		f.t.Error(err)
	}
}

func (f *fakeStripe) retrieve(w http.ResponseWriter, r *http.Request) {
	for _, s := range f.subscriptions {
		if s.ID == r.PathValue("id") {
			f.answer(w, withFirstItems(s))
			return
		}
	}
	f.fail(w, http.StatusNotFound, "resource_missing")
}

func (f *fakeStripe) list(w http.ResponseWriter, r *http.Request) {
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || r.URL.Query().Get("status") != "all" {
		f.fail(w, http.StatusBadRequest, "parameter_invalid")
		return
	}
	f.listed++
	all := f.subscriptions
	if after := r.URL.Query().Get("starting_after"); after != "" {
		i := slices.IndexFunc(all, func(s *stripe.Subscription) bool { return s.ID == after })
		all = all[i+1:]
	}
	page := []*stripe.Subscription{}
	for _, s := range all[:min(limit, len(all))] {
		page = append(page, withFirstItems(s))
	}
	f.answer(w, obj{"object": "list", "url": "/v1/subscriptions", "has_more": len(all) > limit, "data": page})
}

// firstItems is how many items a subscription has itself.
const firstItems = 10

func withFirstItems(s *stripe.Subscription) *stripe.Subscription {
	if len(s.Items.Data) <= firstItems {
		return s
	}
	short := *s
	short.Items = &stripe.SubscriptionItemList{ListMeta: stripe.ListMeta{HasMore: true}, Data: s.Items.Data[:firstItems]}
	return &short
}

// listItems answers the items of a subscription after the given one.
func (f *fakeStripe) listItems(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	for _, s := range f.subscriptions {
		after := slices.IndexFunc(s.Items.Data, func(i *stripe.SubscriptionItem) bool { return i.ID == query.Get("starting_after") })
		if s.ID != query.Get("subscription") || after < 0 {
			continue
		}
		f.answer(w, obj{"object": "list", "url": "/v1/subscription_items", "has_more": false, "data": s.Items.Data[after+1:]})
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
	f.answer(w, obj{"object": "list", "url": r.URL.Path, "has_more": false, "data": lines})
}

// listEvents answers the events of the given types since the given time.
func (f *fakeStripe) listEvents(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	since, err := strconv.ParseInt(query.Get("created[gte]"), 10, 64)
	limit, err2 := strconv.Atoi(query.Get("limit"))
	if err != nil || err2 != nil || query.Get("types[0]") == "" {
		f.fail(w, http.StatusBadRequest, "parameter_invalid")
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
	found, begun := []json.RawMessage{}, query.Get("starting_after") == ""
	for _, text := range f.events {
		var e struct {
			ID, Type string
			Created  int64
		}
		if err := json.Unmarshal(text, &e); err != nil {
			f.t.Error(err)
		}
		if begun && slices.Contains(types, e.Type) && e.Created >= since {
			found = append(found, text)
		}
		begun = begun || e.ID == query.Get("starting_after")
	}
	f.answer(w, obj{"object": "list", "url": "/v1/events", "has_more": len(found) > limit, "data": found[:min(limit, len(found))]})
}

// put sets a subscription.
func (f *fakeStripe) put(id, customer string, status stripe.SubscriptionStatus, metadata map[string]string, prices ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &stripe.Subscription{
		ID: id, Object: "subscription", Status: status, Created: 1_690_000_000, BillingCycleAnchor: 1_690_000_000, Metadata: metadata,
		Customer: &stripe.Customer{ID: customer, Object: "customer"}, Items: &stripe.SubscriptionItemList{},
	}
	for i, price := range prices {
		s.Items.Data = append(s.Items.Data, &stripe.SubscriptionItem{
			ID: "si_" + id + strconv.Itoa(i), Quantity: 1, Price: &stripe.Price{ID: price, Product: &stripe.Product{ID: strings.Replace(price, "price", "prod", 1)}},
		})
	}
	f.subscriptions = slices.DeleteFunc(f.subscriptions, func(old *stripe.Subscription) bool { return old.ID == id })
	f.subscriptions = append([]*stripe.Subscription{s}, f.subscriptions...)
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
	f.subscriptions = slices.DeleteFunc(f.subscriptions, func(old *stripe.Subscription) bool { return old.ID == id })
}

func (f *fakeStripe) requests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// lists returns how often subscriptions were listed.
func (f *fakeStripe) lists() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listed
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
