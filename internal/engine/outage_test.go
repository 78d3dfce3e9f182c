package engine

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// outageRig is three instances over a store that can fail, and whose time stands until it is moved.
type outageRig struct {
	t      *testing.T
	now    atomic.Int64 // milliseconds since 1970
	ahead  int64        // of the store's clock, milliseconds
	memory atomic.Pointer[Memory]
	fail   atomic.Bool
	meets  atomic.Pointer[func(*Call) error] // is called before each call, and may let it fail
	err    error                             // while it fails; nil: a timeout
	stacks []*Stack
}

func newOutageRig(t *testing.T, ahead int64) *outageRig {
	r := &outageRig{t: t, ahead: ahead}
	r.now.Store(engineStart)
	r.empty()
	for i := range 3 {
		stack := NewStack(StackOptions{
			Shared: r, Local: NewMemory(MemoryOptions{Clock: r.now.Load}), Metrics: NewMetrics(prometheus.NewRegistry()),
			Share: func() Share { return Share{3, int64(i)} }, Clock: func() time.Time { return time.UnixMilli(r.now.Load()) },
		})
		t.Cleanup(stack.Close)
		stack.breaker.only.look(context.Background())
		r.stacks = append(r.stacks, stack)
	}
	return r
}

// empty makes the store one that has lost all it held.
func (r *outageRig) empty() {
	r.memory.Store(NewMemory(MemoryOptions{Clock: func() int64 { return r.now.Load() + r.ahead }}))
}

func (r *outageRig) Evaluate(ctx context.Context, calls ...*Call) {
	if r.fail.Load() {
		for _, c := range calls {
			if c.Err = r.err; c.Err == nil {
				c.Err = os.ErrDeadlineExceeded
			}
		}
		return
	}
	for _, c := range calls {
		if meets := r.meets.Load(); meets != nil {
			if c.Err = (*meets)(c); c.Err != nil {
				continue
			}
		}
		r.memory.Load().Evaluate(ctx, c)
	}
}
func (r *outageRig) Reset(ctx context.Context, counters ...Counter) error {
	return r.memory.Load().Reset(ctx, counters...)
}
func (r *outageRig) Amend(ctx context.Context, a *Amendment) error {
	return r.memory.Load().Amend(ctx, a)
}
func (r *outageRig) Refund(ctx context.Context, refunds ...*Refund) {
	r.memory.Load().Refund(ctx, refunds...)
}

func (r *outageRig) ask(instance int, key string, policy limit.OnUnavailable, n limit.Numbers) Outcome {
	stack := r.stacks[instance]
	call := &Call{Cost: 1, Started: stack.Now(), Counters: []Counter{{Key: key, Numbers: n, OnUnavailable: policy}}}
	stack.Evaluate(context.Background(), call)
	require.NoError(r.t, call.Err)
	return call.Outcome
}

// fails makes the store fail, until each circuit is open.
func (r *outageRig) fails() {
	r.fail.Store(true)
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 1, WindowMS: 1_000}
	for i, stack := range r.stacks {
		for asked := 0; stack.DegradedSince().IsZero(); asked++ {
			require.Less(r.t, asked, 100)
			r.now.Add(10)
			r.ask(i, "w{other}", limit.Allow, n)
		}
	}
}

// recovers makes the store work again, until each circuit is closed.
func (r *outageRig) recovers() {
	r.fail.Store(false)
	for i, stack := range r.stacks {
		require.Eventually(r.t, func() bool { return stack.DegradedSince().IsZero() }, time.Minute, time.Millisecond, "instance %d", i)
	}
	r.now.Add(breakerRamp.Milliseconds())
	for _, stack := range r.stacks { // as a timer does, within 50 ms
		require.Eventually(r.t, func() bool {
			stack.ReturnIdle()
			return stack.fallback.debts.Len() == 0
		}, time.Minute, time.Millisecond)
	}
}

// flood asks each instance until it denies, and returns how much was allowed.
func (r *outageRig) flood(key string, n limit.Numbers) (allowed int64) {
	for i := range r.stacks {
		for r.ask(i, key, limit.Local, n).Allowed {
			allowed++
			require.LessOrEqual(r.t, allowed, int64(1_000))
		}
	}
	return allowed
}

// A customer must not get a limit twice because Redis is unavailable for a moment: the windows that
// span the start and the end of an outage hold at most a tenth more than the limit, whether Redis
// comes back with its counters or without, and whatever its clock says.
func TestWindowsThatSpanAnOutageHoldTheLimit(t *testing.T) {
	const lim, window = int64(90), int64(60_000)
	for _, algorithm := range limit.Algorithms {
		for name, lost := range map[string]bool{"counters kept": false, "counters lost": true} {
			t.Run(algorithm.String()+", "+name, func(t *testing.T) {
				n := limit.Numbers{Algorithm: algorithm, Limit: lim, WindowMS: window}
				switch {
				case algorithm.Bucket():
					n.Burst = lim
				case algorithm == limit.SlidingWindowBuckets:
					n.PrecisionMS = window / 10
				}
				r := newOutageRig(t, 3_600_000+17_000)
				r.now.Add(20_000) // the store's windows begin at other instants than the instances'
				for asked := range 60 {
					require.True(t, r.ask(asked%3, "w{t}key", limit.Local, n).Allowed)
					r.now.Add(50)
				}
				r.fails()
				allowed := 60 + r.flood("w{t}key", n)
				if !lost {
					r.now.Add(1_000)
				} else {
					r.empty()
				}
				r.recovers()
				allowed += r.flood("w{t}key", n)
				most := lim + lim/10
				if algorithm.Bucket() {
					most += lim * (r.now.Load() - engineStart - 20_000) / window
				}
				require.LessOrEqual(t, allowed, most)
				require.GreaterOrEqual(t, allowed, lim-3, "nobody is denied too early")
			})
		}
	}
}

// What was admitted locally is charged once, with the next check or without one.
func TestLocalUnitsAreChargedOnce(t *testing.T) {
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 90, WindowMS: 60_000}
	r := newOutageRig(t, 0)
	require.True(t, r.ask(0, "w{t}key", limit.Local, n).Allowed)
	r.fails()
	for i := range r.stacks {
		for range 5 {
			require.True(t, r.ask(i, "w{t}key", limit.Local, n).Allowed)
		}
	}
	r.recovers()
	for _, stack := range r.stacks {
		stack.ReturnIdle()
	}
	peek := &Call{Counters: []Counter{{Key: "w{t}key", Numbers: n}}}
	r.Evaluate(context.Background(), peek)
	require.Equal(t, int64(90-1-15), peek.Outcome.Verdicts[0].Remaining)
}

// An instance knows the store's clock from the first probe on, whatever its own clock shows, and
// follows it when it steps. A few milliseconds of difference are ignored.
func TestStacksKnowTheClockOfTheStore(t *testing.T) {
	r := newOutageRig(t, -3_600_000)
	stack := r.stacks[0]
	require.Equal(t, r.now.Load()-3_600_000, stack.StoreMS(stack.Now()))
	r.now.Add(5_000)
	require.Equal(t, r.now.Load()-3_600_000, stack.StoreMS(stack.Now()))
	r.ahead += 7_200_000
	r.ask(0, "w{t}key", limit.Allow, limit.Numbers{Algorithm: limit.FixedWindow, Limit: 90, WindowMS: 60_000})
	require.Equal(t, r.now.Load()+3_600_000, stack.StoreMS(stack.Now()))
	r.ahead += maxClockError
	stack.breaker.only.look(context.Background())
	require.Equal(t, r.now.Load()+3_600_000, stack.StoreMS(stack.Now()))
}

// With overage, an instance counts on from what it knows of the store, and reports no excess of
// which it knows nothing. Afterwards the store has all units.
func TestOverageThroughAnOutage(t *testing.T) {
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 10, WindowMS: 60_000, Overage: true}
	r := newOutageRig(t, 0)
	for range 12 {
		r.ask(0, "w{t}key", limit.Local, n)
	}
	r.fails()
	for i := range int64(5) {
		require.Equal(t, 3+i, r.ask(0, "w{t}key", limit.Local, n).Verdicts[0].Overage)
		require.Equal(t, 9-i, r.ask(1, "w{t}key", limit.Local, n).Verdicts[0].Remaining, "it has never seen the counter")
	}
	r.recovers()
	require.Equal(t, int64(12+5+5-10), r.ask(0, "w{t}key", limit.Local, n).Verdicts[0].Overage-1)
}

// A call that timed out may have been counted. Its unit must not be charged a second time.
func TestUnitsOfUnknownFateAreNotCharged(t *testing.T) {
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 90, WindowMS: 60_000}
	r := newOutageRig(t, 0)
	require.True(t, r.ask(0, "w{t}key", limit.Local, n).Allowed)
	r.fail.Store(true)
	for range 3 { // the circuit is closed: each call is sent
		require.True(t, r.ask(0, "w{t}key", limit.Local, n).Degraded)
	}
	require.Equal(t, int64(30-3), r.ask(0, "w{t}key", limit.Local, n).Verdicts[0].Remaining+1, "still counted locally")
	r.fail.Store(false)
	require.Equal(t, int64(88), r.ask(0, "w{t}key", limit.Local, n).Verdicts[0].Remaining)
}

// A call that never reached the store was not counted there, so its unit is charged later. Before,
// a wait for a connection or a refused one was taken for a call that may have been counted, and the
// customer kept the units.
func TestUnitsThatDidNotReachTheStoreAreCharged(t *testing.T) {
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 90, WindowMS: 60_000}
	for _, err := range []error{ErrNotReached, ErrNotSent} {
		r := newOutageRig(t, 0)
		require.True(t, r.ask(0, "w{t}key", limit.Local, n).Allowed)
		r.err = fmt.Errorf("evaluate counters: %w", err)
		r.fail.Store(true)
		for range 3 { // the circuit is closed: each call is passed on
			require.True(t, r.ask(0, "w{t}key", limit.Local, n).Degraded)
		}
		r.fail.Store(false)
		require.Equal(t, int64(90-1-3-1), r.ask(0, "w{t}key", limit.Local, n).Verdicts[0].Remaining, err)
	}
}

// A charge of local units that did not reach the store is repeated. One that may have arrived is
// not.
func TestChargesThatDidNotReachTheStoreAreRepeated(t *testing.T) {
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 90, WindowMS: 60_000}
	for err, charged := range map[error]int64{ErrNotReached: 3, ErrNotSent: 3, os.ErrDeadlineExceeded: 0} {
		r := newOutageRig(t, 0)
		require.True(t, r.ask(0, "w{t}key", limit.Local, n).Allowed)
		r.err = ErrNotReached
		r.fail.Store(true)
		for range 3 {
			require.True(t, r.ask(0, "w{t}key", limit.Local, n).Degraded)
		}
		r.err = fmt.Errorf("evaluate counters: %w", err)
		r.stacks[0].fallback.settleAll(context.Background())
		r.fail.Store(false)
		r.stacks[0].fallback.settleAll(context.Background())
		peek := &Call{Counters: []Counter{{Key: "w{t}key", Numbers: n}}}
		r.Evaluate(context.Background(), peek)
		require.Equal(t, 90-1-charged, peek.Outcome.Verdicts[0].Remaining, err)
	}
}

// A counter that holds fewer units than before counts as a regression. A counter in a new window
// does not, nor does an answer that arrives after a later one.
func TestRegressionsAreSeen(t *testing.T) {
	s := newSeen()
	c := &Counter{Key: "w{t}key", Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 90, WindowMS: 60_000}}
	note := func(remaining, atMS, resetMS int64) bool {
		return s.note(limit.TenantID{}, c, &limit.Verdict{Remaining: remaining, ResetMS: resetMS}, atMS)
	}
	require.False(t, note(80, 1_000, 60_000))
	require.False(t, note(81, 1_000, 60_000), "the same instant: the order is not known")
	require.False(t, note(79, 2_000, 60_000))
	require.False(t, note(85, 1_500, 60_000), "overtaken")
	require.True(t, note(85, 3_000, 60_000))
	require.False(t, note(89, 61_000, 120_000), "a new window")
}

// A tenant that counts by many subjects does not displace what others use. Alone, it has all of the
// space; what it used last remains.
func TestSeenIsShared(t *testing.T) {
	counter := func(key string, i int) *Counter {
		n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 90, WindowMS: 60_000}
		return &Counter{Key: fmt.Sprintf("w{%s}%d", key, i), Numbers: n}
	}
	s := newSeen()
	note := func(tenant byte, key string, i int, atMS int64) {
		s.note(limit.TenantID{15: tenant}, counter(key, i), &limit.Verdict{Remaining: 80, ResetMS: 60_000}, atMS)
	}
	kept := func(key string, most int) (n int) {
		for i := range most {
			if s.last(counter(key, i)).used > 0 {
				n++
			}
		}
		return n
	}
	const space = seenSets * seenWays
	for i := range space {
		note(1, "large", i, int64(i))
	}
	require.Greater(t, kept("large", space), space*4/5)

	const few = 4_000
	for i := range few {
		note(2, "small", i, space+int64(i))
	}
	for i := range 2 * space {
		note(1, "large", space+i, space+few+int64(i))
	}
	require.Greater(t, kept("small", few), few*98/100, "those that fell into a set with more than three others may be missing")
}

// A dry run counts nothing, so a counter does not hold less than before when the next call shows
// what it has.
func TestDryRunsAreNoRegressions(t *testing.T) {
	r := newOutageRig(t, 0)
	stack := r.stacks[0]
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 90, WindowMS: 60_000}
	for _, cost := range []int64{40, 41, 9} {
		r.now.Add(1)
		call := &Call{Cost: cost, DryRun: cost == 41, Started: stack.Now(), Counters: []Counter{{Key: "w{t}key", Numbers: n, OnUnavailable: limit.Local}}}
		stack.Evaluate(context.Background(), call)
		require.True(t, call.Outcome.Allowed)
	}
	require.Zero(t, testutil.ToFloat64(stack.fallback.metrics.regressions))
	r.now.Add(1)
	r.fail.Store(true)
	require.EqualValues(t, 13, r.ask(0, "w{t}key", limit.Local, n).Verdicts[0].Remaining, "a third of 41, and 1 used")
}

// A denied dry run says what there is: a call for several servers is read first, and may never be
// charged.
func TestDeniedDryRunsAreKept(t *testing.T) {
	r := newOutageRig(t, 0)
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 90, WindowMS: 60_000}
	for i, cost := range []int64{90, 1} {
		r.now.Add(1)
		call := &Call{Cost: cost, DryRun: i == 1, Started: r.stacks[i].Now(), Counters: []Counter{{Key: "w{t}key", Numbers: n, OnUnavailable: limit.Local}}}
		r.stacks[i].Evaluate(context.Background(), call)
		require.Equal(t, i == 0, call.Outcome.Allowed)
	}
	r.now.Add(1)
	r.fail.Store(true)
	require.False(t, r.ask(1, "w{t}key", limit.Local, n).Allowed)
}
