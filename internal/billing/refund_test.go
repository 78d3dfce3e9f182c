package billing_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/subscription"
	"weir/internal/tenants"
)

// stopSelling deletes the mapping of a price.
func (s *stack) stopSelling(price string) {
	s.t.Helper()
	require.NoError(s.t, s.store.DeleteBillingPrice(s.t.Context(), s.a, price, tenants.Match{}))
}

// replay settles an event again.
func (s *stack) replay(e tenants.BillingEvent) tenants.BillingEvent {
	s.t.Helper()
	e, err := s.runner.Replay(s.t.Context(), s.a, e.ID)
	require.NoError(s.t, err)
	return e
}

// paidWith returns the event that says which payment an invoice has.
func (s *stack) paidWith(invoice string) []byte {
	return s.event("invoice_payment.paid", obj{
		"id": "inpay_" + invoice, "invoice": invoice, "payment": obj{"type": "payment_intent", "payment_intent": "pi_" + invoice},
	})
}

// orders returns all orders of the numbers below n.
func orders(n int) (out [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, shorter := range orders(n - 1) {
		for at := range n {
			order := append(append(append([]int{}, shorter[:at]...), n-1), shorter[at:]...)
			out = append(out, order)
		}
	}
	return out
}

// A refunded invoice leaves no credits, also if it is replayed, in every order of the invoice, its
// payment, the refund and a change of what is mapped to credits.
func TestRefundsAndMappings(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	for n, mapped := range []bool{false, true} {
		for i, order := range orders(4) {
			if mapped {
				s.sellCredits("price_pack", 100, 0)
			}
			id, now, before := fmt.Sprintf("in_%d_%d", n, i), mapped, len(s.credits("ada"))
			var paid tenants.BillingEvent
			for _, action := range order {
				switch {
				case action == 0:
					paid = s.send(s.event("invoice.paid", bill(id, false, nil, "price_pack")))
				case action == 1:
					s.send(s.paidWith(id))
				case action == 2:
					s.send(s.event("charge.refunded", refunded("pi_"+id, true)))
				case now:
					s.stopSelling("price_pack")
					now = false
				default:
					s.sellCredits("price_pack", 100, 0)
					now = true
				}
			}
			if !now {
				s.sellCredits("price_pack", 100, 0)
			}
			s.replay(paid)
			require.NotContains(t, s.credits("ada")[before:], int64(100), "mapped first: %v, order %v", mapped, order)
			s.stopSelling("price_pack")
		}
	}
	// Those that are not refunded are granted.
	paid := s.send(s.event("invoice.paid", bill("in_kept", false, nil, "price_pack")))
	s.outcome(tenants.EventIgnored, s.send(s.paidWith("in_kept")))
	require.Contains(t, s.last().Why, "in_kept")
	s.sellCredits("price_pack", 100, 0)
	before := len(s.credits("ada"))
	s.outcome(tenants.EventApplied, s.replay(paid))
	require.Equal(t, []int64{100}, s.credits("ada")[before:])
}

// An invoice of a subscription that waits for a mapping is granted without a replay when its price
// is mapped to credits, unless it was refunded.
func TestRefundBeforeTheMappingOfASubscription(t *testing.T) {
	for _, back := range []bool{true, false} {
		t.Run(fmt.Sprint(back), func(t *testing.T) {
			s := newStack(t, tenants.BillingEndpoint{}, nil)
			s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pack"))))
			paid := s.send(s.event("invoice.paid", bill("in_1", false, monthly("sub_1"), "price_pack")))
			s.outcome(tenants.EventParked, paid)
			s.send(s.paidWith("in_1"))
			if back {
				s.send(s.event("charge.refunded", refunded("pi_in_1", true)))
			}
			s.pass(time.Hour)
			s.sellCredits("price_pack", 100, 0)
			require.NoError(t, s.runner.Once(t.Context()))
			require.NoError(t, s.runner.Once(t.Context()))
			if back {
				s.outcome(tenants.EventIgnored, s.byID(paid))
				require.Empty(t, s.credits("ada"))
				return
			}
			s.outcome(tenants.EventApplied, s.byID(paid))
			require.Equal(t, []int64{100}, s.credits("ada"))
			s.outcome(tenants.EventApplied, s.send(s.event("charge.refunded", refunded("pi_in_1", true))))
			require.Equal(t, []int64{-1}, s.credits("ada"))
		})
	}
}

// A checkout names its payment itself, so a replay of it knows about the refund.
func TestRefundOfACheckoutBeforeTheMapping(t *testing.T) {
	fake := newFakeStripe(t)
	fake.lines = map[string][]obj{"cs_1": {checkoutLine("li_1", "price_pack", 1)}, "cs_2": {checkoutLine("li_2", "price_pack", 1)}}
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	first := s.send(s.event("checkout.session.completed", checkout("cs_1", nil)))
	second := s.send(s.event("checkout.session.completed", checkout("cs_2", nil)))
	s.send(s.event("charge.refunded", refunded("pi_cs_1", true)))
	s.sellCredits("price_pack", 100, 0)
	s.outcome(tenants.EventIgnored, s.replay(first))
	require.Empty(t, s.credits("ada"))
	s.outcome(tenants.EventApplied, s.replay(second))
	require.Equal(t, []int64{100}, s.credits("ada"))
	s.outcome(tenants.EventApplied, s.send(s.event("charge.refunded", refunded("pi_cs_2", true))))
	require.Equal(t, []int64{-1}, s.credits("ada"))
}

// An invoice of a subscription that has waited for a mapping for longer than payments are noted
// grants nothing: nobody knows any more whether it was refunded, or granted before.
func TestInvoiceThatWaitedTooLong(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pack")))
	paid := s.send(s.event("invoice.paid", bill("in_1", false, monthly("sub_1"), "price_pack")))
	s.outcome(tenants.EventParked, paid)
	s.send(s.paidWith("in_1"))
	s.send(s.event("charge.refunded", refunded("pi_in_1", true)))
	s.pass(300 * 24 * time.Hour)
	s.outcome(tenants.EventParked, s.replay(paid)) // so it is kept
	s.pass(101 * 24 * time.Hour)
	_, err := s.store.PurgeCredits(t.Context())
	require.NoError(t, err)
	s.sellCredits("price_pack", 100, 0)
	require.NoError(t, s.runner.Once(t.Context()))
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventIgnored, s.byID(paid))
	require.Contains(t, s.byID(paid).Why, "so old")
	require.Empty(t, s.credits("ada"))
	// The next one is granted.
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", bill("in_2", false, monthly("sub_1"), "price_pack"))))
	require.Equal(t, []int64{100}, s.credits("ada"))
}

// An id that is too long to be stored makes an event malformed: stored, it would be processed again
// and again, and never be deleted.
func TestPurchasesWithLongIDs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	for name, c := range map[string]struct {
		typ    string
		object obj
	}{
		"the payment of a refund":    {"charge.refunded", refunded(long, true)},
		"the payment of an invoice":  {"invoice_payment.paid", obj{"invoice": "in_1", "payment": obj{"payment_intent": long}}},
		"the invoice of a payment":   {"invoice_payment.paid", obj{"invoice": long, "payment": obj{"payment_intent": "pi_1"}}},
		"an invoice":                 {"invoice.paid", bill(long, false, nil, "price_pack")},
		"an invoice of earlier days": {"invoice.paid", bill("in_1", true, obj{"payment_intent": long}, "price_pack")},
		"a checkout":                 {"checkout.session.completed", checkout("cs_1", obj{"payment_intent": long})},
	} {
		_, err := subscription.ParseStripe(eventAt(start, "evt_1", c.typ, c.object))
		require.ErrorIs(t, err, subscription.ErrMalformed, name)
	}
	_, err := subscription.ParseStripe(eventAt(start, "evt_1", "charge.refunded", refunded(long[1:], true)))
	require.NoError(t, err)
}
