package check

import (
	"sync/atomic"
	"time"
)

// pulse tells a store that is silent from one that is busy. A deadline bounds how long a silent
// store is waited for. A store that answers others meanwhile is not away: it, or this process,
// is short of CPU, and a check that gave up would be answered apart from the shared counters
// although Redis counts it in a moment. So while answers come, waiting goes on, up to
// maxPatience times the deadline.
type pulse struct {
	last atomic.Int64 // when an answer last came, nanoseconds since pulseStart
}

const (
	maxPatience = 4
	// lateLook is for a process that comes late to look, on a machine where others run: an
	// answer may be here although the deadline has passed.
	lateLook = 2 * time.Millisecond
)

var pulseStart = time.Now()

func (p *pulse) beat() { p.last.Store(int64(time.Since(pulseStart))) }

// more returns how much longer to wait when patience is over: until the store has been silent
// for as long as patience, at most left; grace asks for one late look where that is now.
func (p *pulse) more(patience, left time.Duration, grace bool) time.Duration {
	more := patience - (time.Since(pulseStart) - time.Duration(p.last.Load()))
	if grace {
		more = max(more, lateLook)
	}
	return min(more, max(left, 0))
}
