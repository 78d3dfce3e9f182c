package simulate

import (
	"slices"
	"time"
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
	waits    time.Duration // the smallest wait of a pipeline's oldest request since it was last read, plus 1; 0: none
	circuit  *circuit
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
	q.waiting = q.fair.pick(b, q.waiting)
	if len(b.reqs) == 0 {
		q.busy--
		return
	}
	if q.answered {
		q.note(b)
	}
	q.underway = append(q.underway, b)
	w.stats.pipelines++
	w.stats.calls += int64(len(b.reqs))
	q.instance.process.next(w.costs.build(b)/2, func() {
		w.hop(q.instance.region, q.shard.region, func() { q.shard.receive(b) })
	})
}

// note notes the wait of a pipeline's oldest request, for package overload.
func (q *queue) note(b *batch) {
	oldest := b.began
	for _, r := range b.reqs {
		oldest = min(oldest, r.began)
	}
	if wait := b.began - oldest + 1; q.waits == 0 || wait < q.waits {
		q.waits = wait
	}
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
