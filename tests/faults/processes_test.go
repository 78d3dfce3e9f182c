package faults

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

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
		goal: "all are cut off: headers after 5 s, bodies and answers after 10 s, at most 0.5 s later; E = 0; p99 of others ≤ 1.2 x base"},
	{id: "C7", fault: "100 clients that send endless bodies, at once", quick: true, run: endlessBodies,
		goal: "each is refused after 16 KiB and one buffer of 4 KiB at most; RSS + 16 MiB at most"},
	{id: "C8", fault: "HTTP/2: four connections with resets, headers without end, pings or settings, for 3 s each", run: http2Floods,
		goal: "p99 of others ≤ 1.5 x base; E = 0; RSS + 64 MiB at most"},
	{id: "C9", fault: "Four times as many clients as give the highest throughput, and twice as many as `WEIR_MAX_IN_FLIGHT` allows", run: overload,
		goal: "goodput ≥ 90 % of the capacity; a refusal takes ≤ 5 ms at p99 and has `Retry-After`; `/healthz` and metrics answer"},
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
	l.steady(2)
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
	m.limitHeld("", h.exactWindows())
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
	l.steady(3)
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
	windows := h.exactWindows()
	m.none(fmt.Sprintf("O, units in %d windows", len(windows)), over(windows, probeLimit))
	m.judged("O", windows)
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
