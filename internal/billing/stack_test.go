package billing_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"
	"go.uber.org/goleak"

	"weir/internal/billing"
	"weir/internal/subscription"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		// Servers of testenv, and idle connections of clients.
		if err := goleak.Find(goleak.IgnoreAnyFunction("os/exec.(*Cmd).Start.func2"), goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
			goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop")); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

// stack is a tenant with plans and one endpoint, on a clock that the test controls.
type stack struct {
	t        *testing.T
	db       *tenantstest.Database
	store    *tenants.Store
	runner   *billing.Runner
	a        tenants.Actor
	endpoint tenants.BillingEndpoint

	mu     sync.Mutex
	at     time.Time
	events int
}

var start = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

func newStack(t *testing.T, e tenants.BillingEndpoint, fake *fakeStripe) *stack {
	t.Helper()
	t.Parallel()
	s := &stack{t: t, at: start}
	s.db = tenantstest.NewWith(t, tenants.Config{Now: s.now})
	s.store = s.db.Store
	s.a, _ = s.db.Tenant("tenant-a")
	for _, plan := range []string{"free", "pro", "scale", "late"} {
		_, err := s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: plan})
		require.NoError(t, err)
	}
	secrets := tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}}
	url := "http://127.0.0.1:1"
	if fake != nil {
		secrets.APIKey, url = &fake.key, fake.url
		fake.now = s.now
	}
	if e.Provider == "" {
		e.Provider = tenants.StripeProvider
	}
	if e.SubjectFrom == "" {
		e.SubjectFrom = tenants.FromMetadata + "user"
	}
	var err error
	s.endpoint, err = s.store.CreateBillingEndpoint(t.Context(), s.a, e, secrets)
	require.NoError(t, err)
	for price, plan := range map[string]string{"price_pro": "pro", "prod_scale": "scale"} {
		if !s.endpoint.HasPrices() {
			break
		}
		_, _, err := s.store.PutBillingPrice(t.Context(), s.a, tenants.BillingPrice{Price: price, Plan: plan}, tenants.Match{})
		require.NoError(t, err)
	}
	s.runner = billing.New(billing.Options{Store: s.store, StripeURL: url})
	return s
}

func (s *stack) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

func (s *stack) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = s.at.Add(d)
}

type obj = map[string]any

// event returns an event in Stripe's format, at the current time.
func (s *stack) event(typ string, object obj) []byte {
	s.events++
	return eventAt(s.now(), fmt.Sprintf("evt_%04d", s.events), typ, object)
}

func eventAt(at time.Time, id, typ string, object obj) []byte {
	body, err := json.Marshal(obj{
		"object": "event", "id": id, "type": typ, "created": at.Unix(), "livemode": false, "api_version": stripe.APIVersion,
		"data": obj{"object": object},
	})
	if err != nil {
		panic(err)
	}
	return body
}

func sub(id, customer, status, user string, prices ...string) obj {
	items := []obj{}
	for _, price := range prices {
		items = append(items, obj{"quantity": 1, "price": obj{"id": price, "product": strings.Replace(price, "price", "prod", 1)}})
	}
	metadata := obj{}
	if user != "" {
		metadata["user"] = user
	}
	return obj{"id": id, "customer": customer, "status": status, "created": 1_690_000_000, "metadata": metadata, "items": obj{"data": items}}
}

// anchored returns a subscription with the start of its billing cycle.
func anchored(subscription obj, at time.Time) obj {
	subscription["billing_cycle_anchor"] = at.Unix()
	return subscription
}

func invoice(subscription string) obj {
	return obj{"customer": "cus_1", "parent": obj{"subscription_details": obj{"subscription": subscription}}}
}

// receive stores an event in the same way as the webhook.
func (s *stack) receive(body []byte) (first bool) {
	s.t.Helper()
	var e subscription.Event
	var err error
	if s.endpoint.Provider == tenants.GenericProvider {
		s.events++
		e, err = subscription.ParseGeneric(body, fmt.Sprintf("msg_%d", s.events), s.now(), s.now())
	} else {
		e, err = subscription.ParseStripe(body)
	}
	require.NoError(s.t, err)
	first, err = s.store.StoreBillingEvent(s.t.Context(), tenants.Webhook{Tenant: s.a.TenantID(), Endpoint: s.endpoint.ID}, e, body)
	require.NoError(s.t, err)
	return first
}

// send stores and settles an event, and returns the result.
func (s *stack) send(body []byte) tenants.BillingEvent {
	s.t.Helper()
	s.receive(body)
	require.NoError(s.t, s.runner.Once(s.t.Context()))
	return s.last()
}

func (s *stack) last() tenants.BillingEvent {
	s.t.Helper()
	list, _, err := s.store.BillingEvents(s.t.Context(), s.a, tenants.BillingEventFilter{}, tenants.Page{Limit: 1})
	require.NoError(s.t, err)
	return list[0]
}

// plan returns the subject's plan, or "" if it is unregistered or has the default plan.
func (s *stack) plan(subject string) string {
	s.t.Helper()
	got, err := s.store.SubjectByName(s.t.Context(), s.a, subject)
	if err != nil {
		require.ErrorIs(s.t, err, tenants.ErrNotFound)
		return ""
	}
	return got.Plan
}

// anchor returns the subject's cycle anchor; the zero time if there is none.
func (s *stack) anchor(subject string) (at time.Time) {
	s.t.Helper()
	got, err := s.store.SubjectByName(s.t.Context(), s.a, subject)
	require.NoError(s.t, err)
	if got.CycleAnchor != nil {
		at = got.CycleAnchor.UTC()
	}
	return at
}

// gracePeriods returns the grace periods of a subject, which are all of the tenant.
func (s *stack) gracePeriods(subject string) []tenants.GracePeriod {
	s.t.Helper()
	all, err := s.store.GracePeriods(s.t.Context(), s.a, 10)
	require.NoError(s.t, err)
	of, err := s.store.GracePeriodsOf(s.t.Context(), s.a, subject)
	require.NoError(s.t, err)
	require.Equal(s.t, all, of)
	return all
}

func (s *stack) outcome(want string, e tenants.BillingEvent) {
	s.t.Helper()
	require.Equal(s.t, want, e.Outcome, "%s: %s", e.Type, e.Why)
	require.NotEmpty(s.t, e.Why)
}
