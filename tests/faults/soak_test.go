package faults

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

var (
	soakFlag   = flag.Duration("soak", 15*time.Second, "how long TestSoak injects random faults under load")
	soakEvery  = flag.Duration("soak-every", 5*time.Second, "how often TestSoak injects a fault")
	soakSeed   = flag.Uint64("soak-seed", 1, "seed of the order of the faults")
	soakReport = flag.String("soak-report", "", "file whose section about the soak the run replaces")
)

// A soakFault is one kind of fault. inject returns what repairs it.
type soakFault struct {
	name   string
	inject func(*soak) (repair func())
}

// untouched is the instance whose process no fault ends, so that its memory, goroutines,
// descriptors and connections have one curve from the start of a soak to its end.
const untouched = instances - 1

var soakFaults = []soakFault{
	{"Redis killed, back empty", func(s *soak) func() { s.rig.redis.Kill(); return s.rig.redis.Start }},
	{"Redis frozen", func(s *soak) func() { s.rig.redis.Pause(); return s.rig.redis.Resume }},
	{"one instance cut off from Redis", func(s *soak) func() { l := s.any().redis; l.cut(); return l.join }},
	{"replies of Redis 500 ms late for one instance", func(s *soak) func() { l := s.any().redis; l.delay(500); return l.clear }},
	{"packets to Redis discarded for one instance", func(s *soak) func() { l := s.any().redis; l.silence(); return l.clear }},
	{"scripts flushed", func(s *soak) func() {
		require.NoError(s.t, s.admin.ScriptFlush(s.t.Context()).Err())
		return func() {}
	}},
	{"Postgres cut off", func(s *soak) func() {
		s.postgres((*link).cut)
		return func() { s.postgres((*link).join) }
	}},
	{"Postgres silent", func(s *soak) func() {
		s.postgres((*link).silence)
		return func() { s.postgres((*link).clear) }
	}},
	{"sessions of Postgres ended", func(s *soak) func() { s.rig.database(endOthers); return func() {} }},
	{"one instance killed", (*soak).kill},
	{"one instance restarted", (*soak).restart},
	{"one instance frozen", func(s *soak) func() {
		n := s.any()
		n.Signal(syscall.SIGSTOP)
		return func() { n.Signal(syscall.SIGCONT) }
	}},
}

// An episode is one fault of a soak, from its start until all instances answer as before.
type episode struct {
	fault      string
	begin, end time.Duration
	killed     int // the instance that was killed, or -1
}

// A soak is a load with random faults.
type soak struct {
	t        testing.TB
	rig      *rig
	load     *load
	admin    *redis.Client
	random   *rand.Rand
	balancer *balancer
	down     [instances]atomic.Bool // the balancer has noticed that the instance was killed
	killed   int                    // by the current fault, or -1
	episodes []episode
	points   []point
	degraded map[string]int // degraded answers between faults, by the fault before them
}

func (s *soak) any() *node { return s.rig.nodes[s.random.IntN(instances)] }

func (s *soak) postgres(change func(*link)) {
	for _, n := range s.rig.nodes {
		change(n.postgres)
	}
}

func (s *soak) kill() func() {
	s.killed = s.random.IntN(untouched)
	n := s.rig.nodes[s.killed]
	s.down[s.killed].Store(true)
	n.Kill()
	return func() {
		s.rig.restart(n)
		s.down[s.killed].Store(false)
	}
}

func (s *soak) restart() func() {
	n := s.rig.nodes[s.random.IntN(untouched)]
	n.Signal(syscall.SIGTERM)
	return func() {
		require.Zero(s.t, n.Exit())
		s.rig.restart(n)
	}
}

// TestSoak injects a random fault again and again under load, and afterwards compares every
// decision with what was permitted. `make soak` runs it for an hour.
func TestSoak(t *testing.T) {
	t.Parallel()
	s := &soak{t: t, rig: newRig(t, with(harness.Settings{"WEIR_DRAIN": "2s"})), random: rand.New(rand.NewPCG(*soakSeed, 0)), killed: -1}
	s.admin = admin(t, s.rig.redis)
	s.balancer = s.rig.balancer()
	streams := s.rig.probing()
	for i := range streams {
		streams[i].dead = func(node int) bool { return s.down[node].Load() || s.balancer.dead(node) }
	}
	s.load = s.rig.load(streams...)
	s.load.steady(5)
	s.run(*soakFlag, *soakEvery)
	m := &measurement{T: t, id: "soak"}
	s.judge(m, s.load.stop())
	if *soakReport != "" {
		s.write(*soakReport, m)
	}
}

// run injects faults until the time is over. Each kind occurs once before any occurs again.
func (s *soak) run(length, every time.Duration) {
	var order []soakFault
	for next := s.load.now(); s.load.now() < length; next += every {
		if len(order) == 0 {
			order = slices.Clone(soakFaults)
			s.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		s.rig.pause(next - s.load.now())
		s.points = append(s.points, s.measure())
		s.inject(order[0])
		order = order[1:]
	}
	s.rig.pause(5 * time.Second) // the last descriptors of the last fault are closed
	s.points = append(s.points, s.measure())
}

// inject runs one fault for two to six seconds, and returns when all instances answer as before.
func (s *soak) inject(f soakFault) {
	e := episode{fault: f.name, begin: s.load.now()}
	repair := f.inject(s)
	s.rig.pause(time.Duration(2+s.random.IntN(5)) * time.Second)
	repair()
	s.load.awaitHealthy()
	for i, n := range s.rig.nodes {
		s.load.until("the balancer sends requests again", func() bool { return !s.balancer.dead(i) })
		s.load.until("the admin API works", func() bool {
			status, _, err := s.rig.probe.try("GET", n.url()+"/v1/rules", "")
			return err == nil && status == 200
		})
	}
	e.end, e.killed, s.killed = s.load.now(), s.killed, -1
	s.episodes = append(s.episodes, e)
	s.t.Logf("%s: %s to %s", e.fault, round(e.begin), round(e.end))
}

// quiet reports whether there was no fault during a period, nor shortly before it.
func (s *soak) quiet(from, to time.Duration) bool {
	return !slices.ContainsFunc(s.episodes, func(e episode) bool { return from < e.end+probeWindow && to > e.begin })
}

// before returns the kind of the last fault before a time.
func (s *soak) before(at time.Duration) (fault string) {
	for _, e := range s.episodes {
		if e.end < at {
			fault = e.fault
		}
	}
	return fault
}

// judge compares the history with what was permitted.
func (s *soak) judge(m *measurement, h *history) {
	s.judgeFailures(m, h)
	var quiet, during []window
	for _, w := range h.stream(localStream).windows(probeWindow) {
		switch {
		case w.begins < 0 || w.ends > h.load.ended:
		case !s.quiet(w.begins, w.ends):
			during = append(during, w)
		case w.exact():
			quiet = append(quiet, w)
		}
	}
	m.limitHeld(" between faults", quiet)
	m.judged("O during faults", during)
	m.atMost(fmt.Sprintf("O during faults, units of %d in the worst of %d windows", probeLimit, len(during)), over(during, probeLimit), probeLimit)
	m.none("allowed by `deny` without Redis", h.stream(denyStream).count(func(r *record) bool { return r.degraded && r.allowed }))
	m.none("refused by `allow` without Redis", h.stream(allowStream).count(func(r *record) bool { return r.degraded && !r.allowed }))
	between := h.where(func(r *record) bool { return s.quiet(r.at, r.done()) })
	s.degraded = map[string]int{}
	for i := range between.records {
		if r := &between.records[i]; r.degraded {
			s.degraded[s.before(r.at)]++
		}
	}
	m.share("degraded answers between faults", float64(between.count(func(r *record) bool { return r.degraded }))/float64(max(1, len(between.records))), 0)
	m.within("p99 between faults", between.p99(), 25*time.Millisecond)
	m.none("panics", int(s.rig.total("weir_http_panics_total")))
	m.none("keys without expiry", int(keysWithoutExpiry(m.T, s.rig.redis)))
	stdout, _, code := harness.Run(m.T, s.rig.direct, "audit", "verify", "--tenant", "probe")
	m.holds("the audit trail is intact", code == 0 && strings.Contains(stdout, "probe: intact"))
	s.judgeUsage(m, h)
	s.judgeCurves(m)
}

// judgeFailures reports checks without a decision: only those that an instance had when it was
// killed may have none.
func (s *soak) judgeFailures(m *measurement, h *history) {
	failed := h.where(func(r *record) bool { return r.failure != "" })
	inFlight := failed.count(func(r *record) bool {
		return slices.ContainsFunc(s.episodes, func(e episode) bool {
			return e.killed == r.node && r.sent <= e.begin+time.Second && r.done() >= e.begin
		})
	})
	if _, why := failed.failures(); why != "" {
		m.Log(why)
	}
	m.none(fmt.Sprintf("E of %d, apart from %d in flight at a killed instance", len(h.records), inFlight), len(failed.records)-inFlight)
}

// judgeUsage compares the reported usage of a tenant with its checks. A killed instance loses at
// most the last second.
func (s *soak) judgeUsage(m *measurement, h *history) {
	last := len(h.load.streams) - 1
	from, sent := h.load.streams[last].from, len(h.stream(last).records)
	reported, polls := -1, 0
	require.Eventually(m.T, func() bool { // what is not written after three seconds without a change is lost
		now := s.rig.spent(from)
		if polls++; now != reported {
			reported, polls = now, 0
		}
		return polls == 30
	}, 2*patience, 100*time.Millisecond, "usage changes without end")
	kills := 0
	for _, e := range s.episodes {
		if e.killed >= 0 {
			kills++
		}
	}
	m.none(fmt.Sprintf("usage reported twice, units of %d", sent), max(0, reported-sent))
	m.number(fmt.Sprintf("usage lost in %d kills", kills), float64(max(0, sent-reported)), float64(kills*h.load.streams[last].rate)/instances, " checks")
}

// A point is what the untouched instance used at one time, just before a fault.
type point struct {
	at                        time.Duration
	checks                    int64   // so far
	memory, goroutines, files float64 // of the process; memory in MiB
	toRedis, toPostgres       float64 // connections of all instances
	redisMemory               float64 // MiB
}

func (s *soak) measure() point {
	n := s.rig.nodes[untouched]
	p := point{
		at: s.load.now(), memory: n.metric("process_resident_memory_bytes") / (1 << 20), goroutines: n.metric("go_goroutines"),
		files: n.metric("process_open_fds"), checks: s.load.answered.Load(),
	}
	info, err := s.admin.Info(s.t.Context(), "clients", "memory").Result()
	require.NoError(s.t, err)
	_, rest, _ := strings.Cut(info, "connected_clients:")
	_, err = fmt.Sscanf(rest, "%g", &p.toRedis)
	require.NoError(s.t, err)
	_, rest, _ = strings.Cut(info, "used_memory:")
	_, err = fmt.Sscanf(rest, "%g", &p.redisMemory)
	require.NoError(s.t, err)
	p.redisMemory /= 1 << 20
	conn, err := pgx.Connect(s.t.Context(), s.rig.direct["WEIR_DATABASE_URL"])
	require.NoError(s.t, err)
	defer conn.Close(context.Background())
	err = conn.QueryRow(s.t.Context(), `SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()`).Scan(&p.toPostgres)
	require.NoError(s.t, err)
	return p
}

// judgeCurves reports how much of everything the untouched instance uses at the end of the soak
// beyond what it used after its first quarter: the medians of the second and the last quarter. A
// leak fails the test: the bounds are far above what differs between two machines.
func (s *soak) judgeCurves(m *measurement) {
	quarter := len(s.points) / 4
	if quarter == 0 {
		m.note("The run was too short for curves.")
		return
	}
	early, late := s.points[quarter:2*quarter], s.points[len(s.points)-quarter:]
	added := func(value func(point) float64) float64 { return median(late, value) - median(early, value) }
	m.bounded("RSS added", added(func(p point) float64 { return p.memory }), 16, 64, " MiB")
	m.bounded("goroutines added", added(func(p point) float64 { return p.goroutines }), 10, 100, "")
	m.bounded("descriptors added", added(func(p point) float64 { return p.files }), 10, 100, "")
	m.bounded("connections to Redis added", added(func(p point) float64 { return p.toRedis }), 5, 50, "")
	m.bounded("connections to Postgres added", added(func(p point) float64 { return p.toPostgres }), 5, 50, "")
	m.bounded("memory of Redis added", added(func(p point) float64 { return p.redisMemory }), 4, 32, " MiB")
}

func median(points []point, value func(point) float64) float64 {
	var all []float64
	for _, p := range points {
		all = append(all, value(p))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// The report of the last soak stands between these lines of the document.
const (
	soakBegins = "<!-- soak: begin -->"
	soakEnds   = "<!-- soak: end -->"
)

// write replaces the section of the document: the figures, the faults, and the curves in at most
// twelve points.
func (s *soak) write(file string, m *measurement) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nLast run: %s, `make soak`, for %s, load %s, %s, %d processors, %s.\n\n", soakBegins,
		time.Now().UTC().Format("2006-01-02 15:04 UTC"), *soakFlag, loadAverage(), processor(), runtime.NumCPU(), runtime.Version())
	b.WriteString("| figure | measured | goal | met |\n|---|---|---|---|\n")
	for _, f := range m.figures {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.what, f.got, f.goal, map[bool]string{true: "yes", false: "**no**"}[f.met])
	}
	b.WriteString("\n| fault | times | longest until all instances answered as before | degraded answers from then on, until the next fault |\n|---|---|---|---|\n")
	times, longest := map[string]int{}, map[string]time.Duration{}
	for _, e := range s.episodes {
		times[e.fault]++
		longest[e.fault] = max(longest[e.fault], e.end-e.begin)
	}
	for _, fault := range slices.Sorted(maps.Keys(times)) {
		fmt.Fprintf(&b, "| %s | %d | %s | %d |\n", fault, times[fault], round(longest[fault]), s.degraded[fault])
	}
	b.WriteString("\n| after | checks | RSS | goroutines | descriptors | connections to Redis, of all | to Postgres | memory of Redis |\n|---|---|---|---|---|---|---|---|\n")
	for i := range min(12, len(s.points)) {
		p := s.points[i*(len(s.points)-1)/max(1, min(12, len(s.points))-1)]
		fmt.Fprintf(&b, "| %s | %d | %.0f MiB | %.0f | %.0f | %.0f | %.0f | %.1f MiB |\n",
			p.at.Round(time.Second), p.checks, p.memory, p.goroutines, p.files, p.toRedis, p.toPostgres, p.redisMemory)
	}
	b.WriteString("\n" + soakEnds)
	content, err := os.ReadFile(file)
	require.NoError(s.t, err)
	before, rest, found := strings.Cut(string(content), soakBegins)
	_, after, foundEnd := strings.Cut(rest, soakEnds)
	require.True(s.t, found && foundEnd, "%s has no lines for the soak", file)
	require.NoError(s.t, os.WriteFile(file, []byte(before+b.String()+after), 0o644))
}
