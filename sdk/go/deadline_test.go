package weir

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// transported returns a client with a transport of the test, which ends each call.
func transported(t *testing.T, transport roundTrip, options ...Option) *Client {
	t.Helper()
	client, err := New("http://weir.invalid", "weir_test_key", append(options, WithTransport(transport), WithTimeout(time.Hour), WithLogger(quiet()))...)
	must(t, err)
	return client
}

// untilItsEnd is a server whose answer comes after the context has ended.
func untilItsEnd(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A guard does not run the handler if the context ends before the check, whatever the fallback
// says: nothing has decided.
func TestGuardRunsNoHandlerAfterTheContextEnds(t *testing.T) {
	expired, end := context.WithTimeout(context.Background(), 0)
	defer end()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	client := transported(t, untilItsEnd)
	late := func(context.Context, Check) (Decision, error) { return Decision{Allowed: true}, nil }
	failing := func(ctx context.Context, _ Check) (Decision, error) { return Decision{}, ctx.Err() }
	for name, c := range map[string]struct {
		ctx    context.Context
		check  func(context.Context, Check) (Decision, error)
		status int // of a recorder, 200 is no answer
	}{
		"deadline": {expired, client.Check, http.StatusServiceUnavailable},
		"deadline, from a checker that returns it": {expired, failing, http.StatusServiceUnavailable},
		"deadline, allowed too late":               {expired, late, http.StatusServiceUnavailable},
		"disconnected":                             {cancelled, client.Check, http.StatusOK},
		"disconnected, allowed too late":           {cancelled, late, http.StatusOK},
	} {
		guard := Guard{Checker: checkerFunc{check: c.check}, Subject: func(*http.Request) string { return "user_42" }, Logger: quiet()}
		w := httptest.NewRecorder()
		guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Errorf("%s: the handler runs", name)
		})).ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(c.ctx))
		if w.Code != c.status {
			t.Errorf("%s: status %d, want %d", name, w.Code, c.status)
		}
	}
}

// A checkerFunc is a Checker of which only Check is called.
type checkerFunc struct {
	Checker
	check func(context.Context, Check) (Decision, error)
}

func (c checkerFunc) Check(ctx context.Context, check Check) (Decision, error) {
	return c.check(ctx, check)
}

// A batch does not end with the deadlines of its callers: its end would count as a failure of the
// server, and customers who choose short deadlines would open the breaker for all.
func TestBatchesDoNotEndWithTheCallersDeadlines(t *testing.T) {
	first, release, batch := make(chan struct{}), make(chan struct{}), make(chan time.Time, 1)
	client := transported(t, func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/v1/check" {
			close(first)
			<-release
			return nil, errors.New("the first check gets no answer")
		}
		deadline, _ := r.Context().Deadline()
		batch <- deadline
		return nil, errors.New("the batch gets no answer")
	}, WithBatching())
	done := make(chan error, 3)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ask := func() {
		_, err := client.Check(ctx, Check{Subject: "user_42"})
		done <- err
	}
	go ask()
	<-first
	go ask()
	go ask()
	(&play{t: t, client: client}).awaitWaiting(2)
	close(release)
	if callers, _ := ctx.Deadline(); !(<-batch).After(callers) {
		t.Error("the batch ends with the deadline of its callers, not with the timeout of the client")
	}
	for range 3 {
		must(t, <-done)
	}
}

// An ending context reaches its deadline when the test says so.
type ending struct {
	context.Context
	done chan struct{}
}

func (e ending) Done() <-chan struct{} { return e.done }

func (e ending) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// If the deadline of a wait ends a check, the wait returns the last denial. The fallback would
// allow what the server has just denied.
func TestWaitReturnsTheDenialAtItsDeadline(t *testing.T) {
	asked, ctx := 0, ending{context.Background(), make(chan struct{})}
	client := transported(t, func(r *http.Request) (*http.Response, error) {
		if asked++; asked > 1 {
			close(ctx.done)
			return untilItsEnd(r)
		}
		w := httptest.NewRecorder()
		w.Header().Set("Weir-Decision", "deny")
		w.WriteHeader(http.StatusTooManyRequests)
		_, err := w.WriteString(`{"allowed":false,"code":"RATE_LIMIT_EXCEEDED","retry_after_ms":1,"message":"m","rules":[]}`)
		return w.Result(), err
	}, WithoutDenialMemory(), withClock(newFakeClock()))
	d, err := client.Wait(ctx, Check{Subject: "user_42"})
	if err != nil || d.Allowed || d.Source != SourceServer || asked != 2 {
		t.Errorf("after %d checks: %+v, %v", asked, d, err)
	}
}
