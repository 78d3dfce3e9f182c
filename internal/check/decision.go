package check

import (
	"weir/internal/limit"
)

// Request is one check. The edge validates it (ValidName, ValidAttributeName, ranges).
type Request struct {
	Subject    string
	Resource   string      // "default" where the caller named none
	Cost       int64       // 0 to MaxFixedLimit; 0 asks without consuming
	Plan       string      // "": the subject's own, or else the tenant's default
	Attributes []Attribute // at most MaxAttributes, names unique
	DryRun     bool        // answer what would happen, consume nothing
	Explain    bool        // list in Skipped every rule that was not evaluated, not only those that lack an attribute
}

// Attribute is a named value of a check that rules can count by.
type Attribute struct{ Name, Value string }

// Code says why a check was denied.
type Code string

// The codes of a denial; NoCode when allowed.
const (
	NoCode              Code = ""
	RateLimitExceeded   Code = "RATE_LIMIT_EXCEEDED"
	CostExceedsLimit    Code = "COST_EXCEEDS_LIMIT"   // can never fit; RetryAfterMS is NeverMS
	SubjectBlocked      Code = "SUBJECT_BLOCKED"      // the subject's state
	CountersUnavailable Code = "COUNTERS_UNAVAILABLE" // only because of rules whose OnUnavailable is Deny
)

// Decision is the answer to one Request.
type Decision struct {
	Allowed  bool
	Code     Code
	Subject  string
	Resource string
	Cost     int64
	Plan     string // slug; "" where the tenant has no plans
	// Deciding is the index in Rules of the rule whose numbers stand for the whole answer: of
	// the denying rules the one with the longest wait, else the enforcing rule with the
	// smallest share remaining; -1 where no enforcing rule with a limit matched.
	Deciding int
	Rules    []RuleDecision
	Skipped  []SkippedRule
	Degraded bool  // some rule was answered by its OnUnavailable policy
	NowMS    int64 // the instant at which it was decided, milliseconds since 1970
	DelayMS  int64 // the longest of the queue rules' delays; meaningful where HasDelay
	HasDelay bool  // some queue rule was evaluated and the check was allowed
}

// RuleDecision is what one matching rule says. Times are durations in milliseconds from NowMS.
type RuleDecision struct {
	Rule         *limit.Rule
	Mode         limit.Mode // Shadow for every rule of an exempt subject
	Source       string     // where the number came from: "rule", "plan:SLUG" or "override"
	Allowed      bool
	Unlimited    bool // the numbers below are then void
	CostExceeds  bool
	Penalized    bool
	Degraded     bool  // answered by Rule.OnUnavailable
	Uncounted    bool  // degraded and answered without counting (allow, deny): Remaining and ResetAfterMS are void
	Limit        int64 // units per window
	Burst        int64 // buckets only
	Quota        int64 // Burst for buckets, else Limit
	WindowMS     int64 // of a calendar window: the length of the present one
	Remaining    int64
	RetryAfterMS int64 // 0 if Allowed; NeverMS if no wait can help
	ResetAfterMS int64 // until the full quota is available again
	NextAfterMS  int64 // until at least one unit more than Remaining is there; 0 if whole
	DelayMS      int64 // queue rules
}

// SkippedRule is a rule that was not evaluated.
type SkippedRule struct {
	Rule      *limit.Rule
	Reason    SkipReason
	Attribute string // the one that is missing, with MissingAttribute
}

// SkipReason says why a rule was not evaluated.
type SkipReason string

// The reasons for which a rule is skipped.
const (
	ResourceMismatch SkipReason = "resource_mismatch"
	ModeOff          SkipReason = "mode_off"
	MissingAttribute SkipReason = "missing_attribute"
	BlockedSubject   SkipReason = "subject_blocked"
)

// take copies an engine's verdict, made at nowMS with these numbers, into the rule's decision. A
// calendar window is the one that the verdict is in, which may not be the one that the check began
// in.
func (r *RuleDecision) take(numbers *limit.Numbers, v *limit.Verdict, nowMS int64) {
	if numbers.Bounds != nil {
		r.WindowMS = numbers.LengthMS(nowMS)
	}
	r.Allowed, r.CostExceeds, r.Penalized = v.Allowed, v.CostExceeds, v.Penalized
	r.Remaining, r.RetryAfterMS, r.DelayMS = v.Remaining, v.RetryAfterMS, v.DelayMS
	r.Degraded, r.Uncounted = v.Degraded, v.Uncounted
	if !v.Uncounted {
		r.ResetAfterMS, r.NextAfterMS = v.ResetMS-nowMS, v.NextMS-nowMS
	}
}

// conclude decides the whole from its rules.
func (d *Decision) conclude() {
	d.Allowed, d.Code, d.Deciding = true, NoCode, -1
	denying := -1
	for i := range d.Rules {
		r := &d.Rules[i]
		if r.Mode != limit.Enforce || r.Unlimited {
			continue
		}
		if !r.Allowed {
			if denying < 0 || r.outweighs(&d.Rules[denying]) {
				denying = i
			}
		} else if !r.Uncounted && (d.Deciding < 0 || r.share() < d.Rules[d.Deciding].share()) {
			d.Deciding = i
		}
	}
	if denying >= 0 {
		d.Allowed, d.Deciding, d.Code = false, denying, d.Rules[denying].code()
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		if r.Rule.Algorithm != limit.LeakyBucketQueue || r.Unlimited || r.Uncounted || !d.Allowed {
			continue
		}
		// A rule in shadow makes nobody wait, so its delay is not reported.
		if r.Mode == limit.Enforce {
			d.HasDelay, d.DelayMS = true, max(d.DelayMS, r.DelayMS)
		}
	}
}

// code says why this rule denies.
func (r *RuleDecision) code() Code {
	switch {
	case r.CostExceeds:
		return CostExceedsLimit
	case r.Uncounted:
		return CountersUnavailable
	default:
		return RateLimitExceeded
	}
}

// outweighs reports whether the denial by r says more than the one by other: never to be
// admitted before a wait, a counted denial before one for want of counters, a longer wait
// before a shorter.
func (r *RuleDecision) outweighs(other *RuleDecision) bool {
	if r.CostExceeds != other.CostExceeds {
		return r.CostExceeds
	}
	if r.Uncounted != other.Uncounted {
		return other.Uncounted
	}
	return r.RetryAfterMS > other.RetryAfterMS
}

// share is the part of the quota that remains.
func (r *RuleDecision) share() float64 { return float64(r.Remaining) / float64(r.Quota) }
