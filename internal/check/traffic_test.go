package check_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
)

// times expands traffic and returns the instants. It requires that they are in order.
func times(t *testing.T, traffic check.Traffic, startMS int64) []int64 {
	t.Helper()
	if traffic.Subjects == nil {
		traffic.Subjects = []string{"s"}
	}
	requests, errs := traffic.Expand(startMS)
	require.Empty(t, errs)
	out := make([]int64, len(requests))
	for i := range requests {
		out[i] = requests[i].AtMS
		require.True(t, i == 0 || out[i-1] <= out[i])
	}
	return out
}

// Each pattern is as documented, to the millisecond.
func TestTrafficPatterns(t *testing.T) {
	require.Equal(t, []int64{0, 333, 666, 1000, 1333, 1666, 2000},
		times(t, check.Traffic{Pattern: check.Steady, Requests: 3, PerMS: 1000, DurationMS: 2001}, 0))
	require.Equal(t, []int64{5, 5, 100, 100},
		times(t, check.Traffic{Pattern: check.Burst, Requests: 2, AtMS: []int64{100, 5}}, 0))
	require.Equal(t, []int64{59_999, 59_999, 60_000, 60_000, 119_999, 119_999, 120_000, 120_000},
		times(t, check.Traffic{Pattern: check.WindowEdge, Requests: 2, WindowMS: 60_000, Edges: 2}, 0))
	require.Equal(t, []int64{0, 1},
		times(t, check.Traffic{Pattern: check.WindowEdge, Requests: 1, WindowMS: 60_000, Edges: 1}, 60_000*100-1), "edges are at multiples of the window")

	require.Equal(t, times(t, check.Traffic{Pattern: check.Steady, Requests: 3, PerMS: 1000, DurationMS: 9000}, 0),
		times(t, check.Traffic{Pattern: check.Ramp, From: 3, To: 3, PerMS: 1000, DurationMS: 9000}, 0), "a flat ramp is steady")
	up := times(t, check.Traffic{Pattern: check.Ramp, From: 0, To: 100, PerMS: 1000, DurationMS: 10_000}, 0)
	require.Len(t, up, 500, "the mean rate over the whole time")
	require.InDelta(t, 125, countIn(up, 0, 5_000), 1, "a quarter of them in the first half")
	down := times(t, check.Traffic{Pattern: check.Ramp, From: 100, To: 0, PerMS: 1000, DurationMS: 10_000}, 0)
	require.InDelta(t, 500, len(down), 1)
	require.InDelta(t, 375, countIn(down, 0, 5_000), 1)
}

func countIn(times []int64, from, to int64) int {
	n := 0
	for _, at := range times {
		if at >= from && at < to {
			n++
		}
	}
	return n
}

// Random traffic is the same for the same seed, has the requested mean, and differs between
// subjects.
func TestTrafficPoisson(t *testing.T) {
	traffic := check.Traffic{Pattern: check.Poisson, Requests: 10, PerMS: 1000, DurationMS: 500_000, Seed: 7}
	first := times(t, traffic, 0)
	require.Equal(t, first, times(t, traffic, 0))
	require.InDelta(t, 5000, len(first), 300, "more than four standard deviations")
	require.Equal(t, []int64{31, 365, 401, 480, 592}, first[:5], "and the same in every version")
	traffic.Seed = 8
	require.NotEqual(t, first[:5], times(t, traffic, 0)[:5])

	traffic.DurationMS, traffic.Subjects = 1000, []string{"a", "b"}
	requests, errs := traffic.Expand(0)
	require.Empty(t, errs)
	of := map[string][]int64{}
	for _, r := range requests {
		of[r.Subject] = append(of[r.Subject], r.AtMS)
	}
	require.Len(t, of, 2)
	require.NotEqual(t, of["a"], of["b"])
}

// Every subject sends the full pattern, with the given request.
func TestTrafficSubjects(t *testing.T) {
	traffic := check.Traffic{
		Pattern: check.Burst, Requests: 2, AtMS: []int64{0, 10}, Subjects: []string{"b", "a"},
		Request: check.Request{Resource: "orders", Cost: 3, Attributes: []check.Attribute{{Name: "ip", Value: "203.0.113.7"}}},
	}
	requests, errs := traffic.Expand(0)
	require.Empty(t, errs)
	var order []string
	for _, r := range requests {
		order = append(order, r.Subject)
		require.Equal(t, "orders", r.Resource)
		require.Equal(t, int64(3), r.Cost)
		require.Len(t, r.Attributes, 1)
	}
	require.Equal(t, []string{"b", "b", "a", "a", "b", "b", "a", "a"}, order)
}

// Invalid traffic is refused with the name of the field, and never expands to more requests than
// the limit.
func TestTrafficBounds(t *testing.T) {
	s := []string{"s"}
	many := make([]string, check.MaxTrafficSubjects+1)
	for _, c := range []struct {
		traffic check.Traffic
		fields  []string
	}{
		{check.Traffic{Subjects: s}, []string{"pattern"}},
		{check.Traffic{Pattern: check.Steady, Subjects: s}, []string{"requests", "per_ms", "duration_ms"}},
		{check.Traffic{Pattern: check.Steady, Subjects: s, Requests: 1_000_000_000, PerMS: 1, DurationMS: 1}, []string{"requests"}},
		{check.Traffic{Pattern: check.Steady, Subjects: s, Requests: 1, PerMS: 1, DurationMS: 1, From: 1, WindowMS: 1000, Seed: 1, AtMS: []int64{1}},
			[]string{"from", "window_ms", "seed", "at_ms"}},
		{check.Traffic{Pattern: check.Burst, Subjects: s, Requests: 1}, []string{"at_ms"}},
		{check.Traffic{Pattern: check.Burst, Subjects: s, Requests: 1, AtMS: []int64{-1}}, []string{"at_ms"}},
		{check.Traffic{Pattern: check.Ramp, Subjects: s, PerMS: 1, DurationMS: 1}, []string{"to"}},
		{check.Traffic{Pattern: check.WindowEdge, Subjects: s, Requests: 1, WindowMS: 999}, []string{"window_ms", "edges"}},
		{check.Traffic{Pattern: check.Burst, Requests: 1, AtMS: []int64{0}}, []string{"subjects"}},
		{check.Traffic{Pattern: check.Burst, Requests: 1, AtMS: []int64{0}, Subjects: many}, []string{"subjects"}},
		{check.Traffic{Pattern: check.Burst, Requests: 1, AtMS: []int64{0}, Subjects: []string{"a", "a"}}, []string{"subjects"}},
		{check.Traffic{Pattern: check.Burst, Requests: 1, AtMS: []int64{0}, Subjects: []string{""}}, []string{"subjects"}},
		{check.Traffic{Pattern: check.Steady, Subjects: s, Requests: 10_000, PerMS: 1, DurationMS: limit.MaxWindowMS}, []string{""}},
		{check.Traffic{Pattern: check.Poisson, Subjects: s, Requests: 10_000, PerMS: 1, DurationMS: limit.MaxWindowMS}, []string{""}},
		{check.Traffic{Pattern: check.Ramp, Subjects: s, To: 10_000, PerMS: 1, DurationMS: limit.MaxWindowMS}, []string{""}},
		{check.Traffic{Pattern: check.Burst, Subjects: []string{"a", "b"}, Requests: 5_001, AtMS: []int64{0}}, []string{""}},
		{check.Traffic{Pattern: check.WindowEdge, Subjects: s, Requests: 10_000, WindowMS: 1000, Edges: 1000}, []string{""}},
	} {
		requests, errs := c.traffic.Expand(0)
		require.Empty(t, requests)
		var fields []string
		for _, e := range errs {
			fields = append(fields, e.Field)
			require.NotEmpty(t, e.Message)
		}
		require.Equal(t, c.fields, fields, "%+v", c.traffic)
	}
	require.Len(t, times(t, check.Traffic{Pattern: check.Burst, Subjects: []string{"a", "b"}, Requests: 5_000, AtMS: []int64{0}}, 0), check.MaxSimulatedRequests)
}

// Fixed windows allow twice their limit at an edge, and sliding ones do not. The pattern exists to
// show this.
func TestTrafficAtWindowEdge(t *testing.T) {
	traffic := check.Traffic{Pattern: check.WindowEdge, Requests: 100, WindowMS: 60_000, Edges: 1, Subjects: []string{"s"},
		Request: check.Request{Resource: "default", Cost: 1}}
	requests, errs := traffic.Expand(0)
	require.Empty(t, errs)
	for algorithm, want := range map[limit.Algorithm]int{limit.FixedWindow: 200, limit.SlidingWindowLog: 100} {
		rule := subjectRule(t, "edge", 100)
		rule.Algorithm = algorithm
		allowed := 0
		for _, d := range simulate(t, check.Simulation{Policy: check.PolicyData{Rules: []limit.Rule{rule}}, Requests: requests}) {
			if d.Allowed {
				allowed++
			}
		}
		require.Equal(t, want, allowed, algorithm.String())
	}
}
