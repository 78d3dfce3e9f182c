package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A stream is checks at a constant rate. Each subject sends to all instances in turn.
type stream struct {
	from     *caller
	resource string
	subjects int
	rate     int                 // checks per second
	cost     int                 // 0: 1
	nodes    []*node             // nil: all of the rig
	dead     func(node int) bool // whether a balancer would send nothing to the instance now
}

// A record is one check and its answer.
type record struct {
	stream, node, subject int
	at, took              time.Duration // at: when it was due, since the load began
	sent                  time.Duration
	status                int // 0 without an answer
	allowed, degraded     bool
	remaining             int64
	reset, delay          time.Duration
	code                  string
	failure               string // why there is no decision
}

func (r *record) done() time.Duration { return r.at + r.took }

// A load sends streams until it is stopped.
type load struct {
	t       testing.TB
	rig     *rig
	streams []stream
	began   time.Time
	ended   time.Duration

	stopping chan struct{}
	workers  sync.WaitGroup
	answered atomic.Int64
	turns    []atomic.Int64 // of each node: answers of the same kind in a row, negative if degraded
	kinds    []atomic.Int64 // of each stream, in the same way
	vague    []atomic.Int64 // of each node: its last answer that no exact window of localStream has
	mu       sync.Mutex
	records  []record
}

// perWorker is how many checks per second one connection sends. A worker that waits for an answer
// sends its next checks late, and their latency counts from when they were due.
const perWorker = 15

func (r *rig) load(streams ...stream) *load {
	r.t.Helper()
	l := &load{t: r.t, rig: r, streams: streams, began: time.Now(), stopping: make(chan struct{}),
		turns: make([]atomic.Int64, len(r.nodes)), kinds: make([]atomic.Int64, len(streams)), vague: make([]atomic.Int64, len(r.nodes))}
	for s := range streams {
		count := max(instances, (streams[s].rate+perWorker-1)/perWorker)
		var next atomic.Int64
		for w := range count {
			l.workers.Go(func() { l.work(s, w, count, &next) })
		}
	}
	r.t.Cleanup(l.halt)
	return l
}

// work sends every count-th check of a stream.
func (l *load) work(s, worker, count int, next *atomic.Int64) {
	st := &l.streams[s]
	every := time.Duration(count) * time.Second / time.Duration(st.rate)
	due := every * time.Duration(worker) / time.Duration(count)
	timer := time.NewTimer(due)
	defer timer.Stop()
	var own []record
	defer func() {
		l.mu.Lock()
		l.records = append(l.records, own...)
		l.mu.Unlock()
	}()
	for ; ; due += every {
		timer.Reset(time.Until(l.began.Add(due)))
		select {
		case <-l.stopping:
			return
		case <-timer.C:
		}
		own = append(own, l.send(s, int(next.Add(1)-1), due))
	}
}

// send sends one check, and records the answer.
func (l *load) send(s, n int, due time.Duration) record {
	st := &l.streams[s]
	nodes := st.nodes
	if nodes == nil {
		nodes = l.rig.nodes
	}
	rec := record{stream: s, node: n % len(nodes), subject: n / len(nodes) % st.subjects, at: due, sent: l.now(), remaining: -1}
	for turn := 1; st.dead != nil && st.dead(rec.node) && turn < len(nodes); turn++ {
		rec.node = (rec.node + 1) % len(nodes)
	}
	status, body, err := st.from.try(http.MethodPost, nodes[rec.node].url()+"/v1/check",
		fmt.Sprintf(`{"subject":%q,"resource":%q,"cost":%d}`, subjectName(rec.subject), st.resource, max(1, st.cost)))
	rec.took = time.Since(l.began) - due
	rec.read(status, body, err)
	l.count(&rec)
	return rec
}

func subjectName(n int) string { return fmt.Sprintf("user_%d", n) }

// answer has the fields of a check's answer that the oracle uses.
type answer struct {
	Allowed      bool
	Degraded     bool
	Remaining    *int64
	ResetAfterMS *int64 `json:"reset_after_ms"`
	DelayMS      int64  `json:"delay_ms"`
	Error        *struct{ Code string }
	Code         string // of a problem document
}

func (r *record) read(status int, body []byte, err error) {
	if err != nil {
		r.failure = err.Error()
		return
	}
	r.status = status
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		r.failure = err.Error()
		return
	}
	if a.Error == nil && status != http.StatusOK {
		r.failure = fmt.Sprint(status, " ", a.Code)
		return
	}
	r.allowed, r.degraded = a.Allowed, a.Degraded
	if a.Remaining != nil {
		r.remaining = *a.Remaining
	}
	r.delay = time.Duration(a.DelayMS) * time.Millisecond
	if a.ResetAfterMS != nil {
		r.reset = time.Duration(*a.ResetAfterMS) * time.Millisecond
	}
	if a.Error != nil {
		r.code = a.Error.Code
	}
}

// count notes an answer for those that wait.
func (l *load) count(r *record) {
	l.answered.Add(1)
	if r.stream == localStream && (r.failure != "" || r.degraded || r.done()-r.sent > probeWindow/2) {
		l.vague[r.node].Store(int64(r.done()))
	}
	if r.failure != "" {
		return
	}
	step(&l.kinds[r.stream], r.degraded)
	if l.streams[r.stream].nodes == nil {
		step(&l.turns[r.node], r.degraded)
	}
}

// step counts answers of the same kind in a row.
func step(turn *atomic.Int64, degraded bool) {
	for {
		old := turn.Load()
		now := max(old, 0) + 1
		if degraded {
			now = min(old, 0) - 1
		}
		if turn.CompareAndSwap(old, now) {
			return
		}
	}
}

// more returns after this many further answers. A phase of a case ends by answers and not by time,
// so that a slow machine does not shorten it.
func (l *load) more(answers int64) {
	l.t.Helper()
	until := l.answered.Load() + answers
	l.until("answers", func() bool { return l.answered.Load() >= until })
}

// seconds returns after the answers of this many seconds at full rate.
func (l *load) seconds(seconds float64) {
	l.t.Helper()
	rate := 0
	for _, s := range l.streams {
		rate += s.rate
	}
	l.more(int64(seconds * float64(rate)))
}

// steady returns after the answers of this many seconds, and after a window from its call on in
// which Redis gave these instances all answers: on a busy machine, each of the others may have a
// degraded one.
func (l *load) steady(seconds float64, nodes ...int) {
	l.t.Helper()
	from := l.now()
	l.seconds(seconds)
	if nodes == nil {
		nodes = []int{0, 1, 2}
	}
	const late = 500 * time.Millisecond // answers of the window that arrive after its end
	l.until("a window without degraded answers", func() bool {
		clear := from
		for _, n := range nodes {
			clear = max(clear, time.Duration(l.vague[n].Load()))
		}
		begins := l.began.Add(clear).UnixNano()
		begins += int64(probeWindow) - begins%int64(probeWindow)
		return time.Since(time.Unix(0, begins)) >= probeWindow+late
	})
}

// lasts returns when a fault that began at a time has lasted this long, and some answers more.
func (l *load) lasts(fault time.Duration, seconds float64) {
	l.t.Helper()
	l.until("the fault lasts", func() bool { return (l.now() - fault).Seconds() >= seconds })
	l.more(20)
}

func (l *load) until(what string, holds func() bool) {
	l.t.Helper()
	require.Eventually(l.t, holds, patience, 5*time.Millisecond, what)
}

// awaitDegraded returns when the last answers of these instances were degraded.
func (l *load) awaitDegraded(nodes ...int) { l.t.Helper(); l.awaitTurns(nodes, -settled) }

// awaitHealthy returns when the last answers of these instances were not degraded.
func (l *load) awaitHealthy(nodes ...int) { l.t.Helper(); l.awaitTurns(nodes, settled) }

// settled is after how many answers of the same kind an instance has changed its mode.
const settled = 20

func (l *load) awaitTurns(nodes []int, want int64) {
	l.t.Helper()
	if nodes == nil {
		nodes = []int{0, 1, 2}
	}
	l.until(fmt.Sprintf("answers of instances %v: %d in a row", nodes, want), func() bool {
		return !slices.ContainsFunc(nodes, func(n int) bool {
			turn := l.turns[n].Load()
			return want < 0 && turn > want || want > 0 && turn < want
		})
	})
}

// now returns the time since the load began.
func (l *load) now() time.Duration { return time.Since(l.began) }

func (l *load) halt() {
	select {
	case <-l.stopping:
	default:
		close(l.stopping)
	}
	l.workers.Wait()
}

// stop ends the load and returns what was recorded, in the order in which it was due.
func (l *load) stop() *history {
	l.t.Helper()
	l.ended = l.now()
	l.halt()
	slices.SortFunc(l.records, func(a, b record) int { return int(a.at - b.at) })
	require.NotEmpty(l.t, l.records)
	return &history{load: l, records: l.records}
}
