package limit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Algorithm is how a rule counts. docs/algorithms.md explains each one. The zero value is not an
// algorithm.
type Algorithm uint8

// The eight algorithms. Their numbers are part of the arguments of the Lua scripts, and of stored
// values.
const (
	SlidingWindowCounter Algorithm = iota + 1
	SlidingWindowLog
	SlidingWindowBuckets
	FixedWindow
	FixedWindowFirstHit
	TokenBucket
	LeakyBucket
	LeakyBucketQueue
)

// Algorithms lists all algorithms, in the order in which documentation shows them.
var Algorithms = []Algorithm{
	SlidingWindowCounter, SlidingWindowLog, SlidingWindowBuckets, FixedWindow,
	FixedWindowFirstHit, TokenBucket, LeakyBucket, LeakyBucketQueue,
}

var algorithmNames = Names[Algorithm]{
	SlidingWindowCounter: "sliding_window_counter",
	SlidingWindowLog:     "sliding_window_log",
	SlidingWindowBuckets: "sliding_window_buckets",
	FixedWindow:          "fixed_window",
	FixedWindowFirstHit:  "fixed_window_first_hit",
	TokenBucket:          "token_bucket",
	LeakyBucket:          "leaky_bucket",
	LeakyBucketQueue:     "leaky_bucket_queue",
}

func (a Algorithm) String() string { return algorithmNames.Of(a) }

// ParseAlgorithm returns the algorithm with a name such as "token_bucket".
func ParseAlgorithm(s string) (Algorithm, error) { return algorithmNames.Parse(s) }

// Bucket reports whether the algorithm has a capacity (burst) in addition to its limit.
func (a Algorithm) Bucket() bool {
	return a == TokenBucket || a == LeakyBucket || a == LeakyBucketQueue
}

// Mode is the effect of a rule's verdict on the check.
type Mode uint8

// A rule in shadow mode is evaluated and reported but never denies. Of the checks that were
// allowed, it counts those that it would have allowed. A rule that is off is not evaluated.
const (
	Enforce Mode = iota
	Shadow
	Off
)

var modeNames = Names[Mode]{Enforce: "enforce", Shadow: "shadow", Off: "off"}

func (m Mode) String() string { return modeNames.Of(m) }

// ParseMode returns the mode with a name such as "shadow".
func ParseMode(s string) (Mode, error) { return modeNames.Parse(s) }

// OnUnavailable is how a rule is answered while its counters cannot be reached.
type OnUnavailable uint8

// Local counts in this instance's memory with its share of the limit. Allow allows, and Deny
// denies.
const (
	Local OnUnavailable = iota
	Allow
	Deny
)

var onUnavailableNames = Names[OnUnavailable]{Local: "local", Allow: "allow", Deny: "deny"}

func (o OnUnavailable) String() string { return onUnavailableNames.Of(o) }

// ParseOnUnavailable returns the policy with a name such as "local".
func ParseOnUnavailable(s string) (OnUnavailable, error) { return onUnavailableNames.Parse(s) }

// Consistency says where the units of a rule are granted.
type Consistency uint8

// Each check of a strict rule goes to Redis. For a leased rule, an instance prefetches units of
// busy counters and grants them from memory.
const (
	Strict Consistency = iota
	Leased
)

var consistencyNames = Names[Consistency]{Strict: "strict", Leased: "leased"}

func (c Consistency) String() string { return consistencyNames.Of(c) }

// ParseConsistency returns the consistency with a name such as "leased".
func ParseConsistency(s string) (Consistency, error) { return consistencyNames.Parse(s) }

// Metering says whether the units of a rule are recorded exactly, and which of them are invoiced.
type Metering uint8

// MeterNone records nothing. With the others, the units and those beyond the limit are recorded by
// subject and hour. MeterUnits invoices all units, MeterOverage those beyond the limit.
const (
	MeterNone Metering = iota
	MeterUnits
	MeterOverage
)

var meteringNames = Names[Metering]{MeterNone: "none", MeterUnits: "units", MeterOverage: "overage"}

func (m Metering) String() string { return meteringNames.Of(m) }

// ParseMetering returns the metering with a name such as "units".
func ParseMetering(s string) (Metering, error) { return meteringNames.Parse(s) }

// PlanMetering is the metering that the limit of a plan sets for a rule.
type PlanMetering uint8

// MeterAsRule leaves it to the rule.
const (
	MeterAsRule PlanMetering = iota
	PlanMeterNone
	PlanMeterUnits
	PlanMeterOverage
)

var planMeteringNames = Names[PlanMetering]{PlanMeterNone: "none", PlanMeterUnits: "units", PlanMeterOverage: "overage"}

func (m PlanMetering) String() string { return planMeteringNames.Of(m) }

// ParsePlanMetering returns the metering of a plan's limit with a name such as "none".
func ParsePlanMetering(s string) (PlanMetering, error) { return planMeteringNames.Parse(s) }

// Ranges of the API. The engine itself accepts everything that docs/algorithms.md allows.
const (
	MaxLimit             int64 = 1_000_000_000         // limit, burst and cost, except:
	MaxFixedLimit        int64 = 1_000_000_000_000_000 // limit of the two fixed windows, and cost
	MaxLogLimit          int64 = 10_000                // sliding_window_log has an entry for each allowed request
	MinWindowMS          int64 = 1_000
	MaxWindowMS          int64 = 366 * dayMS
	MaxSubBuckets        int64 = 120
	MaxPenaltyMS         int64 = 30 * dayMS
	MinLeaseMS           int64 = 50 // of a client
	MaxLeaseMS           int64 = 10_000
	MaxRules                   = 1_000 // of a tenant
	MaxMatchingRules           = 32    // of one check
	MaxBy                      = 16    // values that one rule counts by
	MaxAttributes              = 16    // of one check
	MaxNameBytes               = 256   // subject, resource, attribute name and value
	MaxSlugBytes               = 63    // of a rule, a plan or a tenant
	maxNameLength              = 200   // characters of a name
	maxDescriptionLength       = 2_000 // characters of a description
	maxMeterEvent              = 100   // characters of a meter's name
	dayMS                int64 = 86_400_000
)

// Rule is what is limited and how: one row of a tenant's policy.
type Rule struct {
	Slug        string // [a-z0-9-]{1,63}; cannot be changed; the key of the counters
	Name        string
	Description string
	Resource    string // exact ("orders:create"), prefix ("orders:*"), or all ("*")
	Algorithm   Algorithm
	Limit       int64    // units of cost per window, >= 1
	Window      Window   // 1 s to 366 d, or a calendar unit (fixed_window only)
	Burst       int64    // capacity of the buckets, >= 1; 0: the same as Limit
	Precision   Duration // sub-bucket length of sliding_window_buckets; divides Window
	By          []string // "subject", "resource", "attributes.NAME"; empty: one counter for the tenant
	Mode        Mode
	// OnUnavailable answers if the counter store is unavailable.
	OnUnavailable OnUnavailable
	// OnMissingAttribute answers a check without an attribute of By.
	OnMissingAttribute OnMissingAttribute
	Penalty            Duration // how long the rule continues to deny after a denial, up to 30 d; 0: none
	Consistency        Consistency
	Lease              Duration // how long a client may hold units of a leased rule; 0: LeaseHold
	Zone               string   // IANA time zone of a calendar window; "": UTC
	Anchor             Anchor   // of a calendar window
	Overage            Overage  // OverageAllow, or OverageUnset: denies
	WarnAt             Portion  // checks beyond this share of the quota carry a warning; 0: none does
	Metering           Metering
	MeterEvent         string // name of the billing system's meter that gets the units; "": none
}

// Numbers returns the parameters of the rule's algorithm, with the rule's own limit. Those of a
// calendar window lack the Bounds, which depend on the instant (Rule.Cycle).
func (r *Rule) Numbers() Numbers {
	n := Numbers{
		Algorithm: r.Algorithm, Limit: r.Limit, WindowMS: r.Window.MS, Calendar: r.Window.Calendar,
		PenaltyMS: r.Penalty.MS, Overage: r.Overage == OverageAllow,
	}
	if r.Algorithm == SlidingWindowBuckets {
		n.PrecisionMS = r.Precision.MS
	}
	if r.Algorithm.Bucket() {
		n.Burst = r.Burst
		if n.Burst == 0 {
			n.Burst = r.Limit
		}
	}
	return n
}

func (r *Rule) checkSlug(errs *FieldErrors) {
	if !ValidSlug(r.Slug) {
		errs.Add("slug", InvalidSlug)
	}
}

// ValidSlug reports whether s can name a rule, a plan or a tenant: 1 to 63 of a-z, 0-9 and -.
func ValidSlug(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= MaxSlugBytes
}

// ValidAttributeName reports whether s can name an attribute of a check: 1 to 64 of A-Z, a-z,
// 0-9, _ . and -. "subject" and "resource" are not attributes: they are fields of the check.
func ValidAttributeName[T string | []byte](s T) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '-':
		default:
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 64 && string(s) != "subject" && string(s) != "resource"
}

// ValidName returns what is wrong with a subject, a resource or the value of an attribute, or nil.
func ValidName(s string) *Problem {
	switch {
	case s == "" || len(s) > MaxNameBytes:
		return nameLength
	case !utf8.ValidString(s):
		return nameUTF8
	case strings.ContainsFunc(s, unicode.IsControl):
		return HasControls
	}
	return nil
}

var (
	nameLength = MustBe("1 to %d bytes long", MaxNameBytes)
	nameUTF8   = MustBe("valid UTF-8")
)

// checkConsistency refuses leased rules whose units cannot be prefetched.
func (r *Rule) checkConsistency(errs *FieldErrors) {
	switch {
	case r.Consistency != Leased:
	case r.Algorithm == SlidingWindowLog:
		errs.Add("consistency", Wrong("Choose strict, or the algorithm sliding_window_buckets, which is nearly as exact.",
			"cannot be leased with sliding_window_log, because each request counts at its own instant"))
	case r.Algorithm == LeakyBucketQueue:
		errs.Add("consistency", Wrong("Choose strict, or the algorithm leaky_bucket, which has no delays.",
			"cannot be leased with leaky_bucket_queue, because each request waits for earlier ones"))
	case r.Penalty.MS != 0:
		errs.Add("consistency", Wrong("Choose strict, or remove the penalty.",
			"cannot be leased with a penalty, because a denial must start the penalty on all instances"))
	}
}

// checkLease refuses a lease of a strict rule, and one that is out of range.
func (r *Rule) checkLease(errs *FieldErrors) {
	switch ms := r.Lease.MS; {
	case ms == 0:
	case r.Consistency != Leased:
		errs.Add("lease", Wrong("Omit it, or set consistency to leased. In a merge patch, set it to null.", "is only for a rule with the consistency leased"))
	case ms < MinLeaseMS || ms > MaxLeaseMS:
		errs.Add("lease", MustBe("a duration from 50ms to 10s"))
	}
}

// ClientLease returns for how long a client may hold units of the rule.
func (r *Rule) ClientLease() time.Duration {
	if r.Lease.MS == 0 {
		return LeaseHold
	}
	return time.Duration(r.Lease.MS) * time.Millisecond
}

// checkZone refuses an unknown zone, and a zone for a window that has none.
func (r *Rule) checkZone(errs *FieldErrors) {
	if r.Window.Calendar == NoCalendar {
		if r.ZoneName() != "UTC" {
			errs.Add("zone", Wrong("Omit it, or use a window of day, week, month or year.", "is only for a window of day, week, month or year"))
		}
	} else if _, err := zoneOf(r.Zone); err != nil {
		errs.Add("zone", ProblemOf(err))
	}
}

// checkAnchor refuses windows per subject if subjects share a counter.
func (r *Rule) checkAnchor(errs *FieldErrors) {
	switch {
	case r.Anchor != AnchorSubject:
	case r.Window.Calendar == NoCalendar:
		errs.Add("anchor", Wrong("Use calendar, or a window of day, week, month or year.", "can be subject only with a window of day, week, month or year"))
	case !slices.Contains(r.By, "subject"):
		errs.Add("anchor", Wrong("Use calendar, or count by subject.",
			"can be subject only if by contains subject: a counter that subjects share has only one window"))
	}
}

// ZoneName returns the time zone of the rule's calendar window.
func (r *Rule) ZoneName() string { return cmp.Or(r.Zone, "UTC") }

// ValidateText refuses a text that is too long or contains control characters.
func ValidateText(errs *FieldErrors, field, s string, most int) {
	if utf8.RuneCountInString(s) > most || !utf8.ValidString(s) {
		errs.Add(field, MustBe("at most %d characters of UTF-8", most))
	} else if strings.ContainsFunc(s, func(c rune) bool { return unicode.IsControl(c) && c != '\n' && c != '\t' }) {
		errs.Add(field, HasControls)
	}
}

func (r *Rule) checkResource(errs *FieldErrors) {
	p := r.Resource
	if problem := ValidName(p); problem != nil {
		errs.Add("resource", problem)
	} else if i := strings.IndexByte(p, '*'); i >= 0 && i != len(p)-1 {
		errs.Add("resource", Wrong("Make it exact (orders:create), a prefix (orders:*) or all (*).",
			"may contain * only as its last character"))
	}
}

func (r *Rule) checkWindow(errs *FieldErrors) {
	if r.Window.Calendar != NoCalendar {
		if r.Algorithm != FixedWindow {
			errs.Add("window", Wrong("Use a duration, or the algorithm fixed_window.",
				"may be a calendar unit (day, week, month, year) only with fixed_window"))
		}
	} else if r.Window.MS < MinWindowMS || r.Window.MS > MaxWindowMS {
		errs.Add("window", MustBe("a duration from 1s to 366d, such as 1m or 30d"))
	}
}

func (r *Rule) checkPrecision(errs *FieldErrors) {
	switch {
	case r.Algorithm != SlidingWindowBuckets:
		if r.Precision.MS != 0 {
			errs.Add("precision", Wrong("Omit it, or use the algorithm sliding_window_buckets.", "is only for sliding_window_buckets"))
		}
	case r.Precision.MS < 1:
		errs.Add("precision", Wrong("Send a duration that divides the window, such as 1s for a window of 1m.",
			"is required for sliding_window_buckets: a duration that divides window into at most %d parts", MaxSubBuckets))
	case r.Window.MS%r.Precision.MS != 0 || r.Window.MS/r.Precision.MS > MaxSubBuckets:
		errs.Add("precision", Wrong("Use a duration that divides the window, such as 1s for a window of 1m.",
			"must divide window into 1 to %d parts", MaxSubBuckets))
	}
}

func (r *Rule) checkMeterEvent(errs *FieldErrors) {
	ValidateText(errs, "meter_event", r.MeterEvent, maxMeterEvent)
	if r.MeterEvent != "" && r.Metering == MeterNone {
		errs.Add("meter_event", Wrong("Omit it, or send metering: units or overage.", "is only for a metered rule"))
	}
}

func (r *Rule) checkPenalty(errs *FieldErrors) {
	if r.Penalty.MS < 0 || r.Penalty.MS > MaxPenaltyMS {
		errs.Add("penalty", MustBe("a duration up to 30d"))
	}
}

// maxLimit returns the maximum limit of the rule.
func (r *Rule) maxLimit() int64 { return r.Algorithm.MaxLimit() }

// checkLimit checks a limit for the rule: its own, or that of a plan or an override.
func (r *Rule) checkLimit(errs *FieldErrors, limit int64) {
	if limit < 1 || limit > r.maxLimit() {
		errs.Add("limit", r.Algorithm.OutsideLimit())
	}
}

// OutsideLimit returns the problem of a limit below 1 or above MaxLimit.
func (a Algorithm) OutsideLimit() *Problem {
	return MustBe("a whole number from 1 to %d with %s", a.MaxLimit(), a)
}

// checkBurst checks the burst for a limit; 0 is not set.
func (r *Rule) checkBurst(errs *FieldErrors, limit, burst int64) {
	if !r.Algorithm.Bucket() {
		if burst != 0 {
			errs.Add("burst", Wrong("Omit it, or use one of these algorithms.",
				"is only for token_bucket, leaky_bucket and leaky_bucket_queue"))
		}
		return
	}
	if burst < 0 || burst > MaxLimit {
		errs.Add("burst", MustBe("a whole number from 1 to %d", MaxLimit))
		return
	}
	if burst == 0 {
		burst = limit
	}
	limitOK := limit >= 1 && limit <= r.maxLimit()
	if limitOK && r.Window.MS > 0 && r.Window.MS <= MaxWindowMS && !productAtMost(burst, r.Window.MS, limit, MaxWindowMS) {
		errs.Add("burst", Wrong("Decrease the burst or the window, or increase the limit.",
			"must refill within 366 days: burst x window may be at most limit x 366d"))
	}
}

func (r *Rule) checkBy(errs *FieldErrors) {
	by := r.By
	if len(by) > MaxBy {
		errs.Add("by", Wrong("Remove values.", "may name at most %d values", MaxBy))
		return
	}
	for i, v := range by {
		field := fmt.Sprintf("by.%d", i)
		name, isAttribute := AttributeOf(v)
		switch {
		case slices.Contains(by[:i], v):
			errs.Add(field, Duplicate)
		case isAttribute && ValidAttributeName(name), v == "subject", v == "resource":
		default:
			errs.Add(field, MustBe("subject, resource or attributes.NAME (NAME: 1 to 64 of A-Z, a-z, 0-9, _ . -)"))
		}
	}
}

// Limit is the limit that a plan or an override sets for a rule.
type Limit struct {
	Limit     int64 // units of cost per window; 0 when Unlimited
	Burst     int64 // capacity of a bucket; 0: the same as Limit
	Unlimited bool  // the rule neither counts nor denies
	// WarnAt, Overage and Metering replace those of the rule; if they are not set, the rule's own
	// apply. Only the limit of a plan has them.
	WarnAt   Portion
	Overage  Overage
	Metering PlanMetering // also of an unlimited one
}

// Validate returns one error for each field that is out of range for rule r.
func (l Limit) Validate(r *Rule) []FieldError {
	var errs FieldErrors
	if l.Unlimited {
		if l.Limit != 0 || l.Burst != 0 {
			errs.Add("unlimited", Wrong("Omit limit and burst. In a merge patch that makes a limit unlimited, set both to null.",
				"cannot be combined with limit or burst"))
		}
		for field, set := range map[string]bool{"warn_at": l.WarnAt != 0, "overage": l.Overage != OverageUnset} {
			if set {
				errs.Add(field, Wrong("Omit it. In a merge patch that makes a limit unlimited, set it to null.", "cannot be combined with unlimited"))
			}
		}
		return errs
	}
	r.checkLimit(&errs, l.Limit)
	r.checkBurst(&errs, l.Limit, l.Burst)
	r.checkOverage(&errs, l.Overage)
	for i := range errs {
		if errs[i].Field == "limit" && l.Limit == 0 { // the limit was not given
			errs[i].Fix = "Send a number, or unlimited: true instead."
		}
	}
	return errs
}

// ValidPattern reports whether a text can be the resource of a rule: exact, a prefix and *, or *.
func ValidPattern(pattern string) bool {
	at := strings.IndexByte(pattern, '*')
	return ValidName(pattern) == nil && (at < 0 || at == len(pattern)-1)
}

// Matches reports whether a pattern of a rule includes a resource.
func Matches(pattern, resource string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(resource, prefix)
	}
	return pattern == resource
}
