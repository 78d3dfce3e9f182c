package weir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A silent server accepts connections, reads, and never answers.
func silentServer(t *testing.T) (address string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var all sync.WaitGroup
	all.Add(1)
	go func() {
		defer all.Done()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Add(1)
			go func() {
				defer all.Done()
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		all.Wait()
	})
	return listener.Addr().String()
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// openFiles returns the number of file descriptors of this process, including sockets.
func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // not Linux: only goroutines are counted
	}
	return len(entries)
}

// A thousand callers use a server that is hung, dead, slow, restarting, over quota, or answers
// nonsense. The fallback answers all of them, and no goroutine or socket remains.
func TestAThousandCallersLeaveNothingBehind(t *testing.T) {
	fixtures := readFixtures(t)
	hang := action{Fault: "hang"}
	soon := WithTimeout(200 * time.Millisecond)
	for name, server := range map[string]struct {
		does             action
		down             bool
		options          []Option
		keyed, cancelled bool
	}{
		"hung":                         {does: hang},
		"hung, batching":               {does: hang, options: []Option{WithBatching()}},
		"hung, no breaker":             {does: hang, options: []Option{WithoutBreaker()}},
		"hung, cancelled":              {does: hang, cancelled: true},
		"hung and with a key":          {does: hang, keyed: true},
		"hung within the answer":       {does: action{Use: "allowed", Fault: "hang_in_body"}, options: []Option{soon, WithoutBreaker()}},
		"dead":                         {down: true},
		"dead, batching":               {down: true, options: []Option{WithBatching()}},
		"dead, no breaker":             {down: true, options: []Option{WithoutBreaker()}},
		"dead and with a key":          {down: true, keyed: true},
		"slow":                         {does: action{Use: "allowed", Hold: true}, options: []Option{soon, WithoutBreaker()}},
		"slow, batching":               {does: action{Use: "allowed", Hold: true}, options: []Option{soon, WithoutBreaker(), WithBatching()}},
		"crashing":                     {does: action{Fault: "reset"}, options: []Option{WithoutBreaker()}},
		"crashing and with a key":      {does: action{Fault: "close"}, options: []Option{WithoutBreaker()}, keyed: true},
		"crashing within the answer":   {does: action{Use: "allowed", Fault: "cut_body"}, options: []Option{WithoutBreaker()}},
		"failing":                      {does: action{Use: "internal"}, options: []Option{WithoutBreaker()}},
		"over quota":                   {does: action{Use: "quota"}},
		"over quota, batching":         {does: action{Use: "quota"}, options: []Option{WithBatching()}},
		"answering nonsense":           {does: action{Fault: "garbage"}, options: []Option{WithoutBreaker()}},
		"answering another document":   {does: action{Status: 200, Body: json.RawMessage(`"<html>"`)}, options: []Option{WithoutBreaker()}},
		"answering nonsense, batching": {does: action{Fault: "garbage"}, options: []Option{WithoutBreaker(), WithBatching()}},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothingBehind(t, func(t *testing.T) {
				server.does.Repeat, server.does.Optional = 2*manyCallers, true // each is sent twice at most
				s := newScripted(t, fixtures, []action{server.does}, !server.down)
				client := newClient(t, s, server.options...)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				callers := callAll(t, ctx, client, server.keyed)
				if server.cancelled {
					cancel()
				}
				callers.Wait()
			})
		})
	}
}

const manyCallers = 1000

// All callers wait for a server that stops. The client is usable when it is back.
func TestAThousandCallersOfARestartingServerLeaveNothingBehind(t *testing.T) {
	for name, options := range map[string][]Option{"each alone": nil, "batching": {WithBatching()}} {
		t.Run(name, func(t *testing.T) {
			leavesNothingBehind(t, func(t *testing.T) {
				held := action{Use: "allowed", Hold: true, Repeat: 2 * manyCallers, Optional: true}
				s := newScripted(t, readFixtures(t), []action{held}, true)
				client := newClient(t, s, append(options, WithoutBreaker(), WithTimeout(patience))...)
				callers := callAll(t, context.Background(), client, false)
				if options == nil {
					s.await(manyCallers / 10)
				} else {
					s.await(1)
				}
				s.Down()
				callers.Wait()
				s.up()
				s.Release()
				if d, err := client.Check(context.Background(), Check{Subject: "user_42"}); err != nil || d.NoDecision != nil {
					t.Errorf("after the restart: %+v, %v", d, err)
				}
			})
		})
	}
}

// newClient returns a client that ends with its test.
func newClient(t *testing.T, s *scriptedServer, options ...Option) *Client {
	t.Helper()
	options = append([]Option{WithConnectTimeout(patience), WithLogger(quiet())}, options...)
	client, err := New("http://"+s.Address, "weir_test_key", options...)
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

// leavesNothingBehind fails if goroutines or sockets remain after a test.
func leavesNothingBehind(t *testing.T, test func(*testing.T)) {
	t.Helper()
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	t.Run("callers", test)
	// The transport closes its goroutines and sockets by itself, some time after the calls.
	deadline := time.Now().Add(patience)
	for runtime.NumGoroutine() > goroutines || openFiles(t) > files {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before; %d open files, %d before\n%s", runtime.NumGoroutine(), goroutines,
				openFiles(t), files, stacks[:runtime.Stack(stacks, true)])
		}
		time.Sleep(time.Millisecond)
	}
}

// callAll starts callers, each of which must get the answer of the fallback.
func callAll(t *testing.T, ctx context.Context, client *Client, keyed bool) *sync.WaitGroup {
	var callers sync.WaitGroup
	for i := range manyCallers {
		callers.Add(1)
		go func() {
			defer callers.Done()
			check := Check{Subject: fmt.Sprintf("user_%d", i)}
			if keyed {
				check.IdempotencyKey = fmt.Sprintf("key-%d", i)
			}
			d, err := client.Check(ctx, check)
			switch {
			case ctx.Err() != nil && errors.Is(err, context.Canceled):
			case err != nil:
				t.Errorf("caller %d: %v", i, err)
			case d.NoDecision == nil || !d.Allowed || d.Subject != check.Subject:
				t.Errorf("caller %d: %+v", i, d)
			}
		}()
	}
	return &callers
}

// If the caller's own deadline is shorter than the client's timeout, it ends the call, and does not
// count as a failure of the server.
func TestTheCallersDeadlineDoesNotOpenTheBreaker(t *testing.T) {
	for _, options := range [][]Option{nil, {WithBatching()}} {
		client, err := New("http://"+silentServer(t), "weir_test_key", append(options, WithLogger(quiet()), WithTimeout(patience))...)
		must(t, err)
		for range 30 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			d, err := client.Check(ctx, Check{Subject: "user_42"})
			cancel()
			if err != nil || d.NoDecision == nil || d.NoDecision.Cause != CauseTimeout {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		if state := client.BreakerState(); state != BreakerClosed {
			t.Errorf("the breaker is %s", state)
		}
		client.Close()
	}
}

// With batching and many callers, every caller gets the decision of its own check.
func TestBatchedCallersGetTheirOwnDecisions(t *testing.T) {
	var requests, checks atomic.Int64
	address := answeringServer(t, &requests, &checks)
	client, err := New("http://"+address, "weir_test_key", WithBatching(), WithTimeout(patience), WithLogger(quiet()))
	must(t, err)
	defer client.Close()
	const callers, each = 200, 20
	var all sync.WaitGroup
	for i := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := range each {
				subject := fmt.Sprintf("user_%d_%d", i, j)
				d, err := client.Check(context.Background(), Check{Subject: subject})
				if err != nil || d.NoDecision != nil || d.Subject != subject {
					t.Errorf("%s: %+v, %v", subject, d, err)
				}
			}
		}()
	}
	all.Wait()
	if checks.Load() != callers*each {
		t.Errorf("%d checks arrived, want %d", checks.Load(), callers*each)
	}
	if requests.Load() >= checks.Load() {
		t.Errorf("%d requests for %d checks: nothing travelled together", requests.Load(), checks.Load())
	}
}

// A panic of the application during a probe, in a hook or in its transport, must not leave the
// breaker waiting for the end of the probe: the fallback would answer all calls from then on.
func TestPanicDuringProbe(t *testing.T) {
	var requests, checks atomic.Int64
	client, err := New("http://"+answeringServer(t, &requests, &checks), "weir_test_key", WithTimeout(patience), WithConnectTimeout(patience))
	must(t, err)
	t.Cleanup(client.Close)
	fails := true
	client.hooks = []Hooks{{Inject: func(context.Context, http.Header) {
		if fails {
			panic("a hook of the application")
		}
	}}}
	ctx, check := context.Background(), Check{Subject: "user_42"}
	for name, call := range map[string]func() (Decision, error){
		"check": func() (Decision, error) { return client.Check(ctx, check) },
		"batch": func() (Decision, error) {
			decisions, err := client.CheckBatch(ctx, []Check{check})
			return decisions[0], err
		},
	} {
		client.brk.state, client.brk.probeFrom, fails = BreakerOpen, time.Time{}, true
		func() {
			defer func() { _ = recover() }() // as net/http does for a handler
			_, _ = call()
			t.Errorf("%s: no panic", name)
		}()
		fails = false
		d, err := call()
		if err != nil || d.Source != SourceServer || client.BreakerState() != BreakerClosed {
			t.Errorf("%s: the next call is answered by %s, the breaker is %s, %v", name, d.Source, client.BreakerState(), err)
		}
	}
}

// Hooks see each call with its result, may replace the context, and add headers.
func TestHooks(t *testing.T) {
	type key struct{}
	var calls []Call
	var results []Result
	var changes []BreakerState
	hooks := Hooks{
		Begin: func(ctx context.Context, call Call) (context.Context, func(Result)) {
			calls = append(calls, call)
			return context.WithValue(ctx, key{}, call.Name), func(r Result) { results = append(results, r) }
		},
		Inject:         func(ctx context.Context, h http.Header) { h.Set("Traceparent", ctx.Value(key{}).(string)) },
		BreakerChanged: func(_, to BreakerState) { changes = append(changes, to) },
	}
	p := newPlay(t, readFixtures(t), suiteCase{Server: []action{{Use: "allowed"}, {Use: "denied"}, {Use: "unknown_key"}, {Use: "internal", Repeat: 17}, {Use: "allowed"}}})
	p.client.hooks = []Hooks{{}, hooks}
	ctx := context.Background()
	_, _ = p.client.Check(ctx, Check{Subject: "a"})
	p.compareRequest("check", &requestPattern{Headers: map[string]*string{"Traceparent": &calls[0].Name}}, 0)
	_, _ = p.client.Peek(ctx, Check{Subject: "b"})
	_, _ = p.client.Explain(ctx, Check{Subject: "c"})
	_, _ = p.client.CheckBatch(ctx, []Check{{Subject: ""}})
	if len(calls) != 4 || len(results) != 4 {
		t.Fatalf("%d calls and %d results", len(calls), len(results))
	}
	for i, name := range []string{"check", "peek", "explain", "batch"} {
		if calls[i].Name != name || len(calls[i].Checks) != 1 {
			t.Errorf("%+v", calls[i])
		}
	}
	if !results[0].Decisions[0].Allowed || results[1].Decisions[0].Allowed || results[0].Duration <= 0 {
		t.Errorf("%+v, %+v", results[0], results[1])
	}
	var misuse *MisuseError
	if !errors.As(results[2].Err, &misuse) || !errors.As(results[3].Err, &misuse) || results[3].Decisions != nil {
		t.Errorf("%+v, %+v", results[2], results[3])
	}
	for p.client.BreakerState() == BreakerClosed {
		_, _ = p.client.Check(ctx, Check{Subject: "d"})
	}
	p.clock.advance(breakerProbeInterval)
	_, _ = p.client.Check(ctx, Check{Subject: "d"})
	if fmt.Sprint(changes) != "[open half_open closed]" {
		t.Errorf("the breaker went %v", changes)
	}
}

func TestErrorsReadWell(t *testing.T) {
	for want, err := range map[string]error{
		`weir: INVALID_REQUEST: subject is empty. Pass 1 to 256 bytes of UTF-8 without control characters. HashSubject shortens longer values and hides secrets.`: func() error { _, err := ask(Check{}, false); return err }(),
		`weir: status 404: the answer is not from Weir; check the URL`:                                                                                            &MisuseError{Status: 404},
		`weir: status 422: UNKNOWN_PLAN`:                                   &MisuseError{Status: 422, Code: "UNKNOWN_PLAN"},
		`weir: no decision: server_error, status 503, OVERLOADED`:          &NoDecision{Cause: CauseServerError, Status: 503, Code: "OVERLOADED"},
		`weir: no decision: timeout: the timeout of the client has passed`: &NoDecision{Cause: CauseTimeout, Err: errTimeout},
		`weir: denied: Rate limit exceeded.`:                               &DeniedError{Decision{Denial: &Denial{Message: "Rate limit exceeded."}}},
		`weir: denied`:                                                     &DeniedError{},
	} {
		if err.Error() != want {
			t.Errorf("%s\nwant %s", err, want)
		}
	}
}

// The zero decision, which a caller sees who ignores the error, denies.
func TestTheZeroDecisionDenies(t *testing.T) {
	p := newPlay(t, readFixtures(t), suiteCase{})
	if d, _ := p.client.Check(context.Background(), Check{}); d.Allowed {
		t.Error("misuse allows")
	}
}

// Memory and limits are bounded for any sequence of checks.
func TestMemoryIsBounded(t *testing.T) {
	m, l, now := newMemory(), newLocal(0.1), time.Now()
	denial := Decision{Source: SourceServer, RetryAfterMS: N(1000), Rules: []RuleDecision{{Rule: "api", Mode: "enforce", Limit: N(10), WindowMS: N(1000)}}}
	for i := range memoryEntries + 100 {
		q := question{Check: Check{Subject: fmt.Sprint("user_", i), Resource: fmt.Sprint("r", i), Cost: 1}}
		m.remember(&q, &denial, now)
		l.learn(&q, &denial)
		d := Decision{Allowed: true}
		l.decide(&q, &d, now)
		if _, found := m.recall(&q, now); !found {
			t.Fatal("the newest denial is not remembered")
		}
	}
	if len(m.entries) > memoryEntries || len(l.ofSubject) > localEntries || len(l.ofResource) > localEntries || len(l.counters) > localEntries {
		t.Errorf("%d denials, %d subjects, %d resources, %d counters", len(m.entries), len(l.ofSubject), len(l.ofResource), len(l.counters))
	}
	if m.held.Load() != int64(len(m.entries)) {
		t.Errorf("%d held, %d entries", m.held.Load(), len(m.entries))
	}
	q := question{Check: Check{Subject: "late", Cost: 1}}
	m.remember(&q, &denial, now.Add(2*time.Second))
	if len(m.entries) != 1 {
		t.Errorf("%d denials are left that have ended", len(m.entries)-1)
	}
}
