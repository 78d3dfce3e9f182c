package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScheduleIsEvenAndDoesNotDrift(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	s := schedule{start: start, rate: 3}
	require.Equal(t, start, s.at(0))
	require.Equal(t, start.Add(333_333_333), s.at(1))
	require.Equal(t, start.Add(666_666_666), s.at(2))
	require.Equal(t, start.Add(time.Second), s.at(3), "a rate that does not divide a second must not drift")
	const hours = 48
	require.Equal(t, start.Add(hours*time.Hour), schedule{start: start, rate: 1_000_000}.at(hours*3600*1_000_000))
}

func TestScheduleCountsWhatIsDue(t *testing.T) {
	for _, c := range []struct {
		rate int64
		d    time.Duration
		want int64
	}{
		{1000, time.Second, 1000},
		{3, time.Second, 3},
		{3, 333_333_333, 1},
		{3, 333_333_334, 2}, // request 1 is due at 333 333 333
		{7, 0, 0},
		{5000, 2500 * time.Millisecond, 12500},
	} {
		s := schedule{start: time.Unix(0, 0), rate: c.rate}
		require.Equal(t, c.want, s.count(c.d), "%d/s for %s", c.rate, c.d)
	}
}

func TestMergedHistogramEqualsOneOfAll(t *testing.T) {
	parts := []*Result{NewResult(), NewResult(), NewResult()}
	all := NewResult()
	for i := range 3000 {
		latency := time.Duration(i+1) * time.Microsecond
		a := answer{status: []int{200, 429, 503}[i%3], degraded: i%10 == 0}
		parts[i%3].count(a, latency)
		all.count(a, latency)
	}
	merged := NewResult()
	for _, p := range parts {
		merged.merge(p)
	}
	require.Equal(t, all, merged)
	require.EqualValues(t, 3000, merged.Requests)
	require.EqualValues(t, 1000, merged.Denied)
	require.EqualValues(t, 1000, merged.Failed)
	require.EqualValues(t, 300, merged.Degraded)
	require.InDelta(t, 1500, merged.Latency(50).Microseconds(), 2)
	require.InDelta(t, 2970, merged.Latency(99).Microseconds(), 3)
}

func TestLatenciesBeyondTheRangeAreKept(t *testing.T) {
	r := NewResult()
	r.count(answer{status: 200}, time.Hour)
	r.count(answer{status: 200}, -time.Second)
	require.EqualValues(t, 2, r.latency.TotalCount())
	require.InDelta(t, longest, r.Latency(100), float64(longest)/1000)
}

func TestRateIsPerSecond(t *testing.T) {
	require.InDelta(t, 2000, (&Result{Requests: 5000, Elapsed: 2500 * time.Millisecond}).Rate(), 0.001)
	require.Zero(t, (&Result{Requests: 5000}).Rate())
}

func receiveAll(t *testing.T, stream string) []answer {
	t.Helper()
	c := &http1{in: bufio.NewReaderSize(strings.NewReader(stream), 128)}
	var answers []answer
	for {
		a, err := c.receive()
		if err == io.EOF {
			return answers
		}
		require.NoError(t, err)
		answers = append(answers, a)
	}
}

func TestReceiveReadsResponsesInOrder(t *testing.T) {
	degraded := `{"allowed":true,"degraded":true}`
	long := strings.Repeat(" ", 500) + degraded // longer than the read buffer
	stream := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}" +
		"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n" +
		"HTTP/1.1 200 OK\r\nContent-Length: 32\r\n\r\n" + degraded +
		"HTTP/1.1 200 OK\r\nContent-Length: 532\r\n\r\n" + long +
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{\"allowed\":true,\r\n10\r\n\"degraded\":true}\r\n0\r\n\r\n" +
		"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}"
	require.Equal(t, []answer{{200, false}, {429, false}, {200, true}, {200, true}, {200, true}, {503, false}}, receiveAll(t, stream))
}

func TestReceiveRefusesUndelimitedResponses(t *testing.T) {
	for _, stream := range []string{
		"HTTP/1.0 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\nbody",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
	} {
		c := &http1{in: bufio.NewReader(strings.NewReader(stream))}
		_, err := c.receive()
		require.Error(t, err, stream)
	}
}

func TestTrafficIsReproducible(t *testing.T) {
	requests := make([]Request, 1000)
	for i := range requests {
		requests[i] = Request{Path: "/v1/check", Body: []byte{'a'}}
	}
	for _, choice := range []Choice{Uniform, Zipf} {
		traffic := NewTraffic(requests, choice, 7)
		one, same, other := traffic.picker(1), traffic.picker(1), traffic.picker(2)
		differ := 0
		for range 100 {
			r := one()
			require.Same(t, r, same())
			if r != other() {
				differ++
			}
		}
		require.NotZero(t, differ, "connections must not send the same sequence")
	}
}

func TestInTurnSendsEachOnceBeforeAnyTwice(t *testing.T) {
	requests := make([]Request, 10)
	for i := range requests {
		requests[i].Path = strconv.Itoa(i)
	}
	traffic := NewTraffic(requests, InTurn, 1)
	one, two := traffic.picker(0), traffic.picker(1)
	seen := map[string]int{}
	for range 10 {
		seen[one().Path]++
		seen[two().Path]++
	}
	require.Len(t, seen, 10)
	for path, n := range seen {
		require.Equal(t, 2, n, path)
	}
}

func TestZipfPrefersTheFirst(t *testing.T) {
	requests := make([]Request, 1000)
	next := NewTraffic(requests, Zipf, 1).picker(0)
	first := 0
	for range 10_000 {
		if next() == &requests[0] {
			first++
		}
	}
	require.Greater(t, first, 1000)
}

// serve starts a server for a test, and returns it as a target of each protocol.
func serve(t *testing.T, h http.HandlerFunc) map[Protocol]Target {
	t.Helper()
	plain := httptest.NewServer(h)
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(h)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	config := &tls.Config{RootCAs: roots, ServerName: "example.com"}
	return map[Protocol]Target{
		HTTP1: {Addrs: []string{plain.Listener.Addr().String()}},
		TLS:   {Addrs: []string{secure.Listener.Addr().String()}, Protocol: TLS, TLS: config},
		HTTP2: {Addrs: []string{secure.Listener.Addr().String()}, Protocol: HTTP2, TLS: config},
	}
}

func counting(t *testing.T, protocol int, asked *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != `{"subject":"a"}` || r.Header.Get("Authorization") != "Bearer key" || (protocol != 0 && r.ProtoMajor != protocol) {
			t.Errorf("wrong request: %s %q %v", r.Proto, body, r.Header)
		}
		if asked.Add(1)%2 == 0 {
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = io.WriteString(w, `{"degraded":true}`)
	}
}

var oneRequest = func() []Request {
	return []Request{{Path: "/v1/check", Key: "key", Body: []byte(`{"subject":"a"}`)}}
}

func TestClosedCountsTheMeasuredPart(t *testing.T) {
	for name, protocol := range map[string]Protocol{"HTTP1": HTTP1, "TLS": TLS, "HTTP2": HTTP2} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			major := 1
			if protocol == HTTP2 {
				major = 2
			}
			target := serve(t, counting(t, major, &asked))[protocol]
			var begun, ended int64
			r, err := Closed(t.Context(), target, NewTraffic(oneRequest(), Uniform, 1), Plan{
				Connections: 10, Warm: 50 * time.Millisecond, Measure: 200 * time.Millisecond,
				Begin: func() { begun = asked.Load() }, End: func() { ended = asked.Load() },
			})
			require.NoError(t, err)
			require.Positive(t, begun, "the warm-up sends requests, too")
			require.Equal(t, asked.Load(), r.Asked)
			require.Positive(t, r.Requests)
			require.LessOrEqual(t, r.Requests, ended-begun+10, "each connection may have had one request in progress at the beginning")
			require.InDelta(t, r.Requests/2, r.Denied, 20)
			require.Equal(t, r.Requests, r.Degraded)
			require.Zero(t, r.Failed)
			require.GreaterOrEqual(t, r.Elapsed, 200*time.Millisecond)
			require.Equal(t, r.Requests, r.latency.TotalCount())
		})
	}
}

// A server may close a connection with a response. The next request goes to a new one.
func TestClosedOpensConnectionsAgain(t *testing.T) {
	var asked atomic.Int64
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1)%3 == 0 {
			w.Header().Set("Connection", "close")
		}
	})[HTTP1]
	r, err := Closed(t.Context(), target, NewTraffic(oneRequest(), Uniform, 1), Plan{
		Connections: 4, Measure: 100 * time.Millisecond, Begin: func() {}, End: func() {},
	})
	require.NoError(t, err)
	require.Equal(t, asked.Load(), r.Asked)
	require.Greater(t, r.Asked, int64(12))
	require.Zero(t, r.Failed)
}

// With Skip, a driver that is late continues with the requests that are due now.
func TestOpenSkipsLateRequests(t *testing.T) {
	const stall = 300 * time.Millisecond
	var asked atomic.Int64
	target := serve(t, func(http.ResponseWriter, *http.Request) {
		if asked.Add(1) == 1 {
			timer := time.NewTimer(stall)
			<-timer.C
		}
	})[HTTP1]
	r, err := Open(t.Context(), target, NewTraffic(oneRequest(), Uniform, 1), 100, Plan{
		Connections: 1, Warm: 100 * time.Millisecond, Measure: 400 * time.Millisecond, Skip: 50 * time.Millisecond, Begin: func() {}, End: func() {},
	})
	require.NoError(t, err)
	require.Equal(t, asked.Load(), r.Asked)
	require.Zero(t, r.Unsent)
	require.EqualValues(t, 40, r.Requests+r.Skipped, "of the 50, 10 belong to the warm-up")
	require.GreaterOrEqual(t, r.Skipped, int64(15), "those due from 100 to 250 ms")
	require.Positive(t, r.Requests)
}

func TestOpenSendsAllThatIsDue(t *testing.T) {
	var asked atomic.Int64
	target := serve(t, counting(t, 1, &asked))[HTTP1]
	r, err := Open(t.Context(), target, NewTraffic(oneRequest(), Uniform, 1), 500, Plan{
		Connections: 10, Warm: 100 * time.Millisecond, Measure: 400 * time.Millisecond, Begin: func() {}, End: func() {},
	})
	require.NoError(t, err)
	require.EqualValues(t, 250, asked.Load())
	require.EqualValues(t, 250, r.Asked)
	require.EqualValues(t, 200, r.Requests)
	require.EqualValues(t, 200, r.late.TotalCount())
	require.EqualValues(t, 200, r.served.TotalCount())
	require.Zero(t, r.Unstamped)
	require.Zero(t, r.Unsent)
}

// Every request that is due while the server stalls counts with its full latency.
func TestOpenCountsRequestsDuringStall(t *testing.T) {
	const stall = 300 * time.Millisecond
	var asked atomic.Int64
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			timer := time.NewTimer(stall)
			<-timer.C
		}
	})[HTTP1]
	r, err := Open(t.Context(), target, NewTraffic(oneRequest(), Uniform, 1), 100, Plan{
		Connections: 1, Measure: 500 * time.Millisecond, Begin: func() {}, End: func() {},
	})
	require.NoError(t, err)
	require.EqualValues(t, 50, r.Requests+r.Unsent)
	require.GreaterOrEqual(t, r.Latency(90), stall*2/3, "30 of the 50 were due during the stall, and each waited for its end")
	require.GreaterOrEqual(t, r.Served(90), stall*2/3, "the stall is not the lateness of the driver")
}

func TestOpenCountsUnsentRequests(t *testing.T) {
	release := make(chan struct{})
	target := serve(t, func(http.ResponseWriter, *http.Request) { <-release })[HTTP1]
	done := make(chan struct{})
	var r *Result
	var err error
	go func() {
		defer close(done)
		r, err = Open(t.Context(), target, NewTraffic(oneRequest(), Uniform, 1), 100, Plan{
			Connections: 1, Measure: 200 * time.Millisecond, Begin: func() {},
			// The response comes after the loop has given up, a second later.
			End: func() { time.AfterFunc(1500*time.Millisecond, func() { close(release) }) },
		})
	}()
	<-done
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Requests)
	require.EqualValues(t, 19, r.Unsent)
	require.EqualValues(t, 20, r.latency.TotalCount())
	require.GreaterOrEqual(t, r.Latency(1), time.Second)
	require.EqualValues(t, 20, r.served.TotalCount())
	require.GreaterOrEqual(t, r.Served(1), time.Second)
}

func TestRunsEndWithTheirContext(t *testing.T) {
	for name, run := range map[string]func(context.Context, Target, Plan) error{
		"closed": func(ctx context.Context, target Target, p Plan) error {
			_, err := Closed(ctx, target, NewTraffic(oneRequest(), Uniform, 1), p)
			return err
		},
		"open": func(ctx context.Context, target Target, p Plan) error {
			_, err := Open(ctx, target, NewTraffic(oneRequest(), Uniform, 1), 100, p)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			release := make(chan struct{})
			target := serve(t, func(http.ResponseWriter, *http.Request) {
				cancel() // while a request waits for its response
				<-release
			})[HTTP1]
			t.Cleanup(func() { close(release) })
			err := run(ctx, target, Plan{Connections: 2, Measure: time.Hour, Begin: func() {}, End: func() {}})
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

func TestRefusedConnectionsAreAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	_, err = Closed(t.Context(), Target{Addrs: []string{addr}}, NewTraffic(oneRequest(), Uniform, 1), Plan{Connections: 1})
	require.Error(t, err)
}
