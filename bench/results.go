package main

import (
	"context"
	"fmt"
	"slices"
)

// results are the samples of all cells, by round.
type results struct {
	groups   []group
	samples  [][][]sample // by group, cell, round
	capacity float64      // checks per second of Weir in its first closed loop of single checks
}

func newResults(groups []group) *results {
	r := &results{groups: groups, samples: make([][][]sample, len(groups))}
	for i, g := range groups {
		r.samples[i] = make([][]sample, len(g.cells))
	}
	return r
}

func (r *results) measureRound(ctx context.Context, s *stage, cast *cast, round int, o options) error {
	for i := range r.groups {
		if err := r.measureGroup(ctx, s, cast, i, round, o); err != nil {
			return err
		}
	}
	return nil
}

func (r *results) measureGroup(ctx context.Context, s *stage, cast *cast, i, round int, o options) error {
	g := &r.groups[i]
	end, err := s.begin(ctx, g.name, cast)
	if err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	defer end()
	for j := range g.cells {
		c := &g.cells[j]
		if c.share > 0 && c.rate == 0 {
			if err := r.setShares(ctx, s, g, o); err != nil {
				return err
			}
		}
		if o.profile != "" && round == 0 {
			if err := s.profile(ctx, g.name, *c, o); err != nil {
				return err
			}
		}
		m, err := s.measure(ctx, *c, c.rate, o)
		if err != nil {
			return err
		}
		progress("round %d, %s, %s: %.0f/s", round+1, g.name, c.name, m.perSecond)
		r.samples[i][j] = append(r.samples[i][j], m)
		if r.capacity == 0 && c.server == weirName && c.rate == 0 && c.checks == 1 && !c.denied {
			r.capacity = m.perSecond
		}
	}
	return nil
}

// disturbance describes how much CPU time other processes and machines used during the
// measurements.
func (r *results) disturbance() string {
	var others, steal []float64
	for _, g := range r.samples {
		for _, c := range g {
			for _, m := range c {
				others, steal = append(others, m.others), append(steal, m.steal)
			}
		}
	}
	if len(others) == 0 {
		return ""
	}
	of := func(values []float64) string {
		median := medianOf(len(values), func(i int) float64 { return values[i] })
		return fmt.Sprintf("%.0f %% (at most %.0f %%)", 100*median, 100*slices.Max(values))
	}
	return fmt.Sprintf("Share of the machine's CPU time used by other processes: %s in the median measurement; by the hypervisor: %s.", of(others), of(steal))
}

// setShares sets the rates that are shares of Weir's capacity, rounded to hundreds. All rounds then
// use these rates.
func (r *results) setShares(ctx context.Context, s *stage, g *group, o options) error {
	if r.capacity == 0 { // only the open loop is measured
		i := slices.IndexFunc(g.cells, func(c cell) bool { return c.server == weirName })
		m, err := s.measure(ctx, g.cells[i], 0, o)
		if err != nil {
			return err
		}
		r.capacity = m.perSecond
	}
	for i := range g.cells {
		if share := g.cells[i].share; share > 0 {
			g.cells[i].rate = max(100, int64(r.capacity)/share/100*100)
		}
	}
	return nil
}

// row is a cell's row in a table: medians of its rounds, and medians of its ratios to the bare
// server in the same round.
type row struct {
	cell
	sample
	spread float64 // of perSecond over the rounds: (highest - lowest) / median

	rateRatio, cpuRatio, p50Ratio, p99Ratio float64
	p99Above                                float64 // of an open loop: servedP99 in microseconds above the bare server's
}

// rows returns the rows of a table. A cell is compared with the nearest base before it.
func (r *results) rows(i int) []row {
	var rows []row
	var base []sample
	for j, c := range r.groups[i].cells {
		samples := r.samples[i][j]
		if c.base {
			base = samples
		}
		rows = append(rows, newRow(c, samples, base))
	}
	return rows
}

func newRow(c cell, samples, base []sample) row {
	of := func(get func(sample) float64) float64 {
		return medianOf(len(samples), func(k int) float64 { return get(samples[k]) })
	}
	against := func(get func(sample) float64) float64 {
		return medianOf(len(samples), func(k int) float64 { return ratio(get(samples[k]), get(base[k])) })
	}
	rate := func(m sample) float64 { return m.perSecond }
	cpu := func(m sample) float64 { return m.serverCPU + m.redisCPU }
	p50 := func(m sample) float64 { return m.p50 }
	p99 := func(m sample) float64 { return m.p99 }
	w := row{
		cell:      c,
		rateRatio: against(rate), cpuRatio: against(cpu), p50Ratio: against(p50), p99Ratio: against(p99),
		p99Above: medianOf(len(samples), func(k int) float64 { return samples[k].servedP99 - base[k].servedP99 }),
		sample: sample{
			perSecond: of(rate), p50: of(p50), p99: of(p99),
			p999:        of(func(m sample) float64 { return m.p999 }),
			late99:      of(func(m sample) float64 { return m.late99 }),
			servedP50:   of(func(m sample) float64 { return m.servedP50 }),
			servedP99:   of(func(m sample) float64 { return m.servedP99 }),
			servedP999:  of(func(m sample) float64 { return m.servedP999 }),
			serverCPU:   of(func(m sample) float64 { return m.serverCPU }),
			redisCPU:    of(func(m sample) float64 { return m.redisCPU }),
			driverCPU:   of(func(m sample) float64 { return m.driverCPU }),
			allocations: of(func(m sample) float64 { return m.allocations }),
			peakBytes:   of(func(m sample) float64 { return m.peakBytes }),
			redisBytes:  of(func(m sample) float64 { return m.redisBytes }),
		},
	}
	low, high := samples[0].perSecond, samples[0].perSecond
	for _, m := range samples {
		low, high = min(low, m.perSecond), max(high, m.perSecond)
		w.requests += m.requests
		w.denials += m.denials
		w.failed += m.failed
		w.degraded += m.degraded
		w.unsent += m.unsent
		w.unstamped += m.unstamped
	}
	w.spread = ratio(high-low, w.perSecond)
	return w
}

// medianOf returns the median of n values. If n is even, it is the mean of the two in the middle.
func medianOf(n int, value func(int) float64) float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = value(i)
	}
	slices.Sort(values)
	if n%2 == 1 {
		return values[n/2]
	}
	return (values[n/2-1] + values[n/2]) / 2
}

// oddities returns the unexpected results of a row.
func (w row) oddities() []string {
	var odd []string
	note := func(n int64, what string) {
		if n > 0 {
			odd = append(odd, fmt.Sprintf("%s (%s): %d of %d answers %s", w.name, w.server, n, w.requests, what))
		}
	}
	note(w.failed, "were errors")
	note(w.degraded, "were degraded")
	note(w.unsent, "could not be sent in time")
	note(w.unstamped, "have no time of arrival from the kernel")
	switch passed := w.requests - w.denials - w.failed; {
	case w.checks > 1: // a batch always has the status 200
	case w.denials > 0 && !w.denied:
		note(w.denials, "were unexpected denials")
	case w.denied && w.server != bareName && passed > w.requests/10:
		note(passed, "were unexpectedly allowed")
	}
	return odd
}
