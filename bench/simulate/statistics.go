package simulate

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// statistics are what the report needs. Answers are counted by class of tenants and by phase: the
// phase in which the request was sent.
type statistics struct {
	ends  []time.Duration
	parts map[part]*figures

	pipelines, calls, prefetches int64
	opened                       int64 // circuits
}

type part struct{ class, phase int }

// figures are counts of answers and their latencies in microseconds.
type figures struct {
	count, degraded, denied, memory, refused int64
	latency                                  *hdrhistogram.Histogram
}

func newStatistics(ends []time.Duration) *statistics {
	return &statistics{ends: ends, parts: map[part]*figures{}}
}

func (s *statistics) add(r *request, now time.Duration) {
	phase := 0
	for phase < len(s.ends) && r.arrived >= s.ends[phase] {
		phase++
	}
	f := s.of(r.subject.tenant.class, phase)
	f.count++
	if r.refused {
		f.refused++
		return // its latency is that of no decision
	}
	if r.degraded {
		f.degraded++
	}
	if !r.allowed {
		f.denied++
	}
	if r.memory {
		f.memory++
	}
	_ = f.latency.RecordValue(max(1, (now - r.arrived).Microseconds())) // in range: no run is as long
}

func (s *statistics) of(class, phase int) *figures {
	f := s.parts[part{class, phase}]
	if f == nil {
		f = &figures{latency: hdrhistogram.New(1, time.Hour.Microseconds(), 3)}
		s.parts[part{class, phase}] = f
	}
	return f
}

// quantile returns a quantile of the latency in milliseconds.
func (f *figures) quantile(percent float64) float64 {
	return float64(f.latency.ValueAtQuantile(percent)) / 1000
}

// share returns a count as a part of all answers.
func (f *figures) share(count int64) float64 {
	if f.count == 0 {
		return 0
	}
	return float64(count) / float64(f.count)
}
