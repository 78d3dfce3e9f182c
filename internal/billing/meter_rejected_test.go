package billing_test

import (
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// secondEndpoint gives the tenant another Stripe endpoint, whose key the provider does not take,
// and makes every second subject its customer. The units of the others are odd.
func (r *pushRig) secondEndpoint() tenants.BillingEndpoint {
	return r.secondEndpointWith("rk_test_revoked")
}

func (r *pushRig) secondEndpointWith(key string) tenants.BillingEndpoint {
	r.t.Helper()
	second, err := r.store.CreateBillingEndpoint(r.t.Context(), r.a, tenants.BillingEndpoint{
		Provider: tenants.StripeProvider, Name: "second", SubjectFrom: tenants.FromMetadata + "user",
	}, tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, APIKey: &key})
	require.NoError(r.t, err)
	r.db.Exec(`INSERT INTO billing_subscriptions (tenant_id, endpoint_id, subscription, customer, subject, state, updated_at)
		SELECT $1, CASE right(subject, 1)::int % 2 WHEN 0 THEN $2::uuid ELSE $3::uuid END, 'sub_' || subject, 'cus_' || subject, subject, '{}', now()
		FROM subjects WHERE tenant_id = $1 AND subject LIKE 's%'`, r.a.TenantID(), r.endpoint.ID, second.ID)
	return second
}

// The units of s000, s002 and so on, and those of the others without s005, which has no customer.
const (
	firstUnits  = 100 * 100
	secondUnits = allUnits - firstUnits - 6
)

// What one of several endpoints rejects is parked, and the others get theirs. A key that works
// sends it, however long the other one did not.
func TestPushOfSeveralEndpoints(t *testing.T) {
	r := newPushRig(t)
	second := r.secondEndpoint()
	r.seal()
	require.NoError(t, r.runner.Push(t.Context()))
	push := r.only()
	require.EqualValues(t, firstUnits, r.sum())
	require.EqualValues(t, 100, push.Pushed)
	require.EqualValues(t, 100, push.Parked)
	require.Equal(t, tenants.PushParked, push.State())
	require.Equal(t, tenants.MeterPushProblem{Subject: "s001", Units: 2, Outcome: "parked",
		Why: `at the endpoint "second": the provider answered 401 invalid_request_error`}, push.Problems[0])
	require.NotNil(t, push.DueAt)

	// Parked units were not sent, so they never get too old for their identifiers.
	for range 3 {
		r.again()
		r.pastHours(25)
	}
	require.EqualValues(t, 100, r.only().Parked)
	_, err := r.store.EditBillingEndpoint(t.Context(), r.a, second.ID, tenants.Match{}, func(*tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
		return tenants.BillingSecrets{APIKey: &r.stripe.key}, nil
	})
	require.NoError(t, err)
	r.again()
	require.EqualValues(t, firstUnits+secondUnits, r.sum())
	require.EqualValues(t, 1, r.only().Parked, "the subject without a customer")
	require.Zero(t, r.only().Failed)
}

// The units of a live endpoint are tried again soon if it is the only one: one of test mode does
// not count. Live units do not wait for those that an endpoint of test mode rejects.
func TestPushBesideTestMode(t *testing.T) {
	r := newPushRig(t)
	const key = "rk_live_second"
	r.secondEndpointWith(key)
	r.seal()
	require.NoError(t, r.runner.Push(t.Context()))
	push := r.only()
	require.Equal(t, "retrying", push.State())
	require.Contains(t, push.Why, "401")
	require.EqualValues(t, 1, push.Parked, "the subject without a customer")
	require.Less(t, time.Until(*push.DueAt), time.Minute)

	r.stripe.set(func(f *fakeStripe) { f.key = key }) // now the key of test mode is revoked
	r.again()
	push = r.only()
	require.Equal(t, tenants.PushParked, push.State())
	require.Equal(t, []int64{2, 200}, r.units("cus_s001", "cus_s199"))
	require.EqualValues(t, 1+99, push.Pushed, "s000 was sent before")
}

// With another key, what was rejected is sent at once, whether it was parked or is tried again.
func TestPushWithAnotherKey(t *testing.T) {
	for name, several := range map[string]bool{"parked": true, "retrying": false} {
		t.Run(name, func(t *testing.T) {
			r := newPushRig(t)
			rejecting, sent := r.endpoint, allUnits-6-8
			if several {
				rejecting, sent = r.secondEndpoint(), firstUnits+secondUnits
			}
			good := r.stripe.key
			if !several {
				r.stripe.set(func(f *fakeStripe) { f.key = "rk_test_other" })
			}
			r.seal()
			require.NoError(t, r.runner.Push(t.Context()))
			push := r.only()
			require.Equal(t, name, push.State())
			r.db.Exec("UPDATE metered_pushes SET due_at = now() + interval '1 hour'")
			edit := func(name string, secrets tenants.BillingSecrets) {
				_, err := r.store.EditBillingEndpoint(t.Context(), r.a, rejecting.ID, tenants.Match{}, func(e *tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
					e.Name = name
					return secrets, nil
				})
				require.NoError(t, err)
			}
			edit("renamed", tenants.BillingSecrets{})
			require.Greater(t, time.Until(*r.only().DueAt), 30*time.Minute, "nothing has changed for it")
			r.stripe.set(func(f *fakeStripe) { f.key = good })
			edit("repaired", tenants.BillingSecrets{APIKey: &good})
			require.NoError(t, r.runner.Push(t.Context()))
			require.EqualValues(t, sent, r.sum())
		})
	}
}

// Units that may have been sent stay so while their endpoint rejects them.
func TestRejectedEventThatMayHaveBeenTaken(t *testing.T) {
	r := newPushRig(t)
	second := r.secondEndpoint()
	edit := func(key string) {
		_, err := r.store.EditBillingEndpoint(t.Context(), r.a, second.ID, tenants.Match{}, func(*tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
			return tenants.BillingSecrets{APIKey: &key}, nil
		})
		require.NoError(t, err)
	}
	edit(r.stripe.key)
	r.seal()
	r.lose(15) // s000 to s015, without s005
	taken := r.sum()
	edit("rk_test_revoked")
	r.again()
	require.EqualValues(t, 100, r.only().Pushed)
	r.pastHours(25)
	r.forget()
	edit(r.stripe.key)
	r.again()
	require.Greater(t, r.sum(), taken)
	require.LessOrEqual(t, r.sum(), int64(firstUnits+secondUnits), "no event counts twice")
	require.Contains(t, r.only().Problems[1].Why, "compare with the provider")
}

// Units that an endpoint rejects were not sent, also if those of another one may have been by the
// same attempt: they are sent however much later the key works.
func TestRejectedEventsWereNotSent(t *testing.T) {
	for name, parked := range map[string]bool{"first attempt": false, "parked": true} {
		t.Run(name, func(t *testing.T) {
			r := newPushRig(t)
			second := r.secondEndpoint()
			if parked { // units of the first endpoint are tried with those of the second one
				r.db.Exec("UPDATE billing_subscriptions SET customer = '' WHERE subject = 's198'")
			}
			r.seal()
			if parked {
				require.NoError(t, r.runner.Push(t.Context()))
				require.EqualValues(t, 101, r.only().Parked, "those of the second endpoint, and two without a customer")
				r.db.Exec("UPDATE billing_subscriptions SET customer = 'cus_s198' WHERE subject = 's198'")
				r.db.Exec("UPDATE metered_pushes SET due_at = now()")
			}
			r.lose(1)
			for range 2 {
				r.again()
				r.pastHours(25)
			}
			require.Zero(t, r.only().Failed)
			require.EqualValues(t, firstUnits, r.sum())
			_, err := r.store.EditBillingEndpoint(t.Context(), r.a, second.ID, tenants.Match{}, func(*tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
				return tenants.BillingSecrets{APIKey: &r.stripe.key}, nil
			})
			require.NoError(t, err)
			r.again()
			require.EqualValues(t, firstUnits+secondUnits, r.sum())
			require.Zero(t, r.only().Failed)
		})
	}
}

// A few requests a minute find out that an endpoint rejects its events, however many there are.
func TestRejectedEventsAreFew(t *testing.T) {
	r := newPushRig(t)
	r.secondEndpoint()
	r.seal()
	require.NoError(t, r.runner.Push(t.Context()))
	asked := func() (n int) {
		r.stripe.set(func(f *fakeStripe) { n, f.asked = f.asked, 0 })
		return n
	}
	require.LessOrEqual(t, asked(), 100+16)
	r.again()
	require.Zero(t, asked())
	r.pass(time.Minute)
	r.again()
	require.Positive(t, asked())
}

// Parked subjects of an endpoint that is known to reject their events are neither read nor written,
// also those that have a billing_ref.
func TestSubjectsOfARejectingEndpointAreLeftAlone(t *testing.T) {
	r := newPushRig(t)
	second := r.secondEndpoint()
	r.seal()
	require.NoError(t, r.runner.Push(t.Context()))
	before := r.problems()
	require.Len(t, before, 100)
	r.again()
	require.True(t, maps.Equal(before, r.problems()), "rows were written")

	claim := func(endpoint uuid.UUID) []tenants.MeterPushItem {
		r.db.Exec("UPDATE metered_pushes SET due_at = now()")
		due, err := r.store.DueMeterPushes(t.Context(), 10)
		require.NoError(t, err)
		work, err := r.store.ClaimMeterPush(t.Context(), due[0], func(meter tenants.MeterAt) bool {
			return meter == tenants.MeterAt{Endpoint: endpoint, Version: second.Version, Event: r.only().MeterEvent}
		})
		require.NoError(t, err)
		return work.Items
	}
	require.Empty(t, claim(second.ID))
	require.Len(t, claim(r.endpoint.ID), 99)
}

// A customer whose events are rejected does not delay the others of its endpoint.
func TestPushOfARejectedCustomer(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	r.stripe.set(func(f *fakeStripe) { f.meter.refuse = map[string]int{"cus_s003": http.StatusBadRequest} })
	require.NoError(t, r.runner.Push(t.Context()))
	require.EqualValues(t, allUnits-4-6-8, r.sum())
	require.EqualValues(t, 2, r.only().Parked)
	r.stripe.set(func(f *fakeStripe) { f.meter.refuse = nil })
	r.again()
	require.EqualValues(t, allUnits-6-8, r.sum())
}
