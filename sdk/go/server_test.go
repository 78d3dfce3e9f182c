//go:build server

package weir

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// These tests ask a real server. In the repository of Weir, make test-clients runs them;
// tests/withserver starts the server and sets the environment.

func environment(t *testing.T, name string) string {
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set: run make test-clients", name)
	}
	return value
}

// realClient returns a client of the real server. Its timeout is long, so that no test of decisions
// fails on a busy machine.
func realClient(t *testing.T, options ...Option) *Client {
	options = append([]Option{WithTimeout(patience), WithConnectTimeout(patience), WithLogger(quiet())}, options...)
	client, err := New(environment(t, "WEIR_TEST_URL"), environment(t, "WEIR_TEST_KEY"), options...)
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

// admin calls the admin API, and returns its answer.
func admin(t *testing.T, method, path, body string) string {
	t.Helper()
	r, err := http.NewRequest(method, environment(t, "WEIR_TEST_URL")+path, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+environment(t, "WEIR_TEST_KEY"))
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	must(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	must(t, err)
	if response.StatusCode >= 300 {
		t.Fatalf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	return string(answer)
}

// rule creates a rule for one resource and returns when it is active on the server.
func rule(t *testing.T, client *Client, slug, fields string) {
	t.Helper()
	admin(t, http.MethodPut, "/v1/rules/"+slug, `{"resource":"`+slug+`",`+fields+`}`)
	eventually(t, "rule "+slug, func() bool {
		d, err := client.Peek(context.Background(), Check{Subject: "peek", Resource: slug})
		return err == nil && d.Rule == slug
	})
}

// eventually polls, because clients are not notified of new rules.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func TestServerDecides(t *testing.T) {
	client, ctx := realClient(t), context.Background()
	rule(t, client, "go-decides", `"limit":2,"window":"1h","algorithm":"fixed_window_first_hit"`)
	check := Check{Subject: "user_42", Resource: "go-decides"}
	for left := int64(1); left >= 0; left-- {
		d, err := client.Check(ctx, check)
		if err != nil || !d.Allowed || d.Source != SourceServer || d.Rule != "go-decides" || d.Limit != N(2) || d.Remaining != N(left) ||
			len(d.Rules) != 1 || d.Rules[0].WindowMS != N(3_600_000) || d.Headers.Remaining != strconv.FormatInt(left, 10) || d.Headers.RateLimit == "" {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	d, err := client.Check(ctx, check)
	wait, known := d.RetryAfter()
	if err != nil || d.Allowed || d.Source != SourceServer || d.Denial == nil || d.Denial.Code != CodeRateLimitExceeded || !known || wait <= 0 || d.Headers.RetryAfter == "" {
		t.Fatalf("%+v, %v", d, err)
	}
	if d, err = client.Check(ctx, check); err != nil || d.Allowed || d.Source != SourceMemory {
		t.Fatalf("the denial is not remembered: %+v, %v", d, err)
	}
	never, err := client.Check(ctx, Check{Subject: "user_43", Resource: "go-decides", Cost: 3})
	if err != nil || never.Allowed || never.RetryAfterMS.Known || never.Denial.Code != CodeCostExceedsLimit {
		t.Fatalf("%+v, %v", never, err)
	}
	explained, err := client.Explain(ctx, Check{Subject: "user_44", Resource: "elsewhere"})
	if err != nil || !explained.Allowed || len(explained.Skipped) == 0 {
		t.Fatalf("%+v, %v", explained, err)
	}
	peeked, err := client.Peek(ctx, Check{Subject: "user_44", Resource: "go-decides"})
	if err != nil || peeked.Remaining != N(2) {
		t.Fatalf("explain or peek has taken units: %+v, %v", peeked, err)
	}
}

func TestServerBatches(t *testing.T) {
	client, ctx := realClient(t), context.Background()
	rule(t, client, "go-batches", `"limit":2,"window":"1h","algorithm":"fixed_window_first_hit"`)
	check := Check{Subject: "user_42", Resource: "go-batches"}
	decisions, err := client.CheckBatch(ctx, []Check{check, check, check, {Subject: "größe \"42\"", Resource: "go-batches"}})
	must(t, err)
	for i, allowed := range []bool{true, true, false, true} {
		if decisions[i].Allowed != allowed || decisions[i].NoDecision != nil || decisions[i].Headers.Limit != "2" {
			t.Errorf("check %d: %+v", i, decisions[i])
		}
	}
	if decisions[3].Subject != "größe \"42\"" || decisions[2].Headers.RetryAfter == "" {
		t.Errorf("%+v, %+v", decisions[2], decisions[3])
	}
}

// With any number of callers, with or without batching, a limit of 100 allows exactly 100.
func TestServerNeverExceedsWithManyCallers(t *testing.T) {
	for name, options := range map[string][]Option{"go-callers": nil, "go-callers-batching": {WithBatching()}} {
		t.Run(name, func(t *testing.T) {
			client := realClient(t, options...)
			rule(t, client, name, `"limit":100,"window":"1h","algorithm":"fixed_window_first_hit"`)
			var allowed, undecided atomic.Int64
			var callers sync.WaitGroup
			for range 50 {
				callers.Add(1)
				go func() {
					defer callers.Done()
					for range 5 {
						d, err := client.Check(context.Background(), Check{Subject: "user_42", Resource: name})
						switch {
						case err != nil || d.NoDecision != nil:
							undecided.Add(1)
						case d.Allowed:
							allowed.Add(1)
						}
					}
				}()
			}
			callers.Wait()
			if allowed.Load() != 100 || undecided.Load() != 0 {
				t.Errorf("%d allowed, %d undecided", allowed.Load(), undecided.Load())
			}
		})
	}
}

// A block that lasts longer than the server has the record of its lease loses nothing: when the
// time of the lease is over, its units are returned and its checks are in usage.
func TestServerCountsLongBlocks(t *testing.T) {
	clock := newFakeClock()
	client, ctx := realClient(t, withClock(clock)), context.Background()
	client.returns.every = time.Hour
	rule(t, client, "go-long-block", `"limit":1000,"window":"30d","algorithm":"fixed_window","consistency":"leased"`)
	check := Check{Subject: fmt.Sprint("user_", time.Now().UnixNano()), Resource: "go-long-block"}
	must(t, client.WithLease(ctx, check, 100, func(l *Lease) error {
		for range 10 {
			if d, err := l.Check(ctx, 2); err != nil || d.Source != SourceLease {
				t.Fatal(d.Source, err)
			}
		}
		if d, err := client.Peek(ctx, check); err != nil || d.Remaining != N(900) {
			t.Errorf("before its end: %+v, %v", d.Remaining, err)
		}
		clock.advance(20 * time.Second) // of the client: the server still has the record
		client.returns.round(nil)
		client.returns.await()
		if d, err := client.Peek(ctx, check); err != nil || d.Remaining != N(980) {
			t.Errorf("after its end: %+v, %v", d.Remaining, err)
		}
		return nil
	}))
	eventually(t, "20 units in usage", func() bool {
		usage := admin(t, http.MethodGet, "/v1/usage?grain=day&resource=go-long-block", "")
		return strings.Contains(usage, `"cost_allowed":20,`)
	})
}

func TestServerFindsMisuse(t *testing.T) {
	client, ctx := realClient(t, WithBatching()), context.Background()
	_, err := client.Check(ctx, Check{Subject: "user_42", Plan: "platinum"})
	if m, ok := err.(*MisuseError); !ok || m.Status != 422 || m.Code != "UNKNOWN_PLAN" || m.Field != "/plan" || m.RequestID == "" {
		t.Errorf("unknown plan: %v", err)
	}
	_, err = client.CheckBatch(ctx, []Check{{Subject: "user_42"}, {Subject: "user_42", Plan: "platinum"}})
	if m, ok := err.(*MisuseError); !ok || m.Status != 422 || m.Field != "/checks/1/plan" {
		t.Errorf("unknown plan in a batch: %v", err)
	}
	unknown, err := New(environment(t, "WEIR_TEST_URL"), "weir_nonsense", WithTimeout(patience))
	must(t, err)
	defer unknown.Close()
	_, err = unknown.Check(ctx, Check{Subject: "user_42"})
	if m, ok := err.(*MisuseError); !ok || m.Status != 401 || m.Code != "MALFORMED_KEY" {
		t.Errorf("wrong key: %v", err)
	}
	lost, err := New(environment(t, "WEIR_TEST_URL")+"/elsewhere", environment(t, "WEIR_TEST_KEY"), WithTimeout(patience))
	must(t, err)
	defer lost.Close()
	_, err = lost.Check(ctx, Check{Subject: "user_42"})
	if m, ok := err.(*MisuseError); !ok || m.Status != 404 {
		t.Errorf("wrong URL: %v", err)
	}
}

// The client and the server must agree on which values are valid.
func TestServerAgreesOnWhatIsValid(t *testing.T) {
	client, ctx := realClient(t), context.Background()
	long := strings.Repeat("a", maxNameBytes)
	for i, valid := range []Check{
		{Subject: long, Resource: strings.Repeat("é", 128), Cost: maxCost}, {Subject: " \u00a0\u2028\u200b\ufeff🙂 "},
		{Subject: "user_42", Attributes: map[string]string{strings.Repeat("n", maxAttributeName): long, "A-z.0_9": "v"}},
		{Subject: "user_42", IdempotencyKey: "!~" + strconv.FormatInt(time.Now().UnixNano(), 10)},
	} {
		if d, err := client.Check(ctx, valid); err != nil || d.NoDecision != nil {
			t.Errorf("%d: %+v, %v", i, d, err)
		}
	}
	for i, wrong := range []Check{
		{Subject: ""}, {Subject: long + "a"}, {Subject: "a\nb"}, {Subject: "a\u0080b"}, {Subject: "a\u009fb"}, {Subject: "a\x7fb"},
		{Subject: "a", Resource: "\t"}, {Subject: "a", Attributes: map[string]string{"subject": "b"}}, {Subject: "a", Attributes: map[string]string{"a b": "c"}},
		{Subject: "a", Attributes: map[string]string{"a": ""}}, {Subject: "a", Cost: maxCost + 1},
	} {
		_, err := ask(wrong, false)
		q := question{Check: wrong}
		if q.Resource == "" {
			q.Resource = defaultResource
		}
		_, refused := client.sendCheck(ctx, &q)
		m, ok := refused.(*MisuseError)
		if err == nil || !ok || m.Status != 422 || m.Field != err.Field {
			t.Errorf("%d: the client says %v, the server %v", i, err, refused)
		}
	}
}

// The same key counts once, even if the first answer was lost.
func TestServerReplaysIdempotentChecks(t *testing.T) {
	client, ctx := realClient(t), context.Background()
	rule(t, client, "go-idempotent", `"limit":5,"window":"1h","algorithm":"fixed_window_first_hit"`)
	check := Check{Subject: "user_42", Resource: "go-idempotent", IdempotencyKey: fmt.Sprint("k-", time.Now().UnixNano())}
	for i := range 4 {
		d, err := client.Check(ctx, check)
		if err != nil || !d.Allowed || d.NoDecision != nil || d.Remaining != N(4) || d.Replayed != (i > 0) {
			t.Fatalf("%d: %+v, %v", i, d, err)
		}
	}
}

func TestServerMakesWaitersWait(t *testing.T) {
	client := realClient(t)
	rule(t, client, "go-waits", `"limit":10,"window":"1s","burst":1,"algorithm":"token_bucket"`)
	rule(t, client, "go-queues", `"limit":20,"window":"1s","burst":5,"algorithm":"leaky_bucket_queue"`)
	for _, resource := range []string{"go-waits", "go-queues"} {
		for i := range 3 {
			began := time.Now()
			d, err := client.Wait(context.Background(), Check{Subject: "user_42", Resource: resource})
			if err != nil || !d.Allowed || d.NoDecision != nil || time.Since(began) < d.Delay() {
				t.Errorf("%s %d: %+v, %v", resource, i, d, err)
			}
		}
	}
}

func TestServerGuardsRequests(t *testing.T) {
	client := realClient(t)
	rule(t, client, "go-guards", `"limit":1,"window":"1h","algorithm":"fixed_window_first_hit"`)
	guard := Guard{Checker: client, Subject: func(*http.Request) string { return HashSubject("secret key of a customer") },
		Resource: func(*http.Request) string { return "go-guards" }}
	handler := guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, status := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusTooManyRequests} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != status || w.Header().Get("X-RateLimit-Limit") != "1" || (w.Header().Get("Retry-After") != "") != (status != http.StatusOK) {
			t.Errorf("status %d, want %d: %v", w.Code, status, w.Header())
		}
	}
}

// serverPid returns the current process id of the server.
func serverPid(t *testing.T) int {
	content, err := os.ReadFile(environment(t, "WEIR_TEST_PIDFILE"))
	must(t, err)
	pid, err := strconv.Atoi(string(content))
	must(t, err)
	return pid
}

// If a server hangs, callers wait for the timeout until the breaker opens, and then not at all.
// When the server answers again, decisions continue.
func TestServerHangs(t *testing.T) {
	client, ctx := realClient(t, WithTimeout(DefaultTimeout)), context.Background()
	pid := serverPid(t)
	resume := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	defer resume()
	eventually(t, "an open breaker", func() bool {
		var callers sync.WaitGroup
		for range breakerMinCalls { // concurrently, because this number must fail within a second
			callers.Add(1)
			go func() {
				defer callers.Done()
				if d, err := client.Check(ctx, Check{Subject: "user_42"}); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			}()
		}
		callers.Wait()
		return client.BreakerState() == BreakerOpen
	})
	if d, err := client.Check(ctx, Check{Subject: "user_42"}); err != nil || d.NoDecision == nil {
		t.Errorf("%+v, %v", d, err)
	}
	resume()
	eventually(t, "a decision", func() bool {
		d, err := client.Check(ctx, Check{Subject: "user_42"})
		return err == nil && d.Source == SourceServer
	})
}

// A server that is killed and restarted is used again by the same client.
func TestServerRestarts(t *testing.T) {
	client, ctx := realClient(t, WithOnFailure(Deny)), context.Background()
	decided := func() bool {
		d, err := client.Check(ctx, Check{Subject: "user_42"})
		if err != nil || d.Allowed != (d.NoDecision == nil) {
			t.Fatalf("%+v, %v", d, err)
		}
		return d.NoDecision == nil
	}
	eventually(t, "a decision", decided)
	pid := serverPid(t)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "no decision", func() bool { return !decided() })
	eventually(t, "another process", func() bool { return serverPid(t) != pid })
	eventually(t, "a decision", decided)
}

// The program of the README works as it stands.
func TestFirstCheck(t *testing.T) {
	program := exec.CommandContext(t.Context(), "go", "run", "./examples/first")
	program.Env = append(os.Environ(), "WEIR_URL="+environment(t, "WEIR_TEST_URL"), "WEIR_KEY="+environment(t, "WEIR_TEST_KEY"))
	out, err := program.CombinedOutput()
	must(t, err)
	if got := string(out); got != "allowed: true\n" {
		t.Error(got)
	}
}

// A customer writes the headers that the middleware reads. The server refuses requests with long
// headers, and a refused check would be answered by the fallback: without a limit.
func TestServerLongTraceparent(t *testing.T) {
	client := realClient(t)
	rule(t, client, "go-traceparent", `"limit":1,"window":"1h","algorithm":"fixed_window_first_hit"`)
	guard := &Guard{
		Checker: client, Subject: func(*http.Request) string { return "user_42" },
		Resource: func(*http.Request) string { return "go-traceparent" },
	}
	served := guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusTooManyRequests} {
		r := httptest.NewRequest(http.MethodGet, "/orders", nil)
		r.Header.Set("Traceparent", strings.Repeat("0", 30_000))
		answer := httptest.NewRecorder()
		served.ServeHTTP(answer, r)
		if answer.Code != want {
			t.Fatalf("request %d: %d, want %d", i, answer.Code, want)
		}
	}
	if state := client.BreakerState(); state != BreakerClosed {
		t.Fatal("the breaker is ", state)
	}
}
