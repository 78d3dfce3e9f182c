package engine

import (
	"cmp"
	"slices"

	"weir/internal/limit"
)

// CounterWork estimates the work of a counter in a call for the store, in the units of
// limit.Numbers.Work. Everything that weighs checks uses it: the quota of work of a tenant, the
// turns of tenants in a pipeline, and the bound of a script call.
func CounterWork(n *limit.Numbers, credits *Credits) int64 {
	work := n.Work()
	if credits != nil {
		work += limit.CreditsWork(len(credits.Grants))
	}
	return work
}

// MaxCallWork is the maximum work of one script call. Redis serves nothing else during it: about 5
// ms. Spread splits a call with more.
const MaxCallWork = 1024

// mostLight is a number of counters that are never more than MaxCallWork together, even if each of
// them is as much work as a counter can be: sub-buckets with limit.MaxGrants grants.
const mostLight = MaxCallWork / 17

// Work estimates the work of a call for the store, if its counters are not compact.
func (c *Call) Work() (work int64) {
	for i := range c.Counters {
		work += CounterWork(&c.Counters[i].Numbers, c.Counters[i].Credits)
	}
	return work
}

// heavy reports whether the call is too much work for one script call.
func (c *Call) heavy() bool { return len(c.Counters) > mostLight && c.Work() > MaxCallWork }

// portions divides the counters of a heavy call into portions of at most MaxCallWork, and returns
// the portion of each counter. The counters of a portion have the same tag. Those that can be
// refunded come first, so that few portions have others. Counters that share credits stay together:
// a portion that is only read must know what the others of its purse need.
func (c *Call) portions() (of []int) {
	of = make([]int, len(c.Counters))
	order, weights := make([]int, len(of)), make([]int64, len(of))
	for i := range of {
		counter, first := &c.Counters[i], i
		if order[i] = i; counter.Credits != nil {
			first = CreditsAt(c.Counters, i)
		}
		weights[first] += CounterWork(&counter.Numbers, counter.Credits)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c.Counters[a].chargeRank(), c.Counters[b].chargeRank()) })
	type portion struct {
		number int
		work   int64
	}
	last := map[string]portion{} // of each tag
	count := 0
	for _, i := range order {
		counter := &c.Counters[i]
		if counter.Credits != nil {
			if first := CreditsAt(c.Counters, i); first < i {
				of[i] = of[first]
				continue
			}
		}
		tag := HashTag(counter.Key)
		p, begun := last[tag]
		if !begun || p.work+weights[i] > MaxCallWork {
			p = portion{number: count}
			count++
		}
		p.work += weights[i]
		of[i], last[tag] = p.number, p
	}
	return of
}
