package simulate

import "time"

// instance is a process of Weir.
type instance struct {
	world    *world
	region   int
	process  *process
	timeout  time.Duration // WEIR_REDIS_TIMEOUT
	queues   []*queue      // by shard
	denials  map[*subject]*denial
	leases   map[*subject]*leaseSet
	rates    map[*subject]*tickRate
	local    map[*subject]*count
	capacity *capacity
}

// request is a check on its way.
type request struct {
	subject  *subject
	instance *instance
	arrived  time.Duration // at the client: when it was sent
	started  time.Duration // at the instance: when its decision began
	began    time.Duration // when it was added to the queue
	until    time.Duration
	looked   bool
	work     int
	state    int
	prefetch int64      // units in addition to its own
	busy     bool       // its subject is checked often enough to be leased
	probe    func(bool) // not a check: called with whether the server has answered

	allowed, degraded, memory, refused bool // memory: decided without Redis; refused: by package overload
	remaining                          int64
	retryAfter                         time.Duration

	// answered is called when the client has the answer.
	answered func(*request)
}

// The states of a request in a queue.
const (
	waitingState = iota
	sentState
	finishedState
	abandonedState
)

// receive takes a request from the network.
func (i *instance) receive(r *request) {
	r.instance = i
	i.process.arrive(0, func() {
		r.refused = !i.capacity.enter(r)
		if r.refused {
			r.allowed, r.degraded, r.memory = false, false, false
			i.process.next(i.world.costs.refusal, func() { i.world.answer(r) })
			return
		}
		i.process.next(i.world.costs.before, func() { i.decide(r) })
	})
}

// decide decides a request in memory, or sends it to the node of its tenant.
func (i *instance) decide(r *request) {
	r.started = i.world.clock.now
	r.allowed, r.degraded, r.memory, r.prefetch, r.busy, r.work = true, false, false, 0, false, i.world.work
	if i.world.config.denials && i.deniedInMemory(r) || r.subject.leased && i.leaseAnswers(r) {
		r.memory = true
		i.process.next(i.world.costs.after, func() { i.reply(r) })
		return
	}
	q := i.queues[i.world.shardOf(i, r.subject.tenant)]
	if !q.circuit.allow() {
		i.unanswered(r)
		return
	}
	q.send(r)
}

// answered continues with a request that Redis has decided. It is called in a slice.
func (i *instance) answered(r *request) {
	if r.probe != nil {
		r.probe(true)
		return
	}
	if r.subject.leased && i.settle(r, true) {
		i.queues[i.world.shardOf(i, r.subject.tenant)].send(r) // again, with its own cost only
		return
	}
	if !r.allowed && i.world.config.denials {
		i.remember(r)
	}
	i.process.run(i.world.costs.after, func() { i.reply(r) })
}

// unanswered decides a request without Redis, with this instance's part of the limit.
func (i *instance) unanswered(r *request) {
	if r.probe != nil {
		r.probe(false)
		return
	}
	if r.subject.leased {
		i.settle(r, false)
	}
	part := r.subject.limit / int64(len(i.world.instances))
	r.degraded = true
	r.allowed, _, _ = r.subject.charge(i.local, i.world.clock.now, 1, part)
	i.process.run(i.world.costs.fallback+i.world.costs.after, func() { i.reply(r) })
}

func (i *instance) reply(r *request) {
	if !i.world.config.inside {
		i.capacity.leave(r)
	}
	i.world.answer(r)
}

// denial is a remembered denial.
type denial struct {
	started, until time.Duration
	asked          bool
}

// deniedInMemory reports whether a denial is known to hold. One that is denialMS old is verified by
// one request.
func (i *instance) deniedInMemory(r *request) bool {
	kept := i.denials[r.subject]
	if kept == nil || r.started >= kept.until {
		return false
	}
	if r.started-kept.started >= denialMS*time.Millisecond && !kept.asked {
		kept.asked = true
		return false
	}
	r.allowed = false
	return true
}

func (i *instance) remember(r *request) {
	holds := min(r.retryAfter, (denialMS+graceMS)*time.Millisecond)
	i.denials[r.subject] = &denial{started: r.started, until: r.started + holds}
}
