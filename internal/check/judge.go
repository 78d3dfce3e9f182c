package check

// judgement is one counter's part in a call that an engine decides in this process.
type judgement struct {
	numbers *Numbers
	state   state
	mark    int64 // end of the penalty that runs, or 0
	marks   bool  // the call starts the penalty, or cuts down one that ends too late
}

// admit says whether the counter alone would admit cost at now, and what it has left. It is
// the first half of a verdict: nothing is written before every counter has had its say.
func (j *judgement) admit(cost, now int64) Verdict {
	n := j.numbers
	// A mark further ahead than any penalty of now lasts is from a clock that stepped back
	// or from a longer penalty.
	latest := now + n.PenaltyMS
	cut := j.mark > latest
	j.mark = min(j.mark, latest)
	if j.mark <= now {
		j.mark = 0
	}
	v := Verdict{Remaining: j.state.remaining(n, now)}
	switch {
	case cost == 0:
		v.Allowed = true
	case cost > n.Quota():
		v.CostExceeds = true
	case j.mark != 0:
		j.marks = cut
	case cost <= v.Remaining:
		v.Allowed = true
	case n.PenaltyMS > 0:
		j.marks = true
		j.mark = latest
	}
	return v
}

// charge counts cost on an admitting counter of an allowed call.
func (j *judgement) charge(v *Verdict, cost, now int64) {
	v.DelayMS = j.state.delay(j.numbers, now)
	if cost > 0 {
		j.state.charge(j.numbers, cost, now)
		v.Remaining = j.state.remaining(j.numbers, now)
	}
}

// finish fills in the times, from the state as the call leaves it.
func (j *judgement) finish(v *Verdict, cost, now int64) {
	n := j.numbers
	quota := n.Quota()
	v.ResetMS = j.state.when(n, now, 0)
	v.NextMS = now
	if v.Remaining < quota {
		v.NextMS = j.state.when(n, now, quota-v.Remaining-1)
	}
	switch {
	case v.CostExceeds:
		v.RetryAfterMS = NeverMS
	case !v.Allowed:
		v.RetryAfterMS = max(j.state.when(n, now, quota-cost), j.mark) - now
	}
	if j.mark != 0 {
		v.Penalized = true
		v.Remaining = 0
		v.ResetMS = max(v.ResetMS, j.mark)
		v.NextMS = max(j.state.when(n, now, quota-1), j.mark) // one unit more than the 0 shown
	}
}
