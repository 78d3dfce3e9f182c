package places

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// Starts bounds how many requests of a holder run at the same time, if very many arrive together:
// over HTTP/2, a client can have 1000 on a few connections. Each is answered in some 10 us, but if
// all could run, others would wait until all have run once. So beyond a number, the requests of a
// holder begin in the order of their arrival, when others have ended. A processor is never idle
// because of that: there are more places than processors.
//
// A place is for running. A request that waits for a store, a body or a pause gives it up, by Wait
// or after longestRun, so that neither a slow store nor slow clients make others of the holder
// wait.
type Starts[K comparable] struct {
	most  int
	long  time.Duration
	seed  maphash.Seed
	cells [startCells]startCell
}

const (
	// startCells is the number of holders that are distinguished. Two share one by chance.
	startCells = 1024
	// longestRun is after which time a request is taken to wait.
	longestRun = 2 * time.Millisecond
)

type startCell struct {
	inside atomic.Int64 // requests that have begun or wait

	mu      sync.Mutex
	running int
	waiting []func() // in the order of arrival
}

// NewStarts returns places, most of each holder.
func NewStarts[K comparable](most int) *Starts[K] {
	return &Starts[K]{most: most, long: longestRun, seed: maphash.MakeSeed()}
}

// Begin waits until a request of a holder may run. The context is for Wait, and the caller calls
// end when the request has ended. The first requests of a holder are not counted and take no lock.
func (s *Starts[K]) Begin(ctx context.Context, holder K) (_ context.Context, end func()) {
	cell := s.cell(holder)
	if cell.inside.Add(1) <= int64(s.most) {
		return ctx, func() { cell.inside.Add(-1) }
	}
	turn := make(chan struct{})
	cell.take(s.most, func() { close(turn) })
	<-turn
	r := s.run(cell)
	return r.With(ctx), func() {
		r.end()
		cell.inside.Add(-1)
	}
}

// Start calls f in a goroutine of its own when a request of a holder may run. It does not wait. The
// place ends with f.
func (s *Starts[K]) Start(holder K, f func(*Run)) {
	cell := s.cell(holder)
	if cell.inside.Add(1) <= int64(s.most) {
		go func() {
			defer cell.inside.Add(-1)
			f(nil)
		}()
		return
	}
	cell.take(s.most, func() {
		go func() {
			r := s.run(cell)
			defer cell.inside.Add(-1)
			defer r.end()
			f(r)
		}()
	})
}

func (s *Starts[K]) cell(holder K) *startCell {
	return &s.cells[maphash.Comparable(s.seed, holder)%startCells]
}

// Run is a place of a request. nil: it is not counted.
type Run struct {
	cell  *startCell
	timer *time.Timer
	ended atomic.Bool
}

func (s *Starts[K]) run(cell *startCell) *Run {
	r := &Run{cell: cell}
	r.timer = time.AfterFunc(s.long, r.leave)
	return r
}

type runKey struct{}

// With returns a context for Wait.
func (r *Run) With(ctx context.Context) context.Context {
	if r == nil {
		return ctx
	}
	return context.WithValue(ctx, runKey{}, r)
}

// Wait tells that the request of ctx waits for others from now on, and others may run.
func Wait(ctx context.Context) {
	if r, ok := ctx.Value(runKey{}).(*Run); ok {
		r.end()
	}
}

// Counted reports whether the request of ctx has, or had, a place.
func Counted(ctx context.Context) bool { return ctx.Value(runKey{}) != nil }

func (r *Run) end() {
	r.timer.Stop()
	r.leave()
}

func (r *Run) leave() {
	if !r.ended.Swap(true) {
		r.cell.leave()
	}
}

// take calls run when there is a place, now or later.
func (c *startCell) take(most int, run func()) {
	c.mu.Lock()
	if c.running < most {
		c.running++
		c.mu.Unlock()
		run()
		return
	}
	c.waiting = append(c.waiting, run)
	c.mu.Unlock()
}

// leave gives the place to the next request.
func (c *startCell) leave() {
	c.mu.Lock()
	if len(c.waiting) == 0 {
		c.running--
		c.waiting = nil
		c.mu.Unlock()
		return
	}
	next := c.waiting[0]
	c.waiting[0] = nil
	c.waiting = c.waiting[1:]
	c.mu.Unlock()
	next()
}
