package check

import (
	"context"
	"math"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Latency is how long this process took to decide checks in the last minute, including counters but
// not HTTP. A batch counts as one check. Quantiles come from a histogram whose buckets double, so
// their error is at most a third.
type Latency struct {
	Checks   uint64
	P50, P99 time.Duration // 0 if there were no checks
	Over     time.Duration // the measured period
}

const (
	latencyEvery = 5 * time.Second
	latencyOver  = time.Minute
)

// latencies has the state of the histogram of evaluations during the last minute.
type latencies struct {
	mu   sync.Mutex
	past []latencyMark // oldest first
}

type latencyMark struct {
	at      time.Time
	count   uint64
	buckets []*dto.Bucket // cumulative
}

// RunLatency reads the histogram of evaluations every few seconds until ctx ends.
func (c *Checker) RunLatency(ctx context.Context) {
	ticks := time.NewTicker(latencyEvery)
	defer ticks.Stop()
	for {
		c.metrics.noteLatency(c.now())
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// Latency returns how long checks took in about the last minute. It requires RunLatency.
func (c *Checker) Latency() Latency { return c.metrics.latency(c.now()) }

func (m *Metrics) latencyMark(now time.Time) latencyMark {
	var metric dto.Metric
	if m.evaluation.Write(&metric) != nil || metric.Histogram == nil {
		return latencyMark{at: now}
	}
	return latencyMark{at: now, count: metric.Histogram.GetSampleCount(), buckets: metric.Histogram.Bucket}
}

func (m *Metrics) noteLatency(now time.Time) {
	mark := m.latencyMark(now)
	m.recently.mu.Lock()
	defer m.recently.mu.Unlock()
	m.recently.past = append(m.recently.past, mark)
	for len(m.recently.past) > 1 && now.Sub(m.recently.past[1].at) >= latencyOver {
		m.recently.past = m.recently.past[1:]
	}
}

func (m *Metrics) latency(now time.Time) Latency {
	end := m.latencyMark(now)
	m.recently.mu.Lock()
	defer m.recently.mu.Unlock()
	if len(m.recently.past) == 0 {
		return Latency{}
	}
	begin := m.recently.past[0]
	out := Latency{Over: now.Sub(begin.at)}
	if end.count <= begin.count || len(end.buckets) == 0 {
		return out
	}
	out.Checks = end.count - begin.count
	out.P50, out.P99 = quantile(&begin, &end, 0.5), quantile(&begin, &end, 0.99)
	return out
}

// quantile finds the bucket that contains the quantile, and interpolates in it as if logarithms
// were evenly distributed.
func quantile(begin, end *latencyMark, share float64) time.Duration {
	rank := share * float64(end.count-begin.count)
	var before float64
	for i, b := range end.buckets {
		upTo := float64(b.GetCumulativeCount())
		if i < len(begin.buckets) {
			upTo -= float64(begin.buckets[i].GetCumulativeCount())
		}
		if upTo >= rank && upTo > before {
			upper := b.GetUpperBound()
			seconds := upper / 2 * math.Pow(2, (rank-before)/(upTo-before))
			return time.Duration(seconds * float64(time.Second))
		}
		before = upTo
	}
	last := end.buckets[len(end.buckets)-1].GetUpperBound() // and more
	return time.Duration(last * float64(time.Second))
}
