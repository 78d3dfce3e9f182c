package enginetest

import (
	"fmt"
	"math/rand/v2"

	"weir/internal/engine"
	"weir/internal/limit"
)

// RandomCalls returns the calls of one random sequence, with keys that begin with prefix. They have
// costs of all sizes on one to four rules, the first of them with the given algorithm. Times are at
// and beside every edge, and some step back. Limits are at and beyond the ends of their ranges, and
// rules change in between.
func RandomCalls(r *rand.Rand, a limit.Algorithm, prefix string) []*engine.Call {
	rules := []limit.Numbers{randomNumbers(r, a)}
	windows := randomWindows(r)
	shadows := []bool{oneIn(r, 5)}
	if oneIn(r, 3) {
		for range 1 + r.IntN(3) {
			rules = append(rules, randomNumbers(r, pick(r, limit.Algorithms...)))
			shadows = append(shadows, oneIn(r, 4))
		}
	}
	ids := make([]string, len(rules))
	for i := range ids {
		ids[i] = randomID(r)
	}
	groups := oneIn(r, 2)
	subjects := 1 + r.IntN(2)
	now := 1 + r.Int64N(3_000_000_000_000)
	latest := now
	calls := make([]*engine.Call, 4+r.IntN(12))
	for i := range calls {
		if oneIn(r, 8) {
			changeLimit(r, &rules[r.IntN(len(rules))])
		}
		if oneIn(r, 6) {
			windows = randomWindows(r)
		}
		now = max(randomInstant(r, now, rules[0]), latest-mostBackMS)
		latest = max(latest, now)
		call := &engine.Call{NowMS: now, DryRun: oneIn(r, 8), Cost: randomCost(r, rules[0])}
		for j, n := range rules {
			if n.Calendar != limit.NoCalendar {
				n.Bounds = aroundOrBeside(r, windows[n.Calendar], now)
			}
			c := engine.Counter{Key: fmt.Sprintf("%s%d:%d", prefix, j, r.IntN(subjects)), Numbers: n, Shadow: shadows[j]}
			if groups {
				inGroup(r, &c, fmt.Sprintf("%sof-group-%d", prefix, r.IntN(subjects)), ids[j])
			}
			call.Counters = append(call.Counters, c)
		}
		if len(rules) > 1 && oneIn(r, 4) {
			giveCosts(r, call)
		}
		calls[i] = call
	}
	return calls
}

// giveCosts gives each counter of a call its own cost.
func giveCosts(r *rand.Rand, call *engine.Call) {
	call.PerCounter, call.Cost = true, 0
	for i := range call.Counters {
		c := &call.Counters[i]
		c.Cost = randomCost(r, c.Numbers)
		call.Cost = max(call.Cost, c.Cost)
	}
}

// randomWindows returns windows of all calendar units in one zone, by the calendar or from an
// anchor.
func randomWindows(r *rand.Rand) map[limit.Calendar]*limit.CalendarWindows {
	name := pick(r, "UTC", "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu",
		"America/Santiago", "Pacific/Apia", "Africa/Cairo", "America/St_Johns")
	zone, err := limit.ParseZone(name)
	if err != nil {
		panic(err)
	}
	anchorMS := 1000 * r.Int64N(3_000_000_000)
	calendar := oneIn(r, 2)
	all := map[limit.Calendar]*limit.CalendarWindows{}
	for unit := limit.CalendarDay; unit <= limit.CalendarYear; unit++ {
		windows, err := limit.NewAnchoredWindows(unit, zone, anchorMS)
		if calendar {
			windows, err = limit.NewCalendarWindows(unit, zone)
		}
		if err != nil {
			panic(err)
		}
		all[unit] = &windows
	}
	return all
}

// aroundOrBeside returns bounds of windows around an instant, as computed by an instance with a
// correct or a wrong clock.
func aroundOrBeside(r *rand.Rand, windows *limit.CalendarWindows, now int64) *limit.Bounds {
	if off := windows.Around(max(1, now+pick[int64](r, -1, 1)*r.Int64N(40*86_400_000))); off.Contain(now) {
		return off
	}
	return windows.Around(now)
}

// mostBackMS is how far clocks step back: 30 days. If a clock steps back further, beyond the
// longest window and some weeks, engines treat the stored value as invalid.
const mostBackMS = 30 * 86_400_000

// inGroup changes c to a counter that may be stored in a group. Sometimes it is used with its own
// key instead, like the counter of a rule that leaves or joins its group. An engine must give the
// same answers.
func inGroup(r *rand.Rand, c *engine.Counter, group, id string) {
	switch c.Numbers.Algorithm {
	case limit.SlidingWindowCounter, limit.FixedWindow, limit.FixedWindowFirstHit:
	default:
		return
	}
	c.Key, c.ID, c.Grouped = group, id, true
	if oneIn(r, 6) || c.Numbers.PenaltyMS > 0 {
		c.Key, c.Grouped = c.OwnKey(), false
	}
}

func randomID(r *rand.Rand) string {
	b := make([]byte, 9)
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	return string(b)
}

func oneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func randomNumbers(r *rand.Rand, a limit.Algorithm) limit.Numbers {
	n := limit.Numbers{Algorithm: a}
	n.WindowMS = pick(r, limit.MinWindowMS, 1001, 1337, 4000, 60_000, 3_600_000, 86_400_000,
		limit.MaxWindowMS, limit.MaxWindowMS-1, 1000+r.Int64N(10_000))
	switch {
	case a == limit.SlidingWindowBuckets:
		parts := pick[int64](r, 1, 2, 7, 60, 120, 1+r.Int64N(120))
		n.PrecisionMS = max(n.WindowMS/parts, 9)
		n.WindowMS = n.PrecisionMS * min(parts, limit.MaxWindowMS/n.PrecisionMS)
		if n.WindowMS < limit.MinWindowMS {
			n.WindowMS, n.PrecisionMS = 1000, 100
		}
	case a == limit.FixedWindow && oneIn(r, 4):
		n.WindowMS, n.Calendar = 0, pick(r, limit.CalendarDay, limit.CalendarWeek, limit.CalendarMonth, limit.CalendarYear)
	}
	if oneIn(r, 5) {
		n.PenaltyMS = pick(r, 1, 500, 5000, limit.MaxPenaltyMS, 1+r.Int64N(100_000))
	}
	changeLimit(r, &n)
	return n
}

// changeLimit gives a rule another limit, and a bucket another burst.
func changeLimit(r *rand.Rand, n *limit.Numbers) {
	most := limit.MaxLimit
	switch n.Algorithm {
	case limit.FixedWindow, limit.FixedWindowFirstHit:
		most = limit.MaxFixedLimit
	case limit.SlidingWindowLog:
		most = limit.MaxLogLimit
	}
	n.Limit = pick(r, 1, 2, 3, 1+r.Int64N(10), 1+r.Int64N(100), 1+r.Int64N(most), most-1, most)
	n.Overage = n.Overages() && oneIn(r, 4)
	if !n.Algorithm.Bucket() {
		return
	}
	// a bucket refills within 366 days
	most = limit.MaxLimit
	if perUnit := n.WindowMS / n.Limit; perUnit > 0 {
		most = max(1, min(most, limit.MaxWindowMS/(perUnit+1)))
	}
	n.Burst = pick(r, 1, min(most, 1+r.Int64N(5)), min(most, n.Limit), min(most, 1+r.Int64N(1000)), 1+r.Int64N(most), most)
}

func randomCost(r *rand.Rand, n limit.Numbers) int64 {
	quota := n.Quota()
	return pick(r, 0, 1, 1, 1, 2, 1+r.Int64N(5), max(1, quota/3), max(1, quota/2), max(1, quota-1), quota,
		quota+1, 1<<31, 1<<53-1, 1+r.Int64N(quota), 1+r.Int64N(n.Ceiling()))
}

// randomInstant returns the time of the next request: on edges and beside them, at different
// distances.
func randomInstant(r *rand.Rand, now int64, n limit.Numbers) int64 {
	window := n.WindowMS
	if window == 0 {
		window = pick[int64](r, 86_400_000, 7*86_400_000, 30*86_400_000, 365*86_400_000)
	}
	part := window
	if n.PrecisionMS > 0 {
		part = n.PrecisionMS
	}
	switch r.IntN(12) {
	case 0, 1:
	case 2:
		now++
	case 3:
		now += r.Int64N(window/10 + 1)
	case 4:
		now += r.Int64N(window)
	case 5:
		now += window + pick[int64](r, -1, 0, 1)
	case 6: // to the next edge, or beside it
		now += part - now%part + pick[int64](r, -1, 0, 1)
	case 7:
		now += 2*window + pick[int64](r, -1, 0, 1)
	case 8:
		now += window / max(1, n.Limit) * (1 + r.Int64N(3))
	case 9:
		now += r.Int64N(3 * window)
	case 10: // the clock steps back
		now -= pick(r, 1, r.Int64N(window/4+1), r.Int64N(window))
	case 11:
		now -= now % part // the first instant of a part
	}
	return min(max(now, 1), limit.MaxInstantMS-10*limit.MaxWindowMS)
}
