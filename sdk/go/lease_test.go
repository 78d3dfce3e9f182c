package weir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A leaseServer is a transport that counts as the server does: units of leases are charged when
// they are granted.
type leaseServer struct {
	mu       sync.Mutex
	limit    int64
	used     int64
	checks   int64 // answered by /v1/check
	leases   map[string]int64
	granted  int64 // leases
	asked    int64
	reported struct{ allowed, denied, deniedUnits int64 }
	life     time.Duration
	refuse   bool          // a rule is not leased
	lose     func() bool   // an answer, after it was counted
	gate     chan struct{} // requests for units wait for it; nil: they do not
}

func newLeaseServer(limit int64) *leaseServer {
	return &leaseServer{limit: limit, leases: map[string]int64{}, life: 240 * time.Millisecond}
}

func (s *leaseServer) RoundTrip(r *http.Request) (*http.Response, error) {
	var body struct {
		Cost                                *int64
		Units, Allowed, Denied, DeniedUnits int64
	}
	text, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal([]byte(strings.Replace(string(text), "denied_units", "DeniedUnits", 1)), &body)
	if s.gate != nil && r.URL.Path == "/v1/leases" {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.answer(r.URL.Path, body.Cost, body.Units, func() {
		s.reported.allowed += body.Allowed
		s.reported.denied += body.Denied
		s.reported.deniedUnits += body.DeniedUnits
	})
	if s.lose != nil && s.lose() {
		return nil, errors.New("connection reset")
	}
	return a, nil
}

func (s *leaseServer) answer(path string, cost *int64, units int64, report func()) *http.Response {
	switch {
	case path == "/v1/check":
		s.checks++
		n := int64(1)
		if cost != nil {
			n = *cost
		}
		if s.used+n > s.limit {
			return s.respond(429, "deny", s.denied(n))
		}
		s.used += n
		return s.respond(200, "allow", s.allowed(n))
	case path == "/v1/leases" && s.refuse:
		s.asked++
		return s.respond(409, "none", `{"code":"NOT_LEASABLE"}`)
	case path == "/v1/leases":
		s.asked++
		n := min(units, (s.limit-s.used)/4)
		switch {
		case s.used == s.limit:
			return s.respond(429, "deny", s.denied(1))
		case n < 1:
			return s.respond(409, "none", `{"code":"NOT_LEASABLE"}`)
		}
		s.used += n
		s.granted++
		id := fmt.Sprint("lease_", s.granted)
		s.leases[id] = n
		return s.respond(200, "allow", fmt.Sprintf(`{"lease":%q,"units":%d,"expires_in_ms":%d,"decision":%s}`, id, n, s.life.Milliseconds(), s.allowed(n)))
	}
	id := strings.TrimSuffix(strings.TrimPrefix(path, "/v1/leases/"), "/return")
	if had, ok := s.leases[id]; ok && units <= had {
		s.used -= units
		delete(s.leases, id)
		report()
	}
	return s.respond(204, "", "")
}

func (s *leaseServer) allowed(cost int64) string {
	return fmt.Sprintf(`{"allowed":true,"subject":"s","resource":"default","cost":%d,"plan":null,"rule":"r","limit":%d,"remaining":%d,"retry_after_ms":0,"reset_after_ms":60000,`+
		`"rules":[{"rule":"r","algorithm":"fixed_window","mode":"enforce","allowed":true,"source":"rule","limit":%d,"window_ms":60000,"remaining":%d,"retry_after_ms":0,"reset_after_ms":60000}],"degraded":false}`,
		cost, s.limit, s.limit-s.used, s.limit, s.limit-s.used)
}

func (s *leaseServer) denied(cost int64) string {
	return fmt.Sprintf(`{"allowed":false,"subject":"s","resource":"default","cost":%d,"plan":null,"rule":"r","limit":%d,"remaining":0,"retry_after_ms":60000,"reset_after_ms":60000,"rules":[],"degraded":false,`+
		`"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Rate limit exceeded.","retry_after":60}}`, cost, s.limit)
}

func (s *leaseServer) respond(status int, decision, body string) *http.Response {
	h := http.Header{}
	if decision != "" {
		h.Set("Weir-Decision", decision)
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}
}

func (s *leaseServer) client(t testing.TB, options ...Option) *Client {
	t.Helper()
	c, err := New("http://127.0.0.1:1", "weir_test_key", append([]Option{WithTransport(s), WithLeases(), WithTimeout(5 * time.Second)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// leased sends checks until one is decided from a lease, and returns how many were allowed.
func leased(t testing.TB, c *Client, check Check) (d Decision, allowed int64) {
	t.Helper()
	for {
		d, err := c.Check(context.Background(), check)
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			allowed++
		}
		if d.Source == SourceLease {
			return d, allowed
		}
		runtime.Gosched()
	}
}

// A frequent check is decided from a lease, with the numbers of the check itself. Close returns
// what is left, and the server learns of every check.
func TestLease(t *testing.T) {
	s := newLeaseServer(1_000_000)
	c := s.client(t)
	d, allowed := leased(t, c, Check{Subject: "s", Cost: 2})
	if !d.Allowed || d.Cost != 2 || d.Subject != "s" || d.Resource != "default" || d.Rule != "r" || d.Limit != N(1_000_000) ||
		d.Remaining.Value <= 0 || d.Remaining.Value >= 1_000_000 || d.NoDecision != nil {
		t.Fatalf("%+v", d)
	}
	c.Close()
	s.mu.Lock()
	if s.used != allowed*2 {
		t.Errorf("%d units are charged for %d checks of cost 2", s.used, allowed)
	}
	if s.reported.allowed+s.checks != allowed {
		t.Errorf("%d checks are reported and %d were sent, of %d", s.reported.allowed, s.checks, allowed)
	}
	s.mu.Unlock()
	if d, err := c.Check(context.Background(), Check{Subject: "s"}); err != nil || d.Source != SourceServer {
		t.Errorf("after Close: %v %v", d.Source, err)
	}
}

// Checks that a lease must not decide are sent.
func TestLeaseIsForPlainChecks(t *testing.T) {
	s := newLeaseServer(1_000_000)
	c := s.client(t)
	leased(t, c, Check{Subject: "s"})
	ctx := context.Background()
	for name, call := range map[string]func() (Decision, error){
		"another subject":  func() (Decision, error) { return c.Check(ctx, Check{Subject: "t"}) },
		"another resource": func() (Decision, error) { return c.Check(ctx, Check{Subject: "s", Resource: "r"}) },
		"another plan":     func() (Decision, error) { return c.Check(ctx, Check{Subject: "s", Plan: "p"}) },
		"another attribute": func() (Decision, error) {
			return c.Check(ctx, Check{Subject: "s", Attributes: map[string]string{"a": "b"}})
		},
		"an idempotency key": func() (Decision, error) { return c.Check(ctx, Check{Subject: "s", IdempotencyKey: "k"}) },
		"a peek":             func() (Decision, error) { return c.Peek(ctx, Check{Subject: "s"}) },
		"too great a cost":   func() (Decision, error) { return c.Check(ctx, Check{Subject: "s", Cost: 900_000}) },
	} {
		if d, err := call(); err != nil || d.Source != SourceServer {
			t.Errorf("%s: %v %v", name, d.Source, err)
		}
	}
	if _, err := c.Check(ctx, Check{Subject: "s", Cost: -1}); err == nil {
		t.Error("a negative cost is misuse")
	}
	if d, _ := leased(t, c, Check{Subject: "s", Resource: "default", Attributes: map[string]string{}}); d.Source != SourceLease {
		t.Error("the same check in another spelling")
	}
	leased(t, c, Check{Subject: "s", Attributes: map[string]string{"b": "2", "a": "1"}})
}

// Many clients on one limit never allow more than it, while answers are lost. What is lost is
// charged, so the rest is at most denied early.
func TestLeasesNeverExceed(t *testing.T) {
	for name, lossy := range map[string]bool{"exact": false, "lossy": true} {
		t.Run(name, func(t *testing.T) {
			const limit = 20_000
			s := newLeaseServer(limit)
			s.life = 20 * time.Millisecond // many leases end while they are used
			if lossy {
				s.lose = func() bool { return rand.IntN(10) == 0 }
			}
			var allowed atomic.Int64
			var all sync.WaitGroup
			var clients []*Client
			for range 4 {
				c := s.client(t, WithOnFailure(Deny), WithoutBreaker(), WithoutDenialMemory())
				clients = append(clients, c)
				for range 8 {
					all.Add(1)
					go func() {
						defer all.Done()
						for denials := 0; denials < 50; {
							d, err := c.Check(context.Background(), Check{Subject: "s"})
							switch {
							case err != nil:
								t.Error(err)
								return
							case d.Allowed:
								allowed.Add(1)
							case d.Source == SourceServer:
								denials++
							}
						}
					}()
				}
			}
			all.Wait()
			for _, c := range clients {
				c.Close()
			}
			if n := allowed.Load(); n > s.used || s.used > limit || !lossy && n != s.used {
				t.Errorf("%d allowed and %d charged, the limit is %d", n, s.used, limit)
			}
			if s.granted == 0 {
				t.Error("no lease was granted")
			}
		})
	}
}

// Without loss, everything that the limit allows is allowed in the end, because clients return what
// they do not use.
func TestLeasesAreReturned(t *testing.T) {
	const limit = 5_000
	s := newLeaseServer(limit)
	var allowed int64
	for range 3 {
		c := s.client(t, WithoutDenialMemory())
		_, n := leased(t, c, Check{Subject: "s"})
		allowed += n
		c.Close()
	}
	c := s.client(t, WithoutDenialMemory())
	for {
		d, err := c.Check(context.Background(), Check{Subject: "s"})
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			allowed++
			continue
		}
		c.Close() // its own leases may hold the rest
		s.mu.Lock()
		rest := limit - s.used
		s.mu.Unlock()
		if rest == 0 {
			break
		}
	}
	if allowed != limit {
		t.Errorf("%d allowed of %d", allowed, limit)
	}
}

// A lease ends by the client's monotonic clock from before the request, however long the answer
// takes.
func TestLeaseEndsOnTime(t *testing.T) {
	h := &lease{sentAt: time.Now(), life: 100 * time.Millisecond}
	h.wallMS = h.sentAt.UnixMilli() + 100
	h.left.Store(10)
	for _, c := range []struct {
		after time.Duration
		ok    bool
	}{{0, true}, {99 * time.Millisecond, true}, {100 * time.Millisecond, false}, {time.Hour, false}} {
		if _, ok := h.grant(h.sentAt.Add(c.after), 1); ok != c.ok {
			t.Errorf("after %s: %t", c.after, ok)
		}
	}
	// The wall clock can end it earlier, never later.
	h.wallMS = h.sentAt.UnixMilli()
	if _, ok := h.grant(h.sentAt.Add(time.Millisecond), 1); ok {
		t.Error("the machine has slept")
	}
	h.wallMS = h.sentAt.UnixMilli() + 3_600_000
	if _, ok := h.grant(h.sentAt.Add(time.Second), 1); ok {
		t.Error("the wall clock was set back")
	}
}

// An answer that grants more than was asked, or nothing, or for too long, is no lease.
func TestInvalidLeases(t *testing.T) {
	s := newLeaseServer(100)
	check := Check{Subject: "s", Resource: "default"}
	for _, body := range []string{
		``, `{}`, `{"lease":"l","units":11,"expires_in_ms":100,"decision":` + s.allowed(1) + `}`,
		`{"lease":"l","units":0,"expires_in_ms":100,"decision":` + s.allowed(1) + `}`,
		`{"lease":"","units":1,"expires_in_ms":100,"decision":` + s.allowed(1) + `}`,
		`{"lease":"l","units":1,"expires_in_ms":0,"decision":` + s.allowed(1) + `}`,
		`{"lease":"l","units":1,"expires_in_ms":3600000,"decision":` + s.allowed(1) + `}`,
		`{"lease":"l","units":1,"expires_in_ms":100,"decision":` + s.denied(1) + `}`,
		`{"lease":"l","units":1,"expires_in_ms":100,"decision":{}}`,
	} {
		transport := roundTrip(func(*http.Request) (*http.Response, error) { return s.respond(200, "allow", body), nil })
		c, err := New("http://127.0.0.1:1", "weir_test_key", WithTransport(transport))
		if err != nil {
			t.Fatal(err)
		}
		var failure *NoDecision
		if _, _, err := c.sendLease(context.Background(), &check, 10, time.Now()); !errors.As(err, &failure) || failure.Cause != CauseInvalidAnswer {
			t.Errorf("%s: %v", body, err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Where a rule is not leased, the client asks once, and sends every check.
func TestLeasesRefused(t *testing.T) {
	s := newLeaseServer(1_000_000)
	s.refuse = true
	c := s.client(t)
	for s.askedNow() == 0 {
		if _, err := c.Check(context.Background(), Check{Subject: "s"}); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		if d, err := c.Check(context.Background(), Check{Subject: "s"}); err != nil || d.Source != SourceServer {
			t.Fatal(d.Source, err)
		}
	}
	if n := s.askedNow(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func (s *leaseServer) askedNow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// A check never waits for a lease.
func TestLeasesAreInTheBackground(t *testing.T) {
	s := newLeaseServer(1_000_000)
	s.gate = make(chan struct{})
	c := s.client(t)
	for range 100 {
		if d, err := c.Check(context.Background(), Check{Subject: "s"}); err != nil || d.Source != SourceServer {
			t.Fatal(d.Source, err)
		}
	}
	close(s.gate)
	leased(t, c, Check{Subject: "s"})
}

// When nothing is left, the denial is remembered, and what was denied is reported.
func TestLeaseDenials(t *testing.T) {
	s := newLeaseServer(400)
	c := s.client(t)
	allowed, remembered := int64(0), int64(0)
	for remembered < 100 {
		d, err := c.Check(context.Background(), Check{Subject: "s"})
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			allowed++
		} else if d.Source == SourceMemory {
			remembered++
		}
	}
	if allowed > 400 {
		t.Errorf("%d allowed of 400", allowed)
	}
}

// Close ends all goroutines, and so does silence.
func TestLeasesLeaveNoGoroutine(t *testing.T) {
	s := newLeaseServer(1_000_000)
	before := runtime.NumGoroutine()
	c := s.client(t)
	for n := range 20 {
		leased(t, c, Check{Subject: fmt.Sprint("s", n)})
	}
	c.Close()
	c.Close()
	awaitGoroutines(t, before)
	if len(s.leases) != 0 {
		t.Errorf("%d leases were not returned", len(s.leases))
	}
	idle := s.client(t)
	leased(t, idle, Check{Subject: "s"})
	awaitGoroutines(t, before) // all units are returned, without Close
}

func awaitGoroutines(t *testing.T, want int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > want; runtime.Gosched() {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, not %d:\n%s", runtime.NumGoroutine(), want, buf[:runtime.Stack(buf, true)])
		}
	}
}

// A decision from a lease allocates nothing.
func TestLeaseAllocations(t *testing.T) {
	s := newLeaseServer(1 << 40)
	c := s.client(t)
	check := Check{Subject: "s"}
	leased(t, c, check)
	set := c.leased.find(&check)
	held := set.lease.Load()
	now := held.sentAt
	if n := testing.AllocsPerRun(100, func() {
		var d Decision
		if !c.leased.take(&check, now, &d) && set.lease.Load() == held {
			held.left.Add(1)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkLease measures a decision from a lease. The units are renewed in the background
// meanwhile, as in production.
func BenchmarkLease(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			s := newLeaseServer(1 << 49)
			c := s.client(b)
			check := Check{Subject: "user_42", Resource: "orders:create"}
			for range 1_000_000 { // until the size of leases fits the demand
				if _, err := c.Check(context.Background(), check); err != nil {
					b.Fatal(err)
				}
			}
			var sent atomic.Int64
			b.ReportAllocs()
			before := cpu()
			b.ResetTimer()
			var all sync.WaitGroup
			for range callers {
				all.Add(1)
				go func() {
					defer all.Done()
					other := int64(0)
					for range b.N / callers {
						d, err := c.Check(context.Background(), check)
						if err != nil || !d.Allowed {
							b.Error(d, err)
							return
						}
						if d.Source != SourceLease {
							other++
						}
					}
					sent.Add(other)
				}()
			}
			all.Wait()
			b.StopTimer()
			b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			b.ReportMetric(float64(sent.Load())/float64(b.N), "sent/op")
		})
	}
}
