package load

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Plan is how long to send requests, and on how many connections.
type Plan struct {
	Connections int
	Warm        time.Duration // how long to send requests before the measured part
	Measure     time.Duration
	// Skip is how late a request of an open loop may be sent; 0: however late it is. With more load
	// than the driver itself can send, the measured part would otherwise end before the requests of
	// the warm-up are sent.
	Skip time.Duration
	// Begin and End are called at the beginning and the end of the measured part, to read other
	// clocks.
	Begin, End func()
}

// grace is how long to wait for responses after the end of a run.
const grace = 10 * time.Second

const (
	warming int32 = iota
	measuring
	over
)

// asker sends a request and waits for the response.
type asker interface {
	ask(r *Request) (answer, error)
	close()
}

// Closed sends requests on all connections. Each connection sends its next request after the
// response to the previous one.
func Closed(ctx context.Context, target Target, traffic *Traffic, plan Plan) (*Result, error) {
	askers, err := connect(ctx, target, plan)
	if err != nil {
		return nil, err
	}
	var closing sync.Once
	closeAll := func() {
		closing.Do(func() {
			for _, a := range askers {
				a.close()
			}
		})
	}
	defer closeAll()
	defer context.AfterFunc(ctx, closeAll)() // ends the wait for responses too

	var phase atomic.Int32
	results := make([]*Result, len(askers))
	errs := make([]error, len(askers))
	var workers, first sync.WaitGroup
	first.Add(len(askers))
	for i, a := range askers {
		results[i] = NewResult()
		workers.Go(func() { errs[i] = work(a, traffic.picker(i), first.Done, &phase, results[i]) })
	}
	first.Wait() // so that all connections exist when the warm-up begins
	total := NewResult()
	total.Elapsed = plan.run(ctx, &phase)
	workers.Wait()
	if err := firstError(append([]error{ctx.Err()}, errs...)); err != nil {
		return nil, fmt.Errorf("closed loop on %s: %w", target.Addrs, err)
	}
	for _, r := range results {
		total.merge(r)
	}
	return total, nil
}

// firstError returns only one error: if one connection fails, the others mostly fail in the same
// way.
func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// run goes through the phases and returns the duration of the measured one.
func (p Plan) run(ctx context.Context, phase *atomic.Int32) time.Duration {
	defer phase.Store(over)
	if !pause(ctx, p.Warm) {
		return 0
	}
	p.Begin()
	begin := time.Now()
	phase.Store(measuring)
	pause(ctx, p.Measure)
	phase.Store(over)
	elapsed := time.Since(begin)
	p.End()
	return elapsed
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// work sends requests until the run is over, and counts the responses in the measured phase. It
// calls asked after the first response.
func work(a asker, next func() *Request, asked func(), phase *atomic.Int32, result *Result) error {
	_, err := a.ask(next())
	asked()
	if err != nil {
		return err
	}
	result.Asked++
	sent := time.Now()
	for {
		reply, err := a.ask(next())
		if err != nil {
			return err
		}
		now := time.Now()
		result.Asked++
		switch phase.Load() {
		case measuring:
			result.count(reply, now.Sub(sent))
		case over:
			return nil
		}
		sent = now
	}
}

func connect(ctx context.Context, target Target, plan Plan) ([]asker, error) {
	if target.Protocol == HTTP2 {
		return http2Askers(target, plan.Connections), nil
	}
	end := time.Now().Add(plan.Warm + plan.Measure + grace)
	if target.Protocol == GRPC {
		return grpcAskers(ctx, target, plan.Connections, end)
	}
	var askers []asker
	for i := range plan.Connections {
		c, err := dial(ctx, target, i, end)
		if err != nil {
			for _, a := range askers {
				a.close()
			}
			return nil, err
		}
		askers = append(askers, &http1Asker{c: c, dial: func() (*http1, error) { return dial(ctx, target, i, end) }})
	}
	return askers, nil
}

// http1Asker opens a new connection when the server closes it, as it does after some refusals.
type http1Asker struct {
	dial func() (*http1, error)

	mu     sync.Mutex // of what follows; held only to change connections
	c      *http1
	closed bool
}

func (a *http1Asker) ask(r *Request) (answer, error) {
	if a.c.last {
		if err := a.redial(); err != nil {
			return answer{}, err
		}
	}
	if err := a.c.send(r); err != nil {
		return answer{}, err
	}
	return a.c.receive()
}

func (a *http1Asker) redial() error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.c.Close()
	if a.c = c; a.closed {
		_ = c.Close()
	}
	return nil
}

func (a *http1Asker) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	_ = a.c.Close() // nothing can be lost any more
}
