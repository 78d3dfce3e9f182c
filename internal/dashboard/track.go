package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/origin"
	"weir/internal/tenants"
)

// observer counts one answered request of one route.
type observer func(status int, took time.Duration)

// tracked is the state of one request: the ResponseWriter of all handlers, to record the status.
type tracked struct {
	http.ResponseWriter
	id     string          // of the request
	status int             // 0 until the head is written
	tenant uuid.UUID       // current tenant; the nil UUID: nobody is signed in, or there is no tenant
	place  func()          // ends its place among the pages that are created; nil: it has none
	ctx    context.Context // the context that net/http gave the request over HTTP/1.1; nil: none

	done   <-chan struct{}                                           // closed when the client has disconnected
	site   string                                                    // of the client
	fail   func(client string, refusals int64) (pause time.Duration) // as in Deps
	rested time.Duration                                             // before the answer, because too many pages are requested
}

// WriteHeader stores the status.
func (t *tracked) WriteHeader(status int) {
	if t.status == 0 && status >= 200 { // 1xx is not the answer
		t.answer(status)
	}
	t.ResponseWriter.WriteHeader(status)
}

func (t *tracked) Write(b []byte) (int, error) {
	if t.status == 0 {
		t.answer(http.StatusOK)
	}
	return t.ResponseWriter.Write(b)
}

// answer begins the answer. From then on, the request waits for nobody but its browser, which may
// never read, so it uses no place for creating pages. Files that are created while they are sent
// have places of their own (exports).
//
// Over HTTP/1.1, a read error, such as a passed deadline, cancels the context of the connection.
// All later requests on the connection would fail, so it is closed.
func (t *tracked) answer(status int) {
	t.status = status
	if t.ctx != nil && t.ctx.Err() != nil {
		t.Header().Set("Connection", "close")
	}
	t.leave()
	failed := status >= http.StatusMultipleChoices && status != http.StatusNotModified
	if signedIn := t.tenant != uuid.Nil && status < http.StatusBadRequest; failed && !signedIn && t.rested == 0 && t.fail != nil {
		client := t.site
		if t.tenant != uuid.Nil {
			client = string(t.tenant[:])
		}
		t.pause(t.fail(client, failedRefusals))
	}
}

// failedRefusals is how many refusals of the lane take as long as an error or a redirect here.
const failedRefusals = 8

// pause waits before the answer, or until the client has disconnected.
func (t *tracked) pause(most time.Duration) {
	if most == 0 {
		return
	}
	began := time.Now()
	select {
	case <-time.After(most):
	case <-t.done:
	}
	t.rested += time.Since(began)
}

// add gives the request another place, which ends with the one that it has.
func (t *tracked) add(leave func()) {
	before := t.place
	t.place = func() {
		leave()
		if before != nil {
			before()
		}
	}
}

// leave ends the place of the request for creating pages.
func (t *tracked) leave() {
	if t.place != nil {
		t.place()
		t.place = nil
	}
}

// How long a request waits for its answer if too many pages are requested. A page that says so
// takes a third of a millisecond, so clients that ask again at once would take a processor on 64
// connections. The more of a tenant wait, or of a site without one, the longer each waits: they get
// 300 answers a second. All together get eight times as many.
const (
	refusedRest     = 200 * time.Millisecond
	refusedMostRest = 5 * time.Second
	refusedEach     = time.Second / 300
	refusedOthers   = 8
)

// pausedRefusals counts the requests that wait for the answer of a refusal.
type pausedRefusals struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by tenant or site
}

// add counts a request, and returns how long it waits.
func (f *pausedRefusals) add(of string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[string]int{}
	}
	f.of[of]++
	f.all++
	waiting := max(f.of[of], f.all/refusedOthers)
	return min(max(refusedRest, time.Duration(waiting)*refusedEach), refusedMostRest)
}

func (f *pausedRefusals) remove(of string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all--
	if f.of[of]--; f.of[of] == 0 {
		delete(f.of, of)
	}
}

// rest waits before the answer of a refusal. The request keeps no place meanwhile. After the
// answer, a proxy would use the connection for requests of others, and they would wait.
func (f *pausedRefusals) rest(r *http.Request) {
	t := requestOf(r.Context())
	t.leave()
	of := siteOf(r)
	if t.tenant != uuid.Nil {
		of = string(t.tenant[:])
	}
	pause := f.add(of)
	defer f.remove(of)
	t.pause(pause)
}

// Unwrap lets http.ResponseController reach the connection.
func (t *tracked) Unwrap() http.ResponseWriter { return t.ResponseWriter }

type trackedKey struct{}

// requestOf returns the state of the request of ctx.
func requestOf(ctx context.Context) *tracked {
	t, _ := ctx.Value(trackedKey{}).(*tracked)
	if t == nil {
		return &tracked{}
	}
	return t
}

// track gives a request its id, stores its origin for the audit trail, and counts and logs answers.
func (d *dashboard) track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		t := &tracked{ResponseWriter: w, id: origin.RequestID(r), done: r.Context().Done(), site: siteOf(r), fail: d.Fail}
		if r.ProtoMajor == 1 {
			t.ctx = r.Context()
		}
		w.Header().Set("X-Request-Id", t.id)
		ctx := context.WithValue(r.Context(), trackedKey{}, t)
		ctx = tenants.WithOrigin(ctx, tenants.Origin{Address: hostOf(r.RemoteAddr), UserAgent: r.UserAgent(), RequestID: t.id})
		next.ServeHTTP(t, r.WithContext(ctx))
		if t.status == 0 {
			t.status = http.StatusOK
		}
		d.finish(t, r, time.Since(start)-t.rested)
	})
}

// errorLevel is the level of a failed request. If the browser has disconnected, what it interrupted
// is no fault of the service.
func errorLevel(r *http.Request) slog.Level {
	if errors.Is(r.Context().Err(), context.Canceled) {
		return slog.LevelInfo
	}
	return slog.LevelError
}

func (d *dashboard) finish(t *tracked, r *http.Request, took time.Duration) {
	pattern := ""
	if t.status != http.StatusMethodNotAllowed {
		pattern = chi.RouteContext(r.Context()).RoutePattern()
	}
	observe, known := d.observers[pattern]
	if !known {
		observe = d.observers[""]
	}
	observe(t.status, took)
	if !known || pattern == "" { // there is no route for it
		pattern = "none"
	}
	level := slog.LevelInfo
	if t.status >= http.StatusInternalServerError {
		level = errorLevel(r)
	}
	if !d.access.Take(t.tenant, t.status >= http.StatusBadRequest) {
		return
	}
	attrs := make([]slog.Attr, 0, 6)
	attrs = append(attrs, slog.String("request_id", t.id), slog.String("method", knownMethod(r.Method)),
		slog.String("route", pattern), slog.Int("status", t.status), slog.Int64("duration_us", took.Microseconds()))
	if t.tenant != uuid.Nil {
		attrs = append(attrs, slog.String("tenant_id", t.tenant.String()))
	}
	d.Logger.LogAttrs(r.Context(), level, "request", attrs...)
}

// observersOf binds the counters of each route, and under "" of requests without a route.
func observersOf(routes chi.Routes, observe func(pattern string) func(status int, took time.Duration)) map[string]observer {
	if observe == nil {
		observe = func(string) func(int, time.Duration) { return func(int, time.Duration) {} }
	}
	observers := map[string]observer{"": observe("")}
	_ = chi.Walk(routes, func(_, pattern string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if observers[pattern] == nil {
			observers[pattern] = observe(pattern)
		}
		return nil
	})
	return observers
}

func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost:
		return method
	}
	return "other"
}
