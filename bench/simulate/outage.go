package simulate

import (
	"fmt"
	"strings"
	"time"
)

// The shard is lost one second after the start, for ten seconds.
const (
	lostAt     = time.Second
	restoredAt = 11 * time.Second
)

// outagePhases are the rows of the table, by when a check was sent.
var outagePhases = []struct {
	name string
	end  time.Duration
}{
	{"", warm},
	{"before", lostAt},
	{"first 0.2 s", lostAt + 200*time.Millisecond},
	{"until it answers again", restoredAt},
	{"first 0.5 s after that", restoredAt + 500*time.Millisecond},
	{"later", 13 * time.Second},
}

// outage simulates a Cluster of three shards and four instances that loses a shard. Class 0 are its
// tenants, class 1 all others.
func outage(in Inputs) *world {
	c := config{inputs: in, instances: 4, cores: 2, shards: 3, tenants: several, denials: true, network: sameZone}
	for _, p := range outagePhases {
		c.phases = append(c.phases, p.end)
	}
	w := newWorld(c)
	subjects := w.crowd(300, 30, 0)
	for _, s := range subjects {
		if w.shardOf(w.instances[0], s.tenant) != 0 {
			s.tenant.class = 1
		}
	}
	end := outagePhases[len(outagePhases)-1].end
	w.open(30_000, end, w.instances, w.uniform(subjects))
	w.clock.after(lostAt, w.shards[0].lose)
	w.clock.after(restoredAt, w.shards[0].restore)
	w.clock.runUntil(end + time.Second)
	return w
}

func outageTable(in Inputs) string {
	w := outage(in)
	var b strings.Builder
	b.WriteString("| check sent | tenants of the lost shard: degraded | p50 ms | p99 ms | longest ms | all others: degraded | p50 ms | p99 ms | longest ms |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for i, p := range outagePhases {
		if p.name == "" {
			continue
		}
		fmt.Fprintf(&b, "| %s |", p.name)
		for class := range 2 {
			f := w.stats.of(class, i)
			fmt.Fprintf(&b, " %s | %s | %s | %s |", percent(f.share(f.degraded)), figure(f.quantile(50)), figure(f.quantile(99)), figure(float64(f.latency.Max())/1000))
		}
		b.WriteString("\n")
	}
	return b.String()
}
