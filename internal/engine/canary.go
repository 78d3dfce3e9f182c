package engine

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/limit"
)

// canaries tell when a server has lost counters. A canary is the counter that probes charge: its
// window is the longest one there is, so its end must stay what it was, and its count must rise
// with every probe. If it does not, the server was emptied, restarted without its data, restored
// from a backup, or replaced by a replica that had not received all writes. The counters of
// customers were on the same server and have gone the same way.
type canaries struct {
	losses  atomic.Int64
	metrics *Metrics

	mu   sync.Mutex
	seen map[string]canary
}

type canary struct {
	used, resetMS int64
	at            time.Time
}

// CanaryKey is the key of a canary. Some of them are on each server.
func CanaryKey(n int) string { return KeyPrefix + "canary" + strconv.Itoa(n) + "}" }

// Losses returns how often a server is known to have lost counters.
func (b *Breaker) Losses() int64 { return b.canaries.losses.Load() }

// compare looks at what a probe that began at started has found, and reports whether the server has
// lost counters.
func (s *canaries) compare(key string, started time.Time, found *Outcome) (lost bool) {
	v := &found.Verdicts[0]
	now := canary{used: limit.MaxFixedLimit - v.Remaining, resetMS: v.ResetMS, at: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]canary{}
	}
	before, known := s.seen[key]
	if known && started.Before(before.at) {
		return false // another probe was under way at the same time: it is not known which one was counted first
	}
	s.seen[key] = now
	lost = known && found.NowMS < before.resetMS && (now.resetMS != before.resetMS || now.used <= before.used)
	if lost {
		s.losses.Add(1)
		s.metrics.losses.Inc()
	}
	return lost
}
