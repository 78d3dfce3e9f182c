package simulate

import (
	"time"

	"weir/internal/limit"
)

// config describes a deployment.
type config struct {
	inputs    Inputs
	instances int
	cores     int // of the machine of an instance
	shards    int // of a Cluster; 0: one Redis that is no Cluster
	// together puts instances, Redis and the driver on one machine with two cores, as in the
	// benchmarks.
	together bool
	inside   bool // callers are in the instance: no HTTP
	rules    int  // matching rules of a check; 0: one
	tenants  int  // that are active: see Costs.Tenants
	timeout  time.Duration
	// unfair turns the turns of tenants off; denials answers certain denials from memory.
	unfair, denials bool
	network         network
	// regions of the instances and of the shards; nil: all in one.
	instanceRegion, shardRegion []int
	// ownShards: each region has its own shards, so a tenant has counters in each.
	ownShards bool
	phases    []time.Duration // when the phases of the statistics end
}

// network is the time of one hop: the least time, and the mean of what is added, which is
// exponentially distributed.
type network struct {
	hop, jitter time.Duration
	between     time.Duration // the least time between regions
}

// world is a running deployment.
type world struct {
	clock     *clock
	config    config
	costs     rates
	work      int // of a request
	driver    *process
	instances []*instance
	shards    []*shard
	canary    *subject
	stats     *statistics
	mark      int64  // see entries
	tenants   uint64 // number of those that crowd made

	sent, replied int64          // requests
	observe       func(*request) // called for each answer; nil in reports
}

type tenant struct {
	id    limit.TenantID
	slot  int // of 16 384
	class int // of the statistics
}

// subject is whom a check is counted for. The limit is per window; 0 is a limit that is never
// reached.
type subject struct {
	tenant *tenant
	limit  int64
	window time.Duration
	leased bool
	mark   int64
}

const slots = 16384

func newWorld(c config) *world {
	c.rules = max(1, c.rules)
	if c.timeout == 0 {
		c.timeout = redisTimeout
	}
	w := &world{clock: newClock(c.inputs.Seed), config: c, costs: c.inputs.slowed().rates(c), work: 1 + (c.rules-1)/4}
	w.canary = &subject{tenant: new(tenant)}
	w.stats = newStatistics(c.phases)
	var shared *machine
	if c.together {
		shared = w.machine(2)

		shared.switching = w.costs.switching
		w.driver = shared.process(2)
	}
	place := func(cores int) *machine {
		if shared != nil {
			return shared
		}
		return w.machine(cores)
	}
	for n := range max(1, c.shards) {
		s := &shard{world: w, process: place(1).process(1), counts: map[*subject]*count{}}
		if c.shardRegion != nil {
			s.region = c.shardRegion[n]
		}
		w.shards = append(w.shards, s)
	}
	for n := range c.instances {
		w.addInstance(n, place(c.cores))
	}
	return w
}

func (w *world) machine(cores int) *machine {
	m := newMachine(w.clock, cores)
	m.usable, m.variation, m.waking = w.config.inputs.Usable.Value, w.config.inputs.Variation.Value, w.costs.waking
	return m
}

func (w *world) addInstance(n int, m *machine) {
	i := &instance{
		world: w, process: m.process(len(m.idle)), timeout: w.config.timeout,
		denials: map[*subject]*denial{}, leases: map[*subject]*leaseSet{}, rates: map[*subject]*tickRate{}, local: map[*subject]*count{},
	}
	i.capacity = newCapacity(i)
	if w.config.instanceRegion != nil {
		i.region = w.config.instanceRegion[n]
	}
	for _, s := range w.shards {
		q := &queue{instance: i, shard: s, fair: fairness{turns: !w.config.unfair, flows: map[*tenant]*flow{}}}
		q.circuit = &circuit{queue: q, window: -1}
		if w.config.shards > 0 {
			q.gather = clusterGather
		}
		i.queues = append(i.queues, q)
	}
	w.instances = append(w.instances, i)
}

// shardOf returns the number of the shard that has the counters of a tenant for an instance.
func (w *world) shardOf(i *instance, t *tenant) int {
	if w.config.ownShards {
		return i.region
	}
	return t.slot * len(w.shards) / slots
}

// hop calls do when a message has arrived.
func (w *world) hop(from, to int, do func()) {
	n := w.config.network
	delay := n.hop
	if from != to {
		delay = n.between
	}
	if n.jitter > 0 {
		delay += w.clock.exponential(n.jitter)
	}
	if delay == 0 {
		do()
		return
	}
	w.clock.after(delay, do)
}

// send sends a request of a client to an instance.
func (w *world) send(i *instance, r *request) {
	w.sent++
	r.arrived = w.clock.now
	switch {
	case w.config.inside:
		r.instance = i
		i.process.next(w.costs.before, func() { i.decide(r) }) // the caller continues
	case w.driver != nil:
		w.driver.run(w.costs.driver/2, func() { w.hop(i.region, i.region, func() { i.receive(r) }) })
	default:
		w.hop(i.region, i.region, func() { i.receive(r) })
	}
}

// answer passes an answer to the client.
func (w *world) answer(r *request) {
	done := func() {
		w.replied++
		w.stats.add(r, w.clock.now)
		if w.observe != nil {
			w.observe(r)
		}
		if r.answered != nil {
			r.answered(r)
		}
	}
	switch {
	case w.config.inside:
		done()
	case w.driver != nil:
		w.hop(r.instance.region, r.instance.region, func() { w.driver.arrive(w.costs.driver/2, done) })
	default:
		w.hop(r.instance.region, r.instance.region, done)
	}
}
