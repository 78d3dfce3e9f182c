package limit

import (
	"fmt"
	"strings"
)

// manyLogged is from where on a sliding window log is worth a word: a counter holds that many
// entries.
const manyLogged = 1_000

// Warnings tells of a valid rule what its author may not expect of it, each with the field that
// brings it about. instances is how many servers answer checks, at least 1.
func (r *Rule) Warnings(instances int) []FieldError {
	if r.Mode == Off {
		return nil
	}
	var out FieldErrors
	if n := int64(instances); r.OnUnavailable == Local && r.Limit < n {
		out.Add("on_unavailable", "while the counters are away, each of %d instances lets at least 1 unit pass per window: together up to %d, more than the limit", n, n)
	}
	switch attributes := r.countedAttributes(); {
	case len(r.By) == 0:
		out.Add("by", "all subjects share one counter: a single one can use it up for all others")
	case len(attributes) > 0:
		out.Add("by", "a check that does not carry %s is not limited by this rule", strings.Join(attributes, " and "))
	}
	quota := r.Numbers().Quota()
	switch r.Algorithm {
	case FixedWindow, FixedWindowFirstHit:
		out.Add("algorithm", "around the end of a window up to twice the limit can pass in a short time")
	case SlidingWindowLog:
		if r.Limit > manyLogged {
			out.Add("algorithm", "each counter keeps up to %d instants in memory: sliding_window_counter is nearly as exact and keeps two numbers", r.Limit)
		}
	case LeakyBucketQueue:
		if wait := float64(quota) * float64(r.Window.MS) / float64(r.Limit); wait > 60_000 {
			out.Add("burst", "the last in a full queue is told to wait %.0f seconds for its turn", wait/1000)
		}
	}
	if numbers := r.Numbers(); r.Consistency == Leased {
		if _, leased := numbers.LeaseBounds(); !leased {
			out.Add("consistency", "too little remains to take units ahead, even of a counter that nothing was used of: every check asks the counters, as in a strict rule")
		}
	}
	if r.Algorithm.Bucket() && r.Burst != 0 && r.Burst < r.Limit {
		out.Add("burst", "a single check of a cost above %d can never pass, though the limit is %d", quota, r.Limit)
	}
	return out
}

// countedAttributes are the names of the attributes that the rule counts by.
func (r *Rule) countedAttributes() (names []string) {
	for _, by := range r.By {
		if name, isAttribute := strings.CutPrefix(by, "attributes."); isAttribute {
			names = append(names, fmt.Sprintf("the attribute %q", name))
		}
	}
	return names
}
