package billing_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"weir/internal/billing"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// sellCredits maps a price to credits of a new rule.
func (s *stack) sellCredits(price string, units int64, days int) {
	s.t.Helper()
	r := limit.NewRule("api")
	r.Algorithm, r.Limit, r.Window = limit.FixedWindow, 5, limit.Window{Duration: limit.Duration{Text: "1h", MS: 3_600_000}}
	if _, err := s.store.CreateRule(s.t.Context(), s.a, r); err != nil {
		var conflict *tenants.ConflictError
		require.ErrorAs(s.t, err, &conflict)
	}
	if !s.endpoint.HasPrices() { // only the rule is needed
		return
	}
	_, _, err := s.store.PutBillingPrice(s.t.Context(), s.a, tenants.BillingPrice{
		Price: price, Credits: &tenants.PriceCredits{Rule: "api", Units: units, ExpiresDays: days},
	}, tenants.Match{})
	require.NoError(s.t, err)
}

// credits returns the open units of a subject's grants, oldest first, and -1 for a revoked one.
func (s *stack) credits(subject string) (out []int64) {
	s.t.Helper()
	list, _, err := s.store.Credits(s.t.Context(), s.a, subject, tenants.Page{})
	require.NoError(s.t, err)
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].RevokedAt != nil {
			out = append(out, -1)
		} else {
			out = append(out, list[i].Balance(s.now()))
		}
	}
	return out
}

// bill returns an invoice with lines of these prices in the newest version of the API, or in a
// version up to 2025-02-24.
func bill(id string, old bool, more obj, prices ...string) obj {
	lines := []obj{}
	for i, price := range prices {
		line := obj{"id": fmt.Sprintf("il_%s_%d", id, i), "amount": 1000, "quantity": 1}
		product := strings.Replace(price, "price", "prod", 1)
		if old {
			line["price"] = obj{"id": price, "product": product}
		} else {
			line["pricing"] = obj{"type": "price_details", "price_details": obj{"price": price, "product": product}}
		}
		lines = append(lines, line)
	}
	out := obj{"id": id, "customer": "cus_1", "metadata": obj{"user": "ada"}, "lines": obj{"data": lines, "has_more": false}}
	for name, value := range more {
		out[name] = value
	}
	return out
}

func checkout(id string, more obj) obj {
	out := obj{"id": id, "mode": "payment", "payment_status": "paid", "payment_intent": "pi_" + id, "customer": nil, "metadata": obj{"user": "ada"}}
	for name, value := range more {
		out[name] = value
	}
	return out
}

func refunded(payment string, all bool) obj {
	return obj{"id": "ch_1", "payment_intent": payment, "customer": "cus_1", "refunded": all}
}

// A paid invoice grants the credits of each line whose price or product stands for credits, once.
func TestPurchasesByInvoice(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.outcome(tenants.EventIgnored, s.send(s.event("invoice.paid", bill("in_0", false, nil, "price_pack"))))
	s.sellCredits("price_pack", 5000, 30)
	s.sellCredits("prod_large", 20_000, 0)

	paid := s.event("invoice.paid", bill("in_1", false, nil, "price_pack", "price_shirt"))
	s.outcome(tenants.EventApplied, s.send(paid))
	require.Equal(t, "5000 credits for api", s.last().Why)
	require.Equal(t, "ada", s.last().Subject)
	require.Equal(t, []int64{5000}, s.credits("ada"))
	list, _, err := s.store.Credits(t.Context(), s.a, "ada", tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, "in_1/il_in_1_0", list[0].Reference)
	require.Equal(t, start.AddDate(0, 0, 30), list[0].ExpiresAt.UTC())
	require.Contains(t, list[0].CreatedBy, "evt_0002")
	require.False(t, s.receive(paid))
	s.outcome(tenants.EventDuplicate, s.send(s.event("invoice.payment_succeeded", bill("in_1", false, nil, "price_pack"))))
	require.Equal(t, []int64{5000}, s.credits("ada"))

	// Also after the mapping has changed.
	s.sellCredits("price_pack", 7000, 0)
	s.outcome(tenants.EventDuplicate, s.send(s.event("invoice.payment_succeeded", bill("in_1", false, nil, "price_pack"))))

	// An older version of the API, a quantity, a product; a proration, a credit, a trial and a line
	// without a quantity sell nothing.
	lines := bill("in_2", true, nil, "price_large", "price_large", "price_large", "price_large", "price_large")
	data := lines["lines"].(obj)["data"].([]obj)
	data[0]["quantity"], data[1]["proration"], data[2]["amount"], data[3]["amount"], data[4]["quantity"] = 3, true, -1000, 0, 0
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", lines)))
	require.Equal(t, []int64{5000, 60_000}, s.credits("ada"))
	s.outcome(tenants.EventIgnored, s.send(s.event("invoice.paid", bill("in_3", false, nil, "price_shirt"))))
	require.Contains(t, s.last().Why, "price_shirt")

	// A subscription whose price stands for credits: each paid invoice of it grants them.
	s.outcome(tenants.EventIgnored, s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pack"))))
	monthly := obj{"parent": obj{"subscription_details": obj{"subscription": "sub_1"}}, "metadata": nil}
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", bill("in_4", false, monthly, "price_pack"))))
	require.Equal(t, []int64{5000, 60_000, 7000}, s.credits("ada"))
	require.Empty(t, s.plan("ada"))
	// Its plan and the credits at once.
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.updated", sub("sub_1", "cus_1", "active", "ada", "price_pack", "price_pro"))))
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", bill("in_5", false, monthly, "price_pro", "price_pack"))))
	require.Equal(t, []int64{5000, 60_000, 7000, 7000}, s.credits("ada"))
	require.Equal(t, "pro", s.plan("ada"))

	// The customer is not known yet.
	s.outcome(tenants.EventParked, s.send(s.event("invoice.paid", bill("in_6", false, obj{"customer": "cus_6", "metadata": nil}, "price_pack"))))
	s.send(s.event("customer.updated", obj{"id": "cus_6", "metadata": obj{"user": "bob"}}))
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, []int64{7000}, s.credits("bob"))
	// A quantity beyond all bounds is not cut.
	lines = bill("in_7", false, nil, "price_pack")
	lines["lines"].(obj)["data"].([]obj)[0]["quantity"] = int64(1) << 62
	s.outcome(tenants.EventFailed, s.send(s.event("invoice.paid", lines)))

	// The grants of an event this old may have been deleted.
	s.pass(401 * 24 * time.Hour)
	s.outcome(tenants.EventIgnored, s.send(eventAt(start, "evt_old", "invoice.paid", bill("in_1", false, nil, "price_pack"))))
	require.Len(t, s.credits("ada"), 4)

	require.Error(t, s.store.DeleteRule(t.Context(), s.a, "api", tenants.Match{}), "a price grants credits for it")
}

// A paid checkout grants credits if its lines can be fetched, or else waits until they can.
func TestPurchasesByCheckout(t *testing.T) {
	fake := newFakeStripe(t)
	fake.lines = map[string][]obj{
		"cs_1": {checkoutLine("li_1", "price_pack", 2)}, "cs_2": {checkoutLine("li_2", "price_pack", 1)}, "in_9": {invoiceLine("il_9", "price_pack")},
	}
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	s.sellCredits("price_pack", 100, 0)

	s.outcome(tenants.EventIgnored, s.send(s.event("checkout.session.completed", checkout("cs_1", obj{"payment_status": "unpaid"}))))
	s.outcome(tenants.EventApplied, s.send(s.event("checkout.session.async_payment_succeeded", checkout("cs_1", nil))))
	require.Equal(t, []int64{200}, s.credits("ada"))
	s.outcome(tenants.EventDuplicate, s.send(s.event("checkout.session.completed", checkout("cs_1", nil))))
	for name, other := range map[string]obj{
		"an invoice grants them": {"invoice": "in_1"}, "an invoice will grant them": {"invoice_creation": obj{"enabled": true}},
		"a subscription": {"mode": "subscription"}, "no payment": {"mode": "setup"},
	} {
		s.outcome(tenants.EventIgnored, s.send(s.event("checkout.session.completed", checkout("cs_2", other))))
		require.Equal(t, []int64{200}, s.credits("ada"), name)
	}
	// Whose it is, is not said at all.
	s.outcome(tenants.EventParked, s.send(s.event("checkout.session.completed", checkout("cs_2", obj{"metadata": nil}))))

	// While the provider is unavailable, the purchase waits. A retry grants it.
	fake.set(func(f *fakeStripe) { f.broken = true })
	s.outcome(tenants.EventParked, s.send(s.event("checkout.session.completed", checkout("cs_2", nil))))
	fake.set(func(f *fakeStripe) { f.broken = false })
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventParked, s.last())
	s.pass(time.Minute)
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventApplied, s.last())
	require.Equal(t, []int64{200, 100}, s.credits("ada"))

	// Events have at most ten lines of an invoice.
	long := bill("in_9", false, nil, "price_shirt")
	long["lines"].(obj)["has_more"] = true
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", long)))
	require.Equal(t, []int64{200, 100, 100}, s.credits("ada"))

	// Without an API key, the reason says what to do. A key applies what waits.
	none := ""
	edit := func(key *string) {
		_, err := s.store.EditBillingEndpoint(t.Context(), s.a, s.endpoint.ID, tenants.Match{}, func(*tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
			return tenants.BillingSecrets{APIKey: key}, nil
		})
		require.NoError(t, err)
	}
	edit(&none)
	fake.set(func(f *fakeStripe) {
		f.lines["cs_3"] = []obj{checkoutLine("li_3", "price_pack", 1)}
	})
	s.outcome(tenants.EventParked, s.send(s.event("checkout.session.completed", checkout("cs_3", nil))))
	require.Contains(t, s.last().Why, "api_key")
	edit(&fake.key)
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventApplied, s.last())
	require.Equal(t, []int64{200, 100, 100, 100}, s.credits("ada"))
}

// In every order of the events, a refunded purchase leaves no credits, and a partial refund changes
// nothing.
func TestRefunds(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.sellCredits("price_pack", 100, 0)
	paid := func(id string, old bool) []byte {
		more := obj{}
		if old {
			more["payment_intent"] = "pi_" + id
		}
		return s.event("invoice.paid", bill(id, old, more, "price_pack"))
	}
	link := func(id string) []byte {
		return s.event("invoice_payment.paid", obj{"id": "inpay_1", "invoice": id, "payment": obj{"type": "payment_intent", "payment_intent": "pi_" + id}})
	}
	refund := func(id string) []byte { return s.event("charge.refunded", refunded("pi_"+id, true)) }

	// Up to 2025-02-24, an invoice says how it was paid.
	s.send(paid("in_1", true))
	s.outcome(tenants.EventIgnored, s.send(s.event("charge.refunded", refunded("pi_in_1", false))))
	require.Equal(t, []int64{100}, s.credits("ada"))
	s.outcome(tenants.EventApplied, s.send(refund("in_1")))
	require.Contains(t, s.last().Why, "100 of 100 credits for api taken back")
	require.Equal(t, []int64{-1}, s.credits("ada"))
	s.outcome(tenants.EventIgnored, s.send(refund("in_2")))
	s.outcome(tenants.EventIgnored, s.send(paid("in_2", true)))
	require.Equal(t, []int64{-1}, s.credits("ada"), "the refund arrived first")

	// Since 2025-03-31, another event does.
	orders := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for i, order := range orders {
		id := fmt.Sprintf("in_%d", 10+i)
		before := len(s.credits("ada"))
		for _, event := range order {
			s.send([]func() []byte{func() []byte { return paid(id, false) }, func() []byte { return link(id) }, func() []byte { return refund(id) }}[event]())
		}
		left := s.credits("ada")[before:]
		require.NotContains(t, left, int64(100), "order %v", order)
	}
	s.send(paid("in_20", false))
	require.Equal(t, int64(100), s.credits("ada")[len(s.credits("ada"))-1], "others stay")

	// Payments are kept as long as the grants of their purchases, but not for less than 400 days.
	s.send(paid("in_30", true))
	payments := func() (names []string) {
		_, err := s.store.PurgeCredits(t.Context())
		require.NoError(t, err)
		s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
			rows, _ := conn.Query(ctx, "SELECT payment FROM billing_payments ORDER BY payment")
			names, err = pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
		})
		return names
	}
	require.Len(t, payments(), 2+len(orders)+1)
	s.pass(401 * 24 * time.Hour)
	require.Equal(t, []string{"pi_in_30"}, payments())
}

// A purchase whose event was lost grants its credits when the endpoint is compared with Stripe. One
// whose event arrived is not granted again. Nothing changes in a dry run, and plans are compared
// also if the key may not read events.
func TestReconcileRecoversPurchases(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	ctx := t.Context()
	reconcile := func(dryRun bool) billing.Summary {
		t.Helper()
		e, err := s.store.BillingEndpointByID(ctx, s.a, s.endpoint.ID)
		require.NoError(t, err)
		sum, err := s.runner.Reconcile(ctx, s.a.TenantID(), e, dryRun, nil)
		require.NoError(t, err)
		require.NoError(t, s.runner.Once(ctx))
		return sum
	}
	paid := func(id string) []byte {
		s.pass(time.Minute)
		body := s.event("invoice.paid", bill(id, false, obj{"metadata": obj{"user": "ada"}}, "price_pack"))
		fake.set(func(f *fakeStripe) { f.events = append([]json.RawMessage{body}, f.events...) })
		return body
	}
	paid("in_before")
	require.Zero(t, reconcile(false).Recovered, "nothing is sold yet")
	s.sellCredits("price_pack", 100, 0)
	s.pass(time.Minute)
	s.outcome(tenants.EventApplied, s.send(paid("in_1")))
	paid("in_2") // its event is lost
	other := s.event("customer.created", obj{"id": "cus_1"})
	fake.set(func(f *fakeStripe) { f.events = append([]json.RawMessage{other}, f.events...) })
	require.Equal(t, []int64{100}, s.credits("ada"))

	require.Equal(t, 2, reconcile(true).Recovered)
	require.Equal(t, []int64{100}, s.credits("ada"))
	fake.set(func(f *fakeStripe) { f.noEvents = true })
	fake.put("sub_1", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "ada"}, "price_pro")
	sum := reconcile(false)
	require.ErrorContains(t, sum.PurchasesErr, "403")
	require.Equal(t, "pro", s.plan("ada"))
	fake.set(func(f *fakeStripe) { f.noEvents = false })
	require.Equal(t, 2, reconcile(false).Recovered, "also those from before the mapping")
	require.Equal(t, []int64{100, 100, 100}, s.credits("ada"))
	require.Zero(t, reconcile(false).Recovered)
	require.Equal(t, []int64{100, 100, 100}, s.credits("ada"))
	lost, _, err := s.store.BillingEvents(ctx, s.a, tenants.BillingEventFilter{Type: "invoice.paid"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, lost, 3)
	for _, e := range lost {
		s.outcome(tenants.EventApplied, e)
	}

	// The daily comparison asks for the time since the last one of purchases.
	at := s.now()
	s.pass(10 * 24 * time.Hour)
	e, err := s.store.BillingEndpointByID(ctx, s.a, s.endpoint.ID)
	require.NoError(t, err)
	_, since, err := s.store.PurchasesSince(ctx, s.a.TenantID(), e, false)
	require.NoError(t, err)
	require.Equal(t, start, since, "not before the endpoint was created")
	require.NotNil(t, e.PurchasesComparedAt)
	require.True(t, e.PurchasesComparedAt.Equal(at))
	s.pass(25 * 24 * time.Hour)
	for all, want := range map[bool]time.Time{true: s.now().Add(-30 * 24 * time.Hour), false: s.now().Add(-30 * 24 * time.Hour)} {
		_, since, err := s.store.PurchasesSince(ctx, s.a.TenantID(), e, all)
		require.NoError(t, err)
		require.Equal(t, want, since)
	}
	recent := s.now().Add(-24 * time.Hour)
	e.PurchasesComparedAt = &recent
	_, since, err = s.store.PurchasesSince(ctx, s.a.TenantID(), e, false)
	require.NoError(t, err)
	require.Equal(t, recent.Add(-72*time.Hour), since)
}

// A checkout says for whom it is, also if others have subscriptions of the customer.
func TestCheckoutOfACustomerWithSubscriptions(t *testing.T) {
	fake := newFakeStripe(t)
	fake.lines = map[string][]obj{"cs_9": {checkoutLine("li_1", "price_pack", 1)}}
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, fake)
	s.sellCredits("price_pack", 5000, 30)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "bob", "price_pro"))))
	require.Equal(t, "pro", s.plan("bob"))
	s.pass(time.Hour)
	e := s.send(s.event("checkout.session.completed", checkout("cs_9", obj{"customer": "cus_1"})))
	s.outcome(tenants.EventApplied, e)
	require.Equal(t, []int64{5000}, s.credits("ada"))
	require.Empty(t, s.credits("bob"))
}
