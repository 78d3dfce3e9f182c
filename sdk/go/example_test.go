package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	weir "github.com/weir-dev/weir-go"
	"github.com/weir-dev/weir-go/weirtest"
)

// Every Go sample of the READMEs and of docs/clients is in this file or in one of those below, word
// for word, so that it compiles.
func TestSamplesCompile(t *testing.T) {
	var source strings.Builder
	for _, file := range []string{"example_test.go", "examples/first/main.go", "frameworks/frameworks_test.go", "weirgrpc/example_test.go", "weirotel/example_test.go"} {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.WriteString(dedent(string(content)))
	}
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "clients", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, "README.md", "weirgrpc/README.md", "weirotel/README.md") {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		samples := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(content), -1)
		found += len(samples)
		for _, sample := range samples {
			if !strings.Contains(source.String(), dedent(sample[1])) {
				t.Errorf("%s: this sample is not compiled:\n%s", page, sample[1])
			}
		}
	}
	if found < 10 {
		t.Errorf("the pages have %d samples", found)
	}
}

// dedent removes all indentation and empty lines, because a sample is not indented but its source
// is in a function.
func dedent(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

func answer(weir.Decision) {}
func createOrder()         {}

func ExampleClient_Check() {
	client, ctx := weirtest.AllowAll(), context.Background()

	decision, err := client.Check(ctx, weir.Check{Subject: "user_42", Resource: "orders:create"})
	switch {
	case err != nil: // misuse: the call is wrong, or ctx was cancelled
		log.Print(err)
	case decision.NoDecision != nil: // no decision: the fallback has answered
		log.Print(decision.NoDecision)
	case !decision.Allowed: // denied: try again after decision.RetryAfter()
		answer(decision)
	default:
		createOrder()
	}
	fmt.Println(decision.Remaining)
	// Output: 99
}

func ExampleNew() {
	client, err := weir.New("https://weir.example.com", "weir_key",
		weir.WithTimeout(50*time.Millisecond),
		weir.WithOnFailure(weir.Local), weir.WithLocalShare(0.25), // four processes share each limit
		weir.WithBatching(),
	)
	fmt.Println(client.BreakerState(), err)
	// Output: closed <nil>
}

func ExampleWithLeases() {
	client, err := weir.New("https://weir.example.com", "weir_key", weir.WithLeases())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // returns the units that are held

	fmt.Println(client.BreakerState())
	// Output: closed
}

func ExampleGuard() {
	client, orders := weirtest.DenyAll(), http.NotFoundHandler()

	guard := weir.Guard{
		Checker: client,
		Subject: func(r *http.Request) string { return weir.HashSubject(r.Header.Get("X-Api-Key")) },
	}
	mux := http.NewServeMux()
	mux.Handle("GET /orders/{id}", guard.Handler(orders)) // the resource is "GET /orders/{id}"

	response := httptest.NewRecorder()
	mux.ServeHTTP(response, httptest.NewRequest("GET", "/orders/7", nil))
	fmt.Println(response.Code, client.Asked()[0].Resource)
	// Output: 429 GET /orders/{id}
}

func ExampleRouteOf() {
	client, mux := weirtest.DenyAll(), http.NewServeMux()
	mux.Handle("GET /orders/{id}", http.NotFoundHandler())

	guard := weir.Guard{
		Checker:  client,
		Subject:  func(r *http.Request) string { return r.Header.Get("X-Customer") },
		Resource: weir.RouteOf(mux),
		Skip:     func(r *http.Request) bool { return r.URL.Path == "/healthz" },
	}
	handler := guard.Handler(mux) // in front of all routes

	for _, path := range []string{"/orders/7", "/healthz"} {
		request, response := httptest.NewRequest("GET", path, nil), httptest.NewRecorder()
		request.Header.Set("X-Customer", "user_42")
		handler.ServeHTTP(response, request)
		fmt.Println(response.Code, len(client.Asked()))
	}
	fmt.Println(client.Asked()[0].Resource)
	// Output:
	// 429 1
	// 404 1
	// GET /orders/{id}
}

func ExampleTransport() {
	client := weirtest.DenyAll()

	caller := http.Client{Transport: &weir.Transport{Checker: client}}

	_, err := caller.Get("http://partner.example.com/orders")
	var denied *weir.DeniedError
	fmt.Println(errors.As(err, &denied), client.Asked()[0].Resource)
	// Output: true GET partner.example.com
}

func ExampleClient_Wait() {
	client := weirtest.AllowAll()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	decision, err := client.Wait(ctx, weir.Check{Subject: "user_42", Resource: "exports:csv"})

	fmt.Println(decision.Allowed, err)
	// Output: true <nil>
}

func ExampleClient_WithLease() {
	ctx, client, insert, rows := context.Background(), weirtest.Script(weirtest.Allowed(), weirtest.Denied(time.Second)), fmt.Println, []string{"a", "b", "c"}

	err := client.WithLease(ctx, weir.Check{Subject: "user_42", Resource: "rows:import"}, int64(len(rows)), func(lease *weir.Lease) error {
		for _, row := range rows {
			decision, err := lease.Check(ctx, 1)
			if err != nil || !decision.Allowed {
				return err
			}
			insert(row)
		}
		return nil
	})

	fmt.Println(err)
	// Output:
	// a
	// <nil>
}

func ExampleHooks() {
	count := func(string, bool, time.Duration) {}

	hooks := weir.Hooks{
		Begin: func(ctx context.Context, call weir.Call) (context.Context, func(weir.Result)) {
			return ctx, func(r weir.Result) { count(call.Name, r.Err == nil, r.Duration) }
		},
		BreakerChanged: func(_, to weir.BreakerState) { log.Print("weir breaker: ", to) },
	}

	_, err := weir.New("https://weir.example.com", "weir_key", weir.WithHooks(hooks))
	fmt.Println(err)
	// Output: <nil>
}

func ExampleHashSubjectWith() {
	subject := weir.HashSubjectWith("a secret of yours", "203.0.113.7")

	fmt.Println(len(subject))
	// Output: 76
}

func Example_fake() {
	limiter := weirtest.Script(weirtest.Allowed(), weirtest.Denied(3*time.Second))

	first, _ := limiter.Check(context.Background(), weir.Check{Subject: "user_42"})
	second, _ := limiter.Check(context.Background(), weir.Check{Subject: "user_42"})
	fmt.Println(first.Allowed, second.Allowed, len(limiter.Asked()))
	// Output: true false 2
}
