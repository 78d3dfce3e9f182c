package enginetest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// amendments are the numbers of amendments by name, in the order of their first use.
var (
	amendments       sync.Map
	amendmentNumbers atomic.Int64
)

// amend changes the counters of one call and requires that it succeeds.
func amend(tb testing.TB, eng engine.Engine, once string, nowMS int64, reset bool, to []limit.Numbers, counters ...engine.Counter) {
	tb.Helper()
	number, _ := amendments.LoadOrStore(once, amendmentNumbers.Add(1))
	a := &engine.Amendment{Once: once, Done: engine.Retag("w{x}amendment", once), Number: number.(int64), NowMS: nowMS, Reset: reset}
	for i, c := range counters {
		a.Parts = append(a.Parts, engine.AmendPart{Counter: c, To: to[i]})
	}
	require.NoError(tb, eng.Amend(tb.Context(), a))
}

// remains returns the verdict of a read.
func remains(tb testing.TB, eng engine.Engine, nowMS int64, c engine.Counter, n limit.Numbers) limit.Verdict {
	tb.Helper()
	c.Numbers = n
	return ask(tb, eng, nowMS, 0, c).Outcome.Verdicts[0]
}

// The used share of the quota stays the same, rounded up, and is changed once for each name. A
// reset deletes everything, including penalties.
func testAmend(t *testing.T, eng engine.Engine) {
	for _, a := range limit.Algorithms {
		from, to := five(a), five(a)
		to.Limit = 50
		if a.Bucket() {
			to.Burst = 50
		}
		prefix := Prefix()
		c := counter(prefix+"a-counter", from)
		at := start + 30_000
		ask(t, eng, at, 3, c)
		amend(t, eng, prefix+"first-one", at, false, []limit.Numbers{to}, c)
		amend(t, eng, prefix+"first-one", at, false, []limit.Numbers{to}, c)
		v := remains(t, eng, at, c, to)
		require.EqualValues(t, 20, v.Remaining, "%s: 3 of 5 are 30 of 50", a)
		up := c
		up.Numbers = to
		ask(t, eng, at, 1, up)
		amend(t, eng, prefix+"the-second", at, false, []limit.Numbers{from}, up)
		require.EqualValues(t, 1, remains(t, eng, at, c, from).Remaining, "%s: 31 of 50 are 3.1 of 5, and 4 count", a)
		amend(t, eng, prefix+"a-third-one", at, true, []limit.Numbers{to}, c)
		require.Equal(t, remains(t, eng, at, counter(prefix+"unseen-one", to), to), remains(t, eng, at, c, to), a)
	}
	bad := &engine.Amendment{Once: "w{other}name-of-it", Parts: []engine.AmendPart{{Counter: counter(Prefix()+"a-counter", five(limit.FixedWindow)), To: five(limit.FixedWindow)}}}
	require.Error(t, eng.Amend(t.Context(), bad), "counters of another tenant")
}

// A downgrade with carry leaves more units than the limit. The next change by scale takes them for
// the whole quota, so that no caller waits longer than for that. Units beyond the limit stay only
// if both numbers allow overage.
func testAmendBeyondTheLimit(t *testing.T, eng engine.Engine) {
	for _, a := range limit.Algorithms {
		wide, narrow := five(a), five(a)
		if a.Bucket() {
			wide.Burst = 50 // with another limit, the share that is missing stays the same
		} else {
			wide.Limit = 50
		}
		prefix, at := Prefix(), start+30_000
		c := counter(prefix+"a-counter", wide)
		ask(t, eng, at, 40, c)
		c.Numbers = narrow
		amend(t, eng, prefix+"the-upgrade", at, false, []limit.Numbers{wide}, c)
		v := remains(t, eng, at, c, wide)
		require.Zero(t, v.Remaining, a)
		full := counter(Prefix()+"a-counter", wide)
		ask(t, eng, at, 50, full)
		require.LessOrEqual(t, v.ResetMS, remains(t, eng, at, full, wide).ResetMS, "%s: 40 of 5 are 50 of 50, and not 400", a)

		if !narrow.Overages() {
			continue
		}
		for _, both := range []bool{true, false} {
			prefix := Prefix()
			c, to := counter(prefix+"a-counter", narrow), wide
			c.Numbers.Overage, to.Overage = true, both
			ask(t, eng, at, 40, c)
			amend(t, eng, prefix+"the-upgrade", at, false, []limit.Numbers{to}, c)
			to.Overage = true // so that the verdict has it
			want := int64(0)
			if both {
				want = 35
			}
			require.Equal(t, want, remains(t, eng, at, c, to).Overage, "%s: of 40 of 5, 35 are beyond", a)
		}
	}
}

// Engines agree with the arithmetic on states, after any calls, for single counters and groups.
func testAmendSequences(t *testing.T, eng engine.Engine) {
	memory := engine.NewMemory(engine.MemoryOptions{})
	for _, a := range limit.Algorithms {
		for i := range 60 {
			r := rand.New(rand.NewPCG(11, uint64(a)<<32|uint64(i)))
			n := randomNumbers(r, a)
			n.PenaltyMS = 0
			windows := randomWindows(r)
			to := n
			changeLimit(r, &to)
			prefix, now := Prefix(), 1+r.Int64N(3_000_000_000_000)
			c := counter(prefix+"a-counter", n)
			grouped := oneIn(r, 2)
			if grouped {
				inGroup(r, &c, prefix+"a-group-of", "the-rule-")
			}
			both := func(do func(eng engine.Engine) limit.Verdict) {
				require.Equal(t, do(memory), do(eng), "%s, sequence %d: %+v to %+v", a, i, n, to)
			}
			for range 6 {
				now += r.Int64N(max(2, n.WindowMS/3))
				if n.Calendar != limit.NoCalendar {
					n.Bounds = windows[n.Calendar].Around(now)
					c.Numbers, to.Bounds = n, n.Bounds
				}
				cost := min(randomCost(r, n), n.Quota())
				both(func(eng engine.Engine) limit.Verdict { return ask(t, eng, now, cost, c).Outcome.Verdicts[0] })
			}
			for _, e := range []engine.Engine{memory, eng} {
				amend(t, e, prefix+"amendment", now, false, []limit.Numbers{to}, c)
			}
			for _, later := range []int64{0, 1, n.WindowMS / 2, n.WindowMS} {
				if to.Calendar != limit.NoCalendar {
					to.Bounds = windows[to.Calendar].Around(now + later)
				}
				both(func(eng engine.Engine) limit.Verdict { return remains(t, eng, now+later, c, to) })
			}
			both(func(eng engine.Engine) limit.Verdict {
				changed := c
				changed.Numbers = to
				return ask(t, eng, now+n.WindowMS, 1, changed).Outcome.Verdicts[0]
			})
		}
	}
}

// A change never leaves a greater share of the quota than before, however far apart the two limits
// are, and takes at most what rounding to a millisecond and to a unit takes.
func testAmendKeepsShares(t *testing.T, eng engine.Engine) {
	for _, a := range limit.Algorithms {
		for i := range 150 {
			r := rand.New(rand.NewPCG(12, uint64(a)<<32|uint64(i)))
			n := randomNumbers(r, a)
			if n.Calendar != limit.NoCalendar {
				continue // counts as one with another window
			}
			n.PenaltyMS, n.Overage = 0, false
			to := n
			changeLimit(r, &to)
			to.Overage = false
			prefix := Prefix()
			c := counter(prefix+"a-counter", n)
			had, has := n.Quota(), to.Quota()
			cost := pick(r, had, max(1, had-1), 1+r.Int64N(had), 1+r.Int64N(min(had, 10)))
			left := ask(t, eng, start, cost, c).Outcome.Verdicts[0].Remaining
			amend(t, eng, prefix+"the-change", start, false, []limit.Numbers{to}, c)
			got := remains(t, eng, start, c, to).Remaining
			share, _ := limit.MulDiv(left, has, had, 0)
			require.LessOrEqual(t, got, share, "%s: %d left of %+v, to %+v", a, left, n, to)
			rate, _ := limit.MulDiv(n.Limit, has, had, 0)
			rounded := 5 + (rate+has+to.Limit)/n.WindowMS // before, between and after both shares
			require.GreaterOrEqual(t, got, share-rounded, "%s: %d left of %+v, to %+v", a, left, n, to)
		}
	}
}
