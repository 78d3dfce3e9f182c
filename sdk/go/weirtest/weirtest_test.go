package weirtest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	weir "github.com/weir-dev/weir-go"
	"github.com/weir-dev/weir-go/weirtest"
)

// placeOrder represents the code of an application.
func placeOrder(ctx context.Context, limiter weir.Checker, customer string) string {
	d, err := limiter.Check(ctx, weir.Check{Subject: customer, Resource: "orders:create"})
	switch {
	case err != nil:
		return "misuse"
	case !d.Allowed:
		wait, _ := d.RetryAfter()
		return "denied for " + wait.String()
	case d.NoDecision != nil:
		return "allowed without a decision: " + string(d.NoDecision.Cause)
	}
	return "allowed"
}

func Example() {
	limiter := weirtest.Script(weirtest.Allowed(), weirtest.Denied(3*time.Second))
	fmt.Println(placeOrder(context.Background(), limiter, "user_42"))
	fmt.Println(placeOrder(context.Background(), limiter, "user_42"))
	fmt.Println(limiter.Asked()[0].Resource)
	// Output:
	// allowed
	// denied for 3s
	// orders:create
}

func TestAnswers(t *testing.T) {
	for want, fake := range map[string]*weirtest.Fake{
		"allowed":         weirtest.AllowAll(),
		"denied for 1m0s": weirtest.DenyAll(),
		"denied for 1.5s": weirtest.Script(weirtest.Denied(1500 * time.Millisecond)),
		"misuse":          weirtest.Script(weirtest.Misuse("UNKNOWN_PLAN")),
		"denied for 0s":   weirtest.Script(weirtest.NoDecisionDenied(weir.CauseTimeout)),
		"allowed without a decision: breaker_open": weirtest.Script(weirtest.NoDecision(weir.CauseBreakerOpen)),
	} {
		if got := placeOrder(context.Background(), fake, "user_42"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestEveryCallIsRecorded(t *testing.T) {
	ctx := context.Background()
	fake := weirtest.Func(func(c weir.Check) weirtest.Answer {
		if c.Subject == "delayed" {
			return weirtest.Delayed(time.Second)
		}
		return weirtest.Allowed()
	})
	d, err := fake.Wait(ctx, weir.Check{Subject: "delayed", Cost: 2})
	if err != nil || d.Delay() != time.Second || d.Subject != "delayed" || d.Resource != "default" || d.Cost != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	for _, call := range []func() error{
		func() error { _, err := fake.Peek(ctx, weir.Check{Subject: "a"}); return err },
		func() error { _, err := fake.Explain(ctx, weir.Check{Subject: "b"}); return err },
		func() error { _, err := fake.CheckBatch(ctx, []weir.Check{{Subject: "c"}, {Subject: "d"}}); return err },
	} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	want := []weir.Check{{Subject: "delayed", Cost: 2}, {Subject: "a"}, {Subject: "b", Cost: 1}, {Subject: "c", Cost: 1}, {Subject: "d", Cost: 1}}
	if got := fake.Asked(); !reflect.DeepEqual(got, want) {
		t.Errorf("asked %+v, want %+v", got, want)
	}
}

func TestACancelledContextIsNoAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	fake := weirtest.AllowAll()
	_, checked := fake.Check(ctx, weir.Check{Subject: "a"})
	_, peeked := fake.Peek(ctx, weir.Check{Subject: "a"})
	_, batched := fake.CheckBatch(ctx, []weir.Check{{Subject: "a"}})
	for _, err := range []error{checked, peeked, batched} {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestAnExhaustedScriptPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_, _ = weirtest.Script().Check(context.Background(), weir.Check{Subject: "a"})
}

// Middleware works with the fake.
func TestGuardWithTheFake(t *testing.T) {
	guard := weir.Guard{Checker: weirtest.DenyAll(), Subject: func(*http.Request) string { return "user_42" }}
	w := httptest.NewRecorder()
	guard.Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "60" {
		t.Errorf("status %d, headers %v", w.Code, w.Header())
	}
}
