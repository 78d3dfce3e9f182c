package limit

import (
	"fmt"
	"strings"
)

// manyLogged is the limit from which a sliding window log causes a warning: a counter has as many
// entries.
const manyLogged = 1_000

// Warning describes an effect that the author of a valid rule may not expect.
type Warning struct {
	Field   string // the field that causes it
	Message string
}

// Warnings returns the effects of a valid rule that its author may not expect, each with the field
// that causes it. instances is the number of instances, at least 1.
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
		add("by", "all subjects share one counter: one of them can use it up for all others")
	case len(attributes) > 0:
		add("by", "a check without %s is not limited by this rule", strings.Join(attributes, " and "))
	}
	quota := r.Numbers().Quota()
	switch r.Algorithm {
	case FixedWindow, FixedWindowFirstHit:
		add("algorithm", "around the end of a window, up to twice the limit can be allowed in a short time")
	case SlidingWindowLog:
		if r.Limit > manyLogged {
			add("algorithm", "each counter stores up to %d instants: sliding_window_counter is nearly as exact and stores two numbers", r.Limit)
		}
	case LeakyBucketQueue:
		if wait := float64(quota) * float64(r.Window.MS) / float64(r.Limit); wait > 60_000 {
			add("burst", "if the queue is full, its last request waits %.0f seconds", wait/1000)
		}
	}
	if numbers := r.Numbers(); r.Consistency == Leased {
		if _, leased := numbers.LeaseBounds(); !leased {
			add("consistency", "the limit is too small to prefetch units, even of an unused counter: every check goes to Redis, as with a strict rule")
		}
	}
	if r.Algorithm.Bucket() && r.Burst != 0 && r.Burst < r.Limit {
		add("burst", "a check with a cost above %d can never be allowed, although the limit is %d", quota, r.Limit)
	}
	return out
}

// countedAttributes names the attributes by which the rule counts, for a sentence.
func (r *Rule) countedAttributes() (names []string) {
	for _, name := range r.Attributes() {
		names = append(names, fmt.Sprintf("the attribute %q", name))
	}
	return names
}
