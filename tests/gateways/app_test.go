package gateways

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// An app is the application behind a gateway. It answers 200 "app", or the status in X-App-Status,
// and records each request. With X-App-Cache it answers a page for X-User that may be cached.
type app struct {
	address string

	mu       sync.Mutex
	requests []received
}

type received struct {
	method, uri string
	header      http.Header
	body        string
}

func newApp(t testing.TB) *app {
	a := &app{}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	a.address = strings.TrimPrefix(server.URL, "http://")
	return a
}

func (a *app) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	a.mu.Lock()
	a.requests = append(a.requests, received{r.Method, r.RequestURI, r.Header.Clone(), string(body)})
	a.mu.Unlock()
	w.Header().Set("X-App", "yes")
	w.Header().Set("Cache-Control", "no-store") // each request must arrive here
	page := "app"
	if r.Header.Get("X-App-Cache") != "" {
		w.Header().Set("Cache-Control", "max-age=3600")
		page = "for " + r.Header.Get("X-User")
	}
	if status, err := strconv.Atoi(r.Header.Get("X-App-Status")); err == nil {
		w.WriteHeader(status)
	}
	_, _ = io.WriteString(w, page)
}

// all returns the recorded requests.
func (a *app) all() []received {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests
}

// take returns the recorded requests, and clears them.
func (a *app) take() []received {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.requests
	a.requests = nil
	return taken
}
