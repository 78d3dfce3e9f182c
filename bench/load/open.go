package load

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// schedule says when the requests of an open loop are due: evenly spaced, whatever became of
// those before.
type schedule struct {
	start time.Time
	rate  int64 // a second
}

// at returns when request i is due. It is computed for each from the start, so no error
// accumulates.
func (s schedule) at(i int64) time.Time {
	whole, part := i/s.rate, i%s.rate
	return s.start.Add(time.Duration(whole)*time.Second + time.Duration(part*int64(time.Second)/s.rate))
}

// count returns how many requests are due in the first d.
func (s schedule) count(d time.Duration) int64 {
	whole, part := int64(d/time.Second), int64(d%time.Second)
	return whole*s.rate + (part*s.rate+int64(time.Second)-1)/int64(time.Second)
}

// Open sends rate requests a second over plain or secure HTTP/1.1, each at its own time on
// whichever connection is free. If none is, the request waits, and that wait is part of its
// latency: a server that stalls is charged for all that were due meanwhile, not only for the
// few that were out. What is still unsent at the end counts with the wait it had by then.
func Open(ctx context.Context, target Target, traffic *Traffic, rate int64, plan Plan) (*Result, error) {
	o := &openLoop{
		plan: plan, next: traffic.picker(0),
		plannedWarm: schedule{rate: rate}.count(plan.Warm),
		planned:     schedule{rate: rate}.count(plan.Warm + plan.Measure),
		free:        make(chan *openConn, plan.Connections),
	}
	end := time.Now().Add(plan.Warm + plan.Measure + grace)
	for i := range plan.Connections {
		c, err := dial(ctx, target, i, end)
		if err != nil {
			o.close()
			return nil, err
		}
		o.conns = append(o.conns, &openConn{http1: c, due: make(chan due, 1), result: NewResult()})
	}
	defer o.close()
	defer context.AfterFunc(ctx, o.close)()

	var readers sync.WaitGroup
	for _, c := range o.conns {
		o.free <- c
		readers.Go(func() { o.read(c) })
	}
	o.schedule = schedule{start: time.Now().Add(time.Millisecond), rate: rate}
	var marks sync.WaitGroup
	marks.Go(func() { o.mark(ctx) })
	total := NewResult()
	o.pace(ctx, total)
	marks.Wait()
	for _, c := range o.conns {
		close(c.due)
	}
	readers.Wait()
	if err := firstError([]error{ctx.Err(), o.err()}); err != nil {
		return nil, fmt.Errorf("open loop on %s: %w", target.Addrs, err)
	}
	for _, c := range o.conns {
		total.merge(c.result)
	}
	total.Elapsed = plan.Measure
	return total, nil
}

type openLoop struct {
	schedule
	plan        Plan
	next        func() *Request
	plannedWarm int64 // requests that are not counted
	planned     int64 // all requests
	conns       []*openConn
	free        chan *openConn
	failure     atomic.Pointer[error] // the first
	closing     sync.Once
}

// openConn is a connection; it is in free, or a request is out on it.
type openConn struct {
	*http1
	due    chan due // of the request that is out
	result *Result  // its reader's
}

type due struct {
	at      time.Time
	counted bool
}

func (o *openLoop) err() error {
	if err := o.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// fail notes the first error and ends the run.
func (o *openLoop) fail(err error) {
	o.failure.CompareAndSwap(nil, &err)
	o.close()
}

func (o *openLoop) close() {
	o.closing.Do(func() {
		for _, c := range o.conns {
			_ = c.Close() // nothing is left to be lost
		}
	})
}

// read takes the answers on one connection.
func (o *openLoop) read(c *openConn) {
	for d := range c.due {
		a, err := c.receive()
		if err != nil {
			o.fail(err)
			return
		}
		c.result.Asked++
		if d.counted {
			c.result.count(a, time.Since(d.at))
		}
		o.free <- c
	}
}

// pace sends each request at its time. It has a thread of its own: timers of the runtime are
// up to a millisecond late, the kernel's some 60 µs.
func (o *openLoop) pace(ctx context.Context, total *Result) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer hurry()()
	end := o.start.Add(o.plan.Warm + o.plan.Measure)
	timeout := time.NewTimer(time.Until(end) + time.Second)
	defer timeout.Stop()
	for i := int64(0); i < o.planned; i++ {
		at := o.at(i)
		sleepUntil(at)
		counted := i >= o.plannedWarm
		var c *openConn
		select {
		case c = <-o.free:
		default:
			select {
			case c = <-o.free:
			case <-ctx.Done():
				return
			case <-timeout.C:
				o.giveUp(max(i, o.plannedWarm), total)
				return
			}
		}
		if o.err() != nil {
			return
		}
		if counted {
			record(total.late, time.Since(at))
		}
		c.due <- due{at: at, counted: counted}
		if err := c.send(o.next()); err != nil {
			o.fail(err)
			return
		}
	}
}

// hurry lets this thread run before others that want to, so that requests are sent on time on a
// machine that is busy. It takes a privilege; without it, requests may be late, and that is part of
// what is shown. It returns what puts the thread back.
func hurry() (back func()) {
	const first = -15
	thread := unix.Gettid()
	if unix.Setpriority(unix.PRIO_PROCESS, thread, first) != nil {
		return func() {}
	}
	return func() { _ = unix.Setpriority(unix.PRIO_PROCESS, thread, 0) } // less is always allowed
}

// mark calls Begin and End at their times.
func (o *openLoop) mark(ctx context.Context) {
	if !pause(ctx, time.Until(o.start.Add(o.plan.Warm))) {
		return
	}
	o.plan.Begin()
	pause(ctx, time.Until(o.start.Add(o.plan.Warm+o.plan.Measure)))
	o.plan.End()
}

// giveUp counts the requests from i on as unsent, with what they have waited.
func (o *openLoop) giveUp(i int64, total *Result) {
	for now := time.Now(); i < o.planned; i++ {
		total.Unsent++
		record(total.latency, now.Sub(o.at(i)))
	}
}

// sleepUntil sleeps in the kernel, in short steps so that an interruption does no harm.
func sleepUntil(at time.Time) {
	for {
		d := time.Until(at)
		if d <= 0 {
			return
		}
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil) // interrupted: the loop sleeps the rest
	}
}
