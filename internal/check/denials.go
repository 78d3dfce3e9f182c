package check

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"time"
)

// denials remembers the last denials for a moment, so that a subject which hammers at a
// closed door does not knock at the counter store each time.
//
// A denial holds until its RetryAfterMS, whatever else is admitted meanwhile: use never falls
// faster by itself than the engine foresaw. What can lift it is a reset, an override, a change
// of plan or rule. The last three show as another Policy or another subject's entry; a reset
// shows because a denial is tried at the store anew when it is denialMS old. The first request after
// that does so; those beside it, however many, are answered from memory until its answer is
// there, or graceMS later at most. So a door is tried at the store at most ten times a second by
// each instance, and what others consumed shows as often.
//
// Only the same request is answered, cost included: a smaller cost may fit, and a greater one
// has a longer wait.
type denials struct {
	clock func() time.Time
	seed  maphash.Seed
	slots [denialSlots]atomic.Pointer[denial]
}

const (
	denialSlots = 4096 // two requests in one slot push each other out; nothing else happens
	denialMS    = 100
	graceMS     = 50
)

type denial struct {
	policy   *Policy
	subject  *subjectEntry
	request  Request
	started  time.Time // before the store was asked: the denial is no younger than this
	until    time.Time
	asked    atomic.Bool // somebody tries anew
	decision Decision
}

func newDenials(clock func() time.Time) *denials {
	return &denials{clock: clock, seed: maphash.MakeSeed()}
}

func (s *denials) slot(tenant TenantID, req *Request) *atomic.Pointer[denial] {
	var h maphash.Hash
	h.SetSeed(s.seed)
	_, _ = h.Write(tenant[:])
	_, _ = h.WriteString(req.Subject)
	_ = h.WriteByte(0)
	_, _ = h.WriteString(req.Resource)
	var cost [8]byte
	binary.LittleEndian.PutUint64(cost[:], uint64(req.Cost))
	_, _ = h.Write(cost[:])
	return &s.slots[h.Sum64()%denialSlots]
}

// remember keeps the decision of e if it is a denial that is certain to hold for a while.
func (s *denials) remember(e *evaluation) {
	d := &e.decision
	// A dry denial is as certain, but the real one may have to start a penalty.
	if d.Code != RateLimitExceeded || d.Degraded || e.req.Explain || e.req.DryRun {
		return
	}
	subject, _ := e.policy.subjects.Load(e.req.Subject)
	holds := min(d.Rules[d.Deciding].RetryAfterMS, denialMS+graceMS)
	kept := &denial{
		policy: e.policy, subject: subject, request: *e.req,
		started: e.started, until: e.started.Add(time.Duration(holds) * time.Millisecond), decision: *d,
	}
	kept.decision.Rules = slices.Clone(d.Rules) // d's are used again
	s.slot(e.policy.tenant, e.req).Store(kept)
}

// forget drops what is remembered of a subject, whose counters have begun anew.
func (s *denials) forget(tenant TenantID, subject string) {
	for i := range s.slots {
		if kept := s.slots[i].Load(); kept != nil && kept.request.Subject == subject && kept.policy.tenant == tenant {
			s.slots[i].CompareAndSwap(kept, nil)
		}
	}
}

// find returns the denial that is certain to meet this request now, and how long ago it was made.
func (s *denials) find(p *Policy, req *Request) (kept *denial, elapsedMS int64) {
	kept = s.slot(p.tenant, req).Load()
	if kept == nil || kept.policy != p || req.Explain || !kept.matches(req) {
		return nil, 0
	}
	now := s.clock()
	if !now.Before(kept.until) {
		return nil, 0
	}
	if subject, _ := p.subjects.Load(req.Subject); subject != kept.subject {
		return nil, 0
	}
	elapsedMS = now.Sub(kept.started).Milliseconds()
	if elapsedMS >= denialMS && kept.asked.CompareAndSwap(false, true) {
		return nil, 0
	}
	return kept, elapsedMS
}

func (k *denial) matches(req *Request) bool {
	return k.request.Cost == req.Cost && k.request.Subject == req.Subject && k.request.Resource == req.Resource &&
		k.request.Plan == req.Plan && slices.Equal(k.request.Attributes, req.Attributes)
}

// at makes d the decision with every time that much nearer, in d's memory.
func (k *denial) at(elapsedMS int64, d *Decision) {
	rules := append(d.Rules[:0], k.decision.Rules...)
	*d = k.decision
	d.Rules = rules
	d.NowMS += elapsedMS
	for i := range d.Rules {
		r := &d.Rules[i]
		if r.RetryAfterMS > 0 {
			r.RetryAfterMS = max(1, r.RetryAfterMS-elapsedMS)
		}
		r.ResetAfterMS = max(0, r.ResetAfterMS-elapsedMS)
		r.NextAfterMS = max(0, r.NextAfterMS-elapsedMS)
	}
}

// answerDenied answers e from the denials that are certain to hold, if there is one.
func (c *Checker) answerDenied(e *evaluation) bool {
	kept, elapsedMS := c.denials.find(e.policy, e.req)
	if kept == nil {
		return false
	}
	kept.at(elapsedMS, &e.decision)
	c.metrics.fromDenials.Inc()
	return true
}
