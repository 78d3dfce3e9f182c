package faults

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

var redisRows = []row{
	{id: "R1", fault: "SIGKILL of Redis under load, back 6 s later, empty", quick: true, run: redisKilled,
		goal: "E = 0; detect ≤ 250 ms; p99 ≤ base + 60 ms in the first 250 ms, then ≤ base; recover ≤ 1 s; `local`: O = 0 in windows inside the outage, ≤ 10 % in those at its edges, never over 100 %; `deny` allows nothing"},
	{id: "R2", fault: "SIGSTOP of Redis for 6 s, sockets stay open", quick: true, run: redisFrozen,
		goal: "as R1; no reply reaches a wrong request; each check counted at most once"},
	{id: "R3", fault: "500 ms of latency for 8 s", quick: true, run: redisSlow,
		goal: "E = 0; p99 ≤ base + 60 ms; at most one breaker change per second and instance; no check counted twice"},
	{id: "R4", fault: "Packets to Redis are discarded for 6 s; then every connection is closed after 1 KiB, for 6 s", quick: true, run: redisSilent,
		goal: "E = 0; goroutines ≤ base + 2 x connections of clients; RSS ≤ base + 32 MiB"},
	{id: "R5", fault: "One of three instances cut off from Redis for 6 s", quick: true, run: oneCutOff,
		goal: "E = 0; the other two stay exact; O ≤ 1/3 in windows inside the outage"},
	{id: "R6", fault: "Cluster of 3 + 3: SIGKILL of one master, node timeout 2 s", quick: true, run: masterKilled,
		goal: "E = 0; only its tenants are degraded; p99 of the others ≤ 1.2 x base; recover ≤ 4 s; lost units ≤ those of the last 100 ms"},
	{id: "R7", fault: "Cluster: manual failover, then a slot is moved under load", quick: true, run: slotMoved,
		goal: "E = 0; degraded for ≤ 1 s; O = 0 and U = 0; nothing counted twice, lost units ≤ those of the last 100 ms"},
	{id: "R8", fault: "Sentinel: the primary is frozen, replaced and later demoted; then a failover by command", quick: true, run: sentinelFailover,
		goal: "E = 0; recover ≤ 1 s after the promotion, without a restart; O = 0 and U = 0 outside the failovers, O ≤ one limit during them; nothing counted twice; lost units ≤ those of 100 ms, and of the time between the command and the demotion"},
	{id: "R9", fault: "SCRIPT FLUSH every 100 ms for 5 s; then FLUSHALL once", quick: true, run: scriptsFlushed,
		goal: "E = 0; no degraded answer; after FLUSHALL O ≤ one limit per subject, once"},
	{id: "R10", fault: "`maxmemory` reached under `noeviction` for 5 s", quick: true, run: memoryFull,
		goal: "E = 0; no key without expiry; no check counted for one of its rules only; recovers by itself"},
	{id: "R11", fault: "Redis with an evicting policy, as a replica, with a wrong ACL or password, without free clients", quick: true, run: redisUnusable,
		goal: "ready, and the cause is in the log, the metric and `/readyz` within 5 s"},
	{id: "R12", fault: "A script of another client runs for 8 s (silence, then BUSY); then a restart that loads a gigabyte (LOADING)", quick: true, run: redisBusyOrLoading,
		goal: "E = 0; p99 ≤ base + 60 ms; recover ≤ 1 s; no check counted twice; the cause is named"},
	{id: "R13", fault: "The clock of Redis steps +1 h, back, -1 h and back", run: redisClockSteps,
		goal: "nobody is locked out longer than one window; O ≤ one limit per step; no negative time in an answer"},
	{id: "R14", fault: "The clocks of two instances step by 1 h in opposite directions, then the other way and back; once more while Redis is frozen", run: instanceClockSteps,
		goal: "no differing decision: O = 0, U = 0, none counted twice; no answer is degraded because of it; no time is negative or beyond the window"},
	{id: "R15", fault: "Failover to a replica whose clock is 5 s behind, at the same address", quick: true, run: replicaBehind,
		goal: "U only for ≤ 5 s, then none; recover ≤ 1 s after the address leads to the replica"},
	{id: "R16", fault: "A replica that lacks the writes of the last second takes the place of the primary", quick: true, run: writesLost,
		goal: "E = 0; only units of that second are lost; O ≤ one limit, in the windows that they belong to; recover ≤ 1 s after the address leads to the replica"},
}

// The streams of the probe tenant in probing, by their number.
const (
	localStream = iota
	denyStream
	allowStream
	tallyStream
)

// tallySubjects is the number of subjects of the stream tallyStream.
const tallySubjects = 8

// probing returns the streams of most cases: one for each on_unavailable, one that only counts, and
// two tenants of ordinary load. The first three ask for 150 % of what their rules allow and more.
func (r *rig) probing() []stream {
	streams := []stream{
		localStream: {from: r.probe, resource: "local", subjects: 6, rate: 120},
		denyStream:  {from: r.probe, resource: "deny", subjects: 2, rate: 40},
		allowStream: {from: r.probe, resource: "allow", subjects: 2, rate: 40},
		tallyStream: {from: r.probe, resource: "tally", subjects: tallySubjects, rate: 40},
	}
	for n := range 2 {
		streams = append(streams, stream{from: r.ordinary(fmt.Sprintf("ordinary-%d", n)), resource: "requests", subjects: 500, rate: 30})
	}
	return streams
}

// apart is how far the tallies of two subjects are from each other at the start.
const apart = 1_000_000

// startTallies charges each subject of the stream tallyStream a number of units of its own, so that
// a reply for one subject cannot be taken for that of another.
func (r *rig) startTallies() {
	r.t.Helper()
	for n := range tallySubjects {
		require.Eventually(r.t, func() bool { // on a busy machine, Redis may or may not have counted a check that timed out
			if rec := r.ask("tally", n, 0); rec.degraded || rec.failure != "" {
				return false
			} else if used := tallyLimit - rec.remaining; used > 0 {
				require.EqualValues(r.t, (n+1)*apart, used, "charged once")
				return true
			}
			r.ask("tally", n, (n+1)*apart)
			return false
		}, patience, tick, "a tally cannot be started")
	}
}

// ask sends one check of the probe tenant to the first instance.
func (r *rig) ask(resource string, subject, cost int) (rec record) {
	return r.probe.check(r.nodes[0], subjectName(subject), resource, cost)
}

// A tally is the outcome of the checks of one subject of the stream tallyStream: how many Redis
// answered, how many it may or may not have counted, and how many it has counted.
type tally struct{ sent, counted, unknown, used int }

// tallies compares what Redis has counted with what was sent. wrong is the number of replies that
// cannot be for their subject.
func (r *rig) tallies(h *history) (all []tally, wrong int) {
	r.t.Helper()
	all = make([]tally, tallySubjects)
	for _, rec := range h.uncertain() {
		if rec.stream == tallyStream {
			all[rec.subject].unknown++
		}
	}
	checks := h.stream(tallyStream)
	for i := range checks.records {
		rec := &checks.records[i]
		t := &all[rec.subject]
		t.sent++
		if rec.allowed && !rec.degraded {
			t.counted++
		}
	}
	for i := range checks.records {
		if rec := &checks.records[i]; rec.allowed && !rec.degraded {
			used := tallyLimit - int(rec.remaining) - (rec.subject+1)*apart
			if used < 1 || used > all[rec.subject].sent {
				wrong++
			}
		}
	}
	for n := range all {
		require.Eventually(r.t, func() bool {
			rec := r.ask("tally", n, 0)
			all[n].used = tallyLimit - int(rec.remaining) - (n+1)*apart
			return !rec.degraded && rec.failure == ""
		}, patience, tick, "the tally cannot be read")
	}
	return all, wrong
}

// countedOnce reports that Redis has counted each check once that it answered, and none twice.
func (m *measurement) countedOnce(r *rig, h *history) {
	m.Helper()
	m.none("counted checks lost", m.tallyFigures(r, h))
}

// tallyFigures reports what Redis has counted beyond the checks that it answered and those of which
// this is unknown. It returns how many of the checks that it answered it has not counted.
func (m *measurement) tallyFigures(r *rig, h *history) (lost int) {
	m.Helper()
	all, wrong := r.tallies(h)
	sent, counted, unknown, used, twice := 0, 0, 0, 0, 0
	for _, t := range all {
		sent, counted, unknown, used = sent+t.sent, counted+t.counted, unknown+t.unknown, used+t.used
		twice += max(0, t.used-t.counted-t.unknown)
		lost += max(0, t.counted-t.used)
	}
	m.none("replies for another subject", wrong)
	m.none("checks counted twice", twice)
	m.note("Of %d tallied checks, Redis answered %d and has counted %d. Of %d others it is unknown whether it has counted them.", sent, counted, used, unknown)
	return lost
}

// An incident is a fault during a load: when it began, when it was over, and when all instances had
// noticed each.
type incident struct{ fault, degraded, repair, healthy time.Duration }

// outageFigures reports what all outages of Redis have in common.
func (m *measurement) outageFigures(h *history, i incident) {
	m.Helper()
	m.decided(h)
	base := h.between(time.Second, i.fault).p99()
	m.within("detect", h.detected(i.fault), 250*time.Millisecond)
	m.within("p99 in the first 250 ms", h.between(i.fault, i.fault+250*time.Millisecond).p99(), base+60*time.Millisecond)
	m.within("p99 then", h.between(i.fault+250*time.Millisecond, i.repair).p99(), base)
	m.within("recover", h.recovered(i.repair), time.Second)
	m.localFigures(h, i)
	denied := h.stream(denyStream)
	m.none("allowed by `deny`", denied.count(func(r *record) bool { return r.degraded && r.allowed }))
	allowed := h.stream(allowStream)
	m.none("refused by `allow`", allowed.count(func(r *record) bool { return r.degraded && !r.allowed }))
	m.note("Base p99 %s.", round(base))
}

// localFigures reports what the rule `local` admitted before, at the edges of, inside and after an
// outage.
func (m *measurement) localFigures(h *history, i incident) {
	m.Helper()
	inside, edges, outside := outage(h.stream(localStream).windows(probeWindow), i, h.load.ended)
	m.none(fmt.Sprintf("O inside, units in %d windows", len(inside)), over(inside, probeLimit))
	m.judged("O inside", inside)
	m.atMost(fmt.Sprintf("O at the edges, units of %d in the worst of %d windows", probeLimit, len(edges)), over(edges, probeLimit), probeLimit)
	m.judged("O at the edges", edges)
	m.share("O at the edges, worst", float64(over(edges, probeLimit))/probeLimit, 0.10)
	m.limitHeld(" outside", outside)
}

func redisKilled(m *measurement) {
	r := newRig(m.T)
	l := r.load(r.probing()...)
	l.steady(m.seconds(5, 3))
	i := incident{fault: l.now()}
	r.redis.Kill()
	l.awaitDegraded()
	i.degraded = l.now()
	l.seconds(m.seconds(6, 5))
	for _, path := range []string{"/v1/rules", "/login"} {
		status, body := r.probe.do(http.MethodGet, r.nodes[0].url()+path, "")
		m.holds(path+" works", status == http.StatusOK)
		if status != http.StatusOK {
			m.Logf("%d %s", status, body)
		}
	}
	r.redis.Start()
	i.repair = l.now()
	l.awaitHealthy()
	i.healthy = l.now()
	l.seconds(m.seconds(5, 3))
	m.outageFigures(l.stop(), i)
	m.none("keys without expiry", int(keysWithoutExpiry(m.T, r.redis)))
}

func redisFrozen(m *measurement) {
	r := newRig(m.T)
	r.startTallies()
	l := r.load(r.probing()...)
	l.steady(m.seconds(5, 3))
	i := incident{fault: l.now()}
	r.redis.Pause()
	l.awaitDegraded()
	i.degraded = l.now()
	l.seconds(m.seconds(6, 5))
	i.repair = l.now()
	r.redis.Resume()
	l.awaitHealthy()
	i.healthy = l.now()
	l.seconds(m.seconds(5, 3))
	h := l.stop()
	m.outageFigures(h, i)
	m.countedOnce(r, h)
}

func redisSlow(m *measurement) {
	r := newRig(m.T)
	r.startTallies()
	l := r.load(r.probing()...)
	l.seconds(5)
	fault, changes := l.now(), r.breakerChanges()
	for _, n := range r.nodes {
		n.redis.delay(500)
	}
	l.awaitDegraded()
	l.seconds(8)
	repair := l.now()
	changes = r.breakerChanges() - changes
	for _, n := range r.nodes {
		n.redis.clear()
	}
	l.awaitHealthy()
	l.seconds(3)
	h := l.stop()
	m.decided(h)
	base := h.between(time.Second, fault).p99()
	m.within("detect", h.detected(fault), 250*time.Millisecond)
	m.within("p99", h.between(fault, repair).p99(), base+60*time.Millisecond)
	m.within("recover", h.recovered(repair), time.Second)
	m.number("breaker changes per second and instance", float64(changes)/(repair-fault).Seconds()/instances, 1, "")
	m.note("Base p99 %s.", round(base))
	m.countedOnce(r, h)
}

// breakerChanges returns how often the instances have logged that Redis became unavailable or
// available.
func (r *rig) breakerChanges() (count int) {
	for _, n := range r.nodes {
		log := n.Log()
		count += strings.Count(log, `"redis is unavailable"`) + strings.Count(log, `"redis is available again"`)
	}
	return count
}

func redisSilent(m *measurement) {
	r := newRig(m.T)
	l := r.load(r.probing()...)
	l.seconds(4)
	goroutines, memory := r.most("go_goroutines"), r.most("process_resident_memory_bytes")
	fault := l.now()
	for _, n := range r.nodes {
		n.redis.silence()
	}
	l.awaitDegraded()
	l.seconds(6)
	silent, silentMemory := r.most("go_goroutines"), r.most("process_resident_memory_bytes")
	for _, n := range r.nodes {
		n.redis.clear()
	}
	l.awaitHealthy()
	for _, n := range r.nodes {
		n.redis.resetAfter(1024)
	}
	l.seconds(6)
	reset, resetMemory := r.most("go_goroutines"), r.most("process_resident_memory_bytes")
	for _, n := range r.nodes {
		n.redis.clear()
	}
	repair := l.now()
	l.awaitHealthy()
	l.seconds(1)
	h := l.stop()
	connections := 0
	for _, s := range h.load.streams {
		connections += max(instances, (s.rate+perWorker-1)/perWorker)
	}
	m.decided(h)
	m.within("detect", h.detected(fault), 250*time.Millisecond)
	m.within("recover", h.recovered(repair), time.Second)
	m.number("goroutines added by silence", silent-goroutines, 2*float64(connections), "")
	m.number("goroutines added by resets", reset-goroutines, 2*float64(connections), "")
	m.number("RSS added by silence", (silentMemory-memory)/(1<<20), 32, " MiB")
	m.number("RSS added by resets", (resetMemory-memory)/(1<<20), 32, " MiB")
	m.note("The proxy cannot lose single packets, so 10 %% loss is not measured.")
}

// most returns the highest value of a metric of any instance.
func (r *rig) most(name string) (value float64) {
	for _, n := range r.nodes {
		value = max(value, n.metric(name))
	}
	return value
}

func oneCutOff(m *measurement) {
	r := newRig(m.T)
	l := r.load(r.probing()...)
	l.steady(m.seconds(5, 3))
	i := incident{fault: l.now()}
	r.nodes[0].redis.cut()
	l.awaitDegraded(0)
	i.degraded = l.now()
	l.steady(m.seconds(6, 5), 1, 2)
	i.repair = l.now()
	r.nodes[0].redis.join()
	l.awaitHealthy(0)
	i.healthy = l.now()
	l.seconds(m.seconds(3, 1))
	h := l.stop()
	m.decided(h)
	m.within("detect", h.detected(i.fault, 0), 250*time.Millisecond)
	m.within("recover", h.recovered(i.repair, 0), time.Second)
	inside, _, outside := outage(h.stream(localStream).windows(probeWindow), i, h.load.ended)
	inside = filter(inside, func(w window) bool { return w.degraded[1]+w.degraded[2] == 0 }) // others: on a busy machine
	m.atMost(fmt.Sprintf("O inside, units of %d in %d windows", probeLimit, len(inside)), over(inside, probeLimit), probeLimit/instances)
	m.judged("O inside", inside)
	others := h.stream(localStream).where(func(rec *record) bool { return rec.node != 0 })
	connected, _, _ := outage(others.windows(probeWindow), i, h.load.ended)
	exact := filter(connected, window.exact)
	m.limitHeld(" of the other two", exact)
	m.limitHeld(" outside", outside)
}
