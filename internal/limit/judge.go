package limit

// Judgement is the part of one counter in a call that an engine decides in this process. Its twin
// is evaluate_one.lua: decide for Admit, charge for Charge, conclude for Finish.
type Judgement struct {
	Numbers *Numbers
	State   State
	Mark    int64  // end of the running penalty, or 0
	Marks   bool   // the call starts the penalty, or shortens one that ends too late
	Moved   bool   // the end of the open window has changed (Follow)
	Purse   *Purse // credits of the subject, also for other counters of the call; nil: none
	spends  int64  // with a Purse: the part of the cost that it pays
	retryAt int64  // with a Purse: when a denied cost is allowed, or NeverMS
}

// Admit decides whether the counter alone allows cost at now, and what remains. It is the first
// half of a verdict: nothing is written before all counters have decided.
func (j *Judgement) Admit(cost, now int64) Verdict {
	n := j.Numbers
	// If a mark ends later than a penalty that begins now, the clock stepped back, or the penalty
	// was longer before.
	latest := now + n.PenaltyMS
	cut := j.Mark > latest
	j.Mark = min(j.Mark, latest)
	if j.Mark <= now {
		j.Mark = 0
	}
	v := Verdict{Remaining: j.State.Remaining(n, now)}
	if j.Purse != nil {
		return j.admitWithCredits(v, cost, now)
	}
	switch {
	case cost == 0:
		v.Allowed = true
	case cost > n.Ceiling():
		v.CostExceeds = true
	case j.Mark != 0:
		j.Marks = cut
	case cost <= v.Remaining:
		v.Allowed = true
	case n.PenaltyMS > 0:
		j.Marks = true
		j.Mark = latest
	}
	n.Split(&v)
	return v
}

// admitWithCredits is Admit for a counter whose subject has credits, which has no penalty.
func (j *Judgement) admitWithCredits(v Verdict, cost, now int64) Verdict {
	n := j.Numbers
	j.spends = j.Purse.cover(n, v.Remaining, cost)
	v.Credits, v.Unopened = j.Purse.Balance, j.Purse.Unopened > 0
	if v.Allowed = cost == 0 || j.Takes(cost) <= v.Remaining; !v.Allowed {
		j.retryAt = j.Purse.retryAt(n, j.State, cost, now)
		v.CostExceeds = j.retryAt == NeverMS
	}
	j.Purse.note(n, j.State, v.Remaining, cost, j.spends)
	n.Split(&v)
	return v
}

// Takes returns the part of an allowed cost that the window gets. Credits are the rest.
func (j *Judgement) Takes(cost int64) int64 { return cost - j.spends }

// Follow updates the state to the schedule of the rule's windows, which may have changed. A dry run
// must not call it.
func (j *Judgement) Follow(now int64) {
	if s, fixed := j.State.(*fixedWindow); fixed {
		j.Moved = s.Follow(j.Numbers, now)
	}
}

// Charge counts cost on a counter that allows it, in an allowed call.
func (j *Judgement) Charge(v *Verdict, cost, now int64) {
	v.DelayMS = j.State.delay(j.Numbers, now)
	if j.Purse != nil {
		cost = j.Takes(cost)
		v.CreditsSpent = j.spends
		v.Credits -= j.Purse.Needed // all counters have decided, and allow
	}
	if cost > 0 {
		j.State.Charge(j.Numbers, cost, now)
		v.Remaining = j.State.Remaining(j.Numbers, now)
		j.Numbers.Split(v)
	}
}

// Finish fills in the times, from the state after the call.
func (j *Judgement) Finish(v *Verdict, cost, now int64) {
	n := j.Numbers
	quota := n.Quota()
	v.ResetMS = j.State.when(n, now, 0)
	v.NextMS = now
	if v.Remaining < quota {
		v.NextMS = j.State.when(n, now, quota-v.Remaining-1)
	}
	switch {
	case v.CostExceeds:
		v.RetryAfterMS = NeverMS
	case !v.Allowed && j.Purse != nil:
		v.RetryAfterMS = j.retryAt - now
	case !v.Allowed:
		v.RetryAfterMS = max(j.State.when(n, now, n.Ceiling()-cost), j.Mark) - now
	}
	if j.Mark != 0 {
		v.Penalized = true
		v.Remaining = 0
		v.ResetMS = max(v.ResetMS, j.Mark)
		v.NextMS = max(j.State.when(n, now, quota-1), j.Mark) // one unit more than 0
	}
}
