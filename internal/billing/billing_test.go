package billing_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
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
		e, err = subscription.ParseGeneric(body, fmt.Sprintf("msg_%d", s.events), s.now())
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

// A customer always has the plan that they paid for.
func TestCustomerLifecycle(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{GraceDays: 3, FallbackPlan: "free"}, nil)
	const hour, day = time.Hour, 24 * time.Hour
	signedUp, moved := start.Add(-20*day), start.Add(-5*day)

	s.outcome(tenants.EventIgnored, s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "incomplete", "ada", "price_pro"))))
	require.Equal(t, "", s.plan("ada"), "the first payment is not made")
	s.pass(time.Minute)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.updated", anchored(sub("sub_1", "cus_1", "active", "ada", "price_pro"), signedUp))))
	require.Equal(t, "pro", s.plan("ada"))
	require.Equal(t, signedUp, s.anchor("ada"), "windows follow the paid period")
	ada, err := s.store.SubjectByName(t.Context(), s.a, "ada")
	require.NoError(t, err)
	require.Equal(t, "cus_1", ada.BillingRef)
	s.pass(hour)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.updated", anchored(sub("sub_1", "cus_1", "active", "ada", "price_scale"), moved))))
	require.Equal(t, "scale", s.plan("ada"), "mapped by its product")
	require.Equal(t, moved, s.anchor("ada"), "the upgrade began another period")
	s.pass(hour)
	s.outcome(tenants.EventIgnored, s.send(s.event("customer.subscription.trial_will_end", sub("sub_1", "cus_1", "active", "ada", "price_scale"))))

	s.pass(30 * day) // a payment fails
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.payment_failed", invoice("sub_1"))))
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.updated", sub("sub_1", "cus_1", "past_due", "ada", "price_scale"))))
	grace := []tenants.GracePeriod{{Subject: "ada", Subscription: "sub_1", EndsAt: s.now().Add(3 * day).Truncate(time.Second).UTC(), FallbackPlan: "free"}}
	require.Equal(t, grace, s.gracePeriods("ada"))
	other, _ := s.db.Tenant("tenant-b")
	foreign, err := s.store.GracePeriods(t.Context(), other, 10)
	require.NoError(t, err)
	require.Empty(t, foreign)
	foreign, err = s.store.GracePeriodsOf(t.Context(), other, "ada")
	require.NoError(t, err)
	require.Empty(t, foreign)
	s.pass(3*day - time.Second)
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, "scale", s.plan("ada"), "the grace period has not ended")
	s.pass(time.Second)
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, "free", s.plan("ada"), "the grace period ended, without any event")
	require.Empty(t, s.gracePeriods("ada"))

	s.pass(hour)
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", invoice("sub_1"))))
	require.Equal(t, "scale", s.plan("ada"), "they paid")
	s.pass(hour)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.paused", sub("sub_1", "cus_1", "paused", "ada", "price_scale"))))
	require.Equal(t, "free", s.plan("ada"))
	s.pass(hour)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.resumed", sub("sub_1", "cus_1", "active", "ada", "price_scale"))))
	require.Equal(t, "scale", s.plan("ada"))
	s.pass(hour)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.deleted", sub("sub_1", "cus_1", "canceled", "ada", "price_scale"))))
	require.Equal(t, "free", s.plan("ada"))
	require.Equal(t, moved, s.anchor("ada"), "the end of the subscription, and events without an anchor, keep it")

	s.pass(hour) // the customer returns, with two subscriptions
	s.send(s.event("customer.subscription.created", sub("sub_2", "cus_1", "active", "ada", "price_pro")))
	s.send(s.event("customer.subscription.created", sub("sub_3", "cus_1", "active", "ada", "price_other")))
	s.outcome(tenants.EventParked, s.last())
	require.Equal(t, "pro", s.plan("ada"))
	s.pass(hour)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.deleted", obj{"id": "cus_1"})))
	require.Equal(t, "free", s.plan("ada"))

	trail, _, err := s.store.Audit(t.Context(), s.a, tenants.AuditFilter{Kind: "subject", Target: "ada"}, tenants.Page{Limit: 100})
	require.NoError(t, err)
	for _, row := range trail {
		require.Equal(t, "provider", row.ActorKind)
		require.Equal(t, s.endpoint.ID, *row.ActorID)
		require.Contains(t, row.ActorName, "stripe ", "the trail names the provider and the event")
		require.NotEmpty(t, row.Reason)
	}
	require.Equal(t, "stripe evt_0002", trail[len(trail)-1].ActorName)
}

// A provider sends every event at least once. A repeated event does not count twice, and does not
// undo later events.
func TestRepeatedAndLateEvents(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	first := s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pro"))
	s.pass(time.Minute)
	second := s.event("customer.subscription.updated", sub("sub_1", "cus_1", "active", "ada", "price_scale"))
	s.outcome(tenants.EventApplied, s.send(second))
	s.outcome(tenants.EventStale, s.send(first))
	require.Equal(t, "scale", s.plan("ada"))
	for range 3 {
		require.False(t, s.receive(second))
	}
	require.NoError(t, s.runner.Once(t.Context()))
	duplicate := s.last()
	s.outcome(tenants.EventDuplicate, duplicate)
	require.Equal(t, 3, duplicate.Deliveries)
	all, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, all, 3, "repetitions share a row")
	_, err = s.runner.Replay(t.Context(), s.a, duplicate.ID)
	var conflict *tenants.ConflictError
	require.ErrorAs(t, err, &conflict)
}

// A customer is one subject. An event that names another one by its metadata gives that one its
// plan, but does not take the reference from the first.
func TestOneCustomerOfTwoSubjects(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	for _, subject := range []string{"ada", "bob"} {
		s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_"+subject, "cus_1", "active", subject, "price_pro"))))
		require.Equal(t, "pro", s.plan(subject))
	}
	require.Contains(t, s.last().Why, `customer cus_1 is that of subject "ada"`)
	for subject, ref := range map[string]string{"ada": "cus_1", "bob": ""} {
		got, err := s.store.SubjectByName(t.Context(), s.a, subject)
		require.NoError(t, err)
		require.Equal(t, ref, got.BillingRef, subject)
	}
	// Without metadata, the event is for the subject with the reference.
	s.pass(time.Minute)
	e := s.send(s.event("customer.subscription.created", sub("sub_3", "cus_1", "active", "", "prod_scale")))
	s.outcome(tenants.EventApplied, e)
	require.Equal(t, "ada", e.Subject)
	// Subjects that share a reference since an earlier release: always the first by name.
	s.db.Exec("UPDATE subjects SET billing_ref = 'cus_1' WHERE subject = 'bob'")
	s.pass(time.Minute)
	e = s.send(s.event("customer.subscription.created", sub("sub_4", "cus_1", "active", "", "price_pro")))
	s.outcome(tenants.EventApplied, e)
	require.Equal(t, "ada", e.Subject)
}

// A person dismisses an event that will never be applied: it is counted no more, waits for nothing,
// changes no plan, and a replay undoes it.
func TestDismissedEvents(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	ctx := t.Context()
	unapplied := func(want tenants.UnappliedEvents) {
		t.Helper()
		n, err := s.store.UnappliedEvents(ctx, s.a)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	failed := s.send([]byte(`{"type":"subject.plan","subject":"ada","plan":"enterprise"}`))
	s.outcome(tenants.EventFailed, failed)
	later := s.send([]byte(`{"type":"subject.plan","subject":"bob","plan":"pro","effective_at":"2026-03-01T00:00:00Z"}`))
	s.outcome(tenants.EventParked, later)
	unapplied(tenants.UnappliedEvents{Parked: 1, Scheduled: 1, Failed: 1})
	for _, e := range []tenants.BillingEvent{failed, later} {
		got, err := s.store.DismissBillingEvent(ctx, s.a, e.ID)
		require.NoError(t, err)
		stored, err := s.store.BillingEventByID(ctx, s.a, e.ID)
		require.NoError(t, err)
		require.Equal(t, got, stored)
		require.Equal(t, tenants.EventIgnored, stored.Outcome)
		require.Contains(t, stored.Why, "dismissed by ")
		require.Contains(t, stored.Why, e.Outcome+": "+e.Why)
		_, err = s.store.DismissBillingEvent(ctx, s.a, e.ID)
		var conflict *tenants.ConflictError
		require.ErrorAs(t, err, &conflict, "it is dismissed already")
	}
	unapplied(tenants.UnappliedEvents{})
	s.pass(60 * 24 * time.Hour) // the time of the second one comes
	require.NoError(t, s.runner.Once(ctx))
	require.Empty(t, s.plan("bob"), "it was dismissed")
	rows, _, err := s.store.Audit(ctx, s.a, tenants.AuditFilter{Kind: "billing_event", Action: "dismiss"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, failed.ProviderID, rows[1].Target)
	require.JSONEq(t, `{"outcome":"failed","why":`+strconv.Quote(failed.Why)+`}`, string(rows[1].Before))

	replayed, err := s.runner.Replay(ctx, s.a, later.ID)
	require.NoError(t, err)
	s.outcome(tenants.EventApplied, replayed)
	require.Equal(t, "pro", s.plan("bob"))
	replayed, err = s.runner.Replay(ctx, s.a, failed.ID)
	require.NoError(t, err)
	s.outcome(tenants.EventFailed, replayed)
	unapplied(tenants.UnappliedEvents{Failed: 1})
	rows, _, err = s.store.Audit(ctx, s.a, tenants.AuditFilter{Kind: "billing_event", Action: "replay"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, rows, 2)
	_, err = s.store.DismissBillingEvent(ctx, s.a, uuid.New())
	require.ErrorIs(t, err, tenants.ErrNotFound)
}

// A tenant is told that events wait or have failed: not at once, because most of them wait only for
// another event, once a day while there are any, and once when there are none any more.
func TestNoticesOfUnappliedEvents(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Name: "Stripe, test mode"}, nil)
	ctx := t.Context()
	_, _, err := s.store.CreateNotificationEndpoint(ctx, s.a, tenants.NotificationEndpoint{URL: "https://example.com/hook", Enabled: true})
	require.NoError(t, err)
	notices := func(want ...string) {
		t.Helper()
		// Two servers look, and one of them sends.
		require.NoError(t, s.runner.Notices(ctx))
		require.NoError(t, billing.New(billing.Options{Store: s.store}).Notices(ctx))
		list, _, err := s.store.NotificationDeliveries(ctx, s.a, tenants.DeliveryFilter{}, tenants.Page{})
		require.NoError(t, err)
		var types []string
		for _, d := range list {
			types = append(types, d.Type)
		}
		require.Equal(t, want, types, "newest first")
	}
	const unapplied, settled = tenants.BillingEventsUnapplied, tenants.BillingEventsSettled
	first := s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_unknown")))
	s.outcome(tenants.EventParked, first)
	notices()
	s.pass(time.Minute)
	notices(unapplied)
	list, _, err := s.store.NotificationDeliveries(ctx, s.a, tenants.DeliveryFilter{}, tenants.Page{})
	require.NoError(t, err)
	got, err := s.store.NotificationDelivery(ctx, s.a, list[0].ID)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"billing_events.unapplied","timestamp":"2026-01-31T12:01:00Z","data":{"endpoint":"`+s.endpoint.ID.String()+`",
		"provider":"stripe","name":"Stripe, test mode","parked":1,"failed":0,"oldest_received_at":"2026-01-31T12:00:00Z"}}`, got.Body)

	s.send(s.event("customer.subscription.created", sub("sub_2", "cus_2", "active", "bob", "price_unknown")))
	s.pass(23 * time.Hour)
	notices(unapplied)
	s.pass(time.Hour)
	notices(unapplied, unapplied)
	second := s.last()
	for _, e := range []tenants.BillingEvent{first, second} {
		_, err := s.store.DismissBillingEvent(ctx, s.a, e.ID)
		require.NoError(t, err)
	}
	notices(settled, unapplied, unapplied)
	s.pass(48 * time.Hour)
	notices(settled, unapplied, unapplied)

	// The next ones are told at once, and those after them not sooner than an hour later.
	_, err = s.runner.Replay(ctx, s.a, first.ID)
	require.NoError(t, err)
	notices(unapplied, settled, unapplied, unapplied)
	_, _, err = s.store.PutBillingPrice(ctx, s.a, tenants.BillingPrice{Price: "price_unknown", Plan: "late"}, tenants.Match{})
	require.NoError(t, err)
	require.NoError(t, s.runner.Once(ctx))
	require.Equal(t, "late", s.plan("ada"))
	notices(settled, unapplied, settled, unapplied, unapplied)
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.created", sub("sub_3", "cus_3", "active", "cy", "price_other"))))
	s.pass(59 * time.Minute)
	notices(settled, unapplied, settled, unapplied, unapplied)
	s.pass(time.Minute)
	notices(unapplied, settled, unapplied, settled, unapplied, unapplied)
}

// An event of an unknown customer waits until the customer is known.
func TestParkedEvents(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "", "price_pro"))))
	require.Contains(t, s.last().Why, "cus_1")
	_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: "somebody"}, tenants.Match{})
	require.NoError(t, err)
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventParked, s.last())
	_, _, err = s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: "ada", BillingRef: "cus_1"}, tenants.Match{})
	require.NoError(t, err)
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventApplied, s.last())
	require.Equal(t, "pro", s.plan("ada"))

	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.created", sub("sub_2", "cus_2", "active", "bob", "price_late"))))
	_, _, err = s.store.PutBillingPrice(t.Context(), s.a, tenants.BillingPrice{Price: "price_late", Plan: "late"}, tenants.Match{})
	require.NoError(t, err)
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventApplied, s.last())
	require.Equal(t, "late", s.plan("bob"))

	// The customer is identified by a later event.
	s.send(s.event("customer.subscription.created", sub("sub_3", "cus_3", "active", "", "price_pro")))
	s.outcome(tenants.EventApplied, s.send(s.event("customer.updated", obj{"id": "cus_3", "metadata": obj{"user": "cy"}})))
	require.Equal(t, "pro", s.plan("cy"))
	waiting, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{Outcome: tenants.EventParked}, tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, waiting)
}

// The metric counts the events that were not applied, of all tenants, and not those that wait for a
// time. The page of a tenant counts its own.
func TestUnappliedEventsAreCounted(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	registry := prometheus.NewRegistry()
	runner := billing.New(billing.Options{Store: s.store, Registerer: registry})
	counts := func(parked, failed float64) {
		t.Helper()
		require.NoError(t, runner.Count(t.Context()))
		families, err := registry.Gather()
		require.NoError(t, err)
		got := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() == "weir_billing_unapplied_events" {
					got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		require.Equal(t, map[string]float64{"parked": parked, "failed": failed}, got)
	}
	counts(0, 0)
	body := func(plan string, at time.Time) []byte {
		return []byte(`{"type":"subject.plan","subject":"ada","plan":"` + plan + `","effective_at":"` + at.Format(time.RFC3339) + `"}`)
	}
	s.outcome(tenants.EventFailed, s.send(body("no-such-plan", s.now())))
	s.outcome(tenants.EventParked, s.send(body("pro", s.now().Add(time.Hour))))
	counts(0, 1)
	stripe, err := s.store.CreateBillingEndpoint(t.Context(), s.a, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromCustomer},
		tenants.BillingSecrets{Signing: []string{"whsec_12345678"}})
	require.NoError(t, err)
	s.endpoint = stripe
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_new"))))
	counts(1, 1)
	own, err := s.store.UnappliedEvents(t.Context(), s.a)
	require.NoError(t, err)
	require.Equal(t, tenants.UnappliedEvents{Parked: 2, Scheduled: 1, Failed: 1}, own)
	other, _ := s.db.Tenant("tenant-b")
	none, err := s.store.UnappliedEvents(t.Context(), other)
	require.NoError(t, err)
	require.Zero(t, none)

	// A replay, after the cause is gone, decides again.
	_, err = s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: "no-such-plan"})
	require.NoError(t, err)
	failed, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{Outcome: tenants.EventFailed}, tenants.Page{})
	require.NoError(t, err)
	again, err := runner.Replay(t.Context(), s.a, failed[0].ID)
	require.NoError(t, err)
	require.Equal(t, tenants.EventApplied, again.Outcome, again.Why)
	counts(1, 0)
}

// The end of a subscription that gave a plan takes it away, whether its price is still mapped or
// not.
func TestEndWithoutMapping(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{GraceDays: 3, FallbackPlan: "free"}, nil)
	unmap := func(price string) {
		require.NoError(t, s.store.DeleteBillingPrice(t.Context(), s.a, price, tenants.Match{}))
	}
	give := func(subject, plan string) {
		_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: subject, Plan: plan}, tenants.Match{})
		require.NoError(t, err)
	}
	users := []string{"deleted", "canceled", "changed", "unpaid", "expired", "gone", "twice"}
	for _, user := range users {
		s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_"+user, "cus_"+user, "active", user, "price_pro"))))
	}
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_live", "cus_twice", "active", "twice", "price_scale"))))
	s.pass(time.Minute)
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.updated", sub("sub_changed", "cus_changed", "active", "changed", "price_new"))))
	require.Equal(t, "pro", s.plan("changed"))
	s.pass(time.Minute)
	unmap("price_pro")

	end := func(typ, user, status, price string) {
		t.Helper()
		s.outcome(tenants.EventApplied, s.send(s.event(typ, sub("sub_"+user, "cus_"+user, status, user, price))))
	}
	end("customer.subscription.deleted", "deleted", "canceled", "price_pro")
	require.Contains(t, s.last().Why, `moved from pro to free`)
	end("customer.subscription.updated", "canceled", "canceled", "price_pro")
	end("customer.subscription.updated", "changed", "canceled", "price_new")
	end("customer.subscription.updated", "expired", "incomplete_expired", "price_pro")
	s.outcome(tenants.EventApplied, s.send(s.event("customer.deleted", obj{"id": "cus_gone"})))
	for _, user := range []string{"deleted", "canceled", "changed", "expired", "gone"} {
		require.Equal(t, "free", s.plan(user), user)
	}
	end("customer.subscription.deleted", "twice", "canceled", "price_pro")
	require.Equal(t, "scale", s.plan("twice"), "the other subscription is live")

	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.updated", sub("sub_unpaid", "cus_unpaid", "unpaid", "unpaid", "price_pro"))))
	require.Equal(t, "pro", s.plan("unpaid"), "the grace period has not ended")
	s.pass(3 * 24 * time.Hour)
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, "free", s.plan("unpaid"))

	// A product that never gave a plan takes none away.
	give("eve", "late")
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.created", sub("sub_eve", "cus_eve", "active", "eve", "price_other"))))
	s.pass(time.Minute)
	s.outcome(tenants.EventIgnored, s.send(s.event("customer.subscription.deleted", sub("sub_eve", "cus_eve", "canceled", "eve", "price_other"))))
	require.Contains(t, s.last().Why, "never gave a plan")
	s.send(s.event("customer.deleted", obj{"id": "cus_eve"}))
	require.Equal(t, "late", s.plan("eve"))
}

// A mapping does not move to another endpoint without a word.
func TestPriceKeepsItsEndpoint(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	other, err := s.store.CreateBillingEndpoint(t.Context(), s.a, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromCustomer},
		tenants.BillingSecrets{Signing: []string{"whsec_abcdef"}})
	require.NoError(t, err)
	put := func(endpoint uuid.UUID, plan string) error {
		_, _, err := s.store.PutBillingPrice(t.Context(), s.a, tenants.BillingPrice{Price: "price_pro", Endpoint: endpoint, Plan: plan}, tenants.Match{})
		return err
	}
	var wrong *tenants.InvalidError
	require.ErrorAs(t, put(other.ID, "scale"), &wrong)
	require.Contains(t, wrong.Error(), s.endpoint.ID.String())
	got, err := s.store.BillingPriceByID(t.Context(), s.a, "price_pro")
	require.NoError(t, err)
	require.Equal(t, s.endpoint.ID, got.Endpoint)
	require.Equal(t, "pro", got.Plan)
	require.NoError(t, put(s.endpoint.ID, "scale"))
	require.NoError(t, put(uuid.Nil, "pro"))
	require.NoError(t, s.store.DeleteBillingPrice(t.Context(), s.a, "price_pro", tenants.Match{}))
	require.NoError(t, put(other.ID, "scale"))
}

func TestSubjectFrom(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{SubjectFrom: tenants.FromReference}, nil)
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "", "price_pro"))))
	s.outcome(tenants.EventApplied, s.send(s.event("checkout.session.completed", obj{"customer": "cus_1", "subscription": "sub_1", "client_reference_id": "ada"})))
	require.Equal(t, "pro", s.plan("ada"))
	_, err := s.store.EditBillingEndpoint(t.Context(), s.a, s.endpoint.ID, tenants.Match{}, func(e *tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
		e.SubjectFrom = tenants.FromCustomer
		return tenants.BillingSecrets{}, nil
	})
	require.NoError(t, err)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_2", "cus_2", "active", "", "price_pro"))))
	require.Equal(t, "pro", s.plan("cus_2"), "the customer's id is the subject")
}

// If an admin and the provider change the plan of a subject in turns, the audit trail shows it.
func TestConflictingChangesAreAudited(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	admin := tenants.AsSystem(s.a.TenantID(), "admin")
	for range 3 {
		s.send(s.event("customer.subscription.updated", sub("sub_1", "cus_1", "active", "ada", "price_pro")))
		s.pass(time.Minute)
		_, err := s.store.EditSubject(t.Context(), admin, "ada", tenants.Match{}, func(in *tenants.Subject) error { in.Plan = "scale"; return nil })
		require.NoError(t, err)
	}
	trail, _, err := s.store.Audit(t.Context(), s.a, tenants.AuditFilter{Kind: "subject", Target: "ada"}, tenants.Page{})
	require.NoError(t, err)
	var names []string
	for _, row := range trail {
		names = append(names, row.ActorName)
	}
	require.Equal(t, []string{"admin", "stripe evt_0003", "admin", "stripe evt_0002", "admin", "stripe evt_0001"}, names)
	require.Contains(t, string(trail[1].Before), "scale")
	require.Contains(t, string(trail[1].After), "pro")

	// A replay changes the plan once more, and records the actor.
	events, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{}, tenants.Page{Limit: 1})
	require.NoError(t, err)
	replayed, err := s.runner.Replay(t.Context(), admin, events[0].ID)
	require.NoError(t, err)
	s.outcome(tenants.EventApplied, replayed)
	require.Equal(t, "pro", s.plan("ada"))
	trail, _, err = s.store.Audit(t.Context(), s.a, tenants.AuditFilter{Kind: "subject", Target: "ada"}, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Contains(t, trail[0].Reason, "replayed by admin")
}

func TestGenericEvents(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	body := func(plan string, at time.Time) []byte {
		return []byte(`{"type":"subject.plan","subject":"ada","plan":"` + plan + `","effective_at":"` + at.Format(time.RFC3339) + `","quantity":3}`)
	}
	s.outcome(tenants.EventApplied, s.send(body("pro", s.now())))
	require.Equal(t, "pro", s.plan("ada"))
	require.Zero(t, s.anchor("ada"))
	ada, err := s.store.SubjectByName(t.Context(), s.a, "ada")
	require.NoError(t, err)
	require.Equal(t, 3, ada.Multiplier)
	s.outcome(tenants.EventStale, s.send(body("free", s.now().Add(-time.Hour))))
	s.receive(body("scale", s.now().Add(time.Hour)))
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventParked, s.last())
	require.Equal(t, "it takes effect at "+s.now().Add(time.Hour).Format(time.RFC3339), s.last().Why)
	require.Equal(t, "pro", s.plan("ada"), "it takes effect later")
	s.pass(time.Hour)
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, "scale", s.plan("ada"))
	s.outcome(tenants.EventApplied, s.last())
	for _, anchor := range []string{"2026-01-15T08:00:00Z", "2026-01-20T00:00:00Z"} {
		s.pass(time.Hour)
		s.outcome(tenants.EventApplied, s.send([]byte(`{"type":"subject.plan","subject":"ada","plan":"scale","cycle_anchor":"`+anchor+`"}`)))
		require.Equal(t, anchor, s.anchor("ada").Format(time.RFC3339))
	}
	s.pass(time.Hour)
	s.outcome(tenants.EventApplied, s.send(body("scale", s.now())))
	require.Equal(t, "2026-01-20T00:00:00Z", s.anchor("ada").Format(time.RFC3339), "an event without an anchor keeps it")
	s.pass(time.Hour)
	s.outcome(tenants.EventFailed, s.send(body("no-such-plan", s.now())))
	require.Equal(t, "scale", s.plan("ada"))
	s.outcome(tenants.EventFailed, s.send([]byte(`{"type":"subject.plan","subject":"ada"}`)))
	s.outcome(tenants.EventIgnored, s.send([]byte(`{"type":"invoice.made"}`)))
}

// An event grants credits once: by its own reference, or else by its id, also if it is replayed.
func TestGenericCredits(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	s.sellCredits("pack", 1, 0) // for the rule
	body := func(subject, more string) []byte {
		return []byte(`{"type":"subject.credits","subject":"` + subject + `","rule":"api","units":5000` + more + `}`)
	}
	s.outcome(tenants.EventApplied, s.send(body("ada", `,"reference":"invoice-1001","expires_at":"2099-12-31T00:00:00Z"`)))
	require.Equal(t, "5000 credits for api", s.last().Why)
	require.Equal(t, "ada", s.last().Subject)
	s.outcome(tenants.EventDuplicate, s.send(body("ada", `,"reference":"invoice-1001","expires_at":"2099-12-31T00:00:00Z"`)))
	require.Equal(t, []int64{5000}, s.credits("ada"))
	list, _, err := s.store.Credits(t.Context(), s.a, "ada", tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, "2099-12-31T00:00:00Z", list[0].ExpiresAt.UTC().Format(time.RFC3339))
	s.outcome(tenants.EventFailed, s.send(body("ada", `,"reference":"invoice-1001","expires_at":"2098-12-31T00:00:00Z"`)))
	require.Contains(t, s.last().Why, "granted other credits")

	granted := s.send(body("bob", ""))
	s.outcome(tenants.EventApplied, granted)
	again, err := s.runner.Replay(t.Context(), tenants.AsSystem(s.a.TenantID(), "admin"), granted.ID)
	require.NoError(t, err)
	s.outcome(tenants.EventDuplicate, again)
	require.Equal(t, []int64{5000}, s.credits("bob"))
	s.outcome(tenants.EventApplied, s.send(body("bob", "")))
	require.Equal(t, []int64{5000, 5000}, s.credits("bob"), "another event")

	for _, wrong := range []string{
		`{"type":"subject.credits","subject":"cy","rule":"no-such-rule","units":1}`, `{"type":"subject.credits","subject":"cy","rule":"api","units":0}`,
		`{"type":"subject.credits","rule":"api","units":1}`, `{"type":"subject.credits","subject":"cy","rule":"api","units":1,"expires_at":"2020-01-01T00:00:00Z"}`,
	} {
		s.outcome(tenants.EventFailed, s.send([]byte(wrong)))
	}
	require.Empty(t, s.credits("cy"))
}

// If the provider's API is available, it settles events that are not conclusive.
func TestAskTheProvider(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	ada := map[string]string{"user": "ada"}

	// Two changes within one second have no order.
	fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, ada, "price_scale")
	later := s.event("customer.subscription.updated", sub("sub_1", "cus_1", "active", "ada", "price_scale"))
	earlier := s.event("customer.subscription.updated", sub("sub_1", "cus_1", "active", "ada", "price_pro"))
	s.send(later)
	asked := fake.requests()
	s.send(earlier)
	require.Greater(t, fake.requests(), asked)
	require.Equal(t, "scale", s.plan("ada"), "although the id of the earlier event is greater")

	// An invoice of a subscription that no event has described.
	fake.put("sub_2", "cus_2", stripe.SubscriptionStatusActive, map[string]string{"user": "bob"}, "price_pro")
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", invoice("sub_2"))))
	require.Equal(t, "pro", s.plan("bob"))

	// An unknown format.
	fake.put("sub_3", "cus_3", stripe.SubscriptionStatusActive, map[string]string{"user": "cy"}, "price_pro")
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.updated", obj{"id": "sub_3", "customer": "cus_3", "status": "dreaming"})))
	require.Equal(t, "pro", s.plan("cy"))

	// An outage of the provider does not stop conclusive events.
	fake.mu.Lock()
	fake.broken = true
	fake.mu.Unlock()
	s.pass(time.Hour)
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.updated", obj{"id": "sub_4", "customer": "cus_4", "status": "dreaming"})))
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_5", "cus_5", "active", "eve", "price_pro"))))
	require.Equal(t, "pro", s.plan("eve"))
}

// Events can be lost. A comparison finds, reports and repairs wrong plans.
func TestReconcile(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, fake)
	s.send(s.event("customer.subscription.created", sub("sub_gone", "cus_gone", "active", "gone", "price_pro")))
	s.send(s.event("customer.subscription.created", sub("sub_0", "cus_0", "active", "user-0", "price_pro")))
	s.pass(time.Hour)
	for i := range 230 { // more than two pages
		price := "price_pro"
		if i == 0 {
			price = "price_scale"
		}
		fake.put(fmt.Sprintf("sub_%d", i), fmt.Sprintf("cus_%d", i), stripe.SubscriptionStatusActive, map[string]string{"user": fmt.Sprintf("user-%d", i)}, price)
	}
	fake.put("sub_other", "cus_other", stripe.SubscriptionStatusActive, nil, "price_other")

	endpoint, err := s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
	require.NoError(t, err)
	var reported []string
	report := func(_ billing.Summary, r tenants.ReconcileResult) { reported = append(reported, r.Changes...) }
	sum, err := s.runner.Reconcile(t.Context(), s.a.TenantID(), endpoint, true, report)
	require.NoError(t, err)
	require.Equal(t, billing.Summary{Subscriptions: 232, Repaired: 231, Problems: 1}, sum)
	require.Contains(t, reported, `subject "user-0" moved from pro to scale`)
	require.Contains(t, reported, `subject "gone" moved from pro to free`)
	require.Equal(t, "pro", s.plan("user-0"), "a dry run changes nothing")
	require.Equal(t, "", s.plan("user-7"))

	sum, err = s.runner.Reconcile(t.Context(), s.a.TenantID(), endpoint, false, nil)
	require.NoError(t, err)
	require.Equal(t, 231, sum.Repaired)
	require.Equal(t, "scale", s.plan("user-0"))
	require.Equal(t, "pro", s.plan("user-7"))
	require.Equal(t, "free", s.plan("gone"))
	s.pass(time.Second)
	sum, err = s.runner.Reconcile(t.Context(), s.a.TenantID(), endpoint, false, nil)
	require.NoError(t, err)
	require.Zero(t, sum.Repaired)

	mine, err := s.store.ClaimReconcile(t.Context(), s.a.TenantID(), endpoint.ID, time.Hour)
	require.NoError(t, err)
	require.False(t, mine, "it was just compared")
	s.pass(24 * time.Hour)
	mine, err = s.store.ClaimReconcile(t.Context(), s.a.TenantID(), endpoint.ID, time.Hour)
	require.NoError(t, err)
	require.True(t, mine, "a day later it is due")
	mine, err = s.store.ClaimReconcile(t.Context(), s.a.TenantID(), endpoint.ID, time.Hour)
	require.NoError(t, err)
	require.False(t, mine, "one instance does it")
}

// A running server compares an endpoint with the provider when it has a new API key, when somebody
// requests it, and a day after the last time. Of two instances, one does it.
func TestDailyComparison(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	for n, price := range []string{"price_pro", "price_scale", "price_pro"} {
		fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "ada"}, price)
		if n == 0 {
			working, stop := context.WithCancel(context.WithoutCancel(t.Context()))
			var instances sync.WaitGroup
			for range 2 {
				runner := billing.New(billing.Options{Store: s.store, StripeURL: fake.url, Every: 10 * time.Millisecond})
				instances.Go(func() { runner.Run(working) })
			}
			defer instances.Wait()
			defer stop()
		} else if n == 1 {
			s.pass(24 * time.Hour)
		} else {
			s.pass(time.Hour)
			_, err := s.store.RequestReconcile(t.Context(), s.a, s.endpoint.ID)
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool {
			e, err := s.store.BillingEndpointByID(t.Context(), s.a, s.endpoint.ID)
			require.NoError(t, err)
			return e.ReconciledAt != nil && e.ReconciledAt.Equal(s.now())
		}, time.Minute, 10*time.Millisecond)
		require.Equal(t, strings.TrimPrefix(price, "price_"), s.plan("ada"))
		require.Equal(t, n+1, fake.lists(), "one instance compares, once a day and on request")
	}
	rows, _, err := s.store.Audit(t.Context(), s.a, tenants.AuditFilter{Kind: "endpoint", Action: "compare"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, s.endpoint.ID.String(), rows[0].Target)
}

// A comparison can be requested by those who manage billing, for an endpoint of their tenant that
// has an API key.
func TestWhoRequestsComparisons(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	var conflict *tenants.ConflictError
	_, err := s.store.RequestReconcile(t.Context(), s.a, s.endpoint.ID)
	require.ErrorAs(t, err, &conflict)
	require.Contains(t, conflict.Detail, "no API key")
	other, _ := s.db.Tenant("tenant-b")
	_, err = s.store.RequestReconcile(t.Context(), other, s.endpoint.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = s.store.RequestReconcile(t.Context(), s.a, uuid.New())
	require.ErrorIs(t, err, tenants.ErrNotFound)
}

var events = flag.Int("events", 500, "how many events TestShuffledEvents sends")

// Events may arrive in any order and repeatedly, and several instances may settle them: every
// customer ends with the same plan.
func TestShuffledEvents(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{GraceDays: 2, FallbackPlan: "free"}, nil)
	random := rand.New(rand.NewPCG(2026, 11))
	customers := *events / 20
	var ordered [][]byte
	id := 0
	for second := range *events {
		c := random.IntN(customers)
		at := start.Add(-30*24*time.Hour + time.Duration(second)*13*time.Minute)
		if at.After(start) {
			at = start.Add(-time.Duration(*events-second) * time.Second)
		}
		id++
		name := fmt.Sprintf("evt_%06d", id)
		user, customer, subscription := fmt.Sprintf("user-%d", c), fmt.Sprintf("cus_%d", c), fmt.Sprintf("sub_%d_%d", c, random.IntN(2))
		price := []string{"price_pro", "price_scale"}[random.IntN(2)]
		bill := obj{"customer": customer, "parent": obj{"subscription_details": obj{"subscription": subscription}}}
		switch random.IntN(10) {
		case 0:
			ordered = append(ordered, eventAt(at, name, "invoice.payment_failed", bill))
		case 1:
			ordered = append(ordered, eventAt(at, name, "invoice.paid", bill))
		case 2:
			ordered = append(ordered, eventAt(at, name, "customer.subscription.deleted", sub(subscription, customer, "canceled", user, price)))
		case 3:
			ordered = append(ordered, eventAt(at, name, "customer.updated", obj{"id": customer, "metadata": obj{"user": user}}))
		default:
			status := []string{"active", "active", "trialing", "past_due", "paused", "unpaid"}[random.IntN(6)]
			ordered = append(ordered, eventAt(at, name, "customer.subscription.updated", sub(subscription, customer, status, user, price)))
		}
	}
	other, _ := s.db.Tenant("tenant-b")
	for _, plan := range []string{"free", "pro", "scale"} {
		_, err := s.store.CreatePlan(t.Context(), other, tenants.Plan{Slug: plan})
		require.NoError(t, err)
	}
	second, err := s.store.CreateBillingEndpoint(t.Context(), other, tenants.BillingEndpoint{
		Provider: tenants.StripeProvider, SubjectFrom: tenants.FromMetadata + "user", GraceDays: 2, FallbackPlan: "free",
	}, tenants.BillingSecrets{Signing: []string{"whsec_abcdef"}})
	require.NoError(t, err)
	for price, plan := range map[string]string{"price_pro": "pro", "prod_scale": "scale"} {
		_, _, err := s.store.PutBillingPrice(t.Context(), other, tenants.BillingPrice{Price: price, Plan: plan}, tenants.Match{})
		require.NoError(t, err)
	}
	shuffled := append([][]byte{}, ordered...)
	for range len(ordered) / 10 {
		shuffled = append(shuffled, ordered[random.IntN(len(ordered))])
	}
	random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })

	store := func(a tenants.Actor, endpoint uuid.UUID, bodies [][]byte) {
		for _, body := range bodies {
			e, err := subscription.ParseStripe(body)
			require.NoError(t, err)
			_, err = s.store.StoreBillingEvent(t.Context(), tenants.Webhook{Tenant: a.TenantID(), Endpoint: endpoint}, e, body)
			require.NoError(t, err)
		}
	}
	store(s.a, s.endpoint.ID, ordered)
	require.NoError(t, s.runner.Once(t.Context()))
	var instances sync.WaitGroup
	for i := range 2 { // two instances, which settle while events arrive
		runner := billing.New(billing.Options{Store: s.store})
		part := shuffled[i*len(shuffled)/2 : (i+1)*len(shuffled)/2]
		instances.Go(func() {
			for len(part) > 0 {
				n := min(100, len(part))
				store(other, second.ID, part[:n])
				part = part[n:]
				if err := runner.Once(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	instances.Wait()
	require.NoError(t, s.runner.Once(t.Context()))

	plans := func(a tenants.Actor) map[string]string {
		out := map[string]string{}
		require.NoError(t, s.store.ExportSubjects(t.Context(), a, tenants.SubjectFilter{}, false, func(list []tenants.Subject) error {
			for _, subject := range list {
				out[subject.Subject] = subject.Plan
			}
			return nil
		}))
		return out
	}
	want := plans(s.a)
	require.Greater(t, len(want), customers/2)
	require.Equal(t, want, plans(other))
	counts := map[string]int{}
	for _, plan := range want {
		counts[plan]++
	}
	require.Len(t, counts, 3, "the events lead to every plan: %v", counts)
}
