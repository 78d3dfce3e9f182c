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
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

var processRows = []row{
	{id: "C1", fault: "Rolling restart of all instances, twice, with clients that never retry", quick: true, run: rollingRestart,
		goal: "no failed request"},
	{id: "C2", fault: "SIGKILL of one instance every 2 s, 6 times", quick: true, run: instancesKilled,
		goal: "only requests in flight fail; O = 0; usage lost ≤ 1 s of the killed instance; RSS of the others + 16 MiB at most"},
	{id: "C3", fault: "SIGKILL of an instance during writes with `Idempotency-Key` that clients repeat",
		goal: "no write lost or doubled; an audit row exactly for each",
		why:  "`TestKilledWhileWriting` in `tests` counts them: 150 writes in `make test`, 10 000 in `make test-idempotency`."},
	{id: "C4", fault: "Half of the clients close their connection before the answer, for 8 s", run: clientsDrop,
		goal: "new connections to Redis and Postgres ≤ 1 per second and instance; goroutines back to + 5; no check counted twice"},
	{id: "C5", fault: "6 000 idle connections to one instance, and load", run: idleConnections,
		goal: "RSS + 180 MiB at most (30 KiB for each); p99 ≤ 1.5 x base; E = 0"},
	{id: "C6", fault: "200 clients that send a header byte per second, 200 that send a body so, 200 that never read", run: slowClients,
		goal: "headers are cut off after ≤ 5 s, bodies and answers after ≤ 10 s; E = 0; p99 of others ≤ 1.2 x base"},
	{id: "C7", fault: "100 clients that send endless bodies, at once", quick: true, run: endlessBodies,
		goal: "each is refused after ≤ 16 KiB and one buffer; RSS + 16 MiB at most"},
	{id: "C8", fault: "HTTP/2: four connections with resets, headers without end, pings or settings, for 3 s each", run: http2Floods,
		goal: "p99 of others ≤ 1.5 x base; E = 0; RSS + 64 MiB at most"},
	{id: "C9", fault: "Four times as many clients as give the highest throughput", run: overload,
		goal: "goodput ≥ 90 % of the capacity; a refusal takes ≤ 5 ms and has `Retry-After`; `/healthz` and metrics answer"},
	{id: "C10", fault: "GOMEMLIMIT of 230 MiB for a container of 256 MiB, 100 000 subjects", run: smallMemory,
		goal: "RSS ≤ 80 % of 256 MiB throughout"},
}

// A balancer asks each instance for /readyz every 100 ms, as load balancers do.
type balancer struct {
	unready [instances]atomic.Bool
	stop    chan struct{}
	done    sync.WaitGroup
}

func (r *rig) balancer() *balancer {
	b := &balancer{stop: make(chan struct{})}
	for i, n := range r.nodes {
		b.done.Go(func() {
			every := time.NewTicker(100 * time.Millisecond)
			defer every.Stop()
			for {
				select {
				case <-b.stop:
					return
				case <-every.C:
					b.unready[i].Store(harness.Status(n.url()+"/readyz") != http.StatusOK)
				}
			}
		})
	}
	r.t.Cleanup(func() { close(b.stop); b.done.Wait() })
	return b
}

func (b *balancer) dead(node int) bool { return b.unready[node].Load() }

func rollingRestart(m *measurement) {
	r := newRig(m.T, with(harness.Settings{"WEIR_DRAIN": "2s"}))
	b := r.balancer()
	streams := r.probing()
	for i := range streams {
		streams[i].dead = b.dead
	}
	l := r.load(streams...)
	l.seconds(2)
	restarts := 0
	for range int(m.seconds(2, 1)) {
		for i, n := range r.nodes {
			n.Signal(syscall.SIGTERM)
			require.Zero(m.T, n.Exit())
			r.restart(n)
			l.until("the balancer sends requests again", func() bool { return !b.dead(i) })
			restarts++
			l.seconds(0.5)
		}
	}
	l.seconds(1)
	h := l.stop()
	count, why := h.failures()
	m.Log(why)
	m.none(fmt.Sprintf("failed requests of %d, over %d restarts", len(h.records), restarts), count)
	_, _, outside := outage(h.stream(localStream).windows(probeWindow), incident{h.load.ended, h.load.ended, h.load.ended, h.load.ended}, h.load.ended)
	m.none("O, units", over(outside, probeLimit))
	m.none("U, units", under(outside, probeLimit))
	m.usageIsExact(r, h, len(streams)-1)
}

func instancesKilled(m *measurement) {
	r := newRig(m.T)
	var down [instances]atomic.Bool
	streams := r.probing()
	connections := 0
	for i := range streams {
		streams[i].dead = func(node int) bool { return down[node].Load() }
		connections += max(instances, (streams[i].rate+perWorker-1)/perWorker)
	}
	ordinary := len(streams) - 1
	l := r.load(streams...)
	l.seconds(3)
	before := r.most("process_resident_memory_bytes")
	kills, killed := int(m.seconds(6, 3)), map[int][]time.Duration{}
	for k := range kills {
		n := k % instances
		down[n].Store(true) // the balancer notices at once: only requests in flight may fail
		killed[n] = append(killed[n], l.now())
		r.nodes[n].Kill()
		r.restart(r.nodes[n])
		down[n].Store(false)
		l.seconds(2)
	}
	after := r.most("process_resident_memory_bytes")
	h := l.stop()
	failed, notInFlight := 0, 0
	for i := range h.records {
		rec := &h.records[i]
		if rec.failure == "" {
			continue
		}
		failed++
		inFlight := false
		for _, at := range killed[rec.node] {
			inFlight = inFlight || rec.sent <= at && rec.done() >= at
		}
		if !inFlight {
			notInFlight++
			m.Log(rec.failure)
		}
	}
	m.none(fmt.Sprintf("failed requests that were not in flight, of %d failed in %d kills", failed, kills), notInFlight)
	m.atMost("failed requests", failed, kills*connections)
	_, _, outside := outage(h.stream(localStream).windows(probeWindow), incident{h.load.ended, h.load.ended, h.load.ended, h.load.ended}, h.load.ended)
	m.none("O, units", over(outside, probeLimit))
	from, sent := h.load.streams[ordinary].from, len(h.stream(ordinary).records)
	reported, polls := -1, 0
	require.Eventually(m.T, func() bool { // what is not written after three seconds without a change is lost
		now := r.spent(from)
		if polls++; now != reported {
			reported, polls = now, 0
		}
		return polls == 30
	}, 2*patience, 100*time.Millisecond, "usage changes without end")
	m.atMost(fmt.Sprintf("usage reported twice, units of %d", sent), max(0, reported-sent), 0)
	m.number("usage lost per kill", float64(sent-reported)/float64(kills), float64(h.load.streams[ordinary].rate)/instances, " checks")
	m.number("RSS added", (after-before)/(1<<20), 16, " MiB")
}

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
	control := admin(m.T, r.redis)
	conn, err := pgx.Connect(m.T.Context(), r.direct["WEIR_DATABASE_URL"])
	require.NoError(m.T, err)
	defer conn.Close(context.Background())
	connects := func() (toRedis, toPostgres float64) {
		info, err := control.Info(m.T.Context(), "stats").Result()
		require.NoError(m.T, err)
		_, rest, _ := strings.Cut(info, "total_connections_received:")
		_, err = fmt.Sscanf(rest, "%g", &toRedis)
		require.NoError(m.T, err)
		require.NoError(m.T, conn.QueryRow(m.T.Context(), `SELECT sessions FROM pg_stat_database WHERE datname = current_database()`).Scan(&toPostgres))
		return toRedis, toPostgres
	}
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
// second. If not, it repeats the first bytes. It returns how long the server kept the connection.
func slowClient(addr, first string, reads bool) time.Duration {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetReadBuffer(4096) // it is soon full
	began := time.Now()
	if _, err := c.Write([]byte(first)); err != nil {
		return time.Since(began)
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
		return time.Since(began)
	}
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	for time.Since(began) < patience {
		<-every.C
		if _, err := c.Write([]byte(first)); err != nil { // a further request, so that the buffers fill up
			break
		}
	}
	return time.Since(began)
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
	var clients sync.WaitGroup
	for n := range each * 3 {
		clients.Go(func() {
			addr := r.nodes[n%instances].addr
			var took time.Duration
			switch n / each {
			case 0:
				took = slowClient(addr, head+"X-Slow: ", true)
			case 1:
				took = slowClient(addr, head+"Content-Length: 1000\r\n\r\n{", true)
			default:
				took = slowClient(addr, document, false)
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
	m.within("headers cut off", time.Duration(slowest[0].Load()), 5500*time.Millisecond)
	m.within("bodies cut off", time.Duration(slowest[1].Load()), 10500*time.Millisecond)
	m.within("clients that never read, since the first byte", time.Duration(slowest[2].Load()), 15*time.Second)
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
	var most, peak atomic.Int64
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
	head := "POST /v1/check HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer " + r.probe.key + "\r\nContent-Type: application/json\r\n"
	for n := range clients {
		senders.Go(func() {
			c, err := net.Dial("tcp", node.addr)
			if err != nil {
				return
			}
			defer c.Close()
			framing, chunk := "Transfer-Encoding: chunked\r\n\r\n", "4000\r\n"+strings.Repeat(" ", 0x4000)+"\r\n"
			if n%2 == 0 {
				framing, chunk = fmt.Sprintf("Content-Length: %d\r\n\r\n", 1<<30), strings.Repeat(" ", 0x4000)
			}
			answered := make(chan int, 1)
			go func() {
				response, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					answered <- 0
					return
				}
				_ = response.Body.Close()
				answered <- response.StatusCode
			}()
			sent, status := int64(0), -1
			_, err = c.Write([]byte(head + framing))
			for err == nil && sent < 1<<30 && status < 0 {
				select {
				case status = <-answered:
				default:
					_, err = c.Write([]byte(chunk))
					sent += int64(len(chunk))
				}
			}
			if status < 0 {
				status = <-answered
			}
			statuses[status].Add(1)
			for old := most.Load(); sent > old && !most.CompareAndSwap(old, sent); old = most.Load() {
			}
		})
	}
	senders.Wait()
	close(done)
	watcher.Wait()
	h := l.stop()
	m.decided(h)
	refused := statuses[http.StatusRequestEntityTooLarge].Load()
	m.add("clients that got 413", fmt.Sprint(refused), fmt.Sprintf("%d, or a closed connection", clients), refused+statuses[0].Load() == clients)
	m.number("RSS added", float64(peak.Load()-before)/(1<<20), 16, " MiB")
	m.note("A client could write %d KiB before its connection was closed, of which most stay in the buffers of the kernel.", most.Load()>>10)
}

// hammered is the result of a closed loop of clients.
type hammered struct {
	good, refused, failed int64
	refusals              *history
	seconds               float64
}

// hammer sends checks from this many clients, as fast as answers come, for a time.
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
				status, _, err := c.try(http.MethodPost, r.nodes[n%instances].url()+"/v1/check",
					fmt.Sprintf(`{"subject":%q,"resource":%q,"cost":%d}`, subjectName(n%subjects), resource, cost))
				switch {
				case err != nil || status == 0:
					own.failed++
				case status == http.StatusServiceUnavailable:
					own.refused++
					own.refusals.records = append(own.refusals.records, record{took: time.Since(at)})
				default:
					own.good++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total.good, total.refused, total.failed = total.good+own.good, total.refused+own.refused, total.failed+own.failed
			total.refusals.records = append(total.refusals.records, own.refusals.records...)
		})
	}
	workers.Wait()
	total.seconds = time.Since(began).Seconds()
	return total
}

func overload(m *measurement) {
	r := newRig(m.T)
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
			if status != http.StatusOK {
				rec.failure = fmt.Sprint(status)
			}
			health.records = append(health.records, rec)
			_ = r.nodes[1].Metrics()
			r.pause(50 * time.Millisecond)
		}
	})
	many := r.hammer(c, 256, 6*time.Second, "requests", 500, 1)
	close(done)
	probe.Wait()
	rate := func(h hammered) float64 { return float64(h.good) / h.seconds }
	m.none("connections that failed", int(many.failed))
	m.add("goodput", fmt.Sprintf("%.0f %%", 100*rate(many)/rate(capacity)), "≥ 90 %", rate(many) >= 0.9*rate(capacity))
	m.within(fmt.Sprintf("p99 of %d refusals, at the client", many.refused), many.refusals.p99(), 5*time.Millisecond)
	failed := 0
	for _, rec := range health.records {
		if rec.failure != "" {
			failed++
		}
	}
	m.none(fmt.Sprintf("failed of %d health checks", len(health.records)), failed)
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
