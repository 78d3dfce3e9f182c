package redis

import (
	"sync/atomic"
	"time"

	"weir/internal/engine"
)

// pulse distinguishes a silent store from a busy one. The deadline is how long a call waits for a
// silent store. If the store answers other calls in the meantime, it is not unavailable: the store
// or this process has too little CPU time. A check that gave up would then be decided without the
// shared counters, although Redis is about to count it. So the wait continues while answers arrive,
// up to maxPatience times the deadline. All times are awake time.
type pulse struct {
	last atomic.Int64 // awake time of the last answer
}

const (
	maxPatience = 4
	// lateLook is for a goroutine that checks late on a busy machine: an answer may have arrived
	// although the deadline has passed.
	lateLook = 5 * time.Millisecond
	// leastPatience is the least time that a server has for its answer, if this process was late
	// with its request: two ticks of awake time.
	leastPatience = 2 * engine.AwakeTick
)

func (p *pulse) beat() { p.last.Store(int64(engine.Awake())) }

// silent reports whether there was no answer for as long as patience.
func (p *pulse) silent(patience time.Duration) bool {
	return engine.Awake()-time.Duration(p.last.Load()) >= patience
}

// more returns how much longer to wait when the timer of a wait that started at began has expired.
// A wait ends when patience is over and the store has been silent for as long, or after maxPatience
// times patience. If it would end now and first is true, more allows one late look.
func (p *pulse) more(patience time.Duration, began time.Duration, first bool) time.Duration {
	now := engine.Awake()
	more := patience - min(now-began, now-time.Duration(p.last.Load()))
	if first {
		more = max(more, lateLook)
	}
	return min(more, began+maxPatience*patience-now)
}
