package billing_test

import (
	"encoding/json"
	"testing"

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
