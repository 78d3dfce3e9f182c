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
	name    string
	rate    float64 // checks per second in the second region
	first   float64 // in the first region; 0: the same
	timeout time.Duration
	own     bool    // a Redis in each region
	leased  bool    // checks of few subjects under a leased rule
	demand  float64 // checks as a part of the limit; 0: the limit is not reached
	remote  int     // instances in the second region
}

var regionals = []regional{
	{name: "one Redis, default timeout of 50 ms", rate: 1000, timeout: redisTimeout, remote: 1},
	{name: "one Redis, timeout 200 ms", rate: 1000, timeout: 200 * time.Millisecond, remote: 1},
	{name: "the same", rate: 2500, timeout: 200 * time.Millisecond, remote: 1},
	{name: "the same", rate: 3500, timeout: 200 * time.Millisecond, remote: 1},
	{name: "the same, two instances", rate: 3500, timeout: 200 * time.Millisecond, remote: 2},
	{name: "one Redis, 10 busy subjects, strict", rate: 2500, timeout: 200 * time.Millisecond, remote: 1},
	{name: "the same, leased", rate: 2500, timeout: 200 * time.Millisecond, remote: 1, leased: true},
	{name: "a Redis in each region", rate: 2500, timeout: redisTimeout, own: true, remote: 1},
	{name: "the same, limit divided, 90 % of it used, half in each region", rate: 2500, timeout: redisTimeout, own: true, remote: 1, demand: 0.9},
	{name: "the same, 30 % in this region, 70 % in the other", rate: 1500, first: 3500, timeout: redisTimeout, own: true, remote: 1, demand: 0.9},
}

// run returns the figures of both regions.
func (g *regional) run(in Inputs) (near, away *figures) {
	const begin, last = time.Second, 3 * time.Second
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
	subjects := 1000
	if g.leased || strings.Contains(g.name, "busy") {
		subjects = 10
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
	b.WriteString("| second region | checks/s in it | p50 ms | p99 ms | decided in memory | degraded | denied, both regions |\n|---|---:|---:|---:|---:|---:|---:|\n")
	for _, g := range regionals {
		near, away := g.run(in)
		denied := float64(near.denied+away.denied) / float64(near.count+away.count)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", g.name, thousands(g.rate),
			figure(away.quantile(50)), figure(away.quantile(99)), percent(away.share(away.memory)), percent(away.share(away.degraded)), percent(denied))
	}
	return b.String()
}
