package redis

import (
	"sync/atomic"
	"time"

	"weir/internal/engine"
)

// pulse tells a store that is silent from one that is busy. A deadline bounds how long a silent
// store is waited for. A store that answers others meanwhile is not away: it, or this process,
// is short of CPU, and a check that gave up would be answered apart from the shared counters
// although Redis counts it in a moment. So while answers come, waiting goes on, up to
// maxPatience times the deadline. All of it is measured in awake time.
type pulse struct {
	last atomic.Int64 // when an answer last came, in awake time
}

const (
	maxPatience = 4
	// lateLook is for a goroutine that comes late to look, on a machine where others run: an
	// answer may be here although the deadline has passed.
	lateLook = 5 * time.Millisecond
)

func (p *pulse) beat() { p.last.Store(int64(engine.Awake())) }

// more returns how much longer to wait when the timer of a wait that began at began is over: until
// patience is over and the store has been silent for as long, at most maxPatience times as
// long; first asks for one late look where that is now.
func (p *pulse) more(patience time.Duration, began time.Duration, first bool) time.Duration {
	now := engine.Awake()
	more := patience - min(now-began, now-time.Duration(p.last.Load()))
	if first {
		more = max(more, lateLook)
	}
	return min(more, began+maxPatience*patience-now)
}
