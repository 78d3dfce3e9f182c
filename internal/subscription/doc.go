// Package subscription understands what billing systems say, and computes what follows for a plan.
//
// An Event is a provider's message, reduced to what matters here. A State is what is known of one
// subscription after some events. Merge adds an event to a State. Events may come in any order and
// more than once: Merge settles them by the provider's own time, so the State depends on the set of
// events and not on their order.
//
//	status of the newest snapshot    + when payments failed and succeeded    -> Standing
//
// A Standing says which plan a subscription gives now, and when that changes by itself, because a
// grace period ends. Everything here except Client is arithmetic on values: times are handed in.
//
// stripe.go reads events of Stripe, generic.go those of the generic webhook, and client.go asks
// Stripe's API.
package subscription
