package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A seen is what the server has seen of a request.
type seen struct {
	method, path, key, contentType, agent, body string
}

// scripted returns a client of a server that gives these answers, the last one again and again, and
// the requests and pauses so far.
func scripted(t *testing.T, answers ...func(w http.ResponseWriter)) (c *Client, requests *[]seen, pauses *[]time.Duration) {
	requests, pauses = &[]seen{}, &[]time.Duration{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*requests = append(*requests, seen{r.Method, r.URL.RequestURI(), r.Header.Get("Idempotency-Key"), r.Header.Get("Content-Type"), r.Header.Get("User-Agent"), string(body)})
		answers[min(len(*requests), len(answers))-1](w)
	}))
	t.Cleanup(server.Close)
	c = &Client{URL: server.URL, Key: "k", UserAgent: "agent/1", Timeout: time.Minute, Attempts: 5}
	c.Pause = func(_ context.Context, d time.Duration) error {
		*pauses = append(*pauses, d)
		return nil
	}
	return c, requests, pauses
}

func answer(status int, body string, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func dropped(w http.ResponseWriter) { panic(http.ErrAbortHandler) }

const created = `{"slug":"api"}`

func TestRetriesSendTheSameKey(t *testing.T) {
	c, requests, pauses := scripted(t, dropped, answer(503, "{}"), answer(429, `{"title":"Slow down","code":"WRITE_RATE_EXCEEDED"}`, "Retry-After", "7"),
		answer(409, `{"title":"In use","code":"IDEMPOTENCY_KEY_IN_USE"}`), answer(201, created, "ETag", `"v1"`))
	got, err := c.Do(context.Background(), Call{Method: http.MethodPost, Path: "/v1/rules", Body: map[string]any{"slug": "api"}})
	if err != nil || got.Body["slug"] != "api" || got.ETag != `"v1"` {
		t.Fatalf("%v, %v", got, err)
	}
	for i, r := range *requests {
		if r != (*requests)[0] || r.key == "" || r.body != created || r.contentType != "application/json" || r.agent != "agent/1" {
			t.Errorf("request %d: %+v", i, r)
		}
	}
	if len(*requests) != 5 || len(*pauses) != 4 || (*pauses)[2] < 7*time.Second {
		t.Errorf("%d requests, pauses %v", len(*requests), *pauses)
	}
	if _, err := c.Do(context.Background(), Call{Method: http.MethodPost, Path: "/v1/rules"}); err != nil || (*requests)[5].key == (*requests)[0].key {
		t.Errorf("another operation has the same key, or failed: %v", err)
	}
}

func TestRetriesEnd(t *testing.T) {
	c, requests, _ := scripted(t, answer(500, `{"title":"Internal error","code":"INTERNAL"}`))
	_, err := c.Do(context.Background(), Call{Method: http.MethodPut, Path: "/v1/subjects/a", Body: map[string]any{}})
	if !Is(err, 500, "INTERNAL") || len(*requests) != 5 || (*requests)[0].key != "" {
		t.Errorf("%v after %d requests", err, len(*requests))
	}
	for _, status := range []int{400, 401, 403, 404, 409, 412, 422, 501} {
		c, requests, _ := scripted(t, answer(status, `{"title":"No"}`))
		if _, err := c.Do(context.Background(), Call{Method: http.MethodGet, Path: "/"}); !Is(err, status, "") || len(*requests) != 1 {
			t.Errorf("status %d: %v after %d requests", status, err, len(*requests))
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c, requests, _ = scripted(t, func(w http.ResponseWriter) { cancel(); dropped(w) })
	if _, err := c.Do(ctx, Call{Method: http.MethodGet, Path: "/"}); err == nil || len(*requests) != 1 {
		t.Errorf("canceled: %v after %d requests", err, len(*requests))
	}
}

func TestTimeout(t *testing.T) {
	release := make(chan struct{})
	c, _, _ := scripted(t, func(http.ResponseWriter) { <-release })
	defer close(release)
	c.Timeout, c.Attempts = time.Millisecond, 2
	if _, err := c.Do(context.Background(), Call{Method: http.MethodGet, Path: "/"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestErrorsNameFieldsAndFixes(t *testing.T) {
	c, _, _ := scripted(t, answer(422, `{"title":"The request is well-formed but not valid","code":"INVALID_REQUEST","detail":"x",
		"errors":[{"pointer":"/limit","message":"must be at least 1","fix":"Make it at least 1."}]}`))
	_, err := c.Do(context.Background(), Call{Method: http.MethodPost, Path: "/v1/rules"})
	want := "POST /v1/rules: status 422: The request is well-formed but not valid (INVALID_REQUEST)\n/limit must be at least 1. Make it at least 1."
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for _, body := range []string{"<html>", ""} {
		c, _, _ = scripted(t, answer(200, body))
		if _, err = c.Do(context.Background(), Call{Method: http.MethodGet, Path: "/"}); err == nil || !strings.Contains(err.Error(), "not from Weir") {
			t.Errorf("%q: %v", body, err)
		}
	}
	c, requests, _ := scripted(t, answer(302, "", "Location", "https://example.com/"))
	if _, err = c.Do(context.Background(), Call{Method: http.MethodGet, Path: "/"}); !Is(err, 302, "") || len(*requests) != 1 {
		t.Errorf("a redirect: %v", err)
	}
}

func TestListReadsAllPages(t *testing.T) {
	c, requests, _ := scripted(t, answer(200, `{"items":[{"n":1},{"n":2}],"next_cursor":"c+1"}`), answer(200, `{"items":[{"n":3}],"next_cursor":null}`))
	items, err := c.List(context.Background(), "/v1/rules", url.Values{"mode": {"off"}})
	if err != nil || len(items) != 3 {
		t.Fatalf("%v, %v", items, err)
	}
	if first, second := (*requests)[0].path, (*requests)[1].path; first != "/v1/rules?limit=200&mode=off" || second != "/v1/rules?cursor=c%2B1&limit=200&mode=off" {
		t.Errorf("%s, %s", first, second)
	}
}
