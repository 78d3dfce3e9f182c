package billing_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"weir/internal/tenants"
)

// The events about a customer that Stripe creates in one second give the same plans for every
// order: the customer whom the last change names has the plan, and nothing is parked.
func TestCustomerEventsOfOneSecond(t *testing.T) {
	named := func(user, before any) func(s *stack, id string) []byte {
		return func(s *stack, id string) []byte {
			body, err := json.Marshal(obj{
				"object": "event", "id": id, "type": "customer.updated", "created": s.now().Unix(), "livemode": false, "api_version": stripe.APIVersion,
				"data": obj{
					"object":              obj{"id": "cus_1", "metadata": obj{"user": user}},
					"previous_attributes": obj{"metadata": obj{"user": before}},
				},
			})
			require.NoError(s.t, err)
			return body
		}
	}
	created := func(s *stack, id string) []byte {
		return eventAt(s.now(), id, "customer.created", obj{"id": "cus_1", "metadata": obj{}})
	}
	for name, c := range map[string]struct {
		events []func(s *stack, id string) []byte // in the order of Stripe
		order  []int
		want   string
	}{
		"created last": {[]func(*stack, string) []byte{created, named("ann", nil)}, []int{1, 0}, "ann"},
		"swapped":      {[]func(*stack, string) []byte{named("bob", "ann"), named("cyd", "bob")}, []int{1, 0}, "cyd"},
		"rotated":      {[]func(*stack, string) []byte{named("bob", "ann"), named("cyd", "bob"), named("dot", "cyd")}, []int{2, 0, 1}, "dot"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, nil)
			for _, n := range c.order { // the ids say nothing
				s.send(c.events[n](s, "evt_"+string(rune('z'-n))))
			}
			s.outcome(tenants.EventApplied, s.send(eventAt(s.now(), "evt_sub", "customer.subscription.created", sub("sub_1", "cus_1", "active", "", "price_pro"))))
			require.Equal(t, "pro", s.plan(c.want))
			require.Equal(t, map[string]int{c.want: 1}, s.subjectsOf())
		})
	}
}

// The end of a subscription whose price is not mapped takes the plan away that an earlier event
// gave, also if that event arrives later.
func TestEndWithoutMappingArrivesFirst(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{FallbackPlan: "free"}, nil)
	began := s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_pro"))
	other := s.event("customer.subscription.created", sub("sub_2", "cus_1", "active", "bob", "price_pro"))
	unmapped := s.event("customer.subscription.created", sub("sub_3", "cus_1", "active", "cy", "price_other"))
	for _, subject := range []string{"ada", "bob", "cy"} {
		_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: subject, Plan: "late"}, tenants.Match{})
		require.NoError(t, err)
	}
	s.pass(time.Minute)
	changed := s.event("customer.subscription.updated", sub("sub_1", "cus_1", "active", "ada", "price_new"))
	s.pass(time.Minute)
	end := func(id, user string) []byte {
		return s.event("customer.subscription.deleted", sub(id, "cus_1", "canceled", user, "price_new"))
	}
	for _, body := range [][]byte{end("sub_1", "ada"), end("sub_2", "dot"), end("sub_3", "cy"), changed} {
		s.send(body)
	}
	require.Equal(t, []string{"late", "late", "late"}, []string{s.plan("ada"), s.plan("bob"), s.plan("cy")}, "nothing says that they had one")
	s.outcome(tenants.EventApplied, s.send(began))
	require.Contains(t, s.last().Why, "moved from late to free")
	s.send(other)
	s.send(unmapped)
	require.Equal(t, []string{"free", "late", "late"}, []string{s.plan("ada"), s.plan("bob"), s.plan("cy")}, "of another subject, or without a plan")
}
