package billing_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/billing"
	"weir/internal/subscription"
	"weir/internal/tenants"
)

// settle processes one part of the newest event, as the runner does.
func (s *stack) settle() tenants.BillingEvent {
	s.t.Helper()
	work, err := s.store.BillingWork(s.t.Context(), s.a.TenantID(), s.last().ID)
	require.NoError(s.t, err)
	out, err := s.store.SettleBillingEvent(s.t.Context(), work, s.a.TenantID(), nil, "")
	require.NoError(s.t, err)
	return out
}

// copies stores n more subscriptions like the only one of cus_1.
func (s *stack) copies(n int) {
	s.db.Exec(`INSERT INTO billing_subscriptions (tenant_id, endpoint_id, subscription, customer, subject, state, due_at, updated_at)
		SELECT tenant_id, endpoint_id, 'sub_' || to_char(n, 'FM0000'), customer, subject, state, due_at, updated_at
		FROM billing_subscriptions, generate_series(1, $1::int) AS n WHERE customer = 'cus_1'`, n)
}

// subjectsOf returns how many subscriptions each subject has.
func (s *stack) subjectsOf() map[string]int {
	s.t.Helper()
	out := map[string]int{}
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, "SELECT subject, count(*)::int FROM billing_subscriptions GROUP BY subject")
		require.NoError(s.t, err)
		var subject string
		var n int
		_, err = pgx.ForEachRow(rows, []any{&subject, &n}, func() error { out[subject] = n; return nil })
		require.NoError(s.t, err)
	})
	return out
}

// An event about a customer with many subscriptions is processed in parts, whose size does not
// depend on their number. It stays due until the last one.
func TestCustomerWithManySubscriptions(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, nil)
	s.send(s.event("customer.updated", obj{"id": "cus_1", "metadata": obj{"user": "ada"}}))
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_0000", "cus_1", "active", "", "price_pro"))))
	s.copies(119)
	s.pass(time.Minute)
	s.receive(s.event("customer.updated", obj{"id": "cus_1", "metadata": obj{"user": "bob"}}))
	for _, bob := range []int{50, 100} {
		e := s.settle()
		s.outcome(tenants.EventParked, e)
		require.Contains(t, e.Why, "in parts")
		require.Equal(t, map[string]int{"ada": 120 - bob, "bob": bob}, s.subjectsOf())
		require.Equal(t, []string{"pro", "pro"}, []string{s.plan("ada"), s.plan("bob")}, "both have subscriptions")
	}
	s.outcome(tenants.EventApplied, s.settle())
	require.Equal(t, map[string]int{"bob": 120}, s.subjectsOf())
	require.Equal(t, []string{"free", "pro"}, []string{s.plan("ada"), s.plan("bob")})

	// A newer event begins again, and the older one continues with the newer facts.
	s.pass(time.Minute)
	s.receive(s.event("customer.updated", obj{"id": "cus_1", "metadata": obj{"user": "cy"}}))
	older := s.settle()
	s.outcome(tenants.EventParked, older)
	s.pass(time.Minute)
	s.outcome(tenants.EventParked, s.send1(s.event("customer.updated", obj{"id": "cus_1", "metadata": obj{"user": "dot"}})))
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventApplied, s.last())
	older, err := s.store.BillingEventByID(t.Context(), s.a, older.ID)
	require.NoError(t, err)
	s.outcome(tenants.EventApplied, older)
	require.Equal(t, map[string]int{"dot": 120}, s.subjectsOf())
	require.Equal(t, []string{"free", "pro"}, []string{s.plan("bob"), s.plan("dot")})

	// The whole once more, because somebody asks for it.
	s.db.Exec("UPDATE billing_subscriptions SET subject = 'bob'")
	replayed, err := s.runner.Replay(t.Context(), s.a, s.last().ID)
	require.NoError(t, err)
	s.outcome(tenants.EventParked, replayed)
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventApplied, s.last())
	require.Equal(t, map[string]int{"dot": 120}, s.subjectsOf())
}

// send1 stores an event, and processes one part of it.
func (s *stack) send1(body []byte) tenants.BillingEvent {
	s.t.Helper()
	s.receive(body)
	return s.settle()
}

// All events that wait for a customer are due when it is known, however many there are.
func TestCustomerWithManyWaitingEvents(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "", "price_pro"))))
	s.db.Exec(`INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, customer, subscription, outcome, why, settled_at, waits_for)
		SELECT tenant_id, gen_random_uuid(), endpoint_id, 'evt_copy_' || n, type, provider_at, received_at, body, customer, subscription, outcome, why, settled_at, waits_for
		FROM billing_events, generate_series(1, 1200) AS n`)
	waiting := func() (n int) {
		s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM billing_events WHERE waits_for = 'subject' AND due_at IS NULL").Scan(&n))
		})
		return n
	}
	s.pass(time.Minute)
	body := s.event("customer.updated", obj{"id": "cus_1", "metadata": obj{"user": "ada"}})
	s.receive(body)
	var event tenants.BillingEvent
	list, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{Type: "customer.updated"}, tenants.Page{})
	require.NoError(t, err)
	for _, left := range []int{1201 - 1000 - 20, 0} { // of the customer, and of the subscription
		work, err := s.store.BillingWork(t.Context(), s.a.TenantID(), list[0].ID)
		require.NoError(t, err)
		event, err = s.store.SettleBillingEvent(t.Context(), work, s.a.TenantID(), nil, "")
		require.NoError(t, err)
		require.Equal(t, left, waiting())
	}
	s.outcome(tenants.EventApplied, event)
	require.Equal(t, "pro", s.plan("ada"))
}

// An event that Postgres does not process in time is not processed again at once, and neither is a
// subscription: both would take the same time.
func TestTasksThatTakeTooLong(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	hurried := s.db.Open(tenants.Config{Now: s.now, Operation: time.Second})
	s.outcome(tenants.EventApplied, s.send([]byte(`{"type":"subject.plan","subject":"ada","plan":"pro"}`)))
	s.pass(time.Minute)
	s.db.Exec("UPDATE billing_subscriptions SET due_at = $1", s.now())
	s.receive([]byte(`{"type":"subject.plan","subject":"ada","plan":"scale"}`))
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = tx.Exec(ctx, "SELECT FROM tenants FOR UPDATE")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		require.NoError(t, billing.New(billing.Options{Store: hurried}).Once(ctx), "nothing is due any more")
	})
	require.Equal(t, "pro", s.plan("ada"))
	s.pass(time.Minute)
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, "scale", s.plan("ada"))
}

// A subject of a customer that cannot be written keeps none of the others from its plan.
func TestCustomerWithASubjectThatCannotBeWritten(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, nil)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_0000", "cus_1", "active", "ada", "price_pro"))))
	s.copies(119)
	s.db.Exec(`UPDATE billing_subscriptions SET subject = '', state = jsonb_set(state, '{newest,metadata,user}', to_jsonb('u' || subscription)) WHERE subscription <> 'sub_0000'`)
	s.db.Exec(`UPDATE billing_subscriptions SET state = jsonb_set(state, '{newest,metadata,user}', to_jsonb(repeat('x', 300))) WHERE subscription = 'sub_0001'`)
	s.pass(time.Minute)
	e := s.send(s.event("customer.updated", obj{"id": "cus_1", "metadata": obj{"team": "red"}}))
	s.outcome(tenants.EventFailed, e)
	require.Equal(t, strings.Repeat("x", 300), e.Subject)
	require.Contains(t, e.Why, "subject")
	for n := 2; n < 120; n++ {
		require.Equal(t, "pro", s.plan(fmt.Sprintf("usub_%04d", n)))
	}
}

// Facts that are fetched during an event of a customer are those of all subscriptions.
func TestCustomerFetchedDuringItsEvent(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, nil)
	s.send(s.event("customer.updated", obj{"id": "cus_1", "metadata": obj{"user": "ada"}}))
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_0000", "cus_1", "active", "", "price_pro"))))
	s.copies(119)
	s.pass(time.Minute)
	s.outcome(tenants.EventParked, s.send1(s.event("customer.updated", obj{"id": "cus_1", "metadata": obj{"user": "bob"}})))
	require.Equal(t, map[string]int{"ada": 70, "bob": 50}, s.subjectsOf())

	s.pass(time.Minute)
	s.receive(s.event("customer.subscription.updated", sub("sub_0100", "cus_1", "active", "", "price_pro")))
	work, err := s.store.BillingWork(t.Context(), s.a.TenantID(), s.last().ID)
	require.NoError(t, err)
	fetched := &subscription.Fetched{ID: "sub_0100", Metadata: map[string]string{"user": "cy"}, Snapshot: &subscription.Snapshot{
		At: s.now().Unix(), Rank: 1, Event: subscription.FetchedEvent, Status: subscription.Active, Customer: "cus_1",
		Items: []subscription.Item{{Price: "price_pro", Quantity: 1}},
	}}
	_, err = s.store.SettleBillingEvent(t.Context(), work, s.a.TenantID(), fetched, "")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"ada": 69, "bob": 50, "cy": 1}, s.subjectsOf())
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, map[string]int{"cy": 120}, s.subjectsOf())
}

// A subject with more subscriptions than can be read, in number or bytes, fails the event, which
// says so, instead of taking the memory for them.
func TestSubscriptionsOfASubjectAreBounded(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, nil)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_0000", "cus_1", "active", "ada", "price_pro"))))
	s.copies(4998)
	settled := func(id string) tenants.BillingEvent {
		s.pass(time.Minute)
		return s.send(s.event("customer.subscription.updated", sub(id, "cus_new", "active", "ada", "price_pro")))
	}
	s.outcome(tenants.EventApplied, settled("sub_new"))
	many := settled("sub_newer")
	s.outcome(tenants.EventFailed, many)
	require.Contains(t, many.Why, "more than 5000 subscriptions")

	s.db.Exec("DELETE FROM billing_subscriptions WHERE subscription > 'sub_0150'")
	s.outcome(tenants.EventApplied, settled("sub_newest"))
	s.db.Exec(`UPDATE billing_subscriptions SET state = jsonb_set(state, '{newest,metadata,pad}', to_jsonb(repeat('a', 120000)))`) // from releases before
	large := settled("sub_last")
	s.outcome(tenants.EventFailed, large)
	require.Contains(t, large.Why, "more than 16 MiB")
}

// The end of a grace period is not lost if the plan cannot be changed: it is tried again.
func TestGraceEndsWithManySubscriptions(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free", GraceDays: 3}, nil)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_0000", "cus_1", "active", "ada", "price_pro"))))
	require.Equal(t, "pro", s.plan("ada"))
	s.pass(time.Hour)
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.payment_failed", invoice("sub_0000"))))
	s.db.Exec(`INSERT INTO billing_subscriptions (tenant_id, endpoint_id, subscription, customer, subject, state, due_at, updated_at)
		SELECT tenant_id, endpoint_id, 'sub_' || to_char(n, 'FM0000'), customer, subject,
			jsonb_build_object('newest', jsonb_set(state->'newest', '{status}', '"incomplete"')), NULL, updated_at
		FROM billing_subscriptions, generate_series(1, 5000) AS n WHERE customer = 'cus_1'`)
	require.Len(t, s.gracePeriods("ada"), 1)
	s.pass(4 * 24 * time.Hour)
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, "pro", s.plan("ada"))
	require.Len(t, s.gracePeriods("ada"), 1, "it is shown, and tried again")
	s.db.Exec("DELETE FROM billing_subscriptions WHERE subscription > 'sub_0000'")
	s.pass(24 * time.Hour)
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, "free", s.plan("ada"), "later, with one subscription")
}
