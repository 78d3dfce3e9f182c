package api

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"weir/internal/leases"
	"weir/internal/limit"
	"weir/internal/places"
)

// LateReturns are the returns of leases that Redis did not answer. Each is tried again until it is
// complete, for as long as its lease may have a record.
//
// For example, Redis stalls for 8 seconds. It has read the first command, and executes it when it
// resumes: the lease is then taken, with the token of this instance. The next attempt gets the
// record, and returns and reports its units.
type LateReturns struct {
	log     *slog.Logger
	metrics *Metrics
	after   func(time.Duration) <-chan time.Time // time.After, except in tests
	places  *places.Places[limit.TenantID]

	mu     sync.Mutex // guards the calls of work.Add, which must be before ending
	work   sync.WaitGroup
	ending chan struct{} // closed when the process ends: no long pauses any more
	over   chan struct{} // closed when no more attempts are made
	warned time.Time
}

// maxUnanswered is how many returns without an answer of Redis an instance completes at once. A
// tenant may have a quarter of those that are left.
const maxUnanswered = 1024

// The pauses between attempts.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 500 * time.Millisecond
	// longestPauses is how long the pauses of a return are together, at least. Later, no lease has
	// a record.
	longestPauses = time.Duration(limit.MaxLeaseMS)*time.Millisecond + leases.Grace
)

// NewLateReturns returns no returns yet.
func NewLateReturns(metrics *Metrics, log *slog.Logger) *LateReturns {
	return &LateReturns{
		log: log, metrics: metrics, after: time.After, places: places.New[limit.TenantID](0, 0),
		ending: make(chan struct{}), over: make(chan struct{}),
	}
}

// complete calls try until its error is not leases.ErrUnavailable. It does not wait.
func (l *LateReturns) complete(tenant limit.TenantID, try func(ctx context.Context) error) {
	leave, ok := l.places.TakeShare(tenant, maxUnanswered, 1)
	if !ok || !l.begin() {
		if ok {
			leave()
		}
		l.lose(errors.New("the tenant has too many, or the instance ends"))
		return
	}
	go func() {
		defer l.work.Done()
		defer leave()
		ctx := context.Background() // the request has ended
		pause := firstPause
		err := leases.ErrUnavailable
		for waited := time.Duration(0); waited < longestPauses && errors.Is(err, leases.ErrUnavailable); {
			took, more := l.wait(pause)
			if !more {
				break
			}
			err = try(ctx)
			waited += took
			pause = min(2*pause, lastPause)
		}
		if err != nil && !errors.Is(err, leases.ErrTaken) { // a repeat of the client was faster
			l.lose(err)
		}
	}()
}

// begin starts a return, unless the process ends.
func (l *LateReturns) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.ending:
		return false
	default:
		l.work.Add(1)
		return true
	}
}

// wait waits until the next attempt, and returns how long at least. more is false if there is none.
func (l *LateReturns) wait(pause time.Duration) (took time.Duration, more bool) {
	select {
	case <-l.over:
		return 0, false
	case <-l.after(pause):
		return pause, true
	case <-l.ending:
	}
	pause = min(pause, firstPause)
	select {
	case <-l.over:
		return 0, false
	case <-l.after(pause):
		return pause, true
	}
}

// warnEvery is how often lost returns are logged at most. The metric has their number.
const warnEvery = time.Minute

// lose counts a return that is given up: the units that the client did not use count until their
// window ends, and its checks are not in usage.
func (l *LateReturns) lose(err error) {
	l.metrics.lostReturns.Inc()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.warned.IsZero() || now.Sub(l.warned) >= warnEvery {
		l.warned = now
		l.log.Warn("a return of a lease is lost, because Redis did not answer for too long", "error", err)
	}
}

// End waits until all returns are complete, or until ctx ends, and then for those whose attempt is
// on its way. It must be called once, before what receives their reports ends.
func (l *LateReturns) End(ctx context.Context) {
	l.mu.Lock()
	close(l.ending)
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.work.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	close(l.over)
	<-done
}
