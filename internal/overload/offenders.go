package overload

import (
	"hash/maphash"
	"sync/atomic"
)

// offenders count the errors of each client in the present Interval. The pause is for a client that
// asks for many: a single error of another one does not wait. Two clients share a count by chance,
// once in thousands.
type offenders struct {
	seed     maphash.Seed
	interval atomic.Uint32
	cells    [4096]atomic.Uint64 // an interval, and in its lower half how many
}

// mostErrors is how many errors a client may have in an Interval without a pause, in refusals. 160
// of them a second take a few hundredths of a processor.
const mostErrors = 16 * 8

// add counts errors of a client, and reports whether it has more than it may have without a pause.
func (o *offenders) add(client string, refusals int64) bool {
	cell := &o.cells[maphash.String(o.seed, client)%uint64(len(o.cells))]
	now := uint64(o.interval.Load()) << 32
	for {
		before := cell.Load()
		after := before + uint64(refusals)
		if before&^(1<<32-1) != now {
			after = now + uint64(refusals)
		}
		if cell.CompareAndSwap(before, after) {
			return int64(after&(1<<32-1)) > mostErrors
		}
	}
}
