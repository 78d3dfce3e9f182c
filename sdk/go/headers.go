package weir

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers are the rate-limit headers of a decision. An empty one is absent.
type Headers struct {
	RateLimit       string // RateLimit, of the IETF draft
	RateLimitPolicy string // RateLimit-Policy, of the IETF draft
	RetryAfter      string // Retry-After, in seconds
	Limit           string // X-RateLimit-Limit
	Remaining       string // X-RateLimit-Remaining
	Reset           string // X-RateLimit-Reset, in Unix seconds
}

// The keys under which net/http looks up headers. HTTP/1 sends them unchanged.
const (
	headerRateLimit       = "Ratelimit"
	headerRateLimitPolicy = "Ratelimit-Policy"
	headerRetryAfter      = "Retry-After"
	headerLimit           = "X-Ratelimit-Limit"
	headerRemaining       = "X-Ratelimit-Remaining"
	headerReset           = "X-Ratelimit-Reset"
)

var headerNames = [...]string{headerRateLimit, headerRateLimitPolicy, headerRetryAfter, headerLimit, headerRemaining, headerReset}

// CopyHeaders copies the decision's rate-limit headers to an answer. If the answer already has
// headers of another limiter, the stricter set is used: the one with the longer Retry-After, then
// with the smaller share left.
func (d *Decision) CopyHeaders(to http.Header) {
	if d.Headers == (Headers{}) {
		return
	}
	if existing := headersOf(to); existing != (Headers{}) && !d.Headers.stricter(existing) {
		return
	}
	set(to, headerRateLimit, d.Headers.RateLimit)
	set(to, headerRateLimitPolicy, d.Headers.RateLimitPolicy)
	set(to, headerRetryAfter, d.Headers.RetryAfter)
	set(to, headerLimit, d.Headers.Limit)
	set(to, headerRemaining, d.Headers.Remaining)
	set(to, headerReset, d.Headers.Reset)
}

func set(h http.Header, name, value string) {
	if value == "" {
		delete(h, name)
		return
	}
	h[name] = []string{value}
}

func headersOf(h http.Header) Headers {
	return Headers{
		RateLimit: first(h, headerRateLimit), RateLimitPolicy: first(h, headerRateLimitPolicy), RetryAfter: first(h, headerRetryAfter),
		Limit: first(h, headerLimit), Remaining: first(h, headerRemaining), Reset: first(h, headerReset),
	}
}

func first(h http.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

func (h Headers) stricter(than Headers) bool {
	wait, thanWait := number(h.RetryAfter), number(than.RetryAfter)
	if wait != thanWait {
		return wait > thanWait
	}
	share, known := h.share()
	thanShare, thanKnown := than.share()
	return known && (!thanKnown || share < thanShare)
}

// number reads a header of whole seconds; an invalid number is 0.
func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// share returns the smallest remaining share of a quota.
func (h Headers) share() (share float64, known bool) {
	limit, errLimit := strconv.ParseFloat(h.Limit, 64)
	remaining, errRemaining := strconv.ParseFloat(h.Remaining, 64)
	if errLimit == nil && errRemaining == nil && limit > 0 {
		return remaining / limit, true
	}
	quotas := parameters(h.RateLimitPolicy, "q")
	for name, left := range parameters(h.RateLimit, "r") {
		if quota := quotas[name]; quota > 0 && (!known || left/quota < share) {
			share, known = left/quota, true
		}
	}
	return share, known
}

// parameters reads one parameter of each member of a list such as `"api";r=5;t=3, "login";r=1`.
// Members are names of rules, which contain neither commas nor semicolons.
func parameters(list, parameter string) map[string]float64 {
	values := map[string]float64{}
	for member := range strings.SplitSeq(list, ",") {
		parts := strings.Split(member, ";")
		for _, part := range parts[1:] {
			name, text, _ := strings.Cut(strings.TrimSpace(part), "=")
			if value, err := strconv.ParseFloat(text, 64); err == nil && name == parameter {
				values[strings.TrimSpace(parts[0])] = value
			}
		}
	}
	return values
}

// builtHeaders returns headers for a decision of a batch, which has none.
func builtHeaders(d *Decision, now time.Time) Headers {
	var h Headers
	quota := d.Limit
	for i := range d.Rules {
		if d.Rules[i].Rule == d.Rule && d.Rules[i].Burst.Known {
			quota = d.Rules[i].Burst
		}
	}
	if quota.Known {
		h.Limit = quota.String()
	}
	if d.Remaining.Known {
		h.Remaining = d.Remaining.String()
	}
	if d.ResetAfterMS.Known {
		h.Reset = strconv.FormatInt(ceilSeconds(now.UnixMilli()+d.ResetAfterMS.Value), 10)
	}
	if d.Denial != nil && d.Denial.RetryAfter.Known {
		h.RetryAfter = d.Denial.RetryAfter.String()
	}
	return h
}

// ceilSeconds converts milliseconds to seconds, rounded up.
func ceilSeconds(ms int64) int64 {
	s := ms / 1000
	if ms%1000 > 0 {
		s++
	}
	return s
}
