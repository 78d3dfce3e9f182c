// Package load sends checks to a server and counts the answers, as fast as the server answers
// (Closed) or at a fixed rate (Open).
//
// It runs on the machine of the server that it measures, so it must be cheap. Requests are
// prepared, HTTP/1.1 is written to raw connections, and only the status, the length and one word of
// the body of an answer are read. The caller has to measure the remaining cost.
package load

import (
	"net/http"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept in whole microseconds up to a minute, to three digits.
const (
	longest = time.Minute
	digits  = 3
)

// Result is what one run saw in its measured part.
type Result struct {
	Asked    int64 // answers of any kind, those outside the measured part too
	Requests int64 // answers of any kind
	Denied   int64 // 429
	Degraded int64 // answers that were made without the counters
	Failed   int64 // neither 200, 204 nor 429
	Unsent   int64 // Open: due, and no connection was free for them until the end
	Elapsed  time.Duration

	latency *hdrhistogram.Histogram
	late    *hdrhistogram.Histogram // Open: how long after their time requests were sent
}

// NewResult returns one that has seen nothing.
func NewResult() *Result {
	return &Result{latency: newHistogram(), late: newHistogram()}
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, longest.Microseconds(), digits)
}

// Rate is answers per second.
func (r *Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Requests) / r.Elapsed.Seconds()
}

// Latency returns the time within which this percentage of requests (0 to 100) was answered:
// from sending in a closed loop, from the time at which it was due in an open one.
func (r *Result) Latency(percent float64) time.Duration { return quantile(r.latency, percent) }

// Late returns how late, at most, this percentage of requests was sent in an open loop. It
// is part of Latency, and where it is not small the driver or the server was overloaded.
func (r *Result) Late(percent float64) time.Duration { return quantile(r.late, percent) }

func quantile(h *hdrhistogram.Histogram, percent float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(percent)) * time.Microsecond
}

func (r *Result) count(a answer, latency time.Duration) {
	r.Requests++
	switch a.status {
	case http.StatusOK, http.StatusNoContent:
	case http.StatusTooManyRequests:
		r.Denied++
	default:
		r.Failed++
	}
	if a.degraded {
		r.Degraded++
	}
	record(r.latency, latency)
}

// record rounds to microseconds, and takes what is beyond the range for its end.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	d = min(max(d, 0), longest)
	_ = h.RecordValue(d.Round(time.Microsecond).Microseconds()) // it is in range
}

// merge adds what another connection of the same run saw.
func (r *Result) merge(other *Result) {
	r.Asked += other.Asked
	r.Requests += other.Requests
	r.Denied += other.Denied
	r.Degraded += other.Degraded
	r.Failed += other.Failed
	r.Unsent += other.Unsent
	r.latency.Merge(other.latency)
	r.late.Merge(other.late)
}
