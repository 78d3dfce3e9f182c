package redis

import (
	"slices"

	"weir/internal/engine"
	"weir/internal/limit"
)

// verdicts computes the outcome of c from the reply of evaluate_many.lua: the state before all
// calls that are equal to this one, and how many of them were allowed. The arithmetic is that of
// package limit.
func (r *request) verdicts(c *engine.Call, s *sentCall) error {
	count := len(c.Counters)
	out := &c.Outcome
	if s.allowed == manyStale {
		out.NowMS = s.decidedMS
		return errStale
	}
	out.NowMS, out.Allowed = s.decidedMS, s.turn < s.allowed
	out.Verdicts = slices.Grow(out.Verdicts[:0], count)[:count]
	r.states = slices.Grow(r.states[:0], count)[:count]
	r.judgements = slices.Grow(r.judgements[:0], count)[:count]
	reply := s.reply
	allowed := true
	entries := r.entriesOf(s)
	for e := range entries {
		entry, spent := &entries[e], int64(0)
		if entry.grouped {
			spent, reply = readUint(reply[:spentBytes]), reply[spentBytes:]
		}
		for _, i := range r.order[entry.from : entry.from+entry.count] {
			counter, v := &c.Counters[i], &out.Verdicts[i]
			n := &counter.Numbers
			state, ok := r.states[i].Load(n, readUint(reply[:6]), readUint(reply[6:13]), readUint(reply[13:17]), spent)
			if !ok {
				return errReply
			}
			reply = reply[stateBytes:]
			if before := min(s.turn, s.allowed); before > 0 && c.Cost > 0 {
				if counter.Shadow {
					before = min(before, state.Remaining(n, out.NowMS)/c.Cost)
				}
				if before > 0 {
					state.Charge(n, before*c.Cost, out.NowMS)
				}
			}
			r.judgements[i] = limit.Judgement{Numbers: n, State: state}
			*v = r.judgements[i].Admit(c.Cost, out.NowMS)
			allowed = allowed && (v.Allowed || counter.Shadow)
		}
	}
	if allowed != out.Allowed {
		return errReply // the twins disagree: this is a bug, and no verdict can be trusted
	}
	for i := range c.Counters {
		v := &out.Verdicts[i]
		if allowed && v.Allowed {
			r.judgements[i].Charge(v, c.Cost, out.NowMS)
		}
		r.judgements[i].Finish(v, c.Cost, out.NowMS)
	}
	return nil
}

// decodeReply fills in the outcome from a reply and returns the number of invalid values that were
// repaired. It returns errReply for a reply that does not have the expected form.
func decodeReply(c *engine.Call, reply string) (repaired int64, err error) {
	count := len(c.Counters)
	if len(reply) == headReplyBytes && reply[6] == oneStale {
		c.Outcome.NowMS = readUint(reply[:6])
		return 0, errStale
	}
	length := headReplyBytes + count*counterReplyBytes
	for i := range c.Counters {
		if c.Counters[i].Credits != nil {
			length += creditsReplyBytes
		}
	}
	if len(reply) != length || reply[6] > 1 {
		return 0, errReply
	}
	out := &c.Outcome
	out.NowMS, out.Allowed = readUint(reply[:6]), reply[6] == 1
	out.Verdicts = slices.Grow(out.Verdicts[:0], count)[:count]
	reply = reply[headReplyBytes:]
	for i := range out.Verdicts {
		flags := reply[0]
		if flags > flagsKnown || flags&(flagAdmits|flagExceeds) == flagAdmits|flagExceeds ||
			flags&flagUnopened != 0 && c.Counters[i].Credits == nil {
			return 0, errReply
		}
		v := limit.Verdict{
			Allowed:      flags&flagAdmits != 0,
			CostExceeds:  flags&flagExceeds != 0,
			Penalized:    flags&flagPenalty != 0,
			Remaining:    readUint(reply[1:8]),
			RetryAfterMS: readUint(reply[8:14]),
			ResetMS:      readUint(reply[14:20]),
			NextMS:       readUint(reply[20:26]),
			DelayMS:      readUint(reply[26:31]),
		}
		if v.CostExceeds {
			v.RetryAfterMS = limit.NeverMS
		}
		c.Counters[i].Numbers.Split(&v)
		if flags&flagRepaired != 0 {
			repaired++
		}
		reply = reply[counterReplyBytes:]
		if c.Counters[i].Credits != nil {
			v.Unopened = flags&flagUnopened != 0
			v.CreditsSpent, v.Credits = readUint(reply[:7]), readUint(reply[7:14])
			reply = reply[creditsReplyBytes:]
		}
		out.Verdicts[i] = v
	}
	return repaired, nil
}
