package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/limit"
)

// weighing is an engine that notes the greatest work of a call, as a script would decide it.
type weighing struct {
	engine.Engine
	most   int64
	before func(c *engine.Call) // is called before each call
}

func (w *weighing) Evaluate(ctx context.Context, calls ...*engine.Call) {
	for _, c := range calls {
		w.most = max(w.most, c.Work())
		if w.before != nil {
			w.before(c)
		}
		w.Engine.Evaluate(ctx, c)
	}
}

func newWeighing() *weighing {
	return &weighing{Engine: engine.NewMemory(engine.MemoryOptions{MaxPerTenant: 200_000})}
}

func spreadOver(w *weighing) *engine.Spread {
	return engine.NewSpread(w, true, engine.NewMetrics(prometheus.NewRegistry()))
}

// heavyCalls returns random calls of one random sequence, with many counters each.
func heavyCalls(r *rand.Rand, prefix string) (calls []*engine.Call) {
	of := make([][]*engine.Call, 150)
	for i := range of {
		of[i] = enginetest.RandomCalls(rand.New(rand.NewPCG(r.Uint64(), 1)), limit.Algorithms[r.IntN(len(limit.Algorithms))], fmt.Sprintf("%s%d:", prefix, i))
	}
	nowMS := int64(1_700_000_000_000)
	for step := range 4 {
		nowMS += r.Int64N(100_000)
		call := &engine.Call{NowMS: nowMS, PerCounter: true, DryRun: r.IntN(8) == 0}
		for _, parts := range of {
			for _, c := range parts[step].Counters {
				if c.Numbers.Calendar != limit.NoCalendar {
					continue // its windows are those of another instant
				}
				for item := range 1 + r.IntN(3) {
					c := c
					c.Key, c.ID, c.Grouped = fmt.Sprintf("%s:%d", c.OwnKey(), item), "", false
					// Most calls are allowed, or many rules deny at once.
					if c.Cost = min(c.Numbers.Quota(), 1+r.Int64N(3)); step == 3 || r.IntN(200) == 0 {
						c.Cost = c.Numbers.Quota()
					}
					call.Cost = max(call.Cost, c.Cost)
					call.Counters = append(call.Counters, c)
				}
			}
		}
		calls = append(calls, call)
	}
	return calls
}

// A call that is too much work for one script call is split, and has the answers of a call that is
// not: all of its counters are charged, or none.
func TestHeavyCallsAreDecidedAsOne(t *testing.T) {
	heavy, denied := 0, 0
	for i := range 60 {
		r := rand.New(rand.NewPCG(3, uint64(i)))
		split, unsplit := newWeighing(), newWeighing()
		spread := spreadOver(split)
		for _, c := range heavyCalls(r, enginetest.Prefix()) {
			theirs := *c
			theirs.Counters = slices.Clone(c.Counters)
			spread.Evaluate(t.Context(), c)
			unsplit.Evaluate(t.Context(), &theirs)
			require.NoError(t, c.Err)
			require.NoError(t, theirs.Err)
			require.Equal(t, theirs.Outcome.Allowed, c.Outcome.Allowed, "sequence %d", i)
			for n, want := range theirs.Outcome.Verdicts {
				require.Equal(t, want, c.Outcome.Verdicts[n], "sequence %d: %+v", i, c.Counters[n])
			}
			if c.Work() > engine.MaxCallWork {
				heavy++
				if !c.Outcome.Allowed {
					denied++
				}
			}
		}
		require.LessOrEqual(t, split.most, int64(engine.MaxCallWork))
	}
	require.Greater(t, heavy, 100)
	require.Greater(t, denied, 20)
	require.Greater(t, heavy-denied, 20)
}

// A heavy call between others of one Evaluate sees what they have charged, and they see what it
// has.
func TestHeavyCallsKeepTheirOrder(t *testing.T) {
	w := newWeighing()
	prefix := enginetest.Prefix()
	log := limit.Numbers{Algorithm: limit.SlidingWindowLog, Limit: 100, WindowMS: 60_000}
	var all []engine.Counter
	for i := range 300 {
		all = append(all, engine.Counter{Key: fmt.Sprintf("%s%d", prefix, i), Numbers: log})
	}
	last := all[299:]
	last[0].Numbers.Limit = 3
	call := func(counters []engine.Counter) *engine.Call {
		return &engine.Call{NowMS: 1_700_000_000_000, Cost: 1, Counters: slices.Clone(counters)}
	}
	calls := []*engine.Call{call(last), call(all), call(last), call(all), call(all[:1])}
	spreadOver(w).Evaluate(t.Context(), slices.Clone(calls)...)
	var allowed []bool
	for _, c := range calls {
		require.NoError(t, c.Err)
		allowed = append(allowed, c.Outcome.Allowed)
	}
	require.Equal(t, []bool{true, true, true, false, true}, allowed)
	require.EqualValues(t, 98, calls[4].Outcome.Verdicts[0].Remaining, "the denied call has charged nothing")
	require.LessOrEqual(t, w.most, int64(engine.MaxCallWork))
}

// Counters that share credits stay in one portion: credits that do not suffice for all of them deny
// the call before anything is charged that could not be refunded.
func TestHeavyCallsShareCredits(t *testing.T) {
	w := newWeighing()
	prefix := enginetest.Prefix()
	n := limit.Numbers{Algorithm: limit.SlidingWindowBuckets, Limit: 1, WindowMS: 60_000, PrecisionMS: 1000}
	call := &engine.Call{NowMS: 1_700_000_000_000, Cost: 2}
	for purse := range 16 {
		of := &engine.Credits{Key: fmt.Sprintf("%scredits-%d", prefix, purse), Outbox: prefix + "outbox"}
		var open []limit.Spent
		for g := range limit.MaxGrants {
			id := limit.GrantID{1, byte(purse), byte(g)}
			of.Grants, open = append(of.Grants, limit.Grant{ID: id, Units: 1}), append(open, limit.Spent{ID: id})
		}
		if purse == 15 {
			of.Grants = of.Grants[:7]
		}
		_, err := w.Engine.(engine.CreditStore).OpenCredits(t.Context(), &engine.Opening{Key: of.Key, Outbox: of.Outbox, Grants: open})
		require.NoError(t, err)
		for item := range 8 {
			call.Counters = append(call.Counters, engine.Counter{Key: fmt.Sprintf("%s%d-%d", prefix, purse, item), Numbers: n, Credits: of})
		}
	}
	require.Greater(t, call.Work(), int64(engine.MaxCallWork))
	spreadOver(w).Evaluate(t.Context(), call)
	require.NoError(t, call.Err)
	require.False(t, call.Outcome.Allowed, "the last purse has 7 units for 8 items")
	for i, v := range call.Outcome.Verdicts {
		require.Zero(t, v.CreditsSpent)
		require.EqualValues(t, 1, v.Remaining, "counter %d", i)
	}
	for i := range call.Counters[120:] {
		call.Counters[120+i].Credits = call.Counters[0].Credits
	}
	spreadOver(w).Evaluate(t.Context(), call)
	require.True(t, call.Outcome.Allowed)
	require.EqualValues(t, 50-16, call.Outcome.Verdicts[0].Credits, "two of the groups spend the first purse")
	require.LessOrEqual(t, w.most, int64(engine.MaxCallWork))
}
