package simulate

import (
	"fmt"
	"iter"
	"strings"
	"time"
)

// simulatedRow is what the model says about a measured row.
type simulatedRow struct {
	rate, p50, p99, server, redis, driver, perCall float64
}

const (
	warm    = 100 * time.Millisecond
	measure = 600 * time.Millisecond
)

// simulate runs a closed loop on one machine, as the benchmarks do.
func (m *measuredRow) simulate(in Inputs, t *measuredTable) simulatedRow {
	in.Usable.Value, in.Slower.Value = t.usable(), t.slower()
	w := newWorld(config{
		inputs: in, instances: m.instances, shards: m.shards, rules: m.rules, tenants: m.tenants,
		together: true, timeout: time.Second, phases: []time.Duration{warm},
	})
	return w.loop(connections, m.tenants)
}

// simulate runs callers of the engine.
func (m *runRow) simulate(in Inputs) simulatedRow {
	w := newWorld(config{
		inputs: in, instances: 1, shards: m.shards, together: true, inside: true, timeout: time.Second,
		phases: []time.Duration{warm},
	})
	return w.loop(m.callers, 64)
}

// loop runs a closed loop of checks of 10 000 subjects.
func (w *world) loop(clients, tenants int) (s simulatedRow) {
	w.closed(clients, w.uniform(w.crowd(tenants, 10_000/tenants, 0)))
	w.clock.runUntil(warm)
	before, calls, pipelines := w.used(), w.stats.calls, w.stats.pipelines
	w.clock.runUntil(warm + measure)
	used, f := w.used(), w.stats.of(0, 1)
	per := func(now, before time.Duration) float64 {
		return float64((now - before).Nanoseconds()) / 1000 / float64(f.count)
	}
	return simulatedRow{
		rate: float64(f.count) / measure.Seconds(), p50: f.quantile(50), p99: f.quantile(99),
		server: per(used.instances, before.instances), redis: per(used.redis, before.redis), driver: per(used.driver, before.driver),
		perCall: float64(w.stats.calls-calls) / float64(w.stats.pipelines-pipelines),
	}
}

// usage is CPU time.
type usage struct{ instances, redis, driver time.Duration }

func (w *world) used() (u usage) {
	for _, i := range w.instances {
		u.instances += i.process.used
	}
	for _, s := range w.shards {
		u.redis += s.process.used
	}
	if w.driver != nil {
		u.driver = w.driver.used
	}
	return u
}

// measuredRows returns all measured rows with their tables.
func measuredRows() iter.Seq2[*measuredTable, *measuredRow] {
	return func(yield func(*measuredTable, *measuredRow) bool) {
		for i := range measuredTables {
			t := &measuredTables[i]
			for j := range t.rows {
				if !yield(t, &t.rows[j]) {
					return
				}
			}
		}
	}
}

// off returns the difference of a simulated figure from the measured one, as a part of it.
func off(simulated, measured float64) float64 { return simulated/measured - 1 }

// validation is the table that compares the model with the measured rows.
func validation(in Inputs) string {
	var b strings.Builder
	b.WriteString("| | used for | checks/s: measured | simulated | % | CPU µs: measured | simulated | % | p50 ms: measured | simulated | % | p99 ms: measured | simulated | % | checks per call |\n" +
		"|---|---|" + strings.Repeat("---:|", 13) + "\n")
	odd := ""
	for t, m := range measuredRows() {
		s := m.simulate(in, t)
		use := "check"
		if m.fit {
			use = "fit"
		}
		fmt.Fprintf(&b, "| %s | %s |", m.name, use)
		for _, c := range [][2]float64{{m.rate, s.rate}, {m.server + m.redis, s.server + s.redis}, {m.p50, s.p50}, {m.p99, s.p99}} {
			fmt.Fprintf(&b, " %s | %s | %+.0f |", figure(c[0]), figure(c[1]), 100*off(c[1], c[0]))
		}
		fmt.Fprintf(&b, " %.0f |\n", s.perCall)
		if m.odd != "" {
			odd += fmt.Sprintf("\nThe rate of \"%s\" misses 15 %%: %s.\n", m.name, m.odd)
		}
	}
	return b.String() + odd
}

// perCall is the table that compares how many checks share a script run.
func perCall(in Inputs) string {
	var b strings.Builder
	b.WriteString("| | concurrent checks | checks per call: measured | simulated | % |\n|---|---:|---:|---:|---:|\n")
	for i := range runRows {
		m := &runRows[i]
		s := m.simulate(in)
		name := "one Redis, no Cluster"
		if m.shards > 0 {
			name = fmt.Sprintf("Cluster of %d", m.shards)
		}
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f | %+.0f |\n", name, m.callers, m.perCall, s.perCall, 100*off(s.perCall, m.perCall))
	}
	return b.String()
}

// figure formats a number with three significant digits, or as an integer in groups of three.
func figure(v float64) string {
	switch {
	case v >= 1000:
		return thousands(v)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func thousands(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + " " + digits[i:]
	}
	return digits
}
