package check

import (
	"iter"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Request is one check. The caller validates it (ValidName, ValidAttributeName, ranges).
type Request struct {
	Subject    string
	Resource   string      // "default" where the caller named none
	Cost       int64       // 0 to MaxFixedLimit; 0 reads the state and consumes nothing
	Plan       string      // "": the subject's own, or else the tenant's default
	Attributes []Attribute // at most MaxAttributes, names unique
	DryRun     bool        // return what would happen, consume nothing
	Explain    bool        // EachSkipped has all rules that were not evaluated, not only those for which an attribute is missing

	reported bool // the check was decided by a client, when the subject was not blocked
}

// Attribute is a named value of a check that rules can count by.
type Attribute struct{ Name, Value string }

// Code says why a check was denied.
type Code string

// The codes of a denial; NoCode if the check is allowed.
const (
	NoCode              Code = ""
	RateLimitExceeded   Code = "RATE_LIMIT_EXCEEDED"
	CostExceedsLimit    Code = "COST_EXCEEDS_LIMIT"   // can never be allowed; RetryAfterMS is NeverMS
	SubjectBlocked      Code = "SUBJECT_BLOCKED"      // the subject's state
	AttributeMissing    Code = "ATTRIBUTE_MISSING"    // of a rule with OnMissingAttribute DenyCheck; RetryAfterMS is NeverMS
	CountersUnavailable Code = "COUNTERS_UNAVAILABLE" // only because of rules with OnUnavailable Deny
)

// Decision is the answer to one Request.
type Decision struct {
	Allowed  bool
	Code     Code
	Subject  string
	Resource string
	Cost     int64
	Plan     string // slug; "" where the tenant has no plans
	// Deciding is the index in Rules of the rule whose numbers are those of the answer. If rules
	// deny, it is the denying rule with the longest wait, otherwise the enforcing rule with the
	// smallest share remaining. It is -1 if no enforcing rule with a limit matched.
	Deciding int
	Rules    []RuleDecision
	Skipped  []SkippedRule // because an attribute is missing: EachSkipped has all
	// Explains has the other rules that were not evaluated, if the check was to be explained. They
	// are up to 1000, so they are not listed before they are needed.
	Explains *Policy
	Degraded bool  // at least one rule was answered by its OnUnavailable
	NowMS    int64 // the instant of the decision, milliseconds since 1970
	DelayMS  int64 // the longest delay of queue rules; valid if HasDelay
	HasDelay bool  // a queue rule was evaluated and the check was allowed
	Warning  bool  // an enforcing rule has a Warning
	Overage  bool  // an enforcing rule has an Overage
	Credits  bool  // a rule HasCredits
	// Reported is the number of checks for which the decision stands, if a client decided them from
	// a lease and reported them. Cost is the sum of their costs. 0: the decision is of one check.
	Reported int64
}

// Checks returns the number of checks for which the decision stands.
func (d *Decision) Checks() int64 { return max(1, d.Reported) }

// RuleDecision is the result of one matching rule. Times are durations in milliseconds from NowMS.
type RuleDecision struct {
	Rule        *limit.Rule
	Mode        limit.Mode // Shadow for every rule of an exempt subject
	Source      string     // where the number came from: "rule", "plan:SLUG" or "override"
	Allowed     bool
	Unlimited   bool // the numbers below are then undefined
	CostExceeds bool
	Penalized   bool
	Degraded    bool // answered by Rule.OnUnavailable
	Uncounted   bool // answered without counting, because of OnUnavailable (allow, deny) or Missing: Remaining and ResetAfterMS are undefined
	// Missing is the attribute because of whose absence the rule denies.
	Missing string
	// Warning means that more than WarnAt of the quota is used after this check. WarnAt is 0 if the
	// rule never warns.
	Warning bool
	WarnAt  limit.Portion
	// Overage is how many units beyond the limit count now, of a rule that allows more than its
	// limit (MayExceed). ExcessCost is how many of them are of this check: it is 0 for a check that
	// was denied. The sum of all ExcessCosts is what was used beyond the limit.
	Overage, ExcessCost int64
	MayExceed           bool
	Metering            limit.PlanMetering // that of the plan, or MeterAsRule
	// HasCredits means that the subject has, or had, credits for the rule: prepaid units for checks
	// that do not fit in the window. CreditsSpent is what this check takes from them, and Credits
	// what is left. Unopened means that some could not be spent yet.
	HasCredits, Unopened  bool
	CreditsSpent, Credits int64
	// JointCost is what was asked of the rule's counter, if CheckTogetherInTurns has decided: the
	// sum of the costs of all requests that share it. 0: see Asked.
	JointCost    int64
	Limit        int64 // units per window
	Burst        int64 // buckets only
	Quota        int64 // Burst for buckets, else Limit
	WindowMS     int64 // for a calendar window: the length of the current one
	Remaining    int64
	RetryAfterMS int64 // 0 if Allowed; NeverMS if no wait helps
	ResetAfterMS int64 // until the full quota is available again
	NextAfterMS  int64 // until at least one more unit than Remaining is available; 0 if the full quota is available
	DelayMS      int64 // queue rules
}

// SkippedRule is a rule that was not evaluated.
type SkippedRule struct {
	Rule      *limit.Rule
	Reason    SkipReason
	Attribute string // the missing attribute, with MissingAttribute
}

// EachSkipped yields the rules that were not evaluated: those of Skipped, and if the check was to
// be explained also those of other resources, those that are off and those of a blocked subject.
func (d *Decision) EachSkipped() iter.Seq[SkippedRule] {
	return func(yield func(SkippedRule) bool) {
		for _, s := range d.Skipped {
			if !yield(s) {
				return
			}
		}
		if d.Explains != nil {
			d.Explains.eachIdle(d.Resource, d.Code == SubjectBlocked, yield)
		}
	}
}

// eachIdle yields the rules that no check of the resource evaluates, whatever its attributes are.
func (p *Policy) eachIdle(resource string, blocked bool, yield func(SkippedRule) bool) {
	var buf [limit.MaxMatchingRules]int32
	matching := p.matching(buf[:0], resource)
	for i := range p.rules {
		r := &p.rules[i].rule
		matches := len(matching) > 0 && int(matching[0]) == i
		if matches {
			matching = matching[1:]
		}
		reason := ResourceMismatch
		switch {
		case blocked:
			reason = BlockedSubject
		case matches:
			continue
		case r.Mode == limit.Off:
			reason = ModeOff
		}
		if !yield(SkippedRule{Rule: r, Reason: reason}) {
			return
		}
	}
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

// take copies an engine's verdict of nowMS, on a counter of a call, into the rule's decision. A
// calendar window is the one of the verdict, which can differ from the window at the beginning of
// the check.
func (r *RuleDecision) take(call *engine.Call, counter int, nowMS int64) {
	v, numbers := &call.Outcome.Verdicts[counter], &call.Counters[counter].Numbers
	if numbers.Bounds != nil {
		r.WindowMS = numbers.LengthMS(nowMS)
	}
	r.Allowed, r.CostExceeds, r.Penalized = v.Allowed, v.CostExceeds, v.Penalized
	r.Remaining, r.RetryAfterMS, r.DelayMS = v.Remaining, v.RetryAfterMS, v.DelayMS
	r.Degraded, r.Uncounted = v.Degraded, v.Uncounted
	if r.HasCredits {
		r.takeCredits(call, counter)
	}
	r.Overage = 0
	if r.MayExceed && !v.Uncounted {
		// The numbers can be those of a counter that several decisions share
		// (CheckTogetherInTurns).
		used := numbers.Used(v)
		r.Remaining, r.Overage = min(r.Remaining, max(0, r.Quota-used)), max(0, used-r.Quota)
	}
	r.Warning = false
	if r.WarnAt != 0 && !v.Uncounted {
		quota := r.Quota
		if v.PartQuota > 0 {
			quota = v.PartQuota
		}
		r.Warning = quota-v.Remaining+v.Overage > r.WarnAt.Of(quota)
	}
	if !v.Uncounted {
		r.ResetAfterMS, r.NextAfterMS = v.ResetMS-nowMS, v.NextMS-nowMS
	}
}

// conclude decides the check from the results of its rules.
func (d *Decision) conclude() {
	d.Allowed, d.Code, d.Deciding, d.Warning, d.Overage = true, NoCode, -1, false, false
	d.Credits = false
	denying := -1
	for i := range d.Rules {
		r := &d.Rules[i]
		if r.Mode != limit.Enforce || r.Unlimited {
			continue
		}
		d.Warning, d.Overage = d.Warning || r.Warning, d.Overage || r.Overage > 0
		d.Credits = d.Credits || r.HasCredits
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
		if r.ExcessCost = 0; r.Overage > 0 && d.Allowed && r.Allowed {
			r.ExcessCost = min(max(0, d.Cost-r.CreditsSpent), r.Overage)
		}
		if !d.Allowed {
			r.CreditsSpent = 0
		}
		if r.Rule.Algorithm != limit.LeakyBucketQueue || r.Unlimited || r.Uncounted || !d.Allowed {
			continue
		}
		// A rule in shadow mode does not delay the caller, so its delay is not reported.
		if r.Mode == limit.Enforce {
			d.HasDelay, d.DelayMS = true, max(d.DelayMS, r.DelayMS)
		}
	}
}

// code returns the reason for which this rule denies.
func (r *RuleDecision) code() Code {
	switch {
	case r.CostExceeds:
		return CostExceedsLimit
	case r.Missing != "":
		return AttributeMissing
	case r.Uncounted:
		return CountersUnavailable
	default:
		return RateLimitExceeded
	}
}

// outweighs reports whether the denial by r is more important than the denial by other. A denial
// that no wait can end comes first, then a denial that was counted before one because counters are
// unavailable, then the longer wait.
func (r *RuleDecision) outweighs(other *RuleDecision) bool {
	if r.incurable() != other.incurable() {
		return r.incurable()
	}
	if r.Uncounted != other.Uncounted {
		return other.Uncounted
	}
	return r.RetryAfterMS > other.RetryAfterMS
}

// incurable reports whether no wait can end the denial.
func (r *RuleDecision) incurable() bool { return r.CostExceeds || r.Missing != "" }

// Asked returns the cost that a rule of the decision has allowed or denied. It is more than Cost if
// another request, which was decided together with this one, shares the counter.
func (d *Decision) Asked(r *RuleDecision) int64 { return max(d.Cost, r.JointCost) }

// MostCost returns the greatest cost that the rule can ever allow.
func (r *RuleDecision) MostCost() int64 {
	if r.MayExceed {
		return r.Rule.Algorithm.MaxLimit()
	}
	return r.Quota + r.Credits
}

// share returns the remaining share of the quota.
func (r *RuleDecision) share() float64 { return float64(r.Remaining) / float64(r.Quota) }
