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
	{name: "the same, two instances", rate: 3000, timeout: patient, remote: 2},
	{name: "10 busy subjects of one tenant, leased", rate: 3000, timeout: patient, subjects: 10, leased: true},
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
		inputs: in, instances: 1 + g.remote, cores: 2, tenants: several, denials: true, network: far, timeout: g.timeout,
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
	// The classes of the statistics are the regions.
	tenants, each := several, 16
	if g.subjects > 0 {
		tenants, each = 1, g.subjects
	}
	here, there := w.crowd(tenants, each, 0), w.crowd(tenants, each, 1)
	for _, s := range append(here, there...) {
		s.leased = g.leased
		if g.demand > 0 { // each region has half of the limit
			s.window = time.Second
			s.limit = int64((first + g.rate) / g.demand / float64(each) * s.window.Seconds() / 2)
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

// trips is the table of the rate that fits through the pipelines of one instance to one Redis.
func trips(in Inputs) string {
	var b strings.Builder
	b.WriteString("| round trip ms | 256 calls per round trip: checks/s | of it: sent | decided by Redis, checks/s | p50 ms | p99 ms | refused | instance in use |\n|" +
		strings.Repeat("---:|", 8) + "\n")
	for _, trip := range []time.Duration{80 * time.Millisecond, 20 * time.Millisecond, 5 * time.Millisecond, 2 * time.Millisecond} {
		for _, load := range []float64{0.4, 0.8, 1.1} {
			begin := max(20*trip, 300*time.Millisecond)
			last := 3 * begin
			w := newWorld(config{
				inputs: in, instances: 1, cores: 4, timeout: time.Second, instanceRegion: []int{0}, shardRegion: []int{1},
				network: network{hop: sameZone.hop, jitter: sameZone.jitter, between: trip / 2}, tenants: several, phases: []time.Duration{begin},
			})
			most := maxPipelines * maxBatch / trip.Seconds()
			w.open(load*most, last, w.instances, w.uniform(w.crowd(several, 100, 0)))
			s := w.steady(begin, last)
			decided := float64(s.all.count-s.all.refused-s.all.degraded) / (last - begin).Seconds()
			fmt.Fprintf(&b, "| %s | %s | %.0f %% | %s | %s | %s | %s | %.0f %% |\n", figure(trip.Seconds()*1000), thousands(most), 100*load,
				thousands(decided), figure(s.all.quantile(50)), figure(s.all.quantile(99)), percent(s.all.share(s.all.refused)), 100*s.instances)
		}
	}
	return b.String()
}
