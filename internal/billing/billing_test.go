package billing_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/billing"
	"weir/internal/limit"
	"weir/internal/subscription"
	"weir/internal/tenants"
)

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

// A customer who pauses, or pays late, keeps the version of the plan that they signed up for. One
// who cancels and returns gets the newest version.
func TestInterruptedSubscriptionsKeepTheirVersion(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{GraceDays: 3, FallbackPlan: "free"}, nil)
	const hour, day = time.Hour, 24 * time.Hour
	minute, err := limit.ParseWindow("1m")
	require.NoError(t, err)
	_, err = s.store.CreateRule(t.Context(), s.a, limit.Rule{Slug: "r", Resource: "*", Algorithm: limit.FixedWindow, Limit: 10, Window: minute, By: []string{"subject"}})
	require.NoError(t, err)
	version := func(subject string) string {
		t.Helper()
		got, err := s.store.SubjectByName(t.Context(), s.a, subject)
		require.NoError(t, err)
		return fmt.Sprint(got.Plan, " ", got.PlanVersion)
	}
	change := func(kind, name, status string) {
		t.Helper()
		s.pass(hour)
		s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription."+kind, sub(name, "cus_1", status, "ada", "price_pro"))))
	}
	change("created", "sub_1", "active")
	require.Equal(t, "pro 1", version("ada"))
	_, err = s.store.PublishPlan(t.Context(), s.a, "pro", map[string]limit.Limit{"r": {Limit: 20}}, tenants.Match{})
	require.NoError(t, err)

	change("paused", "sub_1", "paused")
	require.Equal(t, "free 1", version("ada"))
	change("updated", "sub_1", "paused") // says nothing new
	change("resumed", "sub_1", "active")
	require.Equal(t, "pro 1", version("ada"))

	s.pass(hour)
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.payment_failed", invoice("sub_1"))))
	s.pass(4 * day)
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, "free 1", version("ada"))
	s.pass(hour)
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", invoice("sub_1"))))
	require.Equal(t, "pro 1", version("ada"))

	change("deleted", "sub_1", "canceled")
	require.Equal(t, "free 1", version("ada"))
	change("created", "sub_2", "active")
	require.Equal(t, "pro 2", version("ada"))
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

// Of generic events with the same time, the one that arrived last decides, whatever their ids are:
// also if the earlier one could not be applied. Fractions of a second count.
func TestGenericEventsOfOneSecond(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	at := s.now()
	body := func(subject, plan string, at time.Time) []byte {
		return []byte(`{"type":"subject.plan","subject":"` + subject + `","plan":"` + plan + `","effective_at":"` + at.Format(time.RFC3339Nano) + `"}`)
	}
	for n, first := range []string{"pro", "prro"} {
		subject := []string{"ada", "bob"}[n]
		s.pass(time.Millisecond)
		s.events = 899 + n
		s.send(body(subject, first, at))
		s.pass(time.Millisecond)
		s.events = 99 + n
		s.outcome(tenants.EventApplied, s.send(body(subject, "scale", at)))
		require.Equal(t, "scale", s.plan(subject))
	}
	s.outcome(tenants.EventApplied, s.send(body("cat", "pro", at.Add(2*time.Millisecond))))
	s.pass(time.Millisecond)
	stale := s.send(body("cat", "scale", at.Add(time.Millisecond)))
	s.outcome(tenants.EventStale, stale)
	require.Contains(t, stale.Why, "a newer event of the subject was received before")
	require.Equal(t, "pro", s.plan("cat"))
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
