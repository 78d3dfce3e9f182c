package simulate

import (
	"slices"
	"time"

	"weir/internal/overload"
)

// queue collects the requests of an instance for one node into pipelines, by the rules of package
// engine/redis: a request that finds a free pipeline is sent at once, with all others that wait.
type queue struct {
	instance *instance
	shard    *shard
	gather   int // how many requests must wait until a second pipeline is sent
	busy     int // pipelines in flight
	fair     fairness
	waiting  []*request
	underway []*batch
	watching bool
	beat     time.Duration // of the last answer
	answered bool          // by the last pipeline
	waits    waits         // of pipelines
	trip     time.Duration // the shortest of a pipeline; 0: none
	unsent   []unsent      // since they were last read, by tenant
	circuit  *circuit
}

// unsent are the requests of a tenant that waited for too long and were not sent.
type unsent struct {
	tenant   *tenant
	waits    waits
	requests int64
}

// batch has the requests of one pipeline.
type batch struct {
	queue  *queue
	reqs   []*request
	began  time.Duration
	until  time.Duration
	looked bool
	over   bool // answered, or given up
}

// send adds a request. It is called in a slice of the instance.
func (q *queue) send(r *request) {
	now := q.instance.world.clock.now
	r.state, r.began, r.until, r.looked = waitingState, now, now+q.instance.timeout, false
	q.waiting = append(q.waiting, r)
	q.guard()
	if q.busy < maxPipelines && q.worth(q.busy) {
		q.busy++
		q.instance.process.yield(q.exchange) // other callers run first
	}
}

// worth reports whether the waiting requests are worth a pipeline while others are in flight.
func (q *queue) worth(others int) bool { return others == 0 || len(q.waiting) >= q.gather }

// exchange sends the next pipeline.
func (q *queue) exchange() {
	w := q.instance.world
	b := &batch{queue: q, began: w.clock.now, until: w.clock.now + q.instance.timeout}
	var wait time.Duration
	q.waiting, wait = q.fair.pick(b, q.waiting)
	if len(b.reqs) == 0 {
		q.busy--
		return
	}
	if q.answered {
		q.waits.note(wait)
	}
	q.underway = append(q.underway, b)
	w.stats.pipelines++
	w.stats.calls += int64(len(b.reqs))
	q.instance.process.next(w.costs.build(b)/2, func() {
		w.hop(q.instance.region, q.shard.region, func() { q.shard.receive(b) })
	})
}

// noteUnsent notes the wait of a request that was not sent.
func (q *queue) noteUnsent(r *request) {
	wait := q.instance.world.clock.now - r.began
	q.waits.note(wait)
	i := slices.IndexFunc(q.unsent, func(u unsent) bool { return u.tenant == r.subject.tenant })
	if i < 0 {
		i, q.unsent = len(q.unsent), append(q.unsent, unsent{tenant: r.subject.tenant})
	}
	q.unsent[i].waits.note(wait)
	q.unsent[i].requests++
}

// standing appends the tenants that wait in the queue.
func (q *queue) standing(to []overload.Queue) []overload.Queue {
	if len(q.fair.active) == 0 && len(q.unsent) == 0 {
		return to
	}
	underway := map[*tenant]int64{}
	for _, b := range q.underway {
		for _, r := range b.reqs {
			underway[r.subject.tenant]++
		}
	}
	for _, turn := range q.fair.active {
		if wait := turn.waits.read(); wait > 0 && q.answered {
			to = append(to, overload.Queue{Tenant: turn.tenant.id, Wait: wait, Requests: int64(len(turn.reqs)), Underway: underway[turn.tenant]})
		}
	}
	for _, u := range q.unsent {
		to = append(to, overload.Queue{Tenant: u.tenant.id, Wait: u.waits.read(), Requests: u.requests, Underway: underway[u.tenant]})
	}
	q.unsent = q.unsent[:0]
	return to
}

// replied is called when the replies of a pipeline have arrived at the instance.
func (q *queue) replied(b *batch) {
	if b.over {
		return // no caller waits any more
	}
	w := q.instance.world
	q.instance.process.arrive(w.costs.build(b)/2, func() {
		if b.over {
			return
		}
		q.beat, q.answered = w.clock.now, true
		if trip := w.clock.now - b.began; q.trip == 0 || trip < q.trip {
			q.trip = trip
		}
		q.release(b)
		for _, r := range b.reqs {
			if r.state == sentState {
				r.state = finishedState
				q.circuit.succeeded()
				q.instance.answered(r)
			}
		}
	})
}

// release ends a pipeline. The next one is sent if requests wait.
func (q *queue) release(b *batch) {
	b.over = true
	q.underway = slices.DeleteFunc(q.underway, func(other *batch) bool { return other == b })
	if len(q.waiting) > 0 && q.worth(q.busy-1) {
		q.instance.process.yield(q.exchange) // the callers that are about to be answered run first
		return
	}
	q.busy--
}

// guard starts the timer that checks the requests.
func (q *queue) guard() {
	if !q.watching {
		q.watching = true
		q.instance.world.clock.after(awakeTick, q.look)
	}
}

// look ends the wait of each request and pipeline that has waited long enough.
func (q *queue) look() {
	q.watching = false
	waiting := q.waiting[:0]
	var late []*request
	for _, r := range q.waiting {
		if q.late(r.began, &r.until, &r.looked) {
			r.state = abandonedState
			late = append(late, r)
			if q.instance.world.clock.now-q.beat < q.instance.timeout {
				q.noteUnsent(r)
			}
			continue
		}
		waiting = append(waiting, r)
	}
	clear(q.waiting[len(waiting):])
	q.waiting = waiting
	for _, b := range slices.Clone(q.underway) {
		for _, r := range b.reqs {
			if r.state == sentState && q.late(r.began, &r.until, &r.looked) {
				r.state = abandonedState
				late = append(late, r)
			}
		}
		if q.late(b.began, &b.until, &b.looked) {
			for _, r := range b.reqs {
				if r.state == sentState {
					r.state = abandonedState
					late = append(late, r)
				}
			}
			q.answered = false
			q.release(b)
		}
	}
	for _, r := range late {
		q.circuit.failed()
		q.instance.unanswered(r)
	}
	if len(q.waiting) > 0 || len(q.underway) > 0 {
		q.guard()
	}
}

// late reports whether a wait is over: the server has been silent for the timeout, or it was busy
// for maxPatience times as long.
func (q *queue) late(began time.Duration, until *time.Duration, looked *bool) bool {
	now, patience := q.instance.world.clock.now, q.instance.timeout
	if now < *until {
		return false
	}
	more := patience - min(now-began, now-q.beat)
	if !*looked {
		more = max(more, lateLook)
	}
	more = min(more, began+maxPatience*patience-now)
	*until, *looked = now+more, true
	return more <= 0
}
