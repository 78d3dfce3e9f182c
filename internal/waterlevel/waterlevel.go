// Package waterlevel divides what is left of a resource between tenants, so that those with the
// most are bounded first.
package waterlevel

import (
	"math"
	"slices"
)

// None is the level that bounds nobody. It is small enough to be multiplied.
const None = math.MaxInt64 / 4

// Of returns the largest level with which the sum of min(amount, level) of all amounts is at most
// fits. It sorts the amounts.
//
// Example: of the amounts 10, 20 and 30, 40 fit with the level 15: 10 + 15 + 15.
func Of(amounts []int64, fits int64) int64 {
	slices.Sort(amounts)
	for i, n := range amounts {
		if others := int64(len(amounts) - i); n*others > fits {
			return fits / others
		}
		fits -= n
	}
	return None
}
