package load

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// schedule is the times at which the requests of an open loop are due: evenly spaced, regardless of
// the responses.
type schedule struct {
	start time.Time
	rate  int64 // per second
}

// at returns when request i is due. It is computed from the start for each request, so that errors
// do not accumulate.
func (s schedule) at(i int64) time.Time {
	seconds, part := i/s.rate, i%s.rate
	return s.start.Add(time.Duration(seconds)*time.Second + time.Duration(part*int64(time.Second)/s.rate))
}

// count returns how many requests are due in the first d.
func (s schedule) count(d time.Duration) int64 {
	seconds, part := int64(d/time.Second), int64(d%time.Second)
	return seconds*s.rate + (part*s.rate+int64(time.Second)-1)/int64(time.Second)
}

// Open sends rate requests per second over HTTP/1.1, with or without TLS, each at its own time on
// any free connection. If no connection is free, the request waits, and the wait is part of its
// latency: a stall of the server counts for all requests that were due during it, not only for the
// few that were sent. Requests that are unsent at the end count with their wait until then.
func Open(ctx context.Context, target Target, traffic *Traffic, rate int64, plan Plan) (*Result, error) {
	return newOpenLoop(traffic, rate, plan).run(ctx, target)
}

func newOpenLoop(traffic *Traffic, rate int64, plan Plan) *openLoop {
	o := &openLoop{
		plan: plan, next: traffic.picker(0), dial: dial,
		plannedWarm: schedule{rate: rate}.count(plan.Warm),
		planned:     schedule{rate: rate}.count(plan.Warm + plan.Measure),
		free:        make(chan *openConn, plan.Connections),
	}
	o.rate = rate
	o.took = make([]time.Duration, o.planned)
	return o
}

func (o *openLoop) run(ctx context.Context, target Target) (*Result, error) {
	plan := o.plan
	target.stamps = true
	defer o.close()
	end := time.Now().Add(plan.Warm + plan.Measure + grace)
	for i := range plan.Connections {
		c, err := o.dial(ctx, target, i, end)
		if err != nil {
			return nil, err
		}
		o.conns = append(o.conns, &openConn{http1: c, due: make(chan due, 1), result: NewResult()})
	}
	if err := awaitStamps(ctx); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, o.close)()

	var readers sync.WaitGroup
	for _, c := range o.conns {
		o.free <- c
		readers.Go(func() { o.read(c) })
	}
	o.start = time.Now().Add(time.Millisecond)
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
	replay(o.schedule, o.took, plan.Connections, func(i int64, latency time.Duration) {
		if i >= o.plannedWarm {
			record(total.served, latency)
		}
	})
	total.Elapsed = plan.Measure
	return total, nil
}

// replay computes the latencies that a driver would have measured that is never late. It sends each
// request when it is due, or when the first of the connections becomes free, and the server takes
// as long as it took in the measurement, from the write of the request to the arrival of the
// response. So all of the driver's lateness is left out, in sending, in reading, and in the use of
// connections that were free. A stall of the server still counts for all requests that were due
// during it: it keeps the connections busy in the replay, too.
func replay(s schedule, took []time.Duration, connections int, each func(i int64, latency time.Duration)) {
	free := make(times, connections) // when each connection becomes free; the earliest is the first
	for i, d := range took {
		if d == 0 {
			continue
		}
		at := s.at(int64(i)).Sub(s.start)
		free[0] = max(at, free[0]) + d
		each(int64(i), free[0]-at)
		heap.Fix(&free, 0)
	}
}

// times is a heap for replay.
type times []time.Duration

func (t times) Len() int           { return len(t) }
func (t times) Less(i, j int) bool { return t[i] < t[j] }
func (t times) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (times) Push(any)             {} // the number of connections does not change
func (times) Pop() any             { return nil }

type openLoop struct {
	schedule
	plan        Plan
	next        func() *Request
	dial        func(ctx context.Context, t Target, connection int, end time.Time) (*http1, error)
	plannedWarm int64 // requests that are not counted
	planned     int64 // all requests
	// took is for each request how long the server took, from the write of the request to the
	// arrival of the response; 0 if it was not sent. Each is written by the reader of its
	// connection.
	took    []time.Duration
	conns   []*openConn
	free    chan *openConn
	failure atomic.Pointer[error] // the first error
	closing sync.Once
}

// openConn is a connection. It is in free, or has a request in progress.
type openConn struct {
	*http1
	due    chan due     // of the request in progress
	wrote  atomic.Int64 // realtime before the request in progress was written
	result *Result      // of its reader
}

type due struct {
	request int64
	at      time.Time
	counted bool
}

// served returns how long the server took for the request whose response was read.
func (c *openConn) served() (took time.Duration, stamped bool) {
	arrived := c.stamps.arrived
	if stamped = arrived != 0; !stamped {
		arrived = realtime()
	}
	return max(1, time.Duration(arrived-c.wrote.Load())), stamped // 0 would mean that it was not sent
}

func (o *openLoop) err() error {
	if err := o.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// fail records the first error and ends the run.
func (o *openLoop) fail(err error) {
	o.failure.CompareAndSwap(nil, &err)
	o.close()
}

func (o *openLoop) close() {
	o.closing.Do(func() {
		for _, c := range o.conns {
			_ = c.Close() // nothing can be lost any more
		}
	})
}

// read reads the responses on one connection.
func (o *openLoop) read(c *openConn) {
	for d := range c.due {
		a, err := c.receive()
		if err == nil && c.last {
			err = errors.New("load: the server closes the connection")
		}
		if err != nil {
			o.fail(err)
			return
		}
		latency := time.Since(d.at)
		took, stamped := c.served()
		o.took[d.request] = took
		c.result.Asked++
		if d.counted {
			c.result.count(a, latency)
			if !stamped {
				c.result.Unstamped++
			}
		}
		o.free <- c
	}
}

// pace sends each request when it is due. It has its own thread: timers of the runtime are up to a
// millisecond late, those of the kernel about 60 µs.
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
		if late := time.Since(at); o.plan.Skip > 0 && late > o.plan.Skip {
			skipped := min(o.count(late), o.planned-i)
			total.Skipped += max(0, min(skipped, i+skipped-o.plannedWarm))
			i += skipped - 1
			continue
		}
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
		request := o.next()
		if counted {
			record(total.late, time.Since(at))
		}
		c.due <- due{request: i, at: at, counted: counted}
		c.wrote.Store(realtime())
		if err := c.send(request); err != nil {
			o.fail(err)
			return
		}
	}
}

// hurry raises the priority of this thread, so that requests are sent on time on a busy machine. It
// needs a privilege. Without it, requests may be late, and the result shows how late. back restores
// the priority.
func hurry() (back func()) {
	const first = -15
	thread := unix.Gettid()
	if unix.Setpriority(unix.PRIO_PROCESS, thread, first) != nil {
		return func() {}
	}
	return func() { _ = unix.Setpriority(unix.PRIO_PROCESS, thread, 0) } // lowering the priority is always allowed
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

// giveUp counts the requests from i on as unsent, with their wait so far.
func (o *openLoop) giveUp(i int64, total *Result) {
	for now := time.Now(); i < o.planned; i++ {
		total.Unsent++
		record(total.latency, now.Sub(o.at(i)))
		record(total.served, now.Sub(o.at(i))) // it is the server that freed no connection
	}
}

// sleepUntil sleeps in the kernel, in short steps, so that an interruption does no harm.
func sleepUntil(at time.Time) {
	for {
		d := time.Until(at)
		if d <= 0 {
			return
		}
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil) // after an interruption, the loop sleeps for the remaining time
	}
}
