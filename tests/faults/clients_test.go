package faults

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

func clientsDrop(m *measurement) {
	r := newRig(m.T)
	r.startTallies()
	streams := r.probing()
	warm := r.load(streams[tallyStream+1:]...)
	warm.seconds(2)
	_ = warm.stop()
	r.closeIdle(streams)
	goroutines := r.most("go_goroutines") // without connections of clients
	l := r.load(streams...)
	l.seconds(4)
	connects := r.connects(m)
	redisBefore, postgresBefore := connects()
	began := l.now()
	done := make(chan struct{})
	var droppers sync.WaitGroup
	var dropped atomic.Int64
	for w := range 10 {
		droppers.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			defer client.CloseIdleConnections() // dials that ended after their request was cancelled
			for n := w; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(200+rand.IntN(2000))*time.Microsecond)
				request := r.probe.request(http.MethodPost, r.nodes[n%instances].url()+"/v1/check", `{"subject":"dropper","resource":"tally"}`)
				if response, err := client.Do(request.WithContext(ctx)); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
				} else {
					dropped.Add(1)
				}
				cancel()
				r.pause(50 * time.Millisecond)
			}
		})
	}
	l.seconds(8)
	close(done)
	droppers.Wait()
	redisAfter, postgresAfter := connects()
	seconds := (l.now() - began).Seconds()
	back := 0.0
	l.until("the goroutines of closed connections end", func() bool {
		back = r.most("go_goroutines")
		return back <= goroutines+5 || l.now() > began+30*time.Second
	})
	h := l.stop()
	m.decided(h)
	m.number("new connections to Redis per second and instance", (redisAfter-redisBefore)/seconds/instances, 1, "")
	m.number("new connections to Postgres per second and instance", (postgresAfter-postgresBefore)/seconds/instances, 1, "")
	m.number("goroutines added", back-goroutines, 5, "")
	if back > goroutines+5 {
		_, profile, err := r.probe.try(http.MethodGet, r.nodes[0].InternalURL()+"/debug/pprof/goroutine?debug=1", "")
		m.Logf("%v %s", err, profile)
	}
	m.countedOnce(r, h)
	m.note("%d connections were closed early.", dropped.Load())
}

// connects returns what counts the connections that were made to Redis and to Postgres so far.
func (r *rig) connects(m *measurement) func() (toRedis, toPostgres float64) {
	m.Helper()
	control := admin(m.T, r.redis)
	conn, err := pgx.Connect(m.T.Context(), r.direct["WEIR_DATABASE_URL"])
	require.NoError(m.T, err)
	m.Cleanup(func() { _ = conn.Close(context.Background()) }) // it only read
	return func() (toRedis, toPostgres float64) {
		info, err := control.Info(m.T.Context(), "stats").Result()
		require.NoError(m.T, err)
		_, rest, _ := strings.Cut(info, "total_connections_received:")
		_, err = fmt.Sscanf(rest, "%g", &toRedis)
		require.NoError(m.T, err)
		require.NoError(m.T, conn.QueryRow(m.T.Context(), `SELECT sessions FROM pg_stat_database WHERE datname = current_database()`).Scan(&toPostgres))
		return toRedis, toPostgres
	}
}

// closeIdle closes the connections of all streams, which must have ended.
func (r *rig) closeIdle(streams []stream) {
	for _, s := range streams {
		s.from.http.CloseIdleConnections()
	}
	r.operator.http.CloseIdleConnections()
}

func idleConnections(m *measurement) {
	const connections = 6000
	r := newRig(m.T)
	l := r.load(r.probing()...)
	l.seconds(4)
	crowded := r.nodes[0]
	before, fault := crowded.metric("process_resident_memory_bytes"), l.now()
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			_ = c.Close()
		}
	}()
	request := fmt.Sprintf("POST /v1/check HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 35\r\n\r\n"+
		`{"subject":"idle","resource":"any"}`, r.probe.key)
	for range connections {
		c, err := net.Dial("tcp", crowded.addr)
		require.NoError(m.T, err)
		idle = append(idle, c)
		_, err = c.Write([]byte(request))
		require.NoError(m.T, err)
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(m.T, err)
		_, _ = io.Copy(io.Discard, response.Body)
		require.Equal(m.T, http.StatusOK, response.StatusCode)
	}
	steady := l.now()
	l.seconds(4)
	after := crowded.metric("process_resident_memory_bytes")
	h := l.stop()
	m.decided(h)
	base := h.between(time.Second, fault).p99()
	m.number(fmt.Sprintf("RSS added by %d connections", len(idle)), (after-before)/(1<<20), connections*30.0/1024, " MiB")
	m.within("p99", h.between(steady, h.load.ended).p99(), base*3/2)
	m.note("Base p99 %s.", round(base))
}

// slowClient opens a connection and sends what comes first. If it reads, it then sends a byte per
// second. If not, it repeats the first bytes. It returns how long the server kept the connection,
// which is patience or longer if it was never cut off.
func slowClient(addr, first string, reads bool) (time.Duration, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetReadBuffer(4096) // it is soon full
	began := time.Now()
	if _, err := c.Write([]byte(first)); err != nil {
		return time.Since(began), nil
	}
	if reads {
		go func() { // the server may answer before it closes the connection
			every := time.NewTicker(time.Second)
			defer every.Stop()
			for range every.C {
				if _, err := c.Write([]byte("a")); err != nil {
					return
				}
			}
		}()
		_ = c.SetReadDeadline(began.Add(patience))
		_, _ = io.Copy(io.Discard, c)
		return time.Since(began), nil
	}
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	for time.Since(began) < patience {
		<-every.C
		if _, err := c.Write([]byte(first)); err != nil { // a further request, so that the buffers fill up
			break
		}
	}
	return time.Since(began), nil
}

func slowClients(m *measurement) {
	const each = 200
	r := newRig(m.T)
	l := r.load(r.probing()...)
	l.seconds(4)
	fault := l.now()
	head := "POST /v1/check HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer " + r.probe.key + "\r\nContent-Type: application/json\r\n"
	document := "GET /openapi.json HTTP/1.1\r\nHost: weir\r\n\r\n" // a long answer
	slowest := make([]atomic.Int64, 3)
	var kept atomic.Int64
	var clients sync.WaitGroup
	for n := range each * 3 {
		clients.Go(func() {
			addr := r.nodes[n%instances].addr
			first := []string{head + "X-Slow: ", head + "Content-Length: 1000\r\n\r\n{", document}[n/each]
			took, err := slowClient(addr, first, n/each < 2)
			if err != nil {
				m.Errorf("%v", err)
				return
			}
			if took >= patience {
				kept.Add(1)
			}
			for s := &slowest[n/each]; ; {
				old := s.Load()
				if int64(took) <= old || s.CompareAndSwap(old, int64(took)) {
					return
				}
			}
		})
	}
	clients.Wait()
	repair := l.now()
	h := l.stop()
	m.decided(h)
	m.none(fmt.Sprintf("clients of %d that were not cut off", 3*each), int(kept.Load()))
	const late = 500 * time.Millisecond
	m.within("headers cut off", time.Duration(slowest[0].Load()), 5*time.Second+late)
	m.within("bodies cut off", time.Duration(slowest[1].Load()), 10*time.Second+late)
	m.within("clients that never read, since the first byte", time.Duration(slowest[2].Load()), 10*time.Second+late)
	base := h.between(time.Second, fault).p99()
	m.within("p99 of others", h.between(fault, repair).p99(), base*12/10)
	m.note("Base p99 %s.", round(base))
}

// resident returns the resident memory of the process, in bytes. The metric of the same name costs
// memory itself if it is read without a pause.
func (n *node) resident(m *measurement) int64 {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", n.Pid()))
	require.NoError(m.T, err)
	pages, err := strconv.ParseInt(strings.Fields(string(content))[1], 10, 64)
	require.NoError(m.T, err)
	return pages * int64(os.Getpagesize())
}

func endlessBodies(m *measurement) {
	const clients = 100
	r := newRig(m.T)
	l := r.load(r.probing()...)
	l.seconds(3)
	node := r.nodes[0]
	before := node.resident(m)
	var statuses [600]atomic.Int64
	var most, peak, late atomic.Int64
	done := make(chan struct{})
	var watcher, senders sync.WaitGroup
	watcher.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				peak.Store(max(peak.Load(), node.resident(m)))
			}
		}
	})
	for n := range clients {
		senders.Go(func() {
			status, sent, err := r.endless(node, n%2 == 0, 1<<30)
			if err != nil {
				m.Errorf("%v", err)
				return
			}
			statuses[status].Add(1)
			for old := most.Load(); sent > old && !most.CompareAndSwap(old, sent); old = most.Load() {
			}
		})
	}
	senders.Wait()
	close(done)
	watcher.Wait()
	for n := range clients { // these send 16 KiB and one buffer, and then wait for the answer
		senders.Go(func() {
			if status, _, err := r.endless(node, n%2 == 0, 20<<10); err != nil || status != http.StatusRequestEntityTooLarge {
				m.Logf("%d %v", status, err)
				late.Add(1)
			}
		})
	}
	senders.Wait()
	h := l.stop()
	m.decided(h)
	refused := statuses[http.StatusRequestEntityTooLarge].Load()
	m.none("clients that got neither 413 nor a closed connection", clients-int(refused+statuses[0].Load()))
	m.none("clients without 413 after 20 KiB", int(late.Load()))
	m.number("RSS added", float64(peak.Load()-before)/(1<<20), 16, " MiB")
	m.note("%d of the first %d clients got 413. A client could write %d KiB before its connection was closed, of which most stay in the buffers of the kernel.",
		refused, clients, most.Load()>>10)
}

// endless sends a body without end, until there is an answer or this much was sent. Half of the
// clients name a length, the others do not. It returns the status of the answer: 0 if the
// connection was closed without one.
func (r *rig) endless(at *node, sized bool, most int64) (status int, sent int64, err error) {
	const block = 4 << 10
	c, err := net.Dial("tcp", at.addr)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	framing, chunk := "Transfer-Encoding: chunked\r\n\r\n", fmt.Sprintf("%x\r\n%s\r\n", block, strings.Repeat(" ", block))
	if sized {
		framing, chunk = fmt.Sprintf("Content-Length: %d\r\n\r\n", 1<<30), strings.Repeat(" ", block)
	}
	answered := make(chan int, 1)
	go func() {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			answered <- 0
			return
		}
		_ = response.Body.Close()
		answered <- response.StatusCode
	}()
	_, failed := io.WriteString(c, "POST /v1/check HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer "+r.probe.key+"\r\nContent-Type: application/json\r\n"+framing)
	for failed == nil && sent < most {
		select {
		case status = <-answered:
			return status, sent, nil
		default:
			_, failed = io.WriteString(c, chunk)
			sent += block
		}
	}
	return <-answered, sent, nil
}

// hammered is the result of a closed loop of clients.
type hammered struct {
	good, refused, failed int64
	refusals              *history // 503
	unmarked              int64    // of them, those without Retry-After
	seconds               float64
}

// obey waits as long as Retry-After says, and reports whether the answer has one.
func (r *rig) obey(header http.Header) bool {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || seconds < 1 {
		return false
	}
	r.pause(time.Duration(seconds) * time.Second)
	return true
}

// hammer sends checks from this many clients, as fast as answers come, for a time. After a 503, a
// client waits as Retry-After says.
func (r *rig) hammer(c *caller, clients int, length time.Duration, resource string, subjects, cost int) hammered {
	r.t.Helper()
	var mu sync.Mutex
	total := hammered{refusals: &history{}}
	var workers sync.WaitGroup
	began := time.Now()
	for w := range clients {
		workers.Go(func() {
			own := hammered{refusals: &history{}}
			for n := w; time.Since(began) < length; n++ {
				at := time.Now()
				status, header, _, err := c.full(http.MethodPost, r.nodes[n%instances].url()+"/v1/check",
					fmt.Sprintf(`{"subject":%q,"resource":%q,"cost":%d}`, subjectName(n%subjects), resource, cost))
				switch {
				case err != nil || status == 0:
					own.failed++
				case status == http.StatusServiceUnavailable:
					own.refused++
					own.refusals.records = append(own.refusals.records, record{took: time.Since(at)})
					if !r.obey(header) {
						own.unmarked++
					}
				default:
					own.good++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total.good, total.refused, total.failed = total.good+own.good, total.refused+own.refused, total.failed+own.failed
			total.unmarked += own.unmarked
			total.refusals.records = append(total.refusals.records, own.refusals.records...)
		})
	}
	workers.Wait()
	total.seconds = time.Since(began).Seconds()
	return total
}

func overload(m *measurement) {
	// With 64 clients, an instance has 21 requests at once; with 256, it has 85.
	r := newRig(m.T, with(harness.Settings{"WEIR_MAX_IN_FLIGHT": "43"}))
	c := r.ordinary("busy")
	_ = r.hammer(c, 64, 2*time.Second, "requests", 500, 1)
	capacity := r.hammer(c, 64, 4*time.Second, "requests", 500, 1)
	done := make(chan struct{})
	var probe sync.WaitGroup
	var health history
	probe.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			at := time.Now()
			status := harness.Status(r.nodes[0].url() + "/healthz")
			rec := record{took: time.Since(at)}
			if metrics := harness.Status(r.nodes[1].InternalURL() + "/metrics"); status != http.StatusOK || metrics != http.StatusOK {
				rec.failure = fmt.Sprint(status, metrics)
			}
			health.records = append(health.records, rec)
			r.pause(50 * time.Millisecond)
		}
	})
	many := r.hammer(c, 256, 6*time.Second, "requests", 500, 1)
	close(done)
	probe.Wait()
	rate := func(h hammered) float64 { return float64(h.good) / h.seconds }
	m.none("connections that failed", int(many.failed))
	m.add("goodput", fmt.Sprintf("%.0f %%", 100*rate(many)/rate(capacity)), "≥ 90 %", rate(many) >= 0.9*rate(capacity))
	m.some("refusals", int(many.refused))
	m.none("refusals without `Retry-After`", int(many.unmarked))
	m.within("p50 of refusals, at the client", many.refusals.quantile(0.5), 5*time.Millisecond)
	m.within("p99 of refusals, at the client", many.refusals.p99(), 5*time.Millisecond)
	failed := 0
	for _, rec := range health.records {
		if rec.failure != "" {
			failed++
		}
	}
	m.none(fmt.Sprintf("failed of %d reads of `/healthz` and metrics", len(health.records)), failed)
	m.within("p99 of health checks", health.p99(), time.Second)
	m.note("Capacity %.0f checks per second with 64 clients on the processors of the server. The clients use more than half of the machine, so times at the client are not those of the server: [performance.md](performance.md) has a measurement with the load elsewhere.", rate(capacity))
}

func smallMemory(m *measurement) {
	const limit = 256.0
	r := newRig(m.T, with(harness.Settings{"GOMEMLIMIT": "230MiB"}))
	c := r.ordinary("many")
	l := r.load(r.probing()...)
	done := make(chan struct{})
	var watcher sync.WaitGroup
	peak := 0.0
	watcher.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				peak = max(peak, r.most("process_resident_memory_bytes")/(1<<20))
				r.pause(50 * time.Millisecond)
			}
		}
	})
	r.batches(c, "requests", 0, 100_000)
	_ = r.hammer(c, 100, 3*time.Second, "requests", 100_000, 1)
	close(done)
	watcher.Wait()
	m.decided(l.stop())
	m.number("highest RSS of an instance", peak, 0.8*limit, " MiB")
}

// batches checks each of the subjects from..to once, in batches of 100.
func (r *rig) batches(c *caller, resource string, from, to int) {
	r.t.Helper()
	var next atomic.Int64
	next.Store(int64(from))
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for {
				first := int(next.Add(100)) - 100
				if first >= to {
					return
				}
				var checks []string
				for n := first; n < min(first+100, to); n++ {
					checks = append(checks, fmt.Sprintf(`{"subject":"each_%d","resource":%q}`, n, resource))
				}
				status, body, err := c.try(http.MethodPost, r.nodes[w%instances].url()+"/v1/check/batch", `{"checks":[`+strings.Join(checks, ",")+`]}`)
				if err != nil || status != http.StatusOK {
					r.t.Errorf("%v %d %.200s", err, status, body)
					return
				}
			}
		})
	}
	workers.Wait()
}
