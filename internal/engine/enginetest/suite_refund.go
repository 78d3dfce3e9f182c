package enginetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// leasable returns the algorithms whose units can be prefetched.
func leasable() []limit.Algorithm {
	return slices.DeleteFunc(slices.Clone(limit.Algorithms), func(a limit.Algorithm) bool {
		n := five(a)
		return !n.Leasable()
	})
}

// groundOf returns the ground for a refund of units that call charged to its counter i.
func groundOf(call *engine.Call, i int) int64 {
	n := call.Counters[i].Numbers
	switch n.Algorithm {
	case limit.SlidingWindowCounter:
		return call.Outcome.NowMS / n.WindowMS
	case limit.SlidingWindowBuckets:
		return call.Outcome.NowMS / n.PrecisionMS
	}
	return call.Outcome.Verdicts[i].ResetMS
}

// refundOf returns a refund of units that call charged to its first counter.
func refundOf(call *engine.Call, units int64) *engine.Refund {
	c := call.Counters[0]
	return &engine.Refund{Parts: []engine.RefundPart{{Key: c.OwnKey(), ID: c.ID, Numbers: c.Numbers, Units: units, Ground: groundOf(call, 0), ChargedMS: call.Outcome.NowMS}}}
}

func refund(tb testing.TB, eng engine.Engine, r *engine.Refund) (refused int) {
	tb.Helper()
	eng.Refund(context.Background(), r)
	require.NoError(tb, r.Err)
	return r.Refused
}

// Returned units are available again, and used units stay used.
func testRefund(t *testing.T, eng engine.Engine) {
	for _, a := range leasable() {
		n := five(a)
		n.Limit = 50
		if a.Bucket() {
			n.Burst = 50
		}
		c, same := counter(Prefix()+"k", n), counter(Prefix()+"k", n)
		ask(t, eng, start, 3, c)
		ask(t, eng, start, 3, same)
		took := ask(t, eng, start+10, 20, c)
		require.Zero(t, refund(t, eng, refundOf(took, 19)), a)
		ask(t, eng, start+10, 1, same)
		for _, at := range []int64{start + 10, start + 59_999, start + 60_001, start + 120_001} {
			require.Equal(t, ask(t, eng, at, 0, same).Outcome, ask(t, eng, at, 0, c).Outcome, "%s at %d", a, at-start)
		}
	}
}

// Nothing is returned to a counter that is in another state, does not exist, or has too few units.
func testRefundRefused(t *testing.T, eng engine.Engine) {
	for _, a := range leasable() {
		n := five(a)
		c := counter(Prefix()+"k", n)
		took := ask(t, eng, start+7, 4, c)
		want := ask(t, eng, start+7, 0, c).Outcome
		if !a.Bucket() {
			require.Equal(t, 1, refund(t, eng, refundOf(took, 5)), "%s: more units than are counted", a)
		}
		other := refundOf(took, 1)
		other.Parts[0].Ground += 2
		require.Equal(t, 1, refund(t, eng, other), "%s: another state", a)
		unseen := refundOf(took, 1)
		unseen.Parts[0].Key += "unseen"
		require.Equal(t, 1, refund(t, eng, unseen), "%s: no counter", a)
		require.Equal(t, want, ask(t, eng, start+7, 0, c).Outcome, a)
		require.EqualValues(t, 5, ask(t, eng, start+7, 0, counter(unseen.Parts[0].Key, n)).Outcome.Verdicts[0].Remaining)

		late := start + 125_000
		ask(t, eng, late, 2, c)
		want = ask(t, eng, late, 0, c).Outcome
		require.Equal(t, 1, refund(t, eng, refundOf(took, 1)), "%s: the window is over", a)
		require.Equal(t, want, ask(t, eng, late, 0, c).Outcome, a)
	}
	for name, change := range map[string]func(*engine.RefundPart){
		"units":   func(p *engine.RefundPart) { p.Units = 0 },
		"numbers": func(p *engine.RefundPart) { p.Numbers.Limit = 0 },
		"log":     func(p *engine.RefundPart) { p.Numbers = five(limit.SlidingWindowLog) },
		"queue":   func(p *engine.RefundPart) { p.Numbers = five(limit.LeakyBucketQueue) },
		"penalty": func(p *engine.RefundPart) { p.Numbers.PenaltyMS = 1000 },
		"fast":    func(p *engine.RefundPart) { p.Numbers = five(limit.TokenBucket); p.Numbers.Limit = 60_001 },
	} {
		c := counter(Prefix()+"k", five(limit.FixedWindow))
		r := refundOf(ask(t, eng, start, 2, c), 1)
		change(&r.Parts[0])
		eng.Refund(context.Background(), r)
		require.Error(t, r.Err, name)
	}
	eng.Refund(context.Background())
}

// A bucket that stays used takes units back although others charged it since.
func testRefundAfterOthers(t *testing.T, eng engine.Engine) {
	for _, a := range leasable() {
		n := five(a)
		if !a.Bucket() {
			continue
		}
		n.Limit, n.Burst = 50, 50
		c := counter(Prefix()+"k", n)
		ask(t, eng, start, 10, c)
		took := ask(t, eng, start, 20, c)
		ask(t, eng, start+1, 10, c)
		r := refundOf(took, 20)
		r.NowMS = start + 2
		require.Equal(t, 1, refund(t, eng, r), a)
		r.Parts[0].Until = start + 1
		require.Equal(t, 1, refund(t, eng, r), "%s: too late", a)
		r.Parts[0].Until = start + 2
		require.Zero(t, refund(t, eng, r), a)
		require.EqualValues(t, 30, ask(t, eng, start+2, 0, c).Outcome.Verdicts[0].Remaining, a)
		r.Parts[0].Units, r.Parts[0].Until = 20, limit.MaxInstantMS
		require.Equal(t, 1, refund(t, eng, r), "%s: it would be full", a)
		r.Parts[0].Numbers.Limit, r.Parts[0].Units = 49, 1
		require.Equal(t, 1, refund(t, eng, r), "%s: another limit", a)
		require.EqualValues(t, 30, ask(t, eng, start+2, 0, c).Outcome.Verdicts[0].Remaining, a)
	}
}

// If all units of a window are returned, the window was never open: the next request opens a new
// one.
func testRefundOfAll(t *testing.T, eng engine.Engine) {
	for _, a := range leasable() {
		if a.Bucket() {
			continue // the bucket has refilled in the meantime
		}
		c := counter(Prefix()+"k", five(a))
		took := ask(t, eng, start+7, 5, c)
		require.Zero(t, refund(t, eng, refundOf(took, 5)))
		fresh := ask(t, eng, start+1_000, 1, counter(Prefix()+"k", five(a))).Outcome
		require.Equal(t, fresh, ask(t, eng, start+1_000, 1, c).Outcome, a)
	}
}

// Units that are returned late reduce the usage of the window in which they still have a weight.
func testRefundLate(t *testing.T, eng engine.Engine) {
	for _, a := range []limit.Algorithm{limit.SlidingWindowCounter, limit.SlidingWindowBuckets} {
		c, same := counter(Prefix()+"k", five(a)), counter(Prefix()+"k", five(a))
		took := ask(t, eng, start+50_000, 4, c)
		ask(t, eng, start+50_000, 1, same)
		ask(t, eng, start+61_000, 1, c)
		ask(t, eng, start+61_000, 1, same)
		require.Zero(t, refund(t, eng, refundOf(took, 3)))
		require.Equal(t, ask(t, eng, start+61_000, 0, same).Outcome, ask(t, eng, start+61_000, 0, c).Outcome, a)
	}
}

// past reports whether an engine may have forgotten what call charged. The reference never forgets.
func past(call *engine.Call, now int64) bool {
	n, ground := call.Counters[0].Numbers, groundOf(call, 0)
	switch n.Algorithm {
	case limit.SlidingWindowCounter:
		return now/n.WindowMS > ground+1
	case limit.SlidingWindowBuckets:
		return now/n.PrecisionMS >= ground+n.WindowMS/n.PrecisionMS
	case limit.FixedWindow, limit.FixedWindowFirstHit:
		return now >= ground
	}
	return false
}

// The engine accepts the same refunds as the reference, in any order of charges and refunds.
func testRefundSequences(t *testing.T, eng engine.Engine) {
	ctx := context.Background()
	for _, a := range leasable() {
		for i := range 60 {
			r := rand.New(rand.NewPCG(7, uint64(a)<<32|uint64(i)))
			reference := NewReference()
			n := randomNumbers(r, a)
			n.PenaltyMS, n.Overage = 0, false
			windows := randomWindows(r)
			key, id, grouped := fmt.Sprintf("%s%d", Prefix(), i), randomID(r), oneIn(r, 2)
			now := 1 + r.Int64N(3_000_000_000_000)
			var took []*engine.Call
			for range 25 {
				if len(took) > 0 && oneIn(r, 3) {
					call := took[len(took)-1-r.IntN(min(2, len(took)))]
					if n.Algorithm.Bucket() && n.Limit > n.WindowMS {
						continue
					}
					units := 1 + r.Int64N(call.Cost)
					got, want := refundOf(call, units), refundOf(call, units)
					if n.Algorithm.Bucket() && oneIn(r, 2) {
						until := max(0, now-2+r.Int64N(4))
						got.Parts[0].Until, want.Parts[0].Until = until, until
					}
					got.NowMS, want.NowMS = now, now
					reference.Refund(ctx, want)
					require.Equal(t, want.Refused, refund(t, eng, got), "%s, sequence %d", a, i)
					call.Cost -= units
					if call.Cost == 0 || want.Refused > 0 {
						took = slices.DeleteFunc(took, func(c *engine.Call) bool { return c == call })
					}
					continue
				}
				if !oneIn(r, 3) {
					now += r.Int64N(max(2, n.WindowMS/3))
				}
				took = slices.DeleteFunc(took, func(c *engine.Call) bool { return past(c, now) })
				if n.Calendar != limit.NoCalendar {
					n.Bounds = aroundOrBeside(r, windows[n.Calendar], now)
				}
				c := counter(key, n)
				if grouped {
					inGroup(r, &c, key+"of-group", id)
				}
				call := engine.Call{NowMS: now, Cost: min(randomCost(r, n), n.Quota()), Counters: []engine.Counter{c}}
				want := call
				reference.Evaluate(ctx, &want)
				eng.Evaluate(ctx, &call)
				require.NoError(t, call.Err)
				require.Equal(t, want.Outcome, call.Outcome, "%s, sequence %d", a, i)
				if call.Outcome.Allowed && call.Cost > 0 {
					took = append(took, &call)
				}
			}
			require.NoError(t, eng.Reset(ctx, counter(key, n), engine.Counter{Key: key + "of-group", ID: id, Grouped: true}))
		}
	}
}
