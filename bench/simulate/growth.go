package simulate

import (
	"fmt"
	"strings"
	"time"
)

// growth is how the cost of a check grows with instances and shards, each on its own machine, at
// the same total load.
func growth(in Inputs) string {
	var b strings.Builder
	b.WriteString("| instances of 2 cores | Redis | checks/s | checks per call | instance µs | Redis µs | p50 ms | p99 ms |\n|---:|---|---:|---:|---:|---:|---:|---:|\n")
	for _, g := range []struct {
		instances, shards int
		rate              float64
	}{
		{1, 0, 10_000}, {2, 0, 10_000}, {4, 0, 10_000},
		{2, 0, 50_000}, {4, 0, 50_000}, {8, 0, 50_000},
		{4, 1, 50_000}, {4, 3, 50_000}, {4, 6, 50_000},
		{12, 3, 150_000},
	} {
		const last = warm + 500*time.Millisecond
		w := newWorld(config{inputs: in, instances: g.instances, cores: 2, shards: g.shards, tenants: several, network: sameZone, phases: []time.Duration{warm}})
		w.open(g.rate, last, w.instances, w.uniform(w.crowd(several, 156, 0)))
		s := w.steady(warm, last)
		checks := float64(s.all.count) / (last - warm).Seconds()
		name := "one, no Cluster"
		if g.shards > 0 {
			name = fmt.Sprintf("Cluster of %d", g.shards)
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %.1f | %.1f | %.1f | %s | %s |\n", g.instances, name, thousands(g.rate), s.perCall,
			s.instances*float64(2*g.instances)*1e6/checks, s.redis*float64(max(1, g.shards))*1e6/checks,
			figure(s.all.quantile(50)), figure(s.all.quantile(99)))
	}
	return b.String()
}
