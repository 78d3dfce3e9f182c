package faults

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

// shiftedServer builds the server with a wall clock that the file of a clock shifts. The program is
// static and asks the kernel for the time itself, so that no preloaded library can shift it.
// Therefore the build replaces a file of the standard library: time.Now adds the shift to the wall
// clock and leaves the monotonic clock alone, as when an operator sets the clock of a machine. The
// first build takes minutes, because everything depends on that file.
func shiftedServer(m *measurement) string {
	m.Helper()
	folder := m.TempDir()
	original := filepath.Join(runtime.GOROOT(), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	require.NoError(m.T, err)
	const reads = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	require.Equal(m.T, 1, strings.Count(string(source), reads), "time.Now has another form in %s", runtime.Version())
	changed := strings.Replace(string(source), reads, reads+"\tsec += atomic.Loadint64(&Shift)\n", 1)
	require.Equal(m.T, 1, strings.Count(changed, "import (\n"))
	changed = strings.Replace(changed, "import (\n", "import (\n\t\"internal/runtime/atomic\"\n", 1)
	changed += "\n// Shift is by how many seconds the wall clock is ahead.\nvar Shift int64\n"
	time1 := filepath.Join(folder, "time.go")
	require.NoError(m.T, os.WriteFile(time1, []byte(changed), 0o600))
	follow := filepath.Join(folder, "follow.go")
	require.NoError(m.T, os.WriteFile(follow, []byte(followSource), 0o600))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		original: time1,
		filepath.Join(testenv.Root(), "cmd", "server", "follow_clock.go"): follow,
	}})
	require.NoError(m.T, err)
	file := filepath.Join(folder, "overlay.json")
	require.NoError(m.T, os.WriteFile(file, overlay, 0o600))
	program := filepath.Join(folder, "shifted")
	build := exec.Command("go", "build", "-overlay", file, "-o", program, "./cmd/server")
	build.Dir, build.Env = testenv.Root(), append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(m.T, err, "%s", out)
	return program
}

// followSource is the part of the server that reads the shift from the file that FOLLOW_CLOCK
// names, as testdata/clock.c does: at the start, and every 20 ms.
const followSource = `package main

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"time"
)

func init() {
	name := os.Getenv("FOLLOW_CLOCK")
	read := func() {
		if content, err := os.ReadFile(name); err == nil && len(content) == 8 {
			atomic.StoreInt64(&time.Shift, int64(binary.NativeEndian.Uint64(content)))
		}
	}
	read()
	go func() {
		for range time.Tick(20 * time.Millisecond) {
			read()
		}
	}()
}
`

func instanceClockSteps(m *measurement) {
	program := shiftedServer(m)
	clocks := make([]*clock, instances)
	for n := range clocks {
		clocks[n] = newClockFile(m, fmt.Sprint("clock-", n))
	}
	r := newRig(m.T, func(r *rig) {
		r.program = program
		r.each = func(n int) harness.Settings { return harness.Settings{"FOLLOW_CLOCK": clocks[n].file} }
	})
	stepped := func(n int, by time.Duration) bool {
		response, err := http.Get(r.nodes[n].url() + "/healthz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		at, err := http.ParseTime(response.Header.Get("Date"))
		return err == nil && time.Until(at).Round(10*time.Minute) == by
	}
	r.startTallies()
	l := r.load(r.probing()...)
	l.steady(5)
	steps := []time.Duration{time.Hour, -time.Hour, 0}
	begin := l.now()
	for _, shift := range steps {
		for n, by := range []time.Duration{shift, -shift, 0} { // apart from each other, and from Redis
			clocks[n].shift(by)
		}
		for n, by := range []time.Duration{shift, -shift, 0} {
			l.until("the clock of the instance has stepped", func() bool { return stepped(n, by) })
		}
		l.seconds(5)
	}
	// The same with the counters in memory, while Redis is unavailable.
	i := incident{fault: l.now()}
	r.redis.Pause()
	l.awaitDegraded()
	i.degraded = l.now()
	l.seconds(2)
	clocks[0].shift(time.Hour)
	clocks[1].shift(-time.Hour)
	l.seconds(6)
	i.repair = l.now()
	r.redis.Resume()
	l.awaitHealthy()
	i.healthy = l.now()
	l.seconds(4)
	h := l.stop()
	m.decided(h)
	m.none("degraded answers because of steps", h.between(begin, i.fault-time.Second).count(func(rec *record) bool { return rec.degraded }))
	m.none("answers with a negative time", h.count(func(rec *record) bool { return rec.reset < 0 }))
	m.none("answers with a time beyond the window", h.stream(localStream).count(func(rec *record) bool { return rec.reset > probeWindow+clockError }))
	m.localFigures(h, i)
	m.countedOnce(r, h)
}

// A clock is the shift of the wall clock of servers that were started with it.
type clock struct {
	m    *measurement
	file string
}

// newClock builds the library that shifts clocks: see testdata/clock.c.
func newClock(m *measurement) *clock {
	m.Helper()
	c := newClockFile(m, "clock")
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-O", "-Wall", "-Werror", "-o", c.file+".so", "testdata/clock.c").CombinedOutput()
	require.NoError(m.T, err, "%s", out)
	return c
}

// newClockFile returns a clock without the library.
func newClockFile(m *measurement, name string) *clock {
	m.Helper()
	c := &clock{m: m, file: filepath.Join(m.TempDir(), name)}
	require.NoError(m.T, os.WriteFile(c.file, make([]byte, 8), 0o600))
	return c
}

// redis starts a server with this clock.
func (c *clock) redis(lines ...string) *testenv.Redis {
	c.m.Helper()
	for name, value := range map[string]string{"LD_PRELOAD": c.file + ".so", "WEIR_CLOCK": c.file} {
		require.NoError(c.m.T, os.Setenv(name, value))
		defer os.Unsetenv(name)
	}
	return testenv.StartRedis(c.m.T, lines...)
}

// shift sets how far the clock is ahead, also of servers that run.
func (c *clock) shift(by time.Duration) {
	c.m.Helper()
	file, err := os.OpenFile(c.file, os.O_WRONLY, 0) // in place: the servers have mapped it
	require.NoError(c.m.T, err)
	require.NoError(c.m.T, binary.Write(file, binary.NativeEndian, int64(by/time.Second)))
	require.NoError(c.m.T, file.Close())
}

func redisClockSteps(m *measurement) {
	clock := newClock(m)
	r := newRig(m.T, func(r *rig) { r.redis = clock.redis() })
	ahead := func() time.Duration {
		now, err := admin(m.T, r.redis).Time(m.T.Context()).Result()
		require.NoError(m.T, err)
		return time.Until(now).Round(time.Minute)
	}
	l := r.load(r.probing()...)
	l.seconds(5)
	steps := []time.Duration{time.Hour, 0, -time.Hour, 0}
	var at []time.Duration
	for _, shift := range steps {
		at = append(at, l.now())
		clock.shift(shift)
		require.Equal(m.T, shift, ahead(), "the clock of Redis has stepped")
		l.seconds(6)
	}
	h := l.stop()
	m.decided(h)
	m.none("answers with a negative time", h.count(func(rec *record) bool { return rec.reset < 0 }))
	local := h.stream(localStream)
	for n, shift := range steps {
		end := h.load.ended
		if n+1 < len(at) {
			end = at[n+1]
		}
		name := fmt.Sprintf("step %d to %+.0f h", n+1, shift.Hours())
		m.lockedOut(name+": longest lock-out", local.between(at[n], end), probeWindow+100*time.Millisecond)
		// In the windows of the wall clock, a step gives at most one more limit: half of these
		// subjects' windows begin anywhere, so two limits fit into any window, and one more.
		m.atMost(name+": O, units of "+fmt.Sprint(probeLimit), max(0, local.between(at[n], end).densest(probeWindow)-2*probeLimit), probeLimit)
	}
	m.none("keys without expiry", int(keysWithoutExpiry(m.T, r.redis)))
	m.note("An instant before the newest stored one is decided at the stored one ([algorithms.md](algorithms.md#clock-steps)): after a step back, a subject that has used its limit waits until the clock is there again.")
}

// lockOut returns the longest time in which a subject got nothing but denials, and whether the last
// record was still one of them: the lock-out may be longer then.
func (h *history) lockOut() (longest time.Duration, open bool) {
	type lock struct{ from, last time.Duration }
	since := map[int]lock{}
	for i := range h.records {
		r := &h.records[i]
		if r.failure != "" {
			continue
		}
		l, locked := since[r.subject]
		switch {
		case !r.allowed && locked:
			since[r.subject] = lock{l.from, r.at}
		case !r.allowed:
			since[r.subject] = lock{r.at, r.at}
		case locked:
			longest = max(longest, r.at-l.from)
			delete(since, r.subject)
		}
	}
	for _, l := range since {
		if length := l.last - l.from; length > longest {
			longest, open = length, true
		}
	}
	return longest, open
}

// lockedOut reports the longest lock-out of a history. One that lasted until its end may have been
// longer.
func (m *measurement) lockedOut(what string, h *history, most time.Duration) {
	m.Helper()
	longest, open := h.lockOut()
	text := round(longest)
	if open {
		text += " or more, until the end of the phase"
	}
	m.add(what, text, "≤ "+round(most), longest <= most)
}
