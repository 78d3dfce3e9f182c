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

// Latencies are in microseconds, up to a minute, with three digits.
const (
	longest = time.Minute
	digits  = 3
)

// Result is the result of the measured part of a run.
type Result struct {
	Asked    int64 // responses of any kind, including those outside the measured part
	Requests int64 // responses of any kind
	Denied   int64 // 429
	Degraded int64 // degraded decisions
	Failed   int64 // neither 200, 204 nor 429
	Refused  int64 // 503; they are also Failed
	Unsent   int64 // Open: due, but without a free connection until the end
	Skipped  int64 // Open, with Plan.Skip: not sent, because it would have been too late
	// Unstamped is for Open: responses whose arrival the kernel did not stamp. In Served, the
	// driver's delay in reading them counts.
	Unstamped int64
	Elapsed   time.Duration

	latency *hdrhistogram.Histogram
	decided *hdrhistogram.Histogram // of decisions only
	refused *hdrhistogram.Histogram // of 503 only
	late    *hdrhistogram.Histogram // Open: time from when requests were due until they were sent
	served  *hdrhistogram.Histogram // Open: latency without the lateness of the driver
}

// NewResult returns an empty result.
func NewResult() *Result {
	return &Result{latency: newHistogram(), late: newHistogram(), served: newHistogram(), decided: newHistogram(), refused: newHistogram()}
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, longest.Microseconds(), digits)
}

// Rate returns the responses per second.
func (r *Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Requests) / r.Elapsed.Seconds()
}

// Latency returns a percentile (0 to 100) of the latencies: from sending in a closed loop, from
// when the request was due in an open loop.
func (r *Result) Latency(percent float64) time.Duration { return quantile(r.latency, percent) }

// Decided is Latency of decisions only, and Refusal that of refusals with 503 only.
func (r *Result) Decided(percent float64) time.Duration { return quantile(r.decided, percent) }
func (r *Result) Refusal(percent float64) time.Duration { return quantile(r.refused, percent) }

// Late returns a percentile of how late requests were sent in an open loop. It is part of Latency.
// If it is not small, the driver or the server was overloaded.
func (r *Result) Late(percent float64) time.Duration { return quantile(r.late, percent) }

// Served returns a percentile of the latencies in an open loop without the lateness of the driver:
// as if the driver had sent each request when it was due, or as soon as the server had freed a
// connection for it, and had read each response when it arrived. See replay.
func (r *Result) Served(percent float64) time.Duration { return quantile(r.served, percent) }

func quantile(h *hdrhistogram.Histogram, percent float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(percent)) * time.Microsecond
}

func (r *Result) count(a answer, latency time.Duration) {
	r.Requests++
	switch a.status {
	case http.StatusOK, http.StatusNoContent:
		record(r.decided, latency)
	case http.StatusTooManyRequests:
		r.Denied++
		record(r.decided, latency)
	case http.StatusServiceUnavailable:
		r.Failed++
		r.Refused++
		record(r.refused, latency)
	default:
		r.Failed++
	}
	if a.degraded {
		r.Degraded++
	}
	record(r.latency, latency)
}

// record rounds to microseconds, and clamps to the range.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	d = min(max(d, 0), longest)
	_ = h.RecordValue(d.Round(time.Microsecond).Microseconds()) // it is in range
}

// merge adds the result of another connection of the same run.
func (r *Result) merge(other *Result) {
	r.Asked += other.Asked
	r.Requests += other.Requests
	r.Denied += other.Denied
	r.Degraded += other.Degraded
	r.Failed += other.Failed
	r.Refused += other.Refused
	r.Unsent += other.Unsent
	r.Skipped += other.Skipped
	r.Unstamped += other.Unstamped
	r.latency.Merge(other.latency)
	r.late.Merge(other.late)
	r.served.Merge(other.served)
	r.decided.Merge(other.decided)
	r.refused.Merge(other.refused)
}
