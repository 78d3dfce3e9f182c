package simulate

import (
	"fmt"
	"strings"
	"time"
)

// crush is a row of the table of a tenant gone viral: one tenant sends ten times as much as all
// others of its shard together.
type crush struct {
	name     string
	rate     float64 // of the viral tenant
	subjects int     // of it
	leased   bool
	limit    int64 // of each subject, per second
	unfair   bool
	denials  bool
}

const neighbours = 30_000 // checks per second of the other tenants

var crushes = []crush{
	{name: "before", denials: true},
	{name: "100 000 subjects, tenants do not take turns", rate: 10 * neighbours, subjects: 100_000, unfair: true},
	{name: "100 000 subjects", rate: 10 * neighbours, subjects: 100_000},
	{name: "1 000 subjects, 20 % of their checks allowed, each denial from Redis", rate: 10 * neighbours, subjects: 1000, limit: 60},
	{name: "the same, denials in memory", rate: 10 * neighbours, subjects: 1000, limit: 60, denials: true},
	{name: "100 subjects, leased", rate: 10 * neighbours, subjects: 100, denials: true, leased: true},
	{name: "one subject, strict", rate: 10 * neighbours, subjects: 1, denials: true},
	{name: "one subject, leased", rate: 10 * neighbours, subjects: 1, denials: true, leased: true},
}

// run returns the figures of the shard and the viral tenant's; class 0 are the neighbours.
func (c *crush) run(in Inputs) (steady, *figures) {
	const begin, last = 400 * time.Millisecond, 800 * time.Millisecond // the bound of requests in flight adapts first
	w := newWorld(config{
		inputs: in, instances: 4, cores: 4, tenants: several, denials: c.denials, unfair: c.unfair, network: sameZone, phases: []time.Duration{begin},
	})
	w.open(neighbours, last, w.instances, w.uniform(w.crowd(several, 100, 0)))
	if c.rate > 0 {
		viral := w.crowd(1, c.subjects, 1)
		for _, s := range viral {
			s.leased, s.limit, s.window = c.leased, c.limit, time.Second
		}
		w.open(c.rate, last, w.instances, w.uniform(viral))
	}
	s := w.steady(begin, last)
	return s, w.stats.of(1, 1)
}

func viralTable(in Inputs) string {
	var b strings.Builder
	b.WriteString("| viral tenant | neighbours: p50 ms | p99 ms | degraded | refused | viral tenant: p50 ms | p99 ms | degraded | refused | decided in memory | Redis in use | checks per call |\n" +
		"|---|" + strings.Repeat("---:|", 11) + "\n")
	for _, c := range crushes {
		s, viral := c.run(in)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |", c.name, figure(s.all.quantile(50)), figure(s.all.quantile(99)), percent(s.all.share(s.all.degraded)), percent(s.all.share(s.all.refused)))
		if viral.count == 0 {
			b.WriteString(" – | – | – | – | – |")
		} else {
			fmt.Fprintf(&b, " %s | %s | %s | %s | %s |", figure(viral.quantile(50)), figure(viral.quantile(99)), percent(viral.share(viral.degraded)), percent(viral.share(viral.refused)), percent(viral.share(viral.memory)))
		}
		fmt.Fprintf(&b, " %.0f %% | %.0f |\n", 100*s.redis, s.perCall)
	}
	return b.String()
}
