package limit

import "slices"

// Overage says whether calls beyond a limit are denied.
type Overage uint8

// Deny denies calls beyond the limit. Allow allows them and counts the excess. A rule without one
// denies, and the limit of a plan without one has that of its rule.
const (
	OverageUnset Overage = iota
	OverageDeny
	OverageAllow
)

var overageNames = Names[Overage]{OverageDeny: "deny", OverageAllow: "allow"}

func (o Overage) String() string { return overageNames.Of(o) }

// ParseOverage returns the overage with a name such as "allow".
func ParseOverage(s string) (Overage, error) { return overageNames.Parse(s) }

// overageValue is the overage of a rule, which stores only OverageAllow.
func overageValue() value {
	v := choice(func(r *Rule) *Overage { return &r.Overage }, overageNames)
	v.get = func(r *Rule) any {
		switch {
		case r.Overage == OverageAllow:
			return "allow"
		case r.countsExcess():
			return "deny"
		}
		return nil
	}
	set := v.set
	v.set = func(r *Rule, to any) error {
		if err := set(r, to); err != nil || r.Overage == OverageAllow {
			return err
		}
		r.Overage = OverageUnset
		return nil
	}
	return v
}

// excessAlgorithms are the algorithms that can count the excess over a limit.
var excessAlgorithms = []Algorithm{SlidingWindowCounter, SlidingWindowBuckets, FixedWindow, FixedWindowFirstHit}

// countsExcess reports whether the algorithm of the rule can count the excess over a limit.
func (r *Rule) countsExcess() bool { return slices.Contains(excessAlgorithms, r.Algorithm) }

// checkOverage refuses overage for a rule that cannot count the excess.
func (r *Rule) checkOverage(errs *FieldErrors, o Overage) {
	switch {
	case o != OverageAllow:
	case r.Algorithm.Bucket():
		errs.Add("overage", Wrong("Choose deny, or a fixed or sliding window.",
			"cannot be allow with %s: a bucket has no window in which an excess could be counted", r.Algorithm))
	case r.Algorithm == SlidingWindowLog:
		errs.Add("overage", Wrong("Choose deny, or the algorithm sliding_window_buckets, which is nearly as exact.",
			"cannot be allow with sliding_window_log, which stores every request"))
	case r.Penalty.MS != 0:
		errs.Add("overage", Wrong("Choose deny, or remove the penalty.", "cannot be allow with a penalty, because no denial would start it"))
	case r.Consistency == Leased:
		errs.Add("overage", Wrong("Choose deny, or the consistency strict.",
			"cannot be allow with consistency leased, because prefetched units would count as excess"))
	}
}
