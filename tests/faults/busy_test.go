package faults

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

func redisBusyOrLoading(m *measurement) {
	r := newRig(m.T)
	m.busyScript(r)
	m.loading()
}

// busyScript runs a script of another client, during which Redis first is silent, and then says
// that it is busy.
func (m *measurement) busyScript(r *rig) {
	m.Helper()
	r.startTallies()
	l := r.load(r.probing()...)
	l.seconds(m.seconds(4, 3))
	busy := l.now()
	script := make(chan error, 1)
	go func() {
		options := *admin(m.T, r.redis).Options()
		options.ReadTimeout = -1 // until the script has ended
		control := redis.NewClient(&options)
		defer control.Close()
		script <- control.Do(context.Background(), "eval", `local from = redis.call('TIME')
while true do
	local now = redis.call('TIME')
	if now[1] - from[1] > 8 then return 1 end
end`, "0").Err()
	}()
	require.NoError(m.T, <-script)
	idle := l.now()
	m.holds("the metrics say `busy`", r.total(`weir_redis_failures_total{class="busy"}`) > 0)
	l.awaitHealthy()
	l.seconds(2)
	h := l.stop()
	m.decided(h)
	base := h.between(time.Second, busy).p99()
	m.within("detect", h.detected(busy), 250*time.Millisecond)
	m.within("p99 while busy", h.between(busy, idle).p99(), base+60*time.Millisecond)
	m.within("recover", h.recovered(idle), time.Second)
	m.note("Base p99 %s.", round(base))
	m.countedOnce(r, h)
}

// loading restarts Redis with a gigabyte of data, which it reads before it serves. Quick runs have
// a few keys, and a server that reads them slowly: one in a millisecond. It replies after each
// kilobyte, so keys of a quarter of that let it reply before the clients give up.
func (m *measurement) loading() {
	m.Helper()
	keys, size, lines := 4_000_000, 256, []string{"enable-debug-command local", "rdbcompression no"}
	if m.quick {
		keys, size = 4000, 256
		lines = append(lines, "key-load-delay 1000", "loading-process-events-interval-bytes 1024")
	}
	store := testenv.StartRedis(m.T, append(lines, "dir "+m.TempDir())...)
	control := admin(m.T, store)
	patient, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	filling := redis.NewClient(&redis.Options{Addr: control.Options().Addr, ReadTimeout: patience, MaxRetries: -1})
	defer filling.Close()
	require.NoError(m.T, filling.Do(patient, "debug", "populate", keys, "filler", size).Err())
	require.NoError(m.T, filling.Save(patient).Err())
	folder := control.ConfigGet(patient, "dir").Val()["dir"]
	file, err := os.Stat(filepath.Join(folder, "dump.rdb"))
	require.NoError(m.T, err)

	r := newRig(m.T, func(r *rig) { r.redis = store })
	l := r.load(r.probing()...)
	l.seconds(m.seconds(4, 3))
	began := l.now()
	store.Kill()
	store.Start() // returns after it has read its data
	loaded := l.now()
	l.awaitHealthy()
	l.seconds(2)
	h := l.stop()
	m.decided(h)
	base := h.between(time.Second, began).p99()
	m.within("p99 while it loads", h.between(began, loaded).p99(), base+60*time.Millisecond)
	m.within("recover after loading", h.recovered(loaded), time.Second)
	m.holds("the metrics say `loading`", r.total(`weir_redis_failures_total{class="loading"}`) > 0)
	m.note("It loaded %d keys, %d MiB, for %s.", keys, file.Size()>>20, round(loaded-began))
}
