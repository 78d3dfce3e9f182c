package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/limit"
)

// clientLease is a lease in the memory of a client.
type clientLease struct {
	grant  engine.Grant
	left   int64
	sent   int64 // by the client's own clock
	untilM int64
}

// client is a process that holds leases. Its clock is apart from all others by skew. It only
// measures durations with it.
type client struct {
	skew int64
	held []*clientLease
}

// Clients lease units, grant them, return them early, late or never, and crash, while instances
// prefetch, grant and return units of the same counters. Answers take time, and clocks are apart by
// hours. Whatever is allowed, a strict engine could have allowed at the same instant.
func TestGrantsNeverExceed(t *testing.T) {
	lateOfAll := 0
	for _, a := range leasableAlgorithms() {
		if a == limit.FixedWindowFirstHit {
			continue // TestNoGrantOpensAWindow
		}
		t.Run(a.String(), func(t *testing.T) {
			granted, refused, late := 0, 0, 0
			for seed := range uint64(leasedRuns) {
				run := grantRun{leasedRun: newGrantRun(t, a, seed), random: rand.New(rand.NewPCG(seed, 77))}
				for range 1 + run.random.IntN(8) {
					run.clients = append(run.clients, &client{skew: run.random.Int64N(7_200_000) - 3_600_000})
				}
				run.play()
				granted += run.granted
				refused += run.refused
				late += run.late
			}
			require.Greater(t, granted, 10*leasedRuns, "checks were decided by clients")
			lateOfAll += late
			t.Log("decided by clients", granted, "later than 300 ms", late, "leases refused", refused)
		})
	}
	require.Positive(t, lateOfAll, "some of them long after the units were charged")
}

func newGrantRun(t *testing.T, a limit.Algorithm, seed uint64) leasedRun {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, uint64(a)))
	rules := randomLeasedRules(r, a)
	for i := range rules {
		if rules[i].Algorithm == limit.FixedWindowFirstHit {
			rules[i].Algorithm = limit.FixedWindow
		}
		if r.IntN(4) > 0 { // else the default
			rules[i].Lease.MS = limit.MinLeaseMS + r.Int64N([]int64{500, 3_000, limit.MaxLeaseMS - limit.MinLeaseMS + 1}[r.IntN(3)])
		}
	}
	return leasedRun{fleet: newFleet(t, 1+r.IntN(4), rules...), strict: strictly{enginetest.NewReference(), rules}, seed: seed, most: 3}
}

type grantRun struct {
	leasedRun
	random  *rand.Rand
	clients []*client

	granted, refused, late int
}

func (r *grantRun) play() {
	defer func() {
		for _, i := range r.instances {
			i.Close()
		}
	}()
	for range 800 {
		c := r.clients[r.random.IntN(len(r.clients))]
		switch n := r.random.IntN(100); {
		case n < 15:
			r.lease(c)
		case n < 60:
			r.decide(c, 1+r.random.Int64N(r.most)/2)
		case n < 63: // a burst of everything that all clients hold
			for _, c := range r.clients {
				for cost := int64(512); cost > 0; cost /= 8 {
					for r.decide(c, cost) {
					}
				}
			}
		case n < 68:
			r.giveBack(c)
		case n < 69: // the client is killed
			c.held = nil
		case n < 70: // an instance is killed
			r.start(r.random.IntN(len(r.instances)))
		case n < 85:
			r.move(1 + r.random.Int64N(20))
		case n < 87:
			r.move(50 + r.random.Int64N(400))
		case n < 88:
			r.move(1_000 + r.random.Int64N(9_000))
		default:
			r.checkStrictly(r.random.IntN(len(r.instances)), 1)
		}
	}
}

// checkStrictly sends a check to an instance, which may grant it from its own lease.
func (r *grantRun) checkStrictly(instance int, cost int64) {
	if r.fleet.ask(instance, "s", cost).Allowed {
		r.replay(cost)
	}
}

func (r *grantRun) replay(cost int64) {
	r.t.Helper()
	call := r.strict.call(r.now, cost, false)
	require.True(r.t, call.Outcome.Allowed, "seed %d at %d: the strict engine would deny: %+v %+v", r.seed, r.now-fleetStart, r.strict.rules, call.Outcome)
}

// lease asks an instance for units. The request and the answer take time, and the answer may be
// lost.
func (r *grantRun) lease(c *client) {
	sent := r.now + c.skew
	r.move(r.random.Int64N(8))
	req := check.Request{Subject: "s", Resource: "r", Cost: []int64{1, 5, 50, 5_000}[r.random.IntN(4)]}
	l, err := r.instances[r.random.IntN(len(r.instances))].Lease(context.Background(), r.policy, &req, new(check.Scratch))
	var not *check.NotLeasableError
	switch {
	case errors.As(err, &not), err == nil && !l.Decision.Allowed:
		r.refused++
		return
	}
	require.NoError(r.t, err)
	require.LessOrEqual(r.t, l.Units, req.Cost)
	require.Positive(r.t, l.Units)
	r.move(r.random.Int64N(8))
	if r.random.IntN(10) > 0 {
		c.held = append(c.held, &clientLease{grant: l.Grant, left: l.Units, sent: sent, untilM: sent + l.Life.Milliseconds()})
	}
}

// decide decides a check from what the client holds.
func (r *grantRun) decide(c *client, cost int64) bool {
	for _, l := range c.held {
		if l.left >= cost && r.now+c.skew < l.untilM {
			l.left -= cost
			r.granted++
			if r.now+c.skew-l.sent > 300 {
				r.late++
			}
			r.replay(cost)
			return true
		}
	}
	return false
}

// giveBack returns a lease, which may be over for a long time.
func (r *grantRun) giveBack(c *client) {
	if len(c.held) == 0 {
		return
	}
	l := c.held[0]
	c.held = c.held[1:]
	i := r.instances[r.random.IntN(len(r.instances))]
	require.NoError(r.t, i.ReturnLease(context.Background(), &l.grant, l.left))
}

// What is granted is charged, and what is returned at once is free again, under all rules.
func TestGrantIsReturned(t *testing.T) {
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowCounter, limit.SlidingWindowBuckets, limit.TokenBucket} {
		rules := []limit.Rule{leasedRule("a", a, 1_000, 60_000), leasedRule("b", limit.FixedWindow, 400, 60_000)}
		if a.Bucket() {
			rules[0].Burst = 1_000
		}
		f := newFleet(t, 2, rules...)
		require.True(t, f.ask(0, "s", 200).Allowed)
		req := check.Request{Subject: "s", Resource: "r", Cost: 1_000}
		l, err := f.instances[0].Lease(t.Context(), f.policy, &req, new(check.Scratch))
		require.NoError(t, err)
		require.Positive(t, l.Units)
		require.LessOrEqual(t, l.Units, int64(50), "a quarter of the 200 that remain under the smaller rule")
		require.NoError(t, f.instances[1].ReturnLease(t.Context(), &l.Grant, l.Units), "at another instance")
		d := f.check(1, check.Request{Subject: "s", Resource: "r"})
		require.EqualValues(t, 200, d.Rules[1].Remaining, a)
		if !a.Bucket() { // a bucket keeps what would drain until the lease ends
			require.EqualValues(t, 800, d.Rules[0].Remaining, a)
		}
	}
}

// A grant would open a window that begins with its first request, so there is none.
func TestNoGrantOpensAWindow(t *testing.T) {
	f := newFleet(t, 1, leasedRule("a", limit.FixedWindowFirstHit, 100, 60_000))
	req := check.Request{Subject: "s", Resource: "r", Cost: 10}
	_, err := f.instances[0].Lease(t.Context(), f.policy, &req, new(check.Scratch))
	var not *check.NotLeasableError
	require.ErrorAs(t, err, &not)
	require.Len(t, not.Rules, 1)
}

// A rule in shadow mode must see each check that it would deny, and it never denies.
func TestGrantUnderAShadowRule(t *testing.T) {
	shadow := leasedRule("a", limit.FixedWindow, 20, 60_000)
	shadow.Mode = limit.Shadow
	f := newFleet(t, 1, shadow, leasedRule("b", limit.FixedWindow, 1_000, 60_000))
	lease := func() (check.Lease, error) {
		req := check.Request{Subject: "s", Resource: "r", Cost: 100}
		return f.instances[0].Lease(t.Context(), f.policy, &req, new(check.Scratch))
	}
	l, err := lease()
	require.NoError(t, err)
	require.EqualValues(t, 5, l.Units)
	require.True(t, f.ask(0, "s", 15).Allowed)
	_, err = lease()
	var not *check.NotLeasableError
	require.ErrorAs(t, err, &not)
	require.True(t, not.Now)
	require.Len(t, not.Rules, 1)
	require.Equal(t, "a", not.Rules[0].Rule)
	require.Contains(t, not.Rules[0].Reason.Message, "shadow")
}

// Units that the instance itself holds must not make it deny a lease.
func TestGrantTakesWhatTheInstanceHolds(t *testing.T) {
	f := newFleet(t, 1, leasedRule("a", limit.FixedWindow, 400, 60_000))
	f.checkUntilLeased(0, "s")
	held, _ := f.instances[0].LeaseHeld()
	require.Positive(t, held)
	req := check.Request{Subject: "s", Resource: "r", Cost: 400}
	granted := f.used("s") - held
	for { // until nothing is left
		l, err := f.instances[0].Lease(t.Context(), f.policy, &req, new(check.Scratch))
		require.NoError(t, err)
		if !l.Decision.Allowed {
			require.EqualValues(t, 1, l.Decision.Cost)
			require.Equal(t, check.RateLimitExceeded, l.Decision.Code)
			break
		}
		require.Positive(t, l.Units)
		granted += l.Units
	}
	require.EqualValues(t, 400, granted, "to the last unit, including those that the instance held")
	held, _ = f.instances[0].LeaseHeld()
	require.Zero(t, held, "its own units were returned first")
}

// Units are held for as long as the shortest lease of the rules, less the drift of clocks, and not
// beyond the end of a window. The cushion of a bucket is at most an eighth of what remains.
func TestGrantLasts(t *testing.T) {
	grant := func(at int64, rules ...limit.Rule) check.Lease {
		f := newFleet(t, 1, rules...)
		f.now += at
		req := check.Request{Subject: "s", Resource: "r", Cost: 10}
		l, err := f.instances[0].Lease(t.Context(), f.policy, &req, new(check.Scratch))
		require.NoError(t, err)
		require.EqualValues(t, 10, l.Units)
		charged := rules[0].Numbers().Quota() - f.check(0, check.Request{Subject: "s", Resource: "r"}).Rules[0].Remaining
		require.LessOrEqual(t, charged, 10+rules[0].Numbers().Quota()/8)
		return l
	}
	less := func(hold int64) int64 { return hold - 1 - (hold-1)/500 - 2 }
	window, other := leasedRule("a", limit.FixedWindow, 1_000, 60_000), leasedRule("b", limit.SlidingWindowCounter, 1_000, 60_000)
	require.Equal(t, less(250), grant(0, window, other).Life.Milliseconds(), "the default")
	window.Lease.MS = 10_000
	require.Equal(t, less(250), grant(0, window, other).Life.Milliseconds(), "the shorter one")
	other.Lease.MS = 3_000
	require.Equal(t, less(3_000), grant(0, window, other).Life.Milliseconds())
	require.Equal(t, less(10_000), grant(0, window).Life.Milliseconds())
	require.Equal(t, less(500), grant(59_500, window).Life.Milliseconds(), "until the end of the window")

	bucket := leasedRule("a", limit.TokenBucket, 1_000, 60_000)
	bucket.Lease.MS = 10_000
	require.Greater(t, grant(0, bucket).Life.Milliseconds(), int64(7_000), "for its cushion, an eighth of 1000, it refills within 7.5 s")
	bucket.Window.MS = 1_000
	life := grant(0, bucket).Life.Milliseconds()
	require.Greater(t, life, int64(100))
	require.Less(t, life, int64(125), "for its cushion, it refills within an eighth of a second")
}

// Units that cannot be granted although some are left: the error names the rule, and nothing is
// charged.
func TestGrantIsRefused(t *testing.T) {
	tooFast := leasedRule("fast", limit.TokenBucket, 1_000, 1_000)
	tooFast.Burst = 100
	for _, c := range []struct {
		at    int64
		rules []limit.Rule
		text  string
	}{
		{0, []limit.Rule{leasedRule("a", limit.FixedWindow, 1_000, 60_000), tooFast}, "fast refills so fast"},
		{59_990, []limit.Rule{leasedRule("a", limit.FixedWindow, 1_000, 60_000)}, "a has a window that ends too soon"},
	} {
		f := newFleet(t, 1, c.rules...)
		f.now += c.at
		req := check.Request{Subject: "s", Resource: "r", Cost: 10}
		_, err := f.instances[0].Lease(t.Context(), f.policy, &req, new(check.Scratch))
		require.ErrorContains(t, err, c.text)
		for i, r := range f.check(0, check.Request{Subject: "s", Resource: "r"}).Rules {
			require.Equal(t, c.rules[i].Numbers().Quota(), r.Remaining, c.text)
		}
	}
}

// While the store fails, nothing is granted and nothing is counted locally.
func TestNoGrantWithoutTheStore(t *testing.T) {
	rule := leasedRule("a", limit.FixedWindow, 400, 60_000)
	rule.OnUnavailable = limit.Local
	f := newFleet(t, 1, rule)
	f.store.fail.Store(true)
	req := check.Request{Subject: "s", Resource: "r", Cost: 100}
	_, err := f.instances[0].Lease(t.Context(), f.policy, &req, new(check.Scratch))
	require.ErrorIs(t, err, check.ErrCountersUnavailable)
	f.store.fail.Store(false)
	require.EqualValues(t, 400, f.check(0, check.Request{Subject: "s", Resource: "r"}).Rules[0].Remaining)
}
