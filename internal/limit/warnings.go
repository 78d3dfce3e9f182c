package limit

import (
	"fmt"
	"strings"
)

// manyLogged is from where on a sliding window log is worth a word: a counter holds that many
// entries.
const manyLogged = 1_000

// Warning says what the author of a valid rule may not expect.
type Warning struct {
	Field   string // that causes it
	Message string
}

// Warnings tells of a valid rule what its author may not expect of it, each with the field that
// brings it about. instances is how many servers answer checks, at least 1.
func (r *Rule) Warnings(instances int) []Warning {
	if r.Mode == Off {
		return nil
	}
	var out []Warning
	add := func(field, format string, args ...any) {
		out = append(out, Warning{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	if n := int64(instances); r.OnUnavailable == Local && r.Limit < n {
		add("on_unavailable", "if Redis is unavailable, each of %d instances allows at least 1 unit per window: together up to %d, more than the limit", n, n)
	}
	switch attributes := r.countedAttributes(); {
	case len(r.By) == 0:
		add("by", "all subjects share one counter: a single one can use it up for all others")
	case len(attributes) > 0:
		add("by", "a check that does not carry %s is not limited by this rule", strings.Join(attributes, " and "))
	}
	quota := r.Numbers().Quota()
	switch r.Algorithm {
	case FixedWindow, FixedWindowFirstHit:
		add("algorithm", "around the end of a window up to twice the limit can pass in a short time")
	case SlidingWindowLog:
		if r.Limit > manyLogged {
			add("algorithm", "each counter keeps up to %d instants in memory: sliding_window_counter is nearly as exact and keeps two numbers", r.Limit)
		}
	case LeakyBucketQueue:
		if wait := float64(quota) * float64(r.Window.MS) / float64(r.Limit); wait > 60_000 {
			add("burst", "the last in a full queue is told to wait %.0f seconds for its turn", wait/1000)
		}
	}
	if numbers := r.Numbers(); r.Consistency == Leased {
		if _, leased := numbers.LeaseBounds(); !leased {
			add("consistency", "the limit is too small to prefetch units, even of an unused counter: every check goes to Redis, as with a strict rule")
		}
	}
	if r.Algorithm.Bucket() && r.Burst != 0 && r.Burst < r.Limit {
		add("burst", "a single check of a cost above %d can never pass, though the limit is %d", quota, r.Limit)
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
