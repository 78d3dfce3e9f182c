package redis

import (
	"weir/internal/engine"
	"weir/internal/limit"
)

// Throttles limit attempts of people, such as sign-ins. Anybody can make attempts, from many
// networks and for invented accounts, so they can fill Redis, and nobody must get more guesses by
// that. Their counters have no tenant, so the Census has them under the ID that no tenant has. When
// they reach their bound, new names share spare counters. Each rule of a throttle has its own ones
// (Counter.ID): the values of its algorithm have one form, and other rules do not use them up.

// throttles stands for the owner of these counters.
var throttles limit.TenantID

const (
	// The bound of throttles is the default one of a tenant, but at least and at most so many: a
	// small bound would let few attempts be counted, and they take about 100 bytes each.
	leastThrottles = 1_000_000
	mostThrottles  = 10_000_000
	// throttleSlots is the number of their spare counters for each rule, more than those of a
	// tenant, because everybody's attempts are in them. 300 attempts per second in a quarter of an
	// hour are 8 for each one, and a sign-in allows 10.
	throttleSlots = 1 << 15
)

// throttleBound returns the bound of throttles, by the default one of a tenant (0: none).
func throttleBound(ofTenant int64) int64 {
	if ofTenant <= 0 {
		return mostThrottles
	}
	return min(max(ofTenant, leastThrottles), mostThrottles)
}

// uncounted reports whether the counters of a call belong to the service itself, but are not those
// of a throttle. They are canaries: few, and a spare one would look like one that was lost.
func uncounted(call *engine.Call) bool {
	return call.Tenant == throttles && call.Space != engine.ThrottleSpace
}
