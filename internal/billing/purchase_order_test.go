package billing_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"weir/internal/billing"
	"weir/internal/tenants"
)

// monthly returns the fields of an invoice of a subscription of cus_1 without metadata of its own.
func monthly(subscription string) obj {
	return obj{"parent": obj{"subscription_details": obj{"subscription": subscription}}, "metadata": nil}
}

// byID returns an event as it is now.
func (s *stack) byID(e tenants.BillingEvent) tenants.BillingEvent {
	s.t.Helper()
	now, err := s.store.BillingEventByID(s.t.Context(), s.a, e.ID)
	require.NoError(s.t, err)
	return now
}

// An invoice grants its credits to the subject of its subscription in every order of the events:
// not to another subject that pays as the same customer.
func TestInvoiceBeforeItsSubscription(t *testing.T) {
	for _, known := range []bool{true, false} {
		for _, order := range [][]int{{0, 1}, {1, 0}} {
			t.Run(fmt.Sprint(known, order), func(t *testing.T) {
				s := newStack(t, tenants.BillingEndpoint{}, nil)
				s.sellCredits("price_pack", 5000, 0)
				if known {
					s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pro")))
				}
				events := [][]byte{
					s.event("customer.subscription.created", sub("sub_2", "cus_1", "active", "bob", "price_pack")),
					s.event("invoice.paid", bill("in_1", false, monthly("sub_2"), "price_pack")),
				}
				var got []tenants.BillingEvent
				for _, i := range order {
					got = append(got, s.send(events[i]))
				}
				if order[0] == 1 {
					s.outcome(tenants.EventParked, got[0])
					require.Empty(t, got[0].Subject)
					require.Contains(t, got[0].Why, "sub_2")
				}
				bill := s.byID(got[1-order[0]])
				s.outcome(tenants.EventApplied, bill)
				require.Equal(t, "bob", bill.Subject)
				require.Equal(t, []int64{5000}, s.credits("bob"))
				require.Empty(t, s.credits("ada"))
				if known {
					require.Equal(t, "pro", s.plan("ada"))
				}
				require.Empty(t, s.plan("bob"))
			})
		}
	}
}

// While the provider does not answer, an invoice waits for its subscription. It is granted when the
// provider answers, or the event of the subscription arrives.
func TestInvoiceOfASubscriptionThatCannotBeFetched(t *testing.T) {
	for _, arrives := range []bool{true, false} {
		t.Run(fmt.Sprint(arrives), func(t *testing.T) {
			fake := newFakeStripe(t)
			s := newStack(t, tenants.BillingEndpoint{}, fake)
			s.sellCredits("price_pack", 5000, 0)
			fake.put("sub_2", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "bob"}, "price_pack")
			s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pro")))
			fake.set(func(f *fakeStripe) { f.broken = true })
			e := s.send(s.event("invoice.paid", bill("in_1", false, monthly("sub_2"), "price_pack")))
			s.outcome(tenants.EventParked, e)
			require.Contains(t, e.Why, "requested again")
			fake.set(func(f *fakeStripe) { f.broken = false })
			if arrives {
				s.send(s.event("customer.subscription.created", sub("sub_2", "cus_1", "active", "bob", "price_pack")))
			} else {
				s.pass(time.Minute)
				require.NoError(t, s.runner.Once(t.Context()))
			}
			s.outcome(tenants.EventApplied, s.byID(e))
			require.Equal(t, []int64{5000}, s.credits("bob"))
			require.Empty(t, s.credits("ada"))
		})
	}
}

// An invoice whose subscription never arrives stays parked, and an administrator is told. A
// comparison with the provider finds the subscription.
func TestInvoiceWhoseSubscriptionIsLost(t *testing.T) {
	fake := newFakeStripe(t)
	s := newStack(t, tenants.BillingEndpoint{}, fake)
	s.sellCredits("price_pack", 5000, 0)
	s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pro")))
	e := s.send(s.event("invoice.paid", bill("in_1", false, monthly("sub_2"), "price_pack")))
	s.outcome(tenants.EventParked, e)
	require.Contains(t, e.Why, "the provider does not know it")
	s.pass(48 * time.Hour)
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventParked, s.byID(e))
	sent, err := s.store.RecordBillingNotices(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, sent, 1)
	require.EqualValues(t, 1, sent[0].Parked)
	require.Empty(t, s.credits("ada"))
	replayed, err := s.runner.Replay(t.Context(), s.a, e.ID)
	require.NoError(t, err)
	s.outcome(tenants.EventParked, replayed)

	fake.put("sub_2", "cus_1", stripe.SubscriptionStatusActive, map[string]string{"user": "bob"}, "price_pack")
	_, err = s.runner.Reconcile(t.Context(), s.a.TenantID(), s.endpoint, false, func(billing.Summary, tenants.ReconcileResult) {})
	require.NoError(t, err)
	require.NoError(t, s.runner.Once(t.Context()))
	s.outcome(tenants.EventApplied, s.byID(e))
	require.Equal(t, []int64{5000}, s.credits("bob"))
	require.Empty(t, s.credits("ada"))
}

// The subject of a customer gets the credits of every invoice at once if the endpoint takes
// subjects from customers: the subscription says nothing else.
func TestInvoiceBeforeItsSubscriptionByCustomer(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{SubjectFrom: tenants.FromCustomer}, nil)
	s.sellCredits("price_pack", 5000, 0)
	s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", bill("in_1", false, monthly("sub_2"), "price_pack"))))
	require.Equal(t, []int64{5000}, s.credits("cus_1"))
}

// A payment that arrives before its subscription takes no plan from the subject that is registered
// with the customer.
func TestPaymentBeforeTheSubscriptionOfAnother(t *testing.T) {
	for _, earlier := range []bool{false, true} {
		t.Run(fmt.Sprint(earlier), func(t *testing.T) {
			s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, nil)
			_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: "ada", Plan: "scale", BillingRef: "cus_1"}, tenants.Match{})
			require.NoError(t, err)
			s.send(s.event("invoice.payment_failed", invoice("sub_2")))
			if earlier { // an earlier release gave it to the subject
				s.db.Exec("UPDATE billing_subscriptions SET subject = 'ada'")
				s.send(s.event("invoice.payment_failed", invoice("sub_2")))
			}
			s.pass(time.Second)
			s.outcome(tenants.EventApplied, s.send(s.event("customer.subscription.created", sub("sub_2", "cus_1", "active", "bob", "price_pro"))))
			require.Equal(t, "pro", s.plan("bob"))
			require.Equal(t, "scale", s.plan("ada"))
		})
	}
}

// An invoice that arrives before the checkout that says whose it is waits for that, but not for
// long: there may be none.
func TestInvoiceBeforeItsCheckout(t *testing.T) {
	for name, c := range map[string]struct {
		from         string
		subscription bool
		says         obj
	}{
		"reference, subscription": {tenants.FromReference, true, obj{"client_reference_id": "bob"}},
		"reference, invoice":      {tenants.FromReference, false, obj{"client_reference_id": "bob"}},
		"metadata, subscription":  {tenants.FromMetadata + "user", true, obj{"metadata": obj{"user": "bob"}}},
		"metadata, invoice":       {tenants.FromMetadata + "user", false, obj{"metadata": obj{"user": "bob"}}},
	} {
		for _, arrives := range []bool{true, false} {
			t.Run(fmt.Sprint(name, arrives), func(t *testing.T) {
				s := newStack(t, tenants.BillingEndpoint{SubjectFrom: c.from}, nil)
				s.sellCredits("price_pack", 5000, 0)
				link := func(user string) []byte {
					out := obj{"id": "cs_1", "mode": "subscription", "customer": "cus_1"}
					for key := range c.says {
						out[key] = map[string]any{"client_reference_id": user, "metadata": obj{"user": user}}[key]
					}
					return s.event("checkout.session.completed", out)
				}
				s.send(link("ada"))
				s.pass(time.Hour)
				more := obj{"metadata": nil}
				if c.subscription {
					more = monthly("sub_2")
					created := sub("sub_2", "cus_1", "active", "", "price_pack")
					created["created"] = s.now().Unix()
					s.send(s.event("customer.subscription.created", created))
				}
				e := s.send(s.event("invoice.paid", bill("in_1", false, more, "price_pack")))
				s.outcome(tenants.EventParked, e)
				want := "bob"
				if arrives {
					s.pass(time.Second)
					s.send(link("bob"))
				} else { // the newest one that is known decides
					want = "ada"
					s.pass(time.Minute)
					require.NoError(t, s.runner.Once(t.Context()))
				}
				s.outcome(tenants.EventApplied, s.byID(e))
				require.Equal(t, []int64{5000}, s.credits(want))
				require.Equal(t, want, s.byID(e).Subject)
				// The next one of the subscription does not wait.
				if c.subscription {
					s.pass(31 * 24 * time.Hour)
					s.outcome(tenants.EventApplied, s.send(s.event("invoice.paid", bill("in_2", false, more, "price_pack"))))
				}
			})
		}
	}
}

// An invoice that waits for its checkout does so although a price of its subscription is not
// mapped, and is then granted.
func TestInvoiceBeforeItsCheckoutWithAnotherPrice(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{SubjectFrom: tenants.FromReference}, nil)
	s.sellCredits("price_pack", 5000, 0)
	s.send(s.event("checkout.session.completed", obj{"id": "cs_1", "mode": "subscription", "customer": "cus_1", "client_reference_id": "ada"}))
	s.pass(time.Hour)
	created := sub("sub_2", "cus_1", "active", "", "price_support")
	created["created"] = s.now().Unix()
	s.send(s.event("customer.subscription.created", created))
	e := s.send(s.event("invoice.paid", bill("in_1", false, monthly("sub_2"), "price_pack")))
	s.outcome(tenants.EventParked, e)
	s.pass(time.Minute)
	require.NoError(t, s.runner.Once(t.Context()))
	require.Equal(t, []int64{5000}, s.credits("ada"))
}

// An invoice of a subscription that names nobody yet is granted when the subscription does, also if
// no plan follows from it.
func TestInvoiceBeforeTheNameOfItsSubscription(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.sellCredits("price_pack", 5000, 0)
	s.send(s.event("customer.subscription.created", sub("sub_2", "cus_1", "active", "", "price_pack")))
	e := s.send(s.event("invoice.paid", bill("in_1", false, monthly("sub_2"), "price_pack")))
	s.outcome(tenants.EventParked, e)
	s.pass(time.Hour)
	s.send(s.event("customer.subscription.updated", sub("sub_2", "cus_1", "active", "bob", "price_pack")))
	s.outcome(tenants.EventApplied, s.byID(e))
	require.Equal(t, []int64{5000}, s.credits("bob"))
	require.Empty(t, s.plan("bob"))
}

// However many invoices wait for a subscription, all are granted when it arrives.
func TestManyInvoicesBeforeTheirSubscription(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.sellCredits("price_pack", 5000, 0)
	s.outcome(tenants.EventParked, s.send(s.event("invoice.paid", bill("in_1", false, monthly("sub_2"), "price_pack"))))
	const copies = 500 // more than are woken at once
	s.db.Exec(`INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, customer, subscription, outcome, why, settled_at, waits_for)
		SELECT tenant_id, gen_random_uuid(), endpoint_id, 'evt_copy_' || n, type, provider_at, received_at, body, customer, subscription, outcome, why, settled_at, waits_for
		FROM billing_events, generate_series(1, $1) n WHERE waits_for = 'subscription'`, copies)
	s.send(s.event("customer.subscription.created", sub("sub_2", "cus_1", "active", "bob", "price_pack")))
	left := -1
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM billing_events WHERE waits_for <> '' OR due_at IS NOT NULL").Scan(&left))
	})
	require.Zero(t, left)
	require.Equal(t, []int64{5000}, s.credits("bob"))
}
