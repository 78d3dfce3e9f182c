// Package subscription reads the messages of billing systems, and computes which plan a
// subscription gives.
//
//   - An Event is a message of a provider, reduced to the relevant fields.
//   - A State is what is known of one subscription after some events. Merge adds an event to a
//     State. Events may arrive in any order and more than once. Merge orders them by the provider's
//     own time, so the State depends on the set of events and not on their order.
//   - A Standing is the plan that the subscription gives now, and when that changes without an
//     event, because a grace period ends.
//
// Everything here except Client is arithmetic on values. The caller passes the time.
//
// stripe.go reads events of Stripe, generic.go those of the generic webhook, and client.go calls
// Stripe's API.
package subscription
