package faults

import (
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
	l.seconds(5)
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
