package simulate

import (
	"fmt"
	"strings"
	"time"
)

// deployment is a row of the table of 10^6 checks per second.
type deployment struct {
	name      string
	cells     int
	instances int // of a cell
	cores     int // of an instance
	shards    int // of a cell; 0: one Redis that is no Cluster
	lost      int // instances of a cell
}

const million = 1e6

// several is a number of active tenants: see Costs.Tenants.
const several = 64

var deployments = []deployment{
	{"5 cells", 5, 4, 2, 0, 0},
	{"9 cells", 9, 2, 2, 0, 0},
	{"9 cells: a cell that lost an instance", 9, 2, 2, 0, 1},
	{"9 cells, instances of 4 cores", 9, 2, 4, 0, 0},
	{"9 cells, instances of 4 cores: a cell that lost one", 9, 2, 4, 0, 1},
	{"one Cluster, small instances", 1, 18, 4, 9, 0},
	{"one Cluster, large instances", 1, 6, 12, 9, 0},
	{"one Cluster, large instances, one lost", 1, 6, 12, 9, 1},
	{"one Cluster, large instances, more shards", 1, 6, 12, 18, 0},
}

// sameZone is the network of one data center.
var sameZone = network{hop: 100 * time.Microsecond, jitter: 30 * time.Microsecond}

// steady is what the report says about a deployment under an even load.
type steady struct {
	instances, redis, busiest float64 // utilization
	perCall                   float64
	all                       *figures
}

// run simulates one cell, because cells share nothing that checks use.
func (d *deployment) run(in Inputs) steady {
	const last = warm + 150*time.Millisecond
	w := newWorld(config{
		inputs: in, instances: d.instances - d.lost, cores: d.cores, shards: d.shards,
		tenants: several, denials: true, network: sameZone, phases: []time.Duration{warm},
	})
	w.open(million/float64(d.cells), last, w.instances, w.uniform(w.crowd(10_000/d.cells, 100, 0)))
	return w.steady(warm, last)
}

// steady runs until an instant, and returns the figures since begin. The statistics must have a
// phase that ends then.
func (w *world) steady(begin, last time.Duration) (s steady) {
	w.clock.runUntil(begin)
	before, calls, pipelines := w.used(), w.stats.calls, w.stats.pipelines
	shards := make([]time.Duration, len(w.shards))
	for i := range shards {
		shards[i] = w.shards[i].process.used
	}
	w.clock.runUntil(last)
	used, elapsed := w.used(), (last - begin).Seconds()
	s.instances = (used.instances - before.instances).Seconds() / elapsed / float64(len(w.instances)*w.config.cores)
	s.redis = (used.redis - before.redis).Seconds() / elapsed / float64(len(w.shards))
	for i, before := range shards {
		s.busiest = max(s.busiest, (w.shards[i].process.used-before).Seconds()/elapsed)
	}
	s.perCall = float64(w.stats.calls-calls) / float64(max(1, w.stats.pipelines-pipelines))
	s.all = w.stats.of(0, 1)
	return s
}

func millionTable(in Inputs) string {
	var b strings.Builder
	b.WriteString("| | instances | Redis | cores in use: instances | Redis | busiest Redis | checks per call | p50 ms | p99 ms | degraded or refused |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, d := range deployments {
		s := d.run(in)
		fmt.Fprintf(&b, "| %s | %d of %d cores | %d | %.0f %% | %.0f %% | %.0f %% | %.0f | %s | %s | %s |\n", d.name,
			d.cells*d.instances, d.cores, d.cells*max(1, d.shards), 100*s.instances, 100*s.redis, 100*s.busiest, s.perCall,
			figure(s.all.quantile(50)), figure(s.all.quantile(99)), percent(s.all.share(s.all.degraded+s.all.refused)))
	}
	return b.String()
}

func percent(part float64) string {
	switch {
	case part == 0:
		return "none"
	case part < 0.1:
		return fmt.Sprintf("%.1f %%", 100*part)
	}
	return fmt.Sprintf("%.0f %%", 100*part)
}
