package enginetest

import (
	"context"
	"math"
	"math/big"
	"slices"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Reference is an engine.Engine that is simple rather than fast. It keeps every allowed request
// forever, counts by the definitions, in exact fractions, and finds each wait by bisection, because
// usage only falls with time. It shares no arithmetic with the engines. Calls must be valid and
// have their instant.
type Reference struct {
	counters map[string]*record
}

// record is the history of one counter.
type record struct {
	events []event
	full   *big.Rat // buckets: the instant at which it is full
	limit  int64    // buckets: at the last charge
	mark   int64    // end of a penalty
	// The last counted fixed window: its number from 1, and its bounds by the schedule that the
	// rule had in the last call.
	window     int
	start, end int64
	schedule   limit.CalendarWindows // of a calendar rule: that schedule
}

// event is an allowed cost and the instant at which it was counted.
type event struct {
	at, cost int64
	start    int64 // fixed_window_first_hit: the start of its window
	window   int   // fixed window: the number of its window
	end      int64 // fixed window: the end of its window
}

// NewReference returns a model without state.
func NewReference() *Reference { return &Reference{counters: map[string]*record{}} }

// Reset deletes counters.
func (r *Reference) Reset(_ context.Context, keys ...string) error {
	for _, key := range keys {
		delete(r.counters, key)
	}
	return nil
}

// Forget deletes requests before an instant, so that long runs stay fast. They must be older than
// two windows of every rule.
func (r *Reference) Forget(before int64) {
	for _, rec := range r.counters {
		rec.events = slices.DeleteFunc(rec.events, func(e event) bool { return e.at < before })
	}
}

// Evaluate decides the calls in order.
func (r *Reference) Evaluate(_ context.Context, calls ...*engine.Call) {
	for _, call := range calls {
		r.evaluate(call)
	}
}

func (r *Reference) evaluate(call *engine.Call) {
	now := call.NowMS
	out := engine.Outcome{NowMS: now, Allowed: true}
	records := make([]*record, len(call.Counters))
	for i, c := range call.Counters {
		cost := call.CostOf(i)
		rec := r.counters[c.OwnKey()]
		if rec == nil {
			rec = &record{}
		}
		if call.DryRun {
			rec = rec.copy()
		} else if cost > 0 {
			r.counters[c.OwnKey()] = rec
		}
		rec.follow(c.Numbers, now)
		records[i] = rec
		left := remaining(rec, c.Numbers, now)
		if penalty := c.Numbers.PenaltyMS; penalty > 0 && cost > 0 && cost <= c.Numbers.Ceiling() {
			switch running := rec.penaltyEnd(c.Numbers, now); {
			case running > now:
				rec.mark = running
			case cost > left:
				rec.mark = now + penalty
			}
		}
		v := limit.Verdict{
			Allowed:     cost == 0 || cost <= left && rec.penaltyEnd(c.Numbers, now) <= now,
			CostExceeds: cost > c.Numbers.Ceiling(),
		}
		if !v.Allowed && !c.Shadow {
			out.Allowed = false
		}
		out.Verdicts = append(out.Verdicts, v)
	}
	for i, c := range call.Counters {
		v, rec, cost := &out.Verdicts[i], records[i], call.CostOf(i)
		if out.Allowed && v.Allowed {
			if c.Numbers.Algorithm == limit.LeakyBucketQueue {
				v.DelayMS = when(rec, c.Numbers, now, 0) - now
			}
			if cost > 0 {
				rec.charge(c.Numbers, cost, now)
			}
		}
		describe(v, rec, c.Numbers, cost, now)
	}
	call.Outcome, call.Err = out, nil
}

// describe fills in the numbers of a verdict from the state after the call.
func describe(v *limit.Verdict, rec *record, n limit.Numbers, cost, now int64) {
	quota := n.Quota()
	used := rec.used(n, now)
	v.Remaining = max(0, quota-used)
	if n.Overage {
		v.Overage = max(0, min(used, n.Ceiling())-quota) // a clock that steps back can pass the ceiling
	}
	v.ResetMS = when(rec, n, now, 0)
	v.NextMS = now
	if v.ResetMS > now {
		v.NextMS = when(rec, n, now, quota-v.Remaining-1)
	}
	if !v.Allowed {
		v.RetryAfterMS = limit.NeverMS
		if !v.CostExceeds {
			v.RetryAfterMS = when(rec, n, now, n.Ceiling()-cost) - now
		}
	}
	mark := rec.penaltyEnd(n, now)
	if mark <= now {
		return
	}
	v.Penalized = true
	v.Remaining = 0
	v.ResetMS = max(v.ResetMS, mark)
	v.NextMS = max(when(rec, n, now, quota-1), mark)
	if !v.Allowed && !v.CostExceeds {
		v.RetryAfterMS = max(v.RetryAfterMS, mark-now)
	}
}

// penaltyEnd returns the end of the penalty, or an instant in the past.
func (rec *record) penaltyEnd(n limit.Numbers, now int64) int64 {
	if n.PenaltyMS == 0 {
		return 0
	}
	return min(rec.mark, now+n.PenaltyMS)
}

func (rec *record) copy() *record {
	c := *rec
	c.events = append([]event(nil), rec.events...)
	return &c
}

// remaining returns how much may still be charged: floor(ceiling - used), at least 0.
func remaining(rec *record, n limit.Numbers, now int64) int64 {
	return max(0, n.Ceiling()-rec.used(n, now))
}

// when searches the earliest instant, from now on, at which used <= m.
func when(rec *record, n limit.Numbers, now, m int64) int64 {
	fits := func(t int64) bool { return rec.used(n, t) <= m }
	if fits(now) {
		return now
	}
	low, step := now, max(1, n.WindowMS/8)
	for !fits(low + step) {
		low += step
		step *= 2
	}
	high := low + step // low is too early, high is not
	for high-low > 1 {
		if middle := low + (high-low)/2; fits(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// used returns what counts against the quota at t, rounded up to whole units. Rounding changes
// neither comparisons with whole numbers nor the remaining units, which are rounded down.
func (rec *record) used(n limit.Numbers, t int64) int64 {
	if n.Algorithm.Bucket() {
		return rec.level(n, t)
	}
	if len(rec.events) == 0 {
		return 0
	}
	newest := rec.events[len(rec.events)-1]
	counts := func(*event) bool { return false }
	switch n.Algorithm {
	case limit.FixedWindow:
		counts = func(e *event) bool { return t < rec.end && e.window == rec.window }
	case limit.FixedWindowFirstHit:
		t = max(t, newest.start)
		counts = func(e *event) bool { return e.start == newest.start && t < e.start+n.WindowMS }
	case limit.SlidingWindowLog:
		t = max(t, newest.at)
		counts = func(e *event) bool { return e.at > t-n.WindowMS }
	case limit.SlidingWindowBuckets:
		t = max(t, newest.at/n.PrecisionMS*n.PrecisionMS)
		first := t/n.PrecisionMS - n.WindowMS/n.PrecisionMS + 1
		counts = func(e *event) bool { return e.at/n.PrecisionMS >= first }
	case limit.SlidingWindowCounter:
		return rec.weighted(n, max(t, newest.at/n.WindowMS*n.WindowMS))
	}
	var sum int64
	for i := range rec.events { // copies of events made this several times slower
		if e := &rec.events[i]; counts(e) {
			sum += e.cost
		}
	}
	return sum
}

// weighted returns used for the sliding window counter: the count of this window, plus the part of
// the previous window that a window ending at t covers, in whole units.
func (rec *record) weighted(n limit.Numbers, t int64) int64 {
	window := t / n.WindowMS
	var this, before int64
	for i := range rec.events {
		switch e := &rec.events[i]; e.at / n.WindowMS {
		case window:
			this += e.cost
		case window - 1:
			before += e.cost
		}
	}
	covered := big.NewInt((window+1)*n.WindowMS - t)
	part := covered.Mul(covered, big.NewInt(before))
	return this + part.Quo(part, big.NewInt(n.WindowMS)).Int64()
}

// fullUnder returns the instant at which a bucket is full, by n's limit.
func (rec *record) fullUnder(n limit.Numbers) *big.Rat {
	if rec.full == nil || rec.limit == n.Limit || rec.full.IsInt() {
		return rec.full
	}
	up := new(big.Int).Quo(rec.full.Num(), rec.full.Denom())
	return new(big.Rat).SetInt(up.Add(up, big.NewInt(1)))
}

// level returns ceil((full - t) * limit / window); the instant is a fraction.
func (rec *record) level(n limit.Numbers, t int64) int64 {
	full := rec.fullUnder(n)
	if full == nil {
		return 0
	}
	ahead := big.NewInt(t)
	ahead.Sub(full.Num(), ahead.Mul(ahead, full.Denom()))
	if ahead.Sign() <= 0 {
		return 0
	}
	ahead.Mul(ahead, big.NewInt(n.Limit))
	unit := big.NewInt(n.WindowMS)
	unit.Mul(unit, full.Denom())
	ahead.Add(ahead, unit).Sub(ahead, big.NewInt(1)).Quo(ahead, unit)
	if !ahead.IsInt64() {
		return math.MaxInt64
	}
	return ahead.Int64()
}

// charge counts an allowed cost.
func (rec *record) charge(n limit.Numbers, cost, now int64) {
	if n.Algorithm.Bucket() {
		from := new(big.Rat).SetInt64(now)
		if full := rec.fullUnder(n); full != nil && full.Cmp(from) > 0 {
			from = full
		}
		longer := new(big.Rat).SetFrac(
			new(big.Int).Mul(big.NewInt(cost), big.NewInt(n.WindowMS)), big.NewInt(n.Limit))
		rec.full, rec.limit = new(big.Rat).Add(from, longer), n.Limit
		return
	}
	e := event{at: now, cost: cost}
	if len(rec.events) > 0 { // the clock stepped back
		newest := rec.events[len(rec.events)-1]
		switch n.Algorithm {
		case limit.SlidingWindowLog:
			e.at = max(now, newest.at)
		case limit.SlidingWindowCounter:
			e.at = max(now, newest.at/n.WindowMS*n.WindowMS)
		case limit.SlidingWindowBuckets:
			e.at = max(now, newest.at/n.PrecisionMS*n.PrecisionMS)
		case limit.FixedWindowFirstHit:
			e.start = newest.start
		}
	}
	switch n.Algorithm {
	case limit.FixedWindow:
		if now >= rec.end {
			rec.window++
			rec.open(n, now)
		}
		e.window, e.end = rec.window, rec.end
	case limit.FixedWindowFirstHit:
		if len(rec.events) == 0 || now >= e.start+n.WindowMS {
			e.start = now
		}
	}
	rec.events = append(rec.events, e)
}

// follow gives an open calendar window, with its count, the bounds of the current schedule.
func (rec *record) follow(n limit.Numbers, now int64) {
	if n.Calendar == limit.NoCalendar || now < rec.start || now >= rec.end {
		return
	}
	if n.Bounds.Windows() == rec.schedule {
		return
	}
	rec.open(n, now)
	for i := range rec.events {
		if rec.events[i].window == rec.window {
			rec.events[i].end = rec.end
		}
	}
}

// open sets the bounds of the window that contains now.
func (rec *record) open(n limit.Numbers, now int64) {
	rec.start, rec.end = windowOf(n, now)
	if n.Calendar != limit.NoCalendar {
		rec.schedule = n.Bounds.Windows()
	}
}

// windowOf returns the aligned window that contains t.
func windowOf(n limit.Numbers, t int64) (start, end int64) {
	if n.Calendar == limit.NoCalendar {
		start = t / n.WindowMS * n.WindowMS
		return start, start + n.WindowMS
	}
	windows := n.Bounds.Windows()
	zone, first := windows.Zone(), windows.First()
	clock := clockOf(zone, t)
	months := (clock.Year()-first.Year())*12 + int(clock.Month()-first.Month())
	k := map[limit.Calendar]int{
		limit.CalendarDay: int(clock.Sub(first).Hours() / 24), limit.CalendarWeek: int(clock.Sub(first).Hours() / 24 / 7),
		limit.CalendarMonth: months, limit.CalendarYear: months / 12,
	}[n.Calendar]
	end = math.MaxInt64
	for i := k - 3; i <= k+3; i++ {
		if b := instantOf(zone, boundary(n.Calendar, first, i)); b > t {
			end = min(end, b)
		} else {
			start = max(start, b)
		}
	}
	return start, end
}

// boundary returns boundary k of a unit on a clock; first is boundary 0.
func boundary(unit limit.Calendar, first time.Time, k int) time.Time {
	switch unit {
	case limit.CalendarDay:
		return first.AddDate(0, 0, k)
	case limit.CalendarWeek:
		return first.AddDate(0, 0, 7*k)
	case limit.CalendarYear:
		k *= 12
	}
	day := first.Day()
	for { // a shorter month does not have this day: AddDate would return a day of the next month
		at := first.AddDate(0, 0, day-first.Day())
		at = time.Date(at.Year(), at.Month()+time.Month(k), day, at.Hour(), at.Minute(), at.Second(), at.Nanosecond(), time.UTC)
		if at.Day() == day {
			return at
		}
		day--
	}
}

// clockOf returns the time that a zone's clock shows at an instant, as a time in UTC.
func clockOf(zone *time.Location, t int64) time.Time {
	at := time.UnixMilli(t).In(zone)
	return time.Date(at.Year(), at.Month(), at.Day(), at.Hour(), at.Minute(), at.Second(), at.Nanosecond(), time.UTC)
}

// instantOf returns the first instant at which a zone's clock shows a time or a later one. Clocks
// are changed at quarters of an hour.
func instantOf(zone *time.Location, clock time.Time) int64 {
	const quarter = 15 * 60_000
	shows := func(t int64) bool { return !clockOf(zone, t).Before(clock) }
	t := (clock.UnixMilli()/quarter - 27*4) * quarter
	for !shows(t) && !shows(t+quarter-1) {
		t += quarter
	}
	late := int64(quarter - 1) // at t + late it shows the time
	for early := int64(-1); late-early > 1; {
		if middle := (early + late) / 2; shows(t + middle) {
			late = middle
		} else {
			early = middle
		}
	}
	return t + late
}

// Refund returns units: it forgets that they were charged.
func (r *Reference) Refund(_ context.Context, refunds ...*engine.Refund) {
	for _, refund := range refunds {
		refund.Refused, refund.Err = 0, nil
		for _, part := range refund.Parts {
			if rec := r.counters[part.Key]; rec == nil || !rec.refund(part, refund.NowMS) {
				refund.Refused++
			}
		}
	}
}

// refund removes units of the state that part names, the latest first.
func (rec *record) refund(part engine.RefundPart, now int64) bool {
	n := part.Numbers
	if n.Algorithm.Bucket() {
		same := rec.full != nil && ceil(rec.full) == part.Ground
		if rec.full == nil || rec.limit != n.Limit || !same && now > part.Until {
			return false
		}
		sooner := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(part.Units), big.NewInt(n.WindowMS)), big.NewInt(n.Limit))
		sooner.Sub(rec.full, sooner)
		if !same && sooner.Cmp(big.NewRat(now+1, 1)) < 0 {
			return false // it would be full
		}
		rec.full = sooner
		return true
	}
	left := part.Units
	kept := append([]event(nil), rec.events...)
	for i := len(kept) - 1; i >= 0 && left > 0; i-- {
		if of(n, kept[i]) == part.Ground {
			gone := min(left, kept[i].cost)
			kept[i].cost -= gone
			left -= gone
		}
	}
	if left > 0 {
		return false
	}
	rec.events = rec.events[:0]
	for _, e := range kept {
		if e.cost > 0 {
			rec.events = append(rec.events, e)
		}
	}
	return true
}

// of returns the ground of an event.
func of(n limit.Numbers, e event) int64 {
	switch n.Algorithm {
	case limit.SlidingWindowCounter:
		return e.at / n.WindowMS
	case limit.SlidingWindowBuckets:
		return e.at / n.PrecisionMS
	case limit.FixedWindow:
		return e.end
	}
	return e.start + n.WindowMS
}

// ceil returns x rounded up to a whole number.
func ceil(x *big.Rat) int64 {
	up, rest := new(big.Int).QuoRem(x.Num(), x.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		up.Add(up, big.NewInt(1))
	}
	return up.Int64()
}
