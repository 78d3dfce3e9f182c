package weir

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// byHand returns a client without leases in the background, whose returns are inspected by hand, on
// a clock that is moved by hand.
func (s *leaseServer) byHand(t *testing.T, options ...Option) (*Client, *fakeClock) {
	t.Helper()
	clock := newFakeClock()
	c := s.client(t, append([]Option{withClock(clock), func(o *settings) { o.leases = false }}, options...)...)
	c.returns.every = time.Hour
	return c, clock
}

// A block ends its lease while many use it. What is returned and reported is what was decided, to
// the unit and to the check.
func TestWithLeaseEndsWhileItIsUsed(t *testing.T) {
	for range 50 {
		s := newLeaseServer(1 << 40)
		c, clock := s.byHand(t)
		var checks, units atomic.Int64
		err := c.WithLease(context.Background(), Check{Subject: "s"}, 1<<30, func(l *Lease) error {
			var all sync.WaitGroup
			begun := make(chan struct{}, 8)
			for i := range 8 {
				all.Add(1)
				go func() {
					defer all.Done()
					for n := 0; ; n++ {
						d, err := l.Check(context.Background(), int64(i+1))
						if err != nil || d.Source == SourceServer {
							return
						}
						checks.Add(1)
						units.Add(d.Cost)
						if n == 10 {
							begun <- struct{}{}
						}
					}
				}()
			}
			for range 8 {
				<-begun
			}
			clock.advance(s.life)
			c.returns.round(nil)
			all.Wait()
			c.returns.await()
			if s.held() != 0 {
				t.Error("the lease is not returned before the block ends")
			}
			return nil
		})
		must(t, err)
		const sent = 8 * 9 / 2 // by each of the callers, at the end
		if s.used != units.Load()+sent || s.reported.allowed != checks.Load() {
			t.Fatalf("%d units are charged and %d checks reported, of %d units and %d checks", s.used-sent, s.reported.allowed, units.Load(), checks.Load())
		}
	}
}

// With the default intervals, the lease of a long block is returned, and no goroutine remains.
func TestWithLeaseOfALongBlock(t *testing.T) {
	s := newLeaseServer(1000)
	s.life = 20 * time.Millisecond
	before := runtime.NumGoroutine()
	c := s.client(t, func(o *settings) { o.leases = false })
	must(t, c.WithLease(context.Background(), Check{Subject: "s"}, 100, func(*Lease) error {
		for deadline := time.Now().Add(patience); s.held() > 0; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatal("the lease is not returned before the block ends")
			}
		}
		return nil
	}))
	awaitGoroutines(t, before)
}

func (s *leaseServer) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.leases)
}

// More returns than can wait lose the oldest.
func TestReturnsAreBounded(t *testing.T) {
	c, _ := newLeaseServer(1000).byHand(t)
	for i := range returnsWaiting + 2 {
		c.returns.add(&leaseReturn{id: fmt.Sprint(i), until: c.clock.Now()})
	}
	c.returns.mu.Lock()
	waiting := c.returns.waiting
	c.returns.waiting = nil
	c.returns.mu.Unlock()
	if len(waiting) != returnsWaiting || waiting[0].id != "2" {
		t.Errorf("%d wait, from %s on", len(waiting), waiting[0].id)
	}
}

// A hangingServer is a transport that accepts returns when gate is closed.
type hangingServer struct {
	leaseServer
	sent atomic.Int64
}

func (s *hangingServer) RoundTrip(r *http.Request) (*http.Response, error) {
	<-s.gate
	s.sent.Add(1)
	return s.respond(204, "", ""), nil
}

// While all places are taken by requests that hang, Close takes back the returns that the
// background could not begin, starts no other background, and sends each.
func TestCloseSendsReturnsBehindHangingRequests(t *testing.T) {
	const more = 4
	s := &hangingServer{leaseServer: leaseServer{gate: make(chan struct{})}}
	release := sync.OnceFunc(func() { close(s.gate) })
	defer release()
	c, clock := s.byHand(t, WithTransport(s))
	r := c.returns
	r.every = time.Millisecond
	for i := range returnsInFlight + more {
		r.waiting = append(r.waiting, &leaseReturn{id: fmt.Sprint(i), until: clock.Now().Add(time.Hour)})
	}
	r.mu.Lock()
	r.start()
	first := r.stop
	r.mu.Unlock()
	awaitReturns(t, r, func() bool { return len(r.places) == returnsInFlight && len(r.waiting) == 0 })
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		c.Close()
	}()
	awaitReturns(t, r, func() bool { return r.stop != first && (r.stop != nil || len(r.waiting) == more) })
	r.mu.Lock()
	if r.stop != nil {
		t.Error("another background runs while Close waits")
	}
	r.mu.Unlock()
	release()
	<-closed
	if n := s.sent.Load(); n != returnsInFlight+more {
		t.Errorf("%d returns are sent before Close returns", n)
	}
}

// awaitReturns waits until a condition holds, under the lock.
func awaitReturns(t *testing.T, r *returns, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		r.mu.Lock()
		held := holds()
		r.mu.Unlock()
		if held {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("not in time")
		}
	}
}
