package billing_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/billing"
	"weir/internal/subscription"
	"weir/internal/tenants"
)

// A tenant with many events does not delay the events of others: each round has some of every
// tenant, in turn.
func TestEventsOfTenantsInTurn(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	other, _ := s.db.Tenant("tenant-b")
	endpoint, err := s.store.CreateBillingEndpoint(t.Context(), other, tenants.BillingEndpoint{Provider: tenants.GenericProvider, SubjectFrom: tenants.FromMetadata + "user"},
		tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	require.NoError(t, err)
	for range 50 {
		s.receive([]byte(`{"type":"subject.plan","subject":"ada","plan":"pro"}`))
		s.pass(time.Millisecond)
	}
	late := []byte(`{"type":"subject.plan","subject":"bob","plan":"pro"}`)
	e, err := subscription.ParseGeneric(late, "late", s.now(), s.now())
	require.NoError(t, err)
	_, err = s.store.StoreBillingEvent(t.Context(), tenants.Webhook{Tenant: other.TenantID(), Endpoint: endpoint.ID}, e, late)
	require.NoError(t, err)

	due, err := s.store.DueBilling(t.Context(), 200)
	require.NoError(t, err)
	require.True(t, due.More)
	require.Len(t, due.Events, 21)
	require.Equal(t, other.TenantID(), due.Events[1].Tenant)
	require.NoError(t, s.runner.Once(t.Context()))
	due, err = s.store.DueBilling(t.Context(), 200)
	require.NoError(t, err)
	require.Empty(t, due.Events)
	require.False(t, due.More)
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

// parked inserts events of a customer that wait for a subject.
func (s *stack) parked(endpoint tenants.BillingEndpoint, a tenants.Actor, events int) {
	s.db.Exec(`INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, customer, outcome, settled_at, waits_for)
		SELECT $1, gen_random_uuid(), $2, 'evt_parked_' || n, 'customer.subscription.updated', $4, $4, '{}', 'cus_' || n % 3, 'parked', $4, 'subject'
		FROM generate_series(1, $3::int) AS n`, a.TenantID(), endpoint.ID, events, s.now())
}

func (s *stack) register(a tenants.Actor, customers ...string) {
	s.t.Helper()
	for _, customer := range customers {
		_, _, err := s.store.PutSubject(s.t.Context(), a, tenants.Subject{Subject: "of-" + customer, BillingRef: customer}, tenants.Match{})
		require.NoError(s.t, err)
	}
}

// woken returns the number of events of a tenant that are due, and whether its look for subjects is
// recorded.
func (s *stack) woken(a tenants.Actor) (events int, recorded bool) {
	s.t.Helper()
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		err := conn.QueryRow(ctx, "SELECT count(*) FROM billing_events WHERE tenant_id = $1 AND due_at IS NOT NULL", a.TenantID()).Scan(&events)
		require.NoError(s.t, err)
		err = conn.QueryRow(ctx, `SELECT min(e.looked_at) = min(t.subjects_version) FROM billing_endpoints e JOIN tenants t ON t.id = e.tenant_id
			WHERE t.id = $1`, a.TenantID()).Scan(&recorded)
		require.NoError(s.t, err)
	})
	return events, recorded
}

// Of many events that wait for subjects, some are woken at a time, and the next ones when these are
// processed. Events without a subject are looked at once.
func TestManyWaitingEvents(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.parked(s.endpoint, s.a, 3300)
	s.register(s.a, "cus_0", "cus_2")
	process := func() { // they wait for a subject still
		s.db.Exec("UPDATE billing_events SET due_at = NULL WHERE tenant_id = $1", s.a.TenantID())
	}
	type look struct {
		woken    int
		recorded bool
		more     bool
	}
	var looks []look
	for range 4 {
		more, err := s.lookAtAll()
		require.NoError(t, err)
		events, recorded := s.woken(s.a)
		looks = append(looks, look{events, recorded, more})
		if len(looks) == 1 { // nothing more is woken before
			_, err := s.lookAtAll()
			require.NoError(t, err)
			events, _ := s.woken(s.a)
			require.Equal(t, 1000, events)
		}
		process()
	}
	// 1100 events of each customer
	require.Equal(t, []look{{1000, false, true}, {100, false, true}, {800, false, true}, {300, true, false}}, looks)
	due, err := s.store.DueBilling(t.Context(), 200)
	require.NoError(t, err)
	require.Empty(t, due.Events)
	require.Empty(t, due.Looks)
	require.False(t, due.More)
}

// lookAtAll makes the looks at waiting events that are due. more reports whether there are more
// events to look at. An error is the last one.
func (s *stack) lookAtAll() (more bool, err error) {
	s.t.Helper()
	due, failed := s.store.DueBilling(s.t.Context(), 200)
	require.NoError(s.t, failed)
	for _, look := range due.Looks {
		left, failed := s.store.LookAtBilling(s.t.Context(), look)
		more = more || left
		if failed != nil {
			err = failed
		}
	}
	return more, err
}

// If the events of a tenant cannot be woken, those of others are processed, and its own next time.
func TestEventsOfOthersAreProcessed(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	other, _ := s.db.Tenant("tenant-b")
	endpoint, err := s.store.CreateBillingEndpoint(t.Context(), other, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromMetadata + "user"},
		tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	require.NoError(t, err)
	s.parked(s.endpoint, s.a, 6)
	s.parked(endpoint, other, 6)
	s.register(s.a, "cus_1")
	s.register(other, "cus_1")
	s.db.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`)
	s.db.Exec(fmt.Sprintf("CREATE TRIGGER refuse BEFORE UPDATE ON billing_events FOR EACH ROW WHEN (OLD.tenant_id = '%s') EXECUTE FUNCTION refuse()", s.a.TenantID()))
	_, err = s.lookAtAll()
	require.ErrorContains(t, err, "refused")
	due, err := s.store.DueBilling(t.Context(), 200)
	require.NoError(t, err)
	require.Len(t, due.Events, 2)
	require.Equal(t, other.TenantID(), due.Events[0].Tenant)
	_, recorded := s.woken(s.a)
	require.False(t, recorded)

	s.db.Exec("DROP TRIGGER refuse ON billing_events")
	_, err = s.lookAtAll()
	require.NoError(t, err)
	due, err = s.store.DueBilling(t.Context(), 200)
	require.NoError(t, err)
	require.Len(t, due.Events, 4)
	_, recorded = s.woken(s.a)
	require.True(t, recorded)
}

// A tenant whose notice cannot be recorded stops the notices of nobody else, and neither do more
// endpoints than are looked at in one statement.
func TestNoticesOfOthers(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	for i := range 5 {
		_, _ = s.db.Tenant(fmt.Sprintf("tenant-%d", i))
	}
	s.db.Exec(`INSERT INTO billing_endpoints (tenant_id, id, provider, signing_secrets, signing_secret_hints, subject_from, grace_days, created_at, updated_at, version)
		SELECT id, gen_random_uuid(), 'generic', '', '{}', 'x', 1, $1, $1, 1 FROM tenants, generate_series(1, 30)`, s.now())
	s.db.Exec(`INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, outcome, settled_at)
		SELECT tenant_id, gen_random_uuid(), id, 'evt', 'x', $1, $1, '', 'failed', $1 FROM billing_endpoints`, s.now())
	s.db.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`)
	s.db.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON billing_notices FOR EACH ROW
		WHEN (NEW.tenant_id = '` + s.a.TenantID().String() + `') EXECUTE FUNCTION refuse()`)
	s.pass(time.Minute)
	of := map[uuid.UUID]int{}
	for range 2 {
		sent, err := s.store.RecordBillingNotices(t.Context(), 200)
		require.ErrorContains(t, err, "refused")
		for _, n := range sent {
			of[n.Tenant]++
		}
	}
	require.NotContains(t, of, s.a.TenantID())
	require.GreaterOrEqual(t, len(of), 5)
	for tenant, n := range of {
		require.Equal(t, 30, n, tenant)
	}
}

// A price is mapped however many events wait for one: they are woken in parts, after it. One that
// is mapped meanwhile wakes all of them again.
func TestManyEventsWaitForAPrice(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_late"))))
	s.db.Exec(`INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, customer, subscription, outcome, why, settled_at, waits_for)
		SELECT tenant_id, gen_random_uuid(), endpoint_id, 'evt_copy_' || n, type, provider_at, received_at, body, customer, subscription, outcome, why, settled_at, waits_for
		FROM billing_events, generate_series(1, 2100) AS n`)
	due := func() (n int) {
		s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM billing_events WHERE due_at IS NOT NULL").Scan(&n))
		})
		return n
	}
	look := func() {
		_, err := s.lookAtAll()
		require.NoError(t, err)
	}
	put := func(price string) {
		_, _, err := s.store.PutBillingPrice(t.Context(), s.a, tenants.BillingPrice{Price: price, Plan: "late"}, tenants.Match{})
		require.NoError(t, err)
	}
	put("price_other")
	require.Zero(t, due())
	look()
	require.Equal(t, 1000, due())
	s.db.Exec("UPDATE billing_events SET due_at = NULL") // as if they were processed
	put("price_late")
	for _, want := range []int{1000, 1000, 101, 0} {
		look()
		require.Equal(t, want, due())
		s.db.Exec("UPDATE billing_events SET due_at = NULL")
	}

	put("price_third")
	s.db.Exec("DELETE FROM billing_events WHERE provider_id LIKE 'evt_copy_%' AND provider_id > 'evt_copy_12'")
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, "late", s.plan("ada"))
	waiting, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{Outcome: tenants.EventParked}, tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, waiting)
}
