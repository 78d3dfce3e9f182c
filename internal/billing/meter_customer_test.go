package billing_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"weir/internal/billing"
	"weir/internal/tenants"
)

// secondCustomer gives a subject of a rig a subscription that was canceled, and then one of another
// customer that is active.
func (r *pushRig) secondCustomer() {
	r.t.Helper()
	user := map[string]string{"user": "s000"}
	r.stripe.put("sub_old", "cus_old", stripe.SubscriptionStatusCanceled, user, "price_pro")
	r.send(r.event("customer.subscription.created", sub("sub_old", "cus_old", "active", "s000", "price_pro")))
	r.pass(time.Second)
	r.send(r.event("customer.subscription.deleted", sub("sub_old", "cus_old", "canceled", "s000", "price_pro")))
	r.pass(time.Second)
	r.stripe.put("sub_new", "cus_new", stripe.SubscriptionStatusActive, user, "price_pro")
	r.outcome(tenants.EventApplied, r.send(r.event("customer.subscription.created", sub("sub_new", "cus_new", "active", "s000", "price_pro"))))
	require.Equal(r.t, "pro", r.plan("s000"))
	r.stripe.set(func(f *fakeStripe) { f.meter.customers["cus_old"], f.meter.customers["cus_new"] = true, true })
	r.pass(time.Second)
}

// sentTo seals the hour, sends its units, and returns those of some customers.
func (r *pushRig) sentTo(customers ...string) (units []int64) {
	r.t.Helper()
	r.seal()
	require.NoError(r.t, r.runner.Push(r.t.Context()))
	return r.units(customers...)
}

// units returns the units of some customers at the provider.
func (r *pushRig) units(customers ...string) (units []int64) {
	r.stripe.set(func(f *fakeStripe) {
		for _, customer := range customers {
			units = append(units, f.meter.values[customer])
		}
	})
	return units
}

// The units of a subject that has subscribed again as another customer are those of the customer
// whose subscription gives the plan, whichever subscription was stored last.
func TestPushToTheCustomerThatGivesThePlan(t *testing.T) {
	for name, last := range map[string]func(*pushRig){
		"nothing since": func(*pushRig) {},
		"a comparison": func(r *pushRig) {
			e, err := r.store.BillingEndpointByID(r.t.Context(), r.a, r.endpoint.ID)
			require.NoError(r.t, err)
			// The list is newest first, so the old one is stored last.
			_, err = r.runner.Reconcile(r.t.Context(), r.a.TenantID(), e, false, func(_ billing.Summary, _ tenants.ReconcileResult) { r.pass(time.Second) })
			require.NoError(r.t, err)
		},
		"an event of the old customer": func(r *pushRig) {
			old := sub("sub_old", "cus_old", "canceled", "s000", "price_pro")
			old["created"] = 1_700_000_000
			r.send(r.event("customer.subscription.updated", old))
		},
		"rows of an earlier release": func(r *pushRig) {
			r.db.Exec("UPDATE billing_subscriptions SET standing = NULL, updated_at = updated_at + CASE subscription WHEN 'sub_old' THEN interval '1 hour' ELSE '0' END")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newPushRig(t)
			r.secondCustomer()
			last(r)
			require.Equal(t, "pro", r.plan("s000"))
			require.Equal(t, []int64{1, 0}, r.sentTo("cus_new", "cus_old"))
		})
	}
}

// Of several subscriptions that give a plan, that with the highest priority has the customer, also
// if the priority has changed since it was stored. If none gives a plan, it is one that has not
// ended.
func TestPushToTheCustomerWithPriority(t *testing.T) {
	r := newPushRig(t)
	r.stripe.set(func(f *fakeStripe) { f.meter.customers["cus_pro"], f.meter.customers["cus_scale"] = true, true })
	price := func(p tenants.BillingPrice) {
		_, _, err := r.store.PutBillingPrice(t.Context(), r.a, p, tenants.Match{})
		require.NoError(t, err)
	}
	r.send(r.event("customer.subscription.created", sub("sub_pro", "cus_pro", "active", "s000", "price_pro")))
	r.pass(time.Second)
	r.send(r.event("customer.subscription.created", sub("sub_scale", "cus_scale", "active", "s000", "price_scale")))
	r.pass(time.Second)
	price(tenants.BillingPrice{Price: "price_pro", Plan: "pro", Priority: 10})
	r.send(r.event("customer.subscription.updated", sub("sub_scale", "cus_scale", "active", "s000", "price_scale")))
	require.Equal(t, "pro", r.plan("s000"))
	// Neither of these gives a plan. The one that has ended was created later.
	r.send(r.event("customer.subscription.created", sub("sub_open", "cus_open", "active", "s001", "price_other")))
	r.pass(time.Second)
	over := sub("sub_over", "cus_over", "canceled", "s001", "price_other")
	over["created"] = 1_700_000_000
	r.send(r.event("customer.subscription.created", over))
	r.stripe.set(func(f *fakeStripe) { f.meter.customers["cus_open"], f.meter.customers["cus_over"] = true, true })
	require.Equal(t, []int64{1, 0, 2, 0}, r.sentTo("cus_pro", "cus_scale", "cus_open", "cus_over"))
}

// The units of a subject that has subscriptions in live mode and in test mode are those of the
// customer in live mode.
func TestPushToTheCustomerInLiveMode(t *testing.T) {
	r := newPushRig(t)
	key := "rk_live_abcdefgh"
	testMode := r.endpoint
	live, err := r.store.CreateBillingEndpoint(t.Context(), r.a, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromMetadata + "user"},
		tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, APIKey: &key})
	require.NoError(t, err)
	_, _, err = r.store.PutBillingPrice(t.Context(), r.a, tenants.BillingPrice{Price: "price_live", Plan: "scale", Endpoint: live.ID}, tenants.Match{})
	require.NoError(t, err)
	r.stripe.set(func(f *fakeStripe) {
		f.key, f.meter.customers["cus_live"], f.meter.customers["cus_test"] = key, true, true
	})
	r.endpoint = live
	body := r.event("customer.subscription.created", sub("sub_live", "cus_live", "active", "s000", "price_live"))
	r.outcome(tenants.EventApplied, r.send([]byte(strings.Replace(string(body), `"livemode":false`, `"livemode":true`, 1))))
	r.pass(time.Second)
	r.endpoint = testMode
	newer := sub("sub_test", "cus_test", "active", "s000", "price_pro")
	newer["created"] = 1_700_000_000
	r.outcome(tenants.EventApplied, r.send(r.event("customer.subscription.created", newer)))
	require.Equal(t, []int64{1, 0}, r.sentTo("cus_live", "cus_test"))
}

// If the endpoint of the subscription that gives the plan has no API key, the units wait for one.
// They are not sent to another customer.
func TestPushWaitsForTheCustomerThatGivesThePlan(t *testing.T) {
	r := newPushRig(t)
	r.stripe.set(func(f *fakeStripe) { f.meter.customers["cus_old"], f.meter.customers["cus_new"] = true, true })
	r.send(r.event("customer.subscription.created", sub("sub_old", "cus_old", "canceled", "s000", "price_pro")))
	other, err := r.store.CreateBillingEndpoint(t.Context(), r.a, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromMetadata + "user"},
		tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	require.NoError(t, err)
	_, _, err = r.store.PutBillingPrice(t.Context(), r.a, tenants.BillingPrice{Price: "price_other", Plan: "scale", Endpoint: other.ID}, tenants.Match{})
	require.NoError(t, err)
	r.endpoint = other
	r.outcome(tenants.EventApplied, r.send(r.event("customer.subscription.created", sub("sub_new", "cus_new", "active", "s000", "price_other"))))
	require.Equal(t, []int64{0, 0, 0}, r.sentTo("cus_new", "cus_old", "cus_s000"))
	require.EqualValues(t, 2, r.only().Parked, "this subject, and the one without a customer")
	_, err = r.store.EditBillingEndpoint(t.Context(), r.a, other.ID, tenants.Match{}, func(*tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
		return tenants.BillingSecrets{APIKey: &r.stripe.key}, nil
	})
	require.NoError(t, err)
	r.again()
	require.Equal(t, []int64{1, 0, 0}, r.units("cus_new", "cus_old", "cus_s000"))
}

// A subscription that an event leaves as it is, is not written.
func TestUnchangedSubscriptionsAreNotWritten(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pro")))
	written := func() (at time.Time) {
		s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT updated_at FROM billing_subscriptions").Scan(&at))
		})
		return at
	}
	before := written()
	s.pass(time.Hour)
	s.outcome(tenants.EventApplied, s.send(s.event("customer.updated", obj{"id": "cus_1", "metadata": obj{"user": "bob"}})))
	require.True(t, written().Equal(before))
	s.send(s.event("customer.subscription.updated", sub("sub_1", "cus_1", "active", "ada", "price_pro")))
	require.True(t, written().After(before))
}
