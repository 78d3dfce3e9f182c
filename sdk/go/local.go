package weir

import (
	"math"
	"strconv"
	"sync"
	"time"
)

const localEntries = 10_000

// A local remembers the limits of earlier decisions, and counts a share of them in process while
// there is no decision. It does not know other processes: the share is what this process may allow.
type local struct {
	share float64

	mu         sync.Mutex
	ofSubject  map[string]*knownLimits // by subject, resource and plan of the check
	ofResource map[string]*knownLimits // by resource and plan of the check: the latest
	counters   map[counterKey]*localCounter
}

type knownLimits struct {
	blocked bool
	limits  []localLimit
}

type localLimit struct {
	rule   string
	limit  int64
	window time.Duration
}

type counterKey struct{ subject, rule string }

type localCounter struct {
	used int64
	ends time.Time
}

func newLocal(share float64) *local {
	return &local{share: share, ofSubject: map[string]*knownLimits{}, ofResource: map[string]*knownLimits{}, counters: map[counterKey]*localCounter{}}
}

// learn stores the limits of a decision of the server.
func (l *local) learn(q *question, d *Decision) {
	if l == nil || q.explain {
		return
	}
	known := &knownLimits{blocked: d.Denial != nil && d.Denial.Code == CodeSubjectBlocked}
	for i := range d.Rules {
		rule := &d.Rules[i]
		if window, ok := rule.WindowMS.duration(); ok && rule.Mode == "enforce" && !rule.Unlimited && rule.Limit.Known {
			known.limits = append(known.limits, localLimit{rule: rule.Rule, limit: rule.Limit.Value, window: window})
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	keep(l.ofSubject, joinKey(q.Subject, q.Resource, q.Plan), known)
	if !known.blocked {
		keep(l.ofResource, joinKey(q.Resource, q.Plan), known)
	}
}

// keep adds an entry to a bounded map. If the map is full, it replaces another one.
func keep[K comparable, V any](entries map[K]V, key K, value V) {
	if _, found := entries[key]; !found && len(entries) >= localEntries {
		for other := range entries {
			delete(entries, other)
			break
		}
	}
	entries[key] = value
}

// A localVerdict is the result of one rule without the server.
type localVerdict struct {
	rule      string
	share     int64
	remaining int64
	wait      Number // until it would be allowed; 0 if it is allowed now, unknown if it never is
	reset     time.Duration
	counter   *localCounter // nil until its window begins
	window    time.Duration
}

// decide answers a question. It fills in d, which allows at first.
func (l *local) decide(q *question, d *Decision, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.ofSubject[joinKey(q.Subject, q.Resource, q.Plan)]
	if known == nil {
		known = l.ofResource[joinKey(q.Resource, q.Plan)]
	}
	if known == nil {
		return
	}
	if known.blocked {
		d.Allowed = false
		d.Denial = &Denial{Code: CodeSubjectBlocked, Message: "The subject is blocked."}
		return
	}
	verdicts := make([]localVerdict, len(known.limits))
	deciding := -1
	for i, limit := range known.limits {
		verdicts[i] = l.judge(q, limit, now)
		d.Allowed = d.Allowed && verdicts[i].allows()
	}
	for i := range verdicts {
		if d.Allowed {
			l.take(q, &verdicts[i], now)
		}
		if deciding < 0 || verdicts[i].before(&verdicts[deciding], d.Allowed) {
			deciding = i
		}
	}
	if deciding >= 0 {
		verdicts[deciding].describe(d)
	}
}

// judge evaluates one limit and counts nothing.
func (l *local) judge(q *question, limit localLimit, now time.Time) localVerdict {
	v := localVerdict{rule: limit.rule, window: limit.window, wait: N(0)}
	if limit.limit > 0 {
		v.share = max(1, int64(math.Floor(float64(limit.limit)*l.share)))
	}
	v.remaining = v.share
	if counter := l.counters[counterKey{q.Subject, limit.rule}]; counter != nil && now.Before(counter.ends) {
		v.counter = counter
		v.remaining = max(0, v.share-counter.used)
		v.reset = counter.ends.Sub(now)
	}
	switch {
	case q.Cost == 0 || q.Cost <= v.remaining:
	case q.Cost > v.share:
		v.wait = Number{}
	default:
		v.wait = N(max(1, v.reset.Milliseconds()))
	}
	return v
}

// take counts an allowed question.
func (l *local) take(q *question, v *localVerdict, now time.Time) {
	if q.Cost == 0 {
		return
	}
	if v.counter == nil {
		v.counter = &localCounter{ends: now.Add(v.window)}
		v.reset = v.window
		keep(l.counters, counterKey{q.Subject, v.rule}, v.counter)
	}
	v.counter.used += q.Cost
	v.remaining = max(0, v.share-v.counter.used)
}

func (v *localVerdict) allows() bool { return v.wait == N(0) }

// before reports whether v decides rather than other: among denials the one with the longest wait,
// otherwise the one with the smallest share left.
func (v *localVerdict) before(other *localVerdict, allowed bool) bool {
	if allowed {
		return float64(v.remaining)*float64(max(1, other.share)) < float64(other.remaining)*float64(max(1, v.share))
	}
	return v.wait.Or(math.MaxInt64) > other.wait.Or(math.MaxInt64)
}

func (v *localVerdict) describe(d *Decision) {
	d.Rule, d.Limit, d.Remaining = v.rule, N(v.share), N(v.remaining)
	d.RetryAfterMS, d.ResetAfterMS = v.wait, N(v.reset.Milliseconds())
	switch {
	case d.Allowed:
	case v.wait.Known:
		seconds := ceilSeconds(v.wait.Value)
		d.Denial = &Denial{Code: CodeRateLimitExceeded, RetryAfter: N(seconds),
			Message: "Rate limit exceeded. Try again in " + strconv.FormatInt(seconds, 10) + " seconds."}
		d.Headers.RetryAfter = strconv.FormatInt(seconds, 10)
	default:
		d.Denial = &Denial{Code: CodeCostExceedsLimit,
			Message: "The cost is greater than " + v.rule + " allows while the rate limiter is unavailable."}
	}
}
