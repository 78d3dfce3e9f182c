package simulate

import (
	"fmt"
	"strings"
	"time"
)

// far is a network with two regions: a message between them takes 40 ms, so a round trip 80 ms.
var far = network{hop: 100 * time.Microsecond, jitter: 30 * time.Microsecond, between: 40 * time.Millisecond}

// regional is a row of the table of regions. Clients in each region ask instances of their region.
type regional struct {
	name     string
	rate     float64 // checks per second in the second region
	first    float64 // in the first region; 0: the same
	timeout  time.Duration
	own      bool // a Redis in each region
	leased   bool
	subjects int     // that are checked; 0: 1 000
	demand   float64 // checks as a part of the limit; 0: the limit is not reached
	remote   int     // instances in the second region; 0: one
}

var regionals = []regional{
	{name: "one Redis, in the first region, default timeout of 50 ms", rate: 1000, timeout: redisTimeout},
	{name: "timeout of 200 ms", rate: 1000, timeout: patient},
	{name: "the same", rate: 3000, timeout: patient},
	{name: "the same, more than an instance can send", rate: 4000, timeout: patient},
	{name: "the same, two instances", rate: 4000, timeout: patient, remote: 2},
	{name: "10 busy subjects, leased", rate: 3000, timeout: patient, subjects: 10, leased: true},
	{name: "one busy subject, leased", rate: 3000, timeout: patient, subjects: 1, leased: true},
	{name: "a Redis in each region", rate: 3000, timeout: redisTimeout, own: true},
	{name: "half of the limit in each region; 90 % of the limit is demanded, half in each region", rate: 3000, timeout: redisTimeout, own: true, subjects: 10, demand: 0.9},
	{name: "the same, 30 % of the demand here, 70 % in the first region", rate: 1800, first: 4200, timeout: redisTimeout, own: true, subjects: 10, demand: 0.9},
}

const patient = 200 * time.Millisecond

// run returns the figures of both regions.
func (g regional) run(in Inputs) (near, away *figures) {
	const begin, last = 4 * time.Second, 8 * time.Second
	g.remote = max(1, g.remote)
	c := config{
		inputs: in, instances: 1 + g.remote, cores: 2, denials: true, network: far, timeout: g.timeout,
		shards: 0, instanceRegion: make([]int, 1+g.remote), shardRegion: []int{0}, ownShards: g.own, phases: []time.Duration{begin},
	}
	for n := range g.remote {
		c.instanceRegion[1+n] = 1
	}
	if g.own {
		c.shardRegion, c.shards = []int{0, 1}, 2
	}
	w := newWorld(c)
	first := g.first
	if first == 0 {
		first = g.rate
	}
	subjects := g.subjects
	if subjects == 0 {
		subjects = 1000
	}
	// The classes of the statistics are the regions. Both check the same subjects.
	here, there := w.crowd(1, subjects, 0), w.crowd(1, subjects, 1)
	for _, s := range append(here, there...) {
		s.leased = g.leased
		if g.demand > 0 { // each region has half of the limit
			s.window = time.Second
			s.limit = int64((first + g.rate) / g.demand / float64(subjects) * s.window.Seconds() / 2)
		}
	}
	w.open(first, last, w.instances[:1], w.uniform(here))
	w.open(g.rate, last, w.instances[1:], w.uniform(there))
	w.clock.runUntil(last)
	return w.stats.of(0, 1), w.stats.of(1, 1)
}

func regionsTable(in Inputs) string {
	var b strings.Builder
	b.WriteString("| second region | checks/s in it | p50 ms | p99 ms | decided in memory | degraded | refused | denied, both regions |\n|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, g := range regionals {
		near, away := g.run(in)
		denied := float64(near.denied+away.denied) / float64(near.count+away.count)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", g.name, thousands(g.rate),
			figure(away.quantile(50)), figure(away.quantile(99)), percent(away.share(away.memory)), percent(away.share(away.degraded)), percent(away.share(away.refused)), percent(denied))
	}
	return b.String()
}

// trips is the table of the largest rate through the pipelines of one instance to one Redis.
func trips(in Inputs) string {
	var b strings.Builder
	b.WriteString("| round trip ms | 256 calls per round trip: checks/s | simulated | p50 ms | instance in use | Redis in use |\n|---:|---:|---:|---:|---:|---:|\n")
	for _, trip := range []time.Duration{80 * time.Millisecond, 20 * time.Millisecond, 5 * time.Millisecond, 2 * time.Millisecond} {
		begin, last := 5*trip, 25*trip
		w := newWorld(config{
			inputs: in, instances: 1, cores: 4, timeout: 10 * time.Second, instanceRegion: []int{0}, shardRegion: []int{1},
			network: network{hop: sameZone.hop, between: trip / 2}, phases: []time.Duration{begin},
		})
		w.closed(1000, w.uniform(w.crowd(64, 100, 0)))
		w.clock.runUntil(begin)
		before := w.used()
		w.clock.runUntil(last)
		used, elapsed, f := w.used(), (last - begin).Seconds(), w.stats.of(0, 1)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %.0f %% | %.0f %% |\n", figure(trip.Seconds()*1000), thousands(maxPipelines*maxBatch/trip.Seconds()),
			thousands(float64(f.count)/elapsed), figure(f.quantile(50)),
			100*(used.instances-before.instances).Seconds()/elapsed/4, 100*(used.redis-before.redis).Seconds()/elapsed)
	}
	return b.String()
}
