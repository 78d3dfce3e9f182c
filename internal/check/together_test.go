package check

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// heard is an observer that stores its notifications.
type heard struct {
	mu        sync.Mutex
	decisions []Decision
}

func (h *heard) Decided(_ limit.TenantID, _ *Request, d *Decision, _ time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.decisions = append(h.decisions, *d)
}

func (r *rig) together(reqs ...Request) ([]Decision, bool) {
	r.t.Helper()
	decisions, err := r.checker.CheckTogetherInTurns(r.t.Context(), r.policy, reqs, new(Scratch), nil)
	require.NoError(r.t, err)
	require.Len(r.t, decisions, len(reqs))
	return decisions, allAllow(decisions)
}

func allAllow(decisions []Decision) bool {
	return !slices.ContainsFunc(decisions, func(d Decision) bool { return !d.Allowed })
}

func (r *rig) remaining(req Request) int64 {
	r.t.Helper()
	req.Cost = 0
	d := r.check(req)
	return d.Rules[0].Remaining
}

func ruleFor(slug, resource string, n int64, by ...string) limit.Rule {
	return limit.Rule{
		Slug: slug, Resource: resource, Algorithm: limit.FixedWindow, Limit: n,
		Window: limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}, By: by,
	}
}

// Several requests are charged all or none, each on its own counters.
func TestTogetherAllOrNone(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{
		ruleFor("a", "a", 5, "subject"), ruleFor("b", "b", 2, "subject"),
	}})
	listener := &heard{}
	r.checker.observers = []Observer{listener}
	a, b := Request{Subject: "x", Resource: "a", Cost: 1}, Request{Subject: "y", Resource: "b", Cost: 2}
	decisions, allowed := r.together(a, b)
	require.True(t, allowed)
	require.EqualValues(t, 4, decisions[0].Rules[0].Remaining)
	require.EqualValues(t, 0, decisions[1].Rules[0].Remaining)
	require.Len(t, listener.decisions, 2)

	decisions, allowed = r.together(a, b)
	require.False(t, allowed)
	require.True(t, decisions[0].Allowed, "the result of the request alone")
	require.EqualValues(t, 4, decisions[0].Rules[0].Remaining)
	require.False(t, decisions[1].Allowed)
	require.Equal(t, RateLimitExceeded, decisions[1].Code)
	require.EqualValues(t, 60_000, decisions[1].Rules[0].RetryAfterMS)
	require.EqualValues(t, 4, r.remaining(a), "nothing was charged")
	require.Equal(t, "y", listener.decisions[2].Subject)
	require.Len(t, listener.decisions, 4, "a denial, and the read above")
}

// A counter that two requests share counts both.
func TestTogetherSharedCounter(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{ruleFor("all", "*", 5, "subject")}})
	one, two := Request{Subject: "x", Resource: "a", Cost: 1}, Request{Subject: "x", Resource: "b", Cost: 2}
	decisions, allowed := r.together(one, two)
	require.True(t, allowed)
	for _, d := range decisions {
		require.EqualValues(t, 2, d.Rules[0].Remaining)
	}
	decisions, allowed = r.together(one, two)
	require.False(t, allowed, "each fits alone, but not both together")
	for _, d := range decisions {
		require.False(t, d.Allowed)
		require.EqualValues(t, 2, d.Rules[0].Remaining)
	}
	_, allowed = r.together(one, one)
	require.True(t, allowed)
	require.EqualValues(t, 0, r.remaining(one))
	decisions, allowed = r.together(Request{Subject: "z", Resource: "a", Cost: 3}, Request{Subject: "z", Resource: "a", Cost: 3})
	require.False(t, allowed)
	require.Equal(t, CostExceedsLimit, decisions[0].Code, "no wait helps these two")
	for i := range decisions {
		d := &decisions[i]
		require.EqualValues(t, 3, d.Cost)
		require.EqualValues(t, 6, d.Asked(&d.Rules[0]), "the reason is the cost of both")
	}
	decisions, _ = r.together(Request{Subject: "y", Resource: "a", Cost: 3}, Request{Subject: "z", Resource: "a", Cost: 1})
	require.EqualValues(t, 3, decisions[0].Asked(&decisions[0].Rules[0]))
	require.EqualValues(t, 1, decisions[1].Asked(&decisions[1].Rules[0]))
}

// Two customers on different plans share a counter of the tenant: neither limit is exceeded.
func TestTogetherSharedCounterOfDifferentNumbers(t *testing.T) {
	r := newRig(t, PolicyData{
		Rules: []limit.Rule{ruleFor("tenant", "*", 100)},
		Plans: []PlanData{
			{Slug: "large", Limits: map[string]limit.Limit{"tenant": {Limit: 10}}},
			{Slug: "small", Limits: map[string]limit.Limit{"tenant": {Limit: 3}}},
		},
	})
	large, small := Request{Subject: "l", Resource: "a", Plan: "large", Cost: 2}, Request{Subject: "s", Resource: "a", Plan: "small", Cost: 1}
	_, allowed := r.together(large, small)
	require.True(t, allowed)
	for _, reqs := range [][]Request{{large, small}, {small, large}} {
		_, allowed = r.together(reqs...)
		require.False(t, allowed)
	}
	_, allowed = r.together(large, Request{Subject: "l", Resource: "a", Plan: "large", Cost: 5})
	require.True(t, allowed)
}

// A blocked subject denies the other requests, too, and nothing is charged. An exempt subject
// denies nothing.
func TestTogetherStates(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{ruleFor("each", "*", 2, "subject")}},
		SubjectData{Subject: "blocked", State: Blocked}, SubjectData{Subject: "exempt", State: Exempt})
	ask := func(subject string) Request { return Request{Subject: subject, Resource: "a", Cost: 1} }
	decisions, allowed := r.together(ask("blocked"), ask("x"))
	require.False(t, allowed)
	require.Equal(t, SubjectBlocked, decisions[0].Code)
	require.True(t, decisions[1].Allowed)
	require.EqualValues(t, 2, r.remaining(ask("x")))
	for range 3 {
		_, allowed = r.together(ask("exempt"), ask("exempt"))
		require.True(t, allowed)
	}
	_, err := r.checker.CheckIn(t.Context(), r.policy, []Request{ask("x")}, new(Scratch))
	require.NoError(t, err)
	_, err = r.checker.CheckTogetherInTurns(t.Context(), r.policy, []Request{ask("x"), {Subject: "y", Resource: "a", Plan: "none"}}, new(Scratch), nil)
	require.Equal(t, &UnknownPlanError{Index: 1, Plan: "none"}, err)
	require.EqualValues(t, 1, r.remaining(ask("x")))
}

// Requests with nothing to count are allowed, and reused memory has no effect.
func TestTogetherWithoutCounters(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{ruleFor("a", "a", 1, "subject")}})
	scratch := new(Scratch)
	for range 2 {
		reqs := []Request{{Subject: "x", Resource: "other", Cost: 1}, {Subject: "x", Resource: "third", Cost: 1}}
		decisions, err := r.checker.CheckTogetherInTurns(t.Context(), r.policy, reqs, scratch, nil)
		require.NoError(t, err)
		require.True(t, allAllow(decisions))
		require.Empty(t, decisions[0].Rules)
		reqs = []Request{{Subject: "x", Resource: "a", Cost: 5}, {Subject: "x", Resource: "third", Cost: 1}}
		decisions, err = r.checker.CheckTogetherInTurns(t.Context(), r.policy, reqs, scratch, nil)
		require.NoError(t, err)
		require.False(t, allAllow(decisions))
	}
}

// If Redis is unavailable, the on_unavailable of each rule answers, still all or none.
func TestTogetherDegraded(t *testing.T) {
	deny, local := ruleFor("deny", "a", 5, "subject"), ruleFor("local", "b", 1, "subject")
	deny.OnUnavailable = limit.Deny
	local.OnUnavailable = limit.Local
	r := newRig(t, PolicyData{Rules: []limit.Rule{deny, local}})
	r.store.fail.Store(true)
	a, b := Request{Subject: "x", Resource: "a", Cost: 1}, Request{Subject: "x", Resource: "b", Cost: 1}
	for range 3 {
		decisions, allowed := r.together(a, b)
		require.False(t, allowed)
		require.Equal(t, CountersUnavailable, decisions[0].Code)
		require.True(t, decisions[1].Allowed, "not charged by the previous denials")
		require.True(t, decisions[1].Degraded)
	}
	peek := a
	peek.Cost = 0
	_, allowed := r.together(peek, b)
	require.True(t, allowed, "cost 0 is never denied")
	_, allowed = r.together(peek, b)
	require.False(t, allowed)
}

// With concurrent callers, the sum of what was allowed never exceeds a limit, and both counters
// agree.
func TestTogetherConcurrent(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{
		ruleFor("shared", "*", 300), ruleFor("one", "one", 1000, "subject"), ruleFor("two", "two", 1000, "subject"),
	}})
	var allowedCount atomic.Int64
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			scratch := new(Scratch)
			for range 10 {
				reqs := []Request{{Subject: "x", Resource: "one", Cost: 1}, {Subject: "x", Resource: "two", Cost: 2}}
				decisions, err := r.checker.CheckTogetherInTurns(t.Context(), r.policy, reqs, scratch, nil)
				if err != nil {
					t.Error(err)
				} else if allAllow(decisions) {
					allowedCount.Add(1)
				}
			}
		})
	}
	clients.Wait()
	require.EqualValues(t, 100, allowedCount.Load())
	one := r.check(Request{Subject: "x", Resource: "one"})
	two := r.check(Request{Subject: "x", Resource: "two"})
	for i, want := range map[string]int64{"one": 900, "shared": 0} {
		for _, rule := range one.Rules {
			if rule.Rule.Slug == i {
				require.Equal(t, want, rule.Remaining)
			}
		}
	}
	for _, rule := range two.Rules {
		if rule.Rule.Slug == "two" {
			require.EqualValues(t, 800, rule.Remaining)
		}
	}
}

// A calendar window is the one in which the counters were charged, for one request and for several.
func TestTogetherCalendarWindow(t *testing.T) {
	month := ruleFor("a", "a", 5, "subject")
	month.Zone, month.Window = "UTC", limit.Window{Calendar: limit.CalendarMonth, Duration: limit.Duration{Text: "month"}}
	other := month
	other.Slug, other.Resource = "b", "b"
	r := newRig(t, PolicyData{Rules: []limit.Rule{month, other}})
	started := time.Date(2026, time.January, 31, 23, 59, 0, 0, time.UTC)
	r.now.Store(started.UnixMilli())
	r.store.Engine = engine.NewMemory(engine.MemoryOptions{Clock: started.Add(time.Hour).UnixMilli})
	const february = 28 * 24 * 3_600_000
	require.EqualValues(t, february, r.check(Request{Subject: "x", Resource: "a"}).Rules[0].WindowMS)
	decisions, _ := r.together(Request{Subject: "x", Resource: "a"}, Request{Subject: "x", Resource: "b"})
	for _, d := range decisions {
		require.EqualValues(t, february, d.Rules[0].WindowMS)
	}
}

// Two customers on different plans share a bucket of the tenant: neither the rate nor the burst of
// either plan is exceeded.
func TestTogetherSharedBucketOfDifferentNumbers(t *testing.T) {
	bucket := ruleFor("tenant", "*", 100)
	bucket.Algorithm = limit.TokenBucket
	r := newRig(t, PolicyData{
		Rules: []limit.Rule{bucket},
		Plans: []PlanData{
			{Slug: "fast", Limits: map[string]limit.Limit{"tenant": {Limit: 60, Burst: 10}}},
			{Slug: "slow", Limits: map[string]limit.Limit{"tenant": {Limit: 6, Burst: 20}}},
		},
	})
	fast, slow := Request{Subject: "f", Resource: "a", Plan: "fast", Cost: 1}, Request{Subject: "s", Resource: "a", Plan: "slow", Cost: 1}
	for n, reqs := range [][]Request{{fast, slow}, {slow, fast}} {
		units := 0
		flood := func() {
			for {
				if _, allowed := r.together(reqs...); !allowed {
					return
				}
				units += 2
			}
		}
		flood()
		require.Equal(t, 10, units, "the smaller burst")
		for range 4 {
			r.move(time.Minute)
			flood()
		}
		require.Equal(t, 10+4*6, units, "and 6 a minute")
		if n == 0 {
			r.move(time.Hour)
		}
	}
}
