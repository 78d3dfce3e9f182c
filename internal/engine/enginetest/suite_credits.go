package enginetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// grantOf returns a grant whose id ends in n.
func grantOf(n int, units, expiresMS int64) limit.Grant {
	g := limit.Grant{Units: units, ExpiresMS: expiresMS}
	copy(g.ID[:], fmt.Sprintf("%016d", n))
	return g
}

// withCredits gives a counter credits. All of them are open, and nothing was spent.
func withCredits(tb testing.TB, eng engine.Engine, c engine.Counter, grants ...limit.Grant) engine.Counter {
	tb.Helper()
	c.Credits = &engine.Credits{Key: c.Key + "credits", Outbox: c.Key + "outbox", Grants: grants}
	var open []limit.Spent
	for _, g := range grants {
		open = append(open, limit.Spent{ID: g.ID, ExpiresMS: g.ExpiresMS})
	}
	_, err := openCredits(tb, eng, c, open...)
	require.NoError(tb, err)
	return c
}

// openCredits opens grants of a counter.
func openCredits(tb testing.TB, eng engine.Engine, c engine.Counter, grants ...limit.Spent) (opened int, err error) {
	o := &engine.Opening{Key: c.Credits.Key, Outbox: c.Credits.Outbox, Grants: grants}
	return eng.(engine.CreditStore).OpenCredits(tb.Context(), o)
}

// unsettled returns the totals in the outbox of a counter.
func unsettled(tb testing.TB, eng engine.Engine, c engine.Counter) map[limit.GrantID]int64 {
	tb.Helper()
	boxes, errs := eng.(engine.CreditStore).SpentCredits(tb.Context(), []string{c.Credits.Outbox, c.Credits.Outbox + "of-nobody"}, 100)
	require.Equal(tb, []error{nil, nil}, errs)
	require.Len(tb, boxes, 2)
	require.Empty(tb, boxes[1])
	out := map[limit.GrantID]int64{}
	for _, s := range boxes[0] {
		out[s.ID] = s.Units
	}
	return out
}

// The units of the window come first, then credits by their order, to the unit and no further. A
// denied call spends nothing, whatever rule denies it.
func testCredits(t *testing.T, eng engine.Engine, a limit.Algorithm) {
	first, second := grantOf(1, 3, start+100_000), grantOf(2, 4, 0)
	c := counter(Prefix()+"k", five(a))
	if n := c.Numbers; !n.SpendsCredits() {
		c.Credits = &engine.Credits{Key: c.Key, Outbox: c.Key}
		call := &engine.Call{NowMS: start, Cost: 1, Counters: []engine.Counter{c}}
		eng.Evaluate(t.Context(), call)
		require.Error(t, call.Err, "a counter without windows has no credits")
		return
	}
	c = withCredits(t, eng, c, first, second)
	says := func(call *engine.Call, allowed bool, remaining, spent, left int64) {
		t.Helper()
		v := call.Outcome.Verdicts[0]
		require.Equal(t, []any{allowed, remaining, spent, left}, []any{call.Outcome.Allowed, v.Remaining, v.CreditsSpent, v.Credits})
	}
	says(ask(t, eng, start, 3, c), true, 2, 0, 7)
	dry := ask(t, eng, start, 0, c)
	says(dry, true, 2, 0, 7)
	says(ask(t, eng, start, 4, c), true, 0, 2, 5)
	require.Equal(t, map[limit.GrantID]int64{first.ID: 2}, unsettled(t, eng, c))
	says(ask(t, eng, start, 6, c), false, 0, 0, 5)
	call := &engine.Call{NowMS: start, Cost: 5, DryRun: true, Counters: []engine.Counter{c}}
	eng.Evaluate(t.Context(), call)
	says(call, true, 0, 5, 0)
	denying := counter(c.Key+"beside", five(a))
	says(ask(t, eng, start, 5, denying), true, 0, 0, 0)
	says(ask(t, eng, start, 2, c, denying), false, 0, 0, 5)
	says(ask(t, eng, start, 2, c), true, 0, 2, 3)
	require.Equal(t, map[limit.GrantID]int64{first.ID: 3, second.ID: 1}, unsettled(t, eng, c))
	says(ask(t, eng, start, 3, c), true, 0, 3, 0)
	says(ask(t, eng, start, 1, c), false, 0, 0, 0)

	// The window was never fuller than its limit, so it is as free as without credits.
	plain := c
	plain.Credits = nil
	require.Equal(t, ask(t, eng, start, 1, denying).Outcome.Verdicts[0].RetryAfterMS, ask(t, eng, start, 1, plain).Outcome.Verdicts[0].RetryAfterMS)

	store := eng.(engine.CreditStore)
	require.NoError(t, store.SettleCredits(t.Context(), c.Credits.Outbox, []limit.Spent{{ID: first.ID, Units: 3}, {ID: second.ID, Units: 3}}))
	require.Equal(t, map[limit.GrantID]int64{second.ID: 4}, unsettled(t, eng, c), "a total that has changed since stays")
}

// Grants expire by the clock of the store, in the middle of a window, and before the window is
// free. The wait says when the cost fits with what has not expired by then.
func testCreditsExpire(t *testing.T, eng engine.Engine, a limit.Algorithm) {
	c := counter(Prefix()+"k", five(a))
	if !c.Numbers.SpendsCredits() {
		return
	}
	c = withCredits(t, eng, c, grantOf(1, 10, start+1000), grantOf(2, 2, start+100_000))
	require.True(t, ask(t, eng, start, 6, c).Outcome.Allowed)
	require.EqualValues(t, 11, ask(t, eng, start+999, 0, c).Outcome.Verdicts[0].Credits)
	v := ask(t, eng, start+1000, 3, c).Outcome.Verdicts[0]
	require.False(t, v.Allowed)
	require.EqualValues(t, 2, v.Credits)
	at := start + 1000 + v.RetryAfterMS
	require.False(t, ask(t, eng, at-1, 3, c).Outcome.Allowed)
	require.True(t, ask(t, eng, at, 3, c).Outcome.Allowed)
	require.True(t, ask(t, eng, start+90_000, 8, withCredits(t, eng, counter(c.Key+"of-another", five(a)), grantOf(1, 3, start+95_000))).Outcome.Allowed)
	v = ask(t, eng, start, 8, withCredits(t, eng, counter(c.Key+"third", five(a)), grantOf(1, 2, start+95_000))).Outcome.Verdicts[0]
	require.True(t, v.CostExceeds, "the window and the credits have 7")
	require.Equal(t, limit.NeverMS, v.RetryAfterMS)
}

// A grant is spent only where what was spent of it is known: a store that lost it gives nothing
// back.
func testCreditsUnopened(t *testing.T, eng engine.Engine) {
	c := counter(Prefix()+"k", five(limit.FixedWindow))
	known, lost := grantOf(1, 2, 0), grantOf(2, 10, 0)
	c = withCredits(t, eng, c, known)
	c.Credits = &engine.Credits{Key: c.Credits.Key, Outbox: c.Credits.Outbox, Grants: []limit.Grant{known, lost}}
	require.True(t, ask(t, eng, start, 6, c).Outcome.Allowed)
	v := ask(t, eng, start, 2, c).Outcome.Verdicts[0]
	require.Equal(t, limit.Verdict{Unopened: true, Credits: 1, RetryAfterMS: limit.OpenedWithinMS, ResetMS: v.ResetMS, NextMS: v.NextMS}, v)
	opened, err := openCredits(t, eng, c, limit.Spent{ID: known.ID}, limit.Spent{ID: lost.ID, Units: 7})
	require.NoError(t, err)
	require.Equal(t, 1, opened)
	v = ask(t, eng, start, 2, c).Outcome.Verdicts[0]
	require.Equal(t, []any{true, false, int64(2), int64(2)}, []any{v.Allowed, v.Unopened, v.CreditsSpent, v.Credits})
	opened, err = openCredits(t, eng, c, limit.Spent{ID: lost.ID, Units: 3})
	require.NoError(t, err)
	require.Zero(t, opened)
	require.EqualValues(t, 2, ask(t, eng, start, 0, c).Outcome.Verdicts[0].Credits, "a total is never reduced")
}

// finishedGrants returns grants of one unit that nobody spends, as they are opened.
func finishedGrants(from, count int) (out []limit.Spent) {
	for n := range count {
		out = append(out, limit.Spent{ID: grantOf(from+n, 1, 0).ID, Units: 1})
	}
	return out
}

// Grants of which nothing is left are forgotten once there are many, and no others: an opening says
// which those are, unless it may be older than the last one.
func testCreditsKept(t *testing.T, eng engine.Engine) {
	c := counter(Prefix()+"k", five(limit.FixedWindow))
	live, later := grantOf(1, 100, 0), grantOf(2, 100, 0)
	c = withCredits(t, eng, c, live)
	require.EqualValues(t, 15, ask(t, eng, start, 20, c).Outcome.Verdicts[0].CreditsSpent)
	knows := func(grants ...limit.Spent) (known int) {
		t.Helper()
		for _, g := range grants {
			of := c
			of.Credits = &engine.Credits{Key: c.Credits.Key, Outbox: c.Credits.Outbox, Grants: []limit.Grant{{ID: g.ID, Units: 200}}}
			if !ask(t, eng, start, 0, of).Outcome.Verdicts[0].Unopened {
				known++
			}
		}
		return known
	}
	open := func(asked, read int64, grants ...limit.Spent) (opened int, err error) {
		return eng.(engine.CreditStore).OpenCredits(t.Context(), &engine.Opening{
			Key: c.Credits.Key, Outbox: c.Credits.Outbox, Grants: grants, Whole: true, AskedUS: asked, ReadUS: read,
		})
	}
	var all []limit.Spent
	for n := range 20 {
		more := finishedGrants(1000+60*n, 60)
		all = append(all, more...)
		opened, err := open(int64(100+10*n), int64(105+10*n), append(more, limit.Spent{ID: live.ID})...)
		require.NoError(t, err)
		require.Equal(t, 60, opened)
		require.Equal(t, 60, knows(more...))
	}
	require.LessOrEqual(t, knows(all...), limit.MostKeptGrants)
	require.Zero(t, knows(all[:600]...))
	require.EqualValues(t, 85, ask(t, eng, start, 0, c).Outcome.Verdicts[0].Credits, "what was spent of a live grant")

	// What was read before the last opening removes nothing, and opens nothing, with any total.
	_, err := open(294, 294, finishedGrants(9000, 120)...)
	require.ErrorIs(t, err, engine.ErrOpenedSince)
	_, err = open(295, 400, limit.Spent{ID: later.ID})
	require.ErrorIs(t, err, engine.ErrOpenedSince, "as old as the last one, or older")
	require.Zero(t, knows(limit.Spent{ID: later.ID}))
	_, err = open(294, 294, all[1140:]...)
	require.NoError(t, err, "it has nothing to open")
	require.Equal(t, 1, knows(limit.Spent{ID: live.ID}))
	opened, err := open(296, 297, limit.Spent{ID: later.ID})
	require.NoError(t, err)
	require.Equal(t, 1, opened)
	_, err = open(297-engine.SteppedUS, 298-engine.SteppedUS, limit.Spent{ID: grantOf(3, 1, 0).ID})
	require.NoError(t, err, "the clock stepped back")
}

// A grant that the counters forgot is opened with the total of the outbox, if Postgres does not
// have it yet.
func testCreditsReopened(t *testing.T, eng engine.Engine) {
	grant := grantOf(1, 10, 0)
	c := withCredits(t, eng, counter(Prefix()+"k", five(limit.FixedWindow)), grant)
	require.EqualValues(t, 4, ask(t, eng, start, 9, c).Outcome.Verdicts[0].CreditsSpent)
	o := &engine.Opening{Key: c.Credits.Key, Outbox: c.Credits.Outbox, Grants: finishedGrants(1000, limit.MostKeptGrants), Whole: true}
	_, err := eng.(engine.CreditStore).OpenCredits(t.Context(), o)
	require.NoError(t, err)
	require.True(t, ask(t, eng, start, 1, c).Outcome.Verdicts[0].Unopened)
	opened, err := openCredits(t, eng, c, limit.Spent{ID: grant.ID, Units: 1})
	require.NoError(t, err)
	require.Equal(t, 1, opened)
	require.EqualValues(t, 6, ask(t, eng, start, 0, c).Outcome.Verdicts[0].Credits)
}

// Grants that are closed cannot be spent until they are opened again, then with all that was spent.
// What was read before the closing neither closes nor opens them.
func testCreditsClosed(t *testing.T, eng engine.Engine) {
	store := eng.(engine.CreditStore)
	grant, other := grantOf(1, 10, 0), grantOf(2, 10, 0)
	c := withCredits(t, eng, counter(Prefix()+"k", five(limit.FixedWindow)), grant)
	require.EqualValues(t, 4, ask(t, eng, start, 9, c).Outcome.Verdicts[0].CreditsSpent)
	of := func(asked, read int64, units int64) *engine.Opening {
		return &engine.Opening{Key: c.Credits.Key, Outbox: c.Credits.Outbox, AskedUS: asked, ReadUS: read, Grants: []limit.Spent{
			{ID: grant.ID, Units: units}, {ID: other.ID, Units: 1},
		}}
	}
	closing := of(100, 110, 3)
	require.Equal(t, []error{nil}, store.CloseCredits(t.Context(), closing))
	require.Equal(t, []int64{4, 1}, []int64{closing.Grants[0].Units, closing.Grants[1].Units})
	require.True(t, ask(t, eng, start, 1, c).Outcome.Verdicts[0].Unopened)
	require.ErrorIs(t, store.CloseCredits(t.Context(), of(110, 120, 0))[0], engine.ErrOpenedSince)
	_, err := store.OpenCredits(t.Context(), of(110, 120, 0))
	require.ErrorIs(t, err, engine.ErrOpenedSince)
	require.True(t, ask(t, eng, start, 1, c).Outcome.Verdicts[0].Unopened)
	require.NoError(t, store.SettleCredits(t.Context(), c.Credits.Outbox, []limit.Spent{{ID: grant.ID, Units: 4}}))
	opened, err := store.OpenCredits(t.Context(), of(111, 112, 3))
	require.NoError(t, err)
	require.Equal(t, 2, opened)
	require.EqualValues(t, 6, ask(t, eng, start, 0, c).Outcome.Verdicts[0].Credits)
	fresh := of(200, 210, 2)
	fresh.Key += "other"
	require.Equal(t, []error{nil}, store.CloseCredits(t.Context(), fresh), "nothing is there")
}

// Of several openings, one that is older than the last one does not stop the others.
func testCreditsOpenedTogether(t *testing.T, eng engine.Engine) {
	store := eng.(engine.CreditStore)
	opened, err := store.OpenCredits(t.Context())
	require.NoError(t, err)
	require.Zero(t, opened)
	var openings []*engine.Opening
	for n := range 20 {
		key := Prefix() + "k"
		openings = append(openings, &engine.Opening{
			Key: key, Outbox: key + "outbox", AskedUS: 100, ReadUS: 110, Grants: []limit.Spent{{ID: grantOf(n, 1, 0).ID}},
		})
	}
	older := *openings[7]
	older.AskedUS, older.Grants = 90, []limit.Spent{{ID: grantOf(100, 1, 0).ID}}
	opened, err = store.OpenCredits(t.Context(), openings[7])
	require.NoError(t, err)
	require.Equal(t, 1, opened)
	openings[7] = &older
	opened, err = store.OpenCredits(t.Context(), openings...)
	require.ErrorIs(t, err, engine.ErrOpenedSince)
	require.Equal(t, 19, opened)
	older.AskedUS = 111
	opened, err = store.OpenCredits(t.Context(), openings...)
	require.NoError(t, err)
	require.Equal(t, 1, opened, "the others are open")
}

// A sum of credits beyond 2^53 is not exact in every engine, so all of them compute with the same
// smaller one, which no cost exceeds.
func testCreditsLarge(t *testing.T, eng engine.Engine) {
	var grants []limit.Grant
	for n := range 12 {
		grants = append(grants, grantOf(n, limit.MaxFixedLimit, 0))
	}
	c := withCredits(t, eng, counter(Prefix()+"k", five(limit.FixedWindow)), grants...)
	for n := range int64(3) {
		cost := int64(1)
		if n == 0 {
			cost = 6 // the window has 5
		}
		v := ask(t, eng, start, cost, c).Outcome.Verdicts[0]
		require.Equal(t, []any{true, int64(1), limit.MaxBalance - 1}, []any{v.Allowed, v.CreditsSpent, v.Credits})
		require.Equal(t, map[limit.GrantID]int64{grants[0].ID: n + 1}, unsettled(t, eng, c))
	}
	v := ask(t, eng, start, limit.MaxFixedLimit, c).Outcome.Verdicts[0]
	require.Equal(t, []any{true, limit.MaxFixedLimit, limit.MaxBalance - limit.MaxFixedLimit}, []any{v.Allowed, v.CreditsSpent, v.Credits})
	require.Equal(t, map[limit.GrantID]int64{grants[0].ID: limit.MaxFixedLimit, grants[1].ID: 3}, unsettled(t, eng, c))
}

// Many clients together get the units of the window and the credits, and no unit more.
func testCreditsConcurrent(t *testing.T, eng engine.Engine) {
	first, second := grantOf(1, 37, start+1_000_000), grantOf(2, 63, 0)
	c := withCredits(t, eng, counter(Prefix()+"k", five(limit.FixedWindow)), first, second)
	var allowed, spent atomic.Int64
	var clients sync.WaitGroup
	for client := range 16 {
		clients.Go(func() {
			for i := range 20 {
				call := &engine.Call{NowMS: start, Cost: int64(1 + (client+i)%2), Counters: []engine.Counter{c}}
				eng.Evaluate(context.Background(), call)
				v := call.Outcome.Verdicts[0]
				if call.Err != nil || v.CreditsSpent > 0 && v.Remaining > 0 {
					t.Error(call.Err, v)
				}
				if call.Outcome.Allowed {
					allowed.Add(call.Cost)
					spent.Add(v.CreditsSpent)
				}
			}
		})
	}
	clients.Wait()
	require.EqualValues(t, 105, allowed.Load())
	require.EqualValues(t, 100, spent.Load())
	require.Equal(t, map[limit.GrantID]int64{first.ID: 37, second.ID: 63}, unsettled(t, eng, c))
}

// Items of one subject that are decided in one call share its credits: they are spent once, and the
// call is allowed only if they suffice for all items.
func testCreditsOfSeveralItems(t *testing.T, eng engine.Engine) {
	const items = 8
	key := Prefix()
	n := five(limit.FixedWindow)
	grants := []limit.Grant{grantOf(1, 4, start+1_000_000), grantOf(2, 6, 0)}
	first := withCredits(t, eng, counter(key, n), grants...)
	var counters []engine.Counter
	for i := range items {
		c := counter(fmt.Sprintf("%s:%d", key, i), n)
		// Each item has read the grants by itself, so the pointers differ.
		c.Credits = &engine.Credits{Key: first.Credits.Key, Outbox: first.Credits.Outbox, Grants: slices.Clone(grants)}
		counters = append(counters, c)
	}
	together := func(now int64, costs ...int64) *engine.Call {
		t.Helper()
		call := &engine.Call{NowMS: now, Cost: slices.Max(costs), PerCounter: true}
		for i, cost := range costs {
			c := counters[i]
			c.Cost = cost
			call.Counters = append(call.Counters, c)
		}
		eng.Evaluate(t.Context(), call)
		require.NoError(t, call.Err)
		return call
	}
	says := func(call *engine.Call, allowed bool, left int64, spent ...int64) {
		t.Helper()
		require.Equal(t, allowed, call.Outcome.Allowed)
		for i, v := range call.Outcome.Verdicts {
			require.Equal(t, []int64{spent[i], left}, []int64{v.CreditsSpent, v.Credits}, "item %d", i)
		}
	}
	// 8 items with 5 units each in their windows, and 10 units of credits: 48 units fit.
	says(together(start, 10, 10, 10, 10, 10, 10, 10, 10), false, 10, 0, 0, 0, 0, 0, 0, 0, 0)
	says(together(start, 6, 6, 6, 6, 6, 6, 6, 6), true, 2, 1, 1, 1, 1, 1, 1, 1, 1)
	require.Equal(t, map[limit.GrantID]int64{grants[0].ID: 4, grants[1].ID: 4}, unsettled(t, eng, first))

	// The third item misses a unit. It waits for its own window, or for those of all.
	call := together(start, 1, 1, 1, 0)
	says(call, false, 2, 0, 0, 0, 0)
	for i, v := range call.Outcome.Verdicts {
		require.Equal(t, i != 2, v.Allowed, "item %d", i)
	}
	v := call.Outcome.Verdicts[2]
	require.Equal(t, []any{false, int64(60_000)}, []any{v.CostExceeds, v.RetryAfterMS})
	call = together(start, 2, 7)
	require.Equal(t, []any{false, int64(60_000)}, []any{call.Outcome.Verdicts[1].CostExceeds, call.Outcome.Verdicts[1].RetryAfterMS},
		"once the window of the first item is free, the second one gets all credits")
	call = together(start, 6, 7)
	require.True(t, call.Outcome.Verdicts[1].CostExceeds, "3 units of credits are never left")
	says(together(start, 1, 1), true, 0, 1, 1)
	require.Equal(t, map[limit.GrantID]int64{grants[0].ID: 4, grants[1].ID: 6}, unsettled(t, eng, first))
	says(together(start, 1), false, 0, 0)
}

// A call of several items that share credits is allowed after the longest wait of its items.
func testCreditsPatientItems(t *testing.T, eng engine.Engine) {
	for i := range 60 {
		r := rand.New(rand.NewPCG(11, uint64(i)))
		n := five(pick(r, limit.SlidingWindowCounter, limit.SlidingWindowBuckets, limit.FixedWindow, limit.FixedWindowFirstHit))
		first := withCredits(t, eng, counter(Prefix(), n), grantOf(1, 12, 0))
		now := start
		for step := range 12 {
			call := &engine.Call{NowMS: now, PerCounter: true}
			for item := range 2 + r.IntN(3) {
				c := counter(fmt.Sprintf("%s:%d", first.Key, item), n)
				c.Credits, c.Cost = first.Credits, r.Int64N(7)
				call.Cost = max(call.Cost, c.Cost)
				call.Counters = append(call.Counters, c)
			}
			eng.Evaluate(t.Context(), call)
			require.NoError(t, call.Err)
			wait := int64(0)
			for _, v := range call.Outcome.Verdicts {
				if v.CostExceeds {
					wait = limit.NeverMS
					break
				}
				wait = max(wait, v.RetryAfterMS)
			}
			if wait > 0 {
				call.NowMS += wait
				eng.Evaluate(t.Context(), call)
				require.True(t, call.Outcome.Allowed, "sequence %d, step %d", i, step)
				now = call.NowMS
			}
			now += r.Int64N(20_000)
		}
	}
}

// Credits beside overage are spent before the excess begins.
func testCreditsAndOverage(t *testing.T, eng engine.Engine) {
	n := five(limit.SlidingWindowCounter)
	n.Overage = true
	c := withCredits(t, eng, counter(Prefix()+"k", n), grantOf(1, 3, 0))
	v := ask(t, eng, start, 10, c).Outcome.Verdicts[0]
	require.Equal(t, []int64{0, 2, 3, 0}, []int64{v.Remaining, v.Overage, v.CreditsSpent, v.Credits})
}

// Random sequences with credits get the same answers from an engine and from memory, no credit is
// spent while the window has units left, and what is gone is what the answers say. In half of them,
// all counters spend the same credits.
func testCreditSequences(t *testing.T, eng engine.Engine) {
	for i := range 120 {
		r := rand.New(rand.NewPCG(7, uint64(i)))
		a := pick(r, limit.SlidingWindowCounter, limit.SlidingWindowBuckets, limit.FixedWindow, limit.FixedWindowFirstHit)
		memory := engine.NewMemory(engine.MemoryOptions{})
		stores := []engine.Engine{eng, memory}
		credits := map[string]*engine.Credits{}
		prefix := Prefix()
		for _, c := range RandomCalls(r, a, prefix) {
			if i%2 == 1 {
				addItems(r, c)
			}
			for j := range c.Counters {
				key := c.Counters[j].OwnKey()
				if i%2 == 1 {
					key = prefix
				}
				giveCredits(t, r, &c.Counters[j], key, c.NowMS, credits, stores)
			}
			theirs := *c
			theirs.Counters = slices.Clone(c.Counters)
			before := creditsOf(t, memory, c)
			eng.Evaluate(t.Context(), c)
			memory.Evaluate(t.Context(), &theirs)
			require.NoError(t, c.Err)
			require.Equal(t, theirs.Outcome, c.Outcome, "sequence %d: %+v", i, c)
			for j, v := range c.Outcome.Verdicts {
				require.LessOrEqual(t, v.CreditsSpent, c.CostOf(j))
				if v.CreditsSpent > 0 && c.Outcome.Allowed {
					require.Zero(t, v.Remaining)
				}
				if of := c.Counters[j].Credits; of != nil && !c.DryRun {
					before[of.Key] -= v.CreditsSpent
				}
			}
			require.Equal(t, creditsOf(t, memory, c), before, "sequence %d: %+v", i, c)
		}
		for _, of := range credits {
			c := engine.Counter{Credits: of}
			require.Equal(t, unsettled(t, memory, c), unsettled(t, eng, c))
		}
	}
}

// addItems adds counters to a random call for more items of its first rule, some with other costs.
func addItems(r *rand.Rand, c *engine.Call) {
	for item := range r.IntN(4) {
		more := c.Counters[0]
		more.Key, more.ID, more.Grouped = fmt.Sprintf("%s:item-%d", more.OwnKey(), item), "", false
		if c.PerCounter {
			more.Cost = randomCost(r, more.Numbers)
			c.Cost = max(c.Cost, more.Cost)
		}
		c.Counters = append(c.Counters, more)
	}
}

// creditsOf returns what is left of the credits of a call's counters, by their keys.
func creditsOf(t *testing.T, eng engine.Engine, c *engine.Call) map[string]int64 {
	left := map[string]int64{}
	for i := range c.Counters {
		of := c.Counters[i].Credits
		if of == nil || engine.CreditsAt(c.Counters, i) != i {
			continue
		}
		counter := c.Counters[i]
		counter.Cost = 0
		left[of.Key] = ask(t, eng, c.NowMS, 0, counter).Outcome.Verdicts[0].Credits
	}
	return left
}

// giveCredits gives a counter of a random call credits with keys that begin with key, some of which
// are not open.
func giveCredits(t *testing.T, r *rand.Rand, c *engine.Counter, key string, now int64, known map[string]*engine.Credits, stores []engine.Engine) {
	if c.Shadow || !c.Numbers.SpendsCredits() || oneIn(r, 4) {
		return
	}
	outbox := key + "outbox"
	key += "credits"
	c.Credits = known[key]
	if c.Credits == nil || oneIn(r, 8) {
		c.Credits = &engine.Credits{Key: key, Outbox: outbox}
		for g := range r.IntN(5) {
			grant := grantOf(g, pick(r, 1, 2, 1+r.Int64N(10), 1+r.Int64N(c.Numbers.Limit), limit.MaxFixedLimit), 0)
			if !oneIn(r, 4) {
				grant.ExpiresMS = max(1, now+pick(r, 0, 1, -1000, r.Int64N(100_000), r.Int64N(40*86_400_000)))
			}
			c.Credits.Grants = append(c.Credits.Grants, grant)
		}
		known[key] = c.Credits
	}
	o := engine.Opening{Key: key, Outbox: c.Credits.Outbox, Whole: oneIn(r, 2)}
	if !oneIn(r, 4) { // often older than another one
		o.AskedUS = 1 + r.Int64N(1000)
		o.ReadUS = o.AskedUS + r.Int64N(100)
	}
	for _, g := range c.Credits.Grants {
		if oneIn(r, 3) {
			o.Grants = append(o.Grants, limit.Spent{ID: g.ID, Units: pick(r, 0, 0, r.Int64N(g.Units+1)), ExpiresMS: g.ExpiresMS})
		}
	}
	if oneIn(r, 16) { // as many that no call has that some must be removed
		for n := range limit.MostKeptGrants - 1 {
			o.Grants = append(o.Grants, limit.Spent{ID: grantOf(1000+n, 0, 0).ID})
		}
	}
	openings := make([]string, len(stores))
	for i, store := range stores {
		opened, err := store.(engine.CreditStore).OpenCredits(t.Context(), &o)
		openings[i] = fmt.Sprint(opened, errors.Is(err, engine.ErrOpenedSince))
		require.True(t, err == nil || errors.Is(err, engine.ErrOpenedSince), "%v", err)
	}
	require.Equal(t, openings[0], openings[1])
}
