package weir

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"
)

// A Source says who decided.
type Source string

// The sources.
const (
	SourceServer   Source = "server"
	SourceMemory   Source = "memory"   // a denial of the server that is still valid
	SourceLease    Source = "lease"    // units that the server has charged in advance: see WithLeases
	SourceFallback Source = "fallback" // no decision: see Decision.NoDecision
)

// A Decision is the answer to a check. The zero value denies.
type Decision struct {
	Allowed  bool
	Source   Source
	Subject  string
	Resource string
	Cost     int64
	Plan     string // empty if the tenant has none

	// Rule is the deciding rule, to which the next fields belong. If no enforcing rule with a limit
	// matched, it is empty and they are unknown.
	Rule         string
	Limit        Number
	Remaining    Number
	RetryAfterMS Number // unknown on a denial: no wait helps
	ResetAfterMS Number
	DelayMS      Number // wait this long before you proceed

	Rules    []RuleDecision // the result of each matching rule; do not change it
	Skipped  []SkippedRule
	Degraded bool    // a rule was answered without the shared counters
	Overage  bool    // the subject is beyond the limit of an enforcing rule, which allows it
	Warning  bool    // the subject is near the limit of an enforcing rule
	Replayed bool    // the first decision of the same idempotency key
	Denial   *Denial // the reason; nil if allowed
	Headers  Headers // to forward to your own client; see CopyHeaders

	// NoDecision says why there is no decision of the server. It is nil unless Source is
	// SourceFallback.
	NoDecision *NoDecision
}

// A RuleDecision is the result of one rule.
type RuleDecision struct {
	Rule         string `json:"rule"`
	Algorithm    string `json:"algorithm"`
	Mode         string `json:"mode"` // enforce or shadow
	Allowed      bool   `json:"allowed"`
	Source       string `json:"source"` // where the limit comes from: rule, plan:SLUG or override
	Unlimited    bool   `json:"unlimited"`
	Limit        Number `json:"limit"`
	Burst        Number `json:"burst"`
	WindowMS     Number `json:"window_ms"`
	Remaining    Number `json:"remaining"`
	RetryAfterMS Number `json:"retry_after_ms"`
	ResetAfterMS Number `json:"reset_after_ms"`
	DelayMS      Number `json:"delay_ms"`
	Penalized    bool   `json:"penalized"`
	Degraded     bool   `json:"degraded"`
	Warning      bool   `json:"warning"`
	Overage      bool   `json:"overage"`
	OverageUnits int64  `json:"overage_units"` // units beyond the limit that count now
	// CreditsSpent are prepaid units that this check spent. CreditsRemaining are those that are
	// left; not Known if the subject never had any for the rule.
	CreditsSpent     int64  `json:"credits_spent"`
	CreditsRemaining Number `json:"credits_remaining"`
}

// A SkippedRule is a rule that was not evaluated.
type SkippedRule struct {
	Rule      string `json:"rule"`
	Reason    string `json:"reason"`
	Attribute string `json:"attribute"`
}

// A Denial is the reason of a denial, in a form that can be shown to an end user.
type Denial struct {
	Code       string `json:"code"`
	Message    string `json:"message"`
	RetryAfter Number `json:"retry_after"` // in seconds, rounded up
}

// RetryAfter returns how long to wait before the same check may be allowed. ok is false if no wait
// helps or the time is unknown.
func (d *Decision) RetryAfter() (time.Duration, bool) { return d.RetryAfterMS.duration() }

// ResetAfter returns the time until the full quota is available, and whether it is known.
func (d *Decision) ResetAfter() (time.Duration, bool) { return d.ResetAfterMS.duration() }

// Delay returns how long to wait before you proceed with an allowed request.
func (d *Decision) Delay() time.Duration {
	if !d.Allowed {
		return 0
	}
	delay, _ := d.DelayMS.duration()
	return delay
}

// A Number is a whole number that may be unknown.
type Number struct {
	Value int64
	Known bool
}

// N returns a known number.
func N(value int64) Number { return Number{Value: value, Known: true} }

// Or returns the number, or the fallback if it is unknown.
func (n Number) Or(fallback int64) int64 {
	if n.Known {
		return n.Value
	}
	return fallback
}

func (n Number) String() string {
	if !n.Known {
		return "unknown"
	}
	return strconv.FormatInt(n.Value, 10)
}

func (n Number) duration() (time.Duration, bool) {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(n.Value, most)) * time.Millisecond, n.Known
}

// MarshalJSON writes an unknown number as null.
func (n Number) MarshalJSON() ([]byte, error) {
	if !n.Known {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, n.Value, 10), nil
}

// UnmarshalJSON reads null as unknown.
func (n *Number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = Number{}
		return nil
	}
	value, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return err
	}
	*n = N(value)
	return nil
}

// wireDecision is a decision as the server encodes it.
type wireDecision struct {
	Allowed      *bool          `json:"allowed"`
	Subject      string         `json:"subject"`
	Resource     string         `json:"resource"`
	Cost         int64          `json:"cost"`
	Plan         string         `json:"plan"`
	Rule         string         `json:"rule"`
	Limit        Number         `json:"limit"`
	Remaining    Number         `json:"remaining"`
	RetryAfterMS Number         `json:"retry_after_ms"`
	ResetAfterMS Number         `json:"reset_after_ms"`
	DelayMS      Number         `json:"delay_ms"`
	Rules        []RuleDecision `json:"rules"`
	Skipped      []SkippedRule  `json:"skipped"`
	Degraded     bool           `json:"degraded"`
	Warning      bool           `json:"warning"`
	Overage      bool           `json:"overage"`
	Replayed     bool           `json:"replayed"`
	Error        *Denial        `json:"error"`
}

var errNoDecision = errors.New("the answer has no boolean field allowed")

func (w *wireDecision) decision() (Decision, error) {
	if w.Allowed == nil {
		return Decision{}, errNoDecision
	}
	d := Decision{
		Allowed: *w.Allowed, Source: SourceServer, Subject: w.Subject, Resource: w.Resource, Cost: w.Cost, Plan: w.Plan,
		Rule: w.Rule, Limit: w.Limit, Remaining: w.Remaining, RetryAfterMS: w.RetryAfterMS, ResetAfterMS: w.ResetAfterMS,
		DelayMS: w.DelayMS, Rules: w.Rules, Skipped: w.Skipped, Degraded: w.Degraded, Warning: w.Warning, Overage: w.Overage,
		Replayed: w.Replayed, Denial: w.Error,
	}
	for i := range d.Rules {
		d.Warning = d.Warning || d.Rules[i].Warning && d.Rules[i].Mode != "shadow"
	}
	return d, nil
}

func decodeDecision(body []byte) (Decision, error) {
	var w wireDecision
	if !scanDecision(string(body), &w) {
		w = wireDecision{}
		if err := json.Unmarshal(body, &w); err != nil {
			return Decision{}, err
		}
	}
	return w.decision()
}

// decodeBatch reads the answer to a batch of n checks.
func decodeBatch(body []byte, n int, now time.Time) ([]Decision, error) {
	var w struct {
		Results []wireDecision `json:"results"`
	}
	results, ok := scanBatch(string(body), make([]wireDecision, 0, n))
	if ok {
		w.Results = results
	} else if err := json.Unmarshal(body, &w); err != nil {
		return nil, err
	}
	if len(w.Results) != n {
		return nil, errors.New("the answer has " + strconv.Itoa(len(w.Results)) + " results for " + strconv.Itoa(n) + " checks")
	}
	decisions := make([]Decision, n)
	for i := range w.Results {
		d, err := w.Results[i].decision()
		if err != nil {
			return nil, err
		}
		d.Headers = builtHeaders(&d, now)
		decisions[i] = d
	}
	return decisions, nil
}
