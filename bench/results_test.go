package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/bench/load"
)

func TestMedianIsTheMiddle(t *testing.T) {
	median := func(values ...float64) float64 {
		return medianOf(len(values), func(i int) float64 { return values[i] })
	}
	require.InDelta(t, 2, median(9, 1, 2), 0)
	require.InDelta(t, 2.5, median(4, 1, 2, 3), 0)
	require.InDelta(t, 7, median(7), 0)
}

// resultsOf returns the results of one group from samples by cell and round.
func resultsOf(cells []cell, samples ...[]sample) *results {
	r := newResults([]group{{"subjects", "Title", cells}})
	r.samples[0] = samples
	return r
}

// A machine that slows down in one round slows both servers, so only the ratio within a round is
// fair.
func TestRatiosAreTakenWithinARound(t *testing.T) {
	r := resultsOf(
		[]cell{{name: "bare", server: bareName, base: true}, {name: "weir", server: weirName}},
		[]sample{{perSecond: 100, serverCPU: 10, servedP99: 50}, {perSecond: 10, serverCPU: 100, servedP99: 500}, {perSecond: 100, serverCPU: 10, servedP99: 40}},
		[]sample{
			{perSecond: 50, serverCPU: 12, redisCPU: 3, p99: 70, servedP99: 60},
			{perSecond: 5, serverCPU: 120, redisCPU: 30, p99: 610, servedP99: 510},
			{perSecond: 50, serverCPU: 12, redisCPU: 3, p99: 60, servedP99: 70},
		},
	)
	rows := r.rows(0)
	require.Len(t, rows, 2)
	require.InDelta(t, 1, rows[0].rateRatio, 0)
	w := rows[1]
	require.InDelta(t, 0.5, w.rateRatio, 1e-9)
	require.InDelta(t, 1.5, w.cpuRatio, 1e-9, "Redis is part of what a check costs")
	require.InDelta(t, 50, w.perSecond, 0)
	require.InDelta(t, 0.9, w.spread, 1e-9)
	require.InDelta(t, 70, w.p99, 0)
	require.InDelta(t, 10, w.p99Above, 0)
}

func TestEachOpenRateHasItsOwnBase(t *testing.T) {
	r := resultsOf(
		[]cell{{name: "bare", base: true, rate: 1}, {name: "weir", rate: 1}, {name: "bare", base: true, rate: 2}, {name: "weir", rate: 2}},
		[]sample{{p99: 10, servedP99: 9}}, []sample{{p99: 20, servedP99: 12}}, []sample{{p99: 40, servedP99: 30}}, []sample{{p99: 60, servedP99: 35}},
	)
	rows := r.rows(0)
	require.InDelta(t, 2, rows[1].p99Ratio, 0)
	require.InDelta(t, 1.5, rows[3].p99Ratio, 0)
	require.InDelta(t, 5, rows[3].p99Above, 0)
}

func TestOdditiesAreReported(t *testing.T) {
	weir := func(denied bool, m sample) []string {
		return newRow(cell{name: "a mix", server: weirName, checks: 1, denied: denied}, []sample{m}, []sample{{}}).oddities()
	}
	require.Empty(t, weir(false, sample{requests: 1000}))
	require.Empty(t, weir(true, sample{requests: 1000, denials: 950}), "some are allowed before the limit is reached")
	require.Len(t, weir(false, sample{requests: 1000, denials: 1}), 1)
	require.Len(t, weir(true, sample{requests: 1000, denials: 800}), 1)
	require.Equal(t, []string{
		"a mix (weir): 3 of 1000 answers were errors",
		"a mix (weir): 2 of 1000 answers were degraded",
		"a mix (weir): 5 of 1000 answers could not be sent in time",
		"a mix (weir): 7 of 1000 answers have no time of arrival from the kernel",
	}, weir(false, sample{requests: 1000, failed: 3, degraded: 2, unsent: 5, unstamped: 7}))
}

func TestSampleIsPerCheck(t *testing.T) {
	r := load.NewResult()
	r.Requests, r.Elapsed = 100, 2*time.Second
	m := newSample(r, 10,
		gauges{server: time.Second, redis: time.Second}, gauges{server: 2 * time.Second, redis: time.Second, driver: 500 * time.Millisecond})
	require.InDelta(t, 500, m.perSecond, 1e-9)
	require.InDelta(t, 1000, m.serverCPU, 1e-9, "a second for 1000 checks, in microseconds")
	require.Zero(t, m.redisCPU)
	require.InDelta(t, 500, m.driverCPU, 1e-9)
}
