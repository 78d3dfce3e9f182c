package weir

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/weir-dev/weir-go/internal/scripted"
)

// A play is a case that is being executed.
type play struct {
	t        *testing.T
	c        suiteCase
	server   *scriptedServer
	client   *Client
	clock    *fakeClock
	warnings *countingHandler
	started  map[string]*startedCall
	lease    *Lease
}

func newPlay(t *testing.T, fixtures map[string]fixture, c suiteCase) *play {
	p := &play{t: t, c: c, clock: newFakeClock(), warnings: &countingHandler{}, started: map[string]*startedCall{}}
	p.server = newScripted(t, fixtures, c.Server, c.ServerUp == nil || *c.ServerUp)
	options := append(c.Options.options(), WithLogger(slog.New(p.warnings)), withClock(p.clock))
	client, err := New("http://"+p.server.Address, "weir_test_key", options...)
	must(t, err)
	p.client = client
	client.returns.every = time.Hour // the cases inspect leases on the virtual clock
	if client.leased != nil {
		client.leased.every = time.Hour
	}
	t.Cleanup(client.Close)
	return p
}

func (p *play) run() {
	for i, s := range p.c.Steps {
		p.step(fmt.Sprintf("step %d", i), s)
		if p.t.Failed() {
			return
		}
	}
	if n := p.server.Unmet(); n > 0 {
		p.t.Errorf("%d actions of the script met no request", n)
	}
}

func (p *play) step(name string, s step) {
	p.t.Helper()
	switch {
	case s.Start != "":
		ctx, cancel := context.WithCancel(context.Background())
		call := &startedCall{cancel: cancel, done: make(chan struct{})}
		p.started[s.Start] = call
		go func() {
			defer close(call.done)
			call.result = p.call(ctx, s.Call, s.Args)
		}()
	case s.Call == "with_lease":
		r := p.withLease(name, s)
		p.compare(name, s.Expect, &r)
	case s.Lease != nil:
		d, err := p.lease.Check(context.Background(), s.Lease.Cost)
		p.compare(name, s.Expect, &callResult{decisions: []Decision{d}, err: err})
	case s.Call != "":
		for i := range max(1, s.Repeat) {
			r := p.call(context.Background(), s.Call, s.Args)
			p.compare(fmt.Sprintf("%s, call %d", name, i), s.Expect, &r)
		}
	case s.Join != "":
		call := p.started[s.Join]
		select {
		case <-call.done:
		case <-time.After(patience):
			p.t.Fatalf("%s: %s does not end", name, s.Join)
		}
		call.cancel()
		p.compare(name, s.Expect, &call.result)
	case s.Cancel != "":
		p.started[s.Cancel].cancel()
	case s.AwaitRequests > 0:
		p.server.await(s.AwaitRequests)
	case s.AwaitWaiting > 0:
		p.awaitWaiting(s.AwaitWaiting)
	case s.Release:
		p.server.Release()
	case s.Settle:
		p.settle()
	case s.Inspect:
		if p.client.leased != nil {
			p.client.leased.inspect(p.clock.Now(), false)
		}
		p.client.returns.round(nil)
		p.settle()
	case s.Close:
		p.client.Close()
		if s.Expect != nil {
			p.compare(name, s.Expect, nil)
		}
	case s.AdvanceMS > 0:
		p.clock.advance(time.Duration(s.AdvanceMS) * time.Millisecond)
	case s.Server == "down":
		p.server.Down()
		p.client.transport.(*http.Transport).CloseIdleConnections()
	case s.Server == "up":
		p.server.up()
	case s.Expect != nil:
		p.compare(name, s.Expect, nil)
	default:
		p.t.Fatalf("%s: unknown step", name)
	}
}

func (p *play) withLease(name string, s step) callResult {
	var args struct {
		suiteCheck
		Units int64 `json:"units"`
	}
	must(p.t, scripted.Strict(s.Args, &args))
	err := p.client.WithLease(context.Background(), args.check(p.t), args.Units, func(l *Lease) error {
		p.lease = l
		for i, inner := range s.Steps {
			p.step(fmt.Sprintf("%s, step %d", name, i), inner)
		}
		return nil
	})
	return callResult{err: err}
}

// awaitWaiting polls, because the batcher does not report how many checks wait.
func (p *play) awaitWaiting(n int) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		p.client.batcher.mu.Lock()
		waiting := len(p.client.batcher.waiting)
		p.client.batcher.mu.Unlock()
		if waiting == n {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%d of %d checks wait", waiting, n)
		}
	}
}

// settle polls until no request of leases is under way, because no caller waits for them.
func (p *play) settle() {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		busy := len(p.client.returns.places)
		if l := p.client.leased; l != nil {
			busy += l.busy()
		}
		if busy == 0 {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%d requests of leases do not end", busy)
		}
	}
}

// busy returns the number of requests for units that are under way, or will be.
func (l *leases) busy() (busy int) {
	busy = len(l.queue) + len(l.places)
	for i := range l.shards {
		if sets := l.shards[i].Load(); sets != nil {
			for _, set := range *sets {
				if set.busy.Load() {
					busy++
				}
			}
		}
	}
	return busy
}

func (p *play) call(ctx context.Context, name string, raw json.RawMessage) callResult {
	var args suiteArgs
	if err := scripted.Strict(raw, &args); err != nil {
		p.t.Errorf("args: %v", err)
		return callResult{}
	}
	ctx = ContextWithTraceparent(ctx, args.Traceparent)
	slept := p.clock.slept()
	var r callResult
	var d Decision
	switch name {
	case "check":
		d, r.err = p.client.Check(ctx, args.check(p.t))
	case "peek":
		d, r.err = p.client.Peek(ctx, args.check(p.t))
	case "explain":
		d, r.err = p.client.Explain(ctx, args.check(p.t))
	case "wait":
		var deadline time.Time
		if args.MaxWaitMS != nil {
			deadline = p.clock.Now().Add(time.Duration(*args.MaxWaitMS) * time.Millisecond)
		}
		d, r.err = p.client.waitUntil(ctx, args.check(p.t), deadline, args.MaxWaitMS != nil)
	case "batch":
		var checks []Check
		for _, entry := range expand(p.t, args.Checks).([]any) {
			encoded, err := json.Marshal(entry)
			must(p.t, err)
			var check suiteCheck
			must(p.t, scripted.Strict(encoded, &check))
			checks = append(checks, check.check(p.t))
		}
		r.decisions, r.err = p.client.CheckBatch(ctx, checks)
	default:
		p.t.Errorf("unknown call %q", name)
	}
	if name != "batch" {
		r.decisions = []Decision{d}
	}
	r.slept = p.clock.slept()[len(slept):]
	return r
}
