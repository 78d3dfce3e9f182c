package load

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
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
		plan: plan, next: traffic.picker(0), dial: dial, result: NewResult(),
		plannedWarm: schedule{rate: rate}.count(plan.Warm),
		planned:     schedule{rate: rate}.count(plan.Warm + plan.Measure),
	}
	o.rate = rate
	o.took = make([]time.Duration, o.planned)
	return o
}

func (o *openLoop) run(ctx context.Context, target Target) (*Result, error) {
	plan := o.plan
	target.sockets = true
	defer o.close()
	defer o.shutdown() // before close, which a concurrent shutdown must not follow
	var err error
	if o.poller, err = newPoller(); err != nil {
		return nil, err
	}
	end := time.Now().Add(plan.Warm + plan.Measure + grace)
	for i := range plan.Connections {
		c, err := o.dial(ctx, target, i, end)
		if err != nil {
			return nil, err
		}
		o.conns = append(o.conns, &openConn{http1: c})
		if err := o.poller.add(c.socket, i); err != nil {
			return nil, err
		}
	}
	o.free = make(chan *openConn, len(o.conns))
	for _, c := range o.conns {
		o.free <- c
	}
	if err := awaitStamps(ctx); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, o.shutdown)()

	o.start = time.Now().Add(time.Millisecond)
	var marks sync.WaitGroup
	marks.Go(func() { o.mark(ctx) })
	err = o.exchange(ctx, end)
	if err != nil {
		err = fmt.Errorf("open loop on %s: %w", target.Addrs, firstError([]error{ctx.Err(), err}))
	}
	marks.Wait()
	if err != nil {
		return nil, err
	}
	replay(o.schedule, o.took, plan.Connections, func(i int64, latency time.Duration) {
		if i >= o.plannedWarm {
			record(o.result.served, latency)
		}
	})
	o.result.Elapsed = plan.Measure
	return o.result, nil
}

// replay computes the latencies that a driver would have measured that is never late. It sends each
// request when it is due, or when the first of the connections becomes free, and the server takes
// as long as it took in the measurement, from the write of the request to the arrival of the
// response. So all of the driver's lateness is left out, in sending, in reading, and in the use of
// connections that were free. A stall of the server still counts for all requests that were due
// during it: it keeps the connections busy in the replay, too.
//
// The figures hold as far as the server would have taken as long for a request at the time at which
// it was due. If the driver is late, the server gets requests in bursts, which takes it longer. If
// the driver is late because the server uses all cores, a request misses that time of the server.
// So the lateness should be small compared with what the figures are used for.
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
	// arrival of the response; 0 if it was not sent.
	took    []time.Duration
	result  *Result
	poller  *poller
	conns   []*openConn
	free    chan *openConn // a queue of those without a request in progress, for this thread only
	closing sync.Once
}

// openConn is a connection.
type openConn struct {
	*http1
	busy    bool // has a request in progress
	request int64
	at      time.Time // when it was due
	wrote   int64     // realtime before it was written
}

// shutdown ends all connections.
func (o *openLoop) shutdown() {
	o.closing.Do(func() {
		for _, c := range o.conns {
			c.socket.shutdown()
		}
	})
}

func (o *openLoop) close() {
	for _, c := range o.conns {
		_ = c.socket.Close() // it returns no error
	}
	if o.poller != nil {
		o.poller.close()
	}
}

// burst is how many requests are sent at most before responses are read.
const burst = 8

// exchange sends each request when it is due, and reads the responses. It has its own thread:
// timers of the runtime are up to a millisecond late, those of the kernel about 60 µs.
func (o *openLoop) exchange(ctx context.Context, end time.Time) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer hurry()()
	giveUp := o.start.Add(o.plan.Warm + o.plan.Measure + time.Second)
	for i := int64(0); ctx.Err() == nil; {
		until := end
		if i < o.planned {
			at := o.at(i)
			late := time.Since(at)
			switch {
			case late < 0:
				until = at
			case o.plan.Skip > 0 && late > o.plan.Skip:
				skipped := min(o.count(late), o.planned-i)
				o.result.Skipped += max(0, min(skipped, i+skipped-o.plannedWarm))
				i += skipped
				continue
			case len(o.free) > 0:
				if err := o.send(i, at); err != nil {
					return err
				}
				if i++; i%burst != 0 {
					continue
				}
				until = at // has passed, so this only reads what has arrived
			case time.Now().After(giveUp):
				o.giveUp(max(i, o.plannedWarm))
				i = o.planned
				continue
			default:
				until = giveUp
			}
		} else if len(o.free) == len(o.conns) {
			return nil
		} else if time.Now().After(end) {
			return os.ErrDeadlineExceeded
		}
		ready, err := o.poller.wait(until)
		if err != nil {
			return err
		}
		for _, e := range ready {
			if c := o.conns[e.Fd]; c.busy {
				if err := o.receive(c); err != nil {
					return err
				}
			}
		}
	}
	return ctx.Err()
}

func (o *openLoop) send(i int64, at time.Time) error {
	c := <-o.free
	request := o.next()
	if i >= o.plannedWarm {
		record(o.result.late, time.Since(at))
	}
	c.busy, c.request, c.at, c.wrote = true, i, at, realtime()
	return c.send(request)
}

func (o *openLoop) receive(c *openConn) error {
	a, err := c.receive()
	if err != nil {
		return err
	}
	if c.last {
		return errors.New("load: the server closes the connection")
	}
	latency, arrived := time.Since(c.at), c.socket.arrived
	if arrived == 0 {
		arrived = realtime()
	}
	o.took[c.request] = max(1, time.Duration(arrived-c.wrote))
	o.result.Asked++
	if c.request >= o.plannedWarm {
		o.result.count(a, latency)
		if c.socket.arrived == 0 {
			o.result.Unstamped++
		}
	}
	c.busy = false
	o.free <- c
	return nil
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
func (o *openLoop) giveUp(i int64) {
	for now := time.Now(); i < o.planned; i++ {
		o.result.Unsent++
		wait := now.Sub(o.at(i))
		record(o.result.latency, wait)
		record(o.result.served, wait) // it is the server that freed no connection
	}
}
