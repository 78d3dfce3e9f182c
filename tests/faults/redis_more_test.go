package faults

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

// masterOf returns the master that has the counters of a tenant. No other tenant may send checks
// meanwhile: the key that a new subject creates shows it.
func (r *rig) masterOf(c *caller, resource string) *testenv.Redis {
	r.t.Helper()
	before := r.counters()
	var found *testenv.Redis
	for n := 0; found == nil; n++ {
		require.Less(r.t, n, 1000, "no counter of the tenant was found")
		_, _ = c.do(http.MethodPost, r.nodes[0].url()+"/v1/check", fmt.Sprintf(`{"subject":"new_%d","resource":%q}`, n, resource))
		for key := range r.counters() {
			if _, old := before[key]; !old {
				found = r.cluster.MasterOf(key)
			}
		}
	}
	return found
}

// counters returns the names of all counters in the Cluster, except those of probes.
func (r *rig) counters() map[string]bool {
	r.t.Helper()
	keys := map[string]bool{}
	for _, master := range r.cluster.Masters() {
		found, err := admin(r.t, master).Keys(r.t.Context(), "w{*").Result()
		require.NoError(r.t, err)
		for _, key := range found {
			if !strings.HasPrefix(key, "w{canary") {
				keys[key] = true
			}
		}
	}
	return keys
}

// elsewhere creates a tenant of ordinary load whose counters another master has.
func (r *rig) elsewhere(master *testenv.Redis) *caller {
	r.t.Helper()
	for n := range 50 {
		if c := r.ordinary(fmt.Sprintf("elsewhere-%d", n)); r.masterOf(c, "requests") != master {
			return c
		}
	}
	require.Fail(r.t, "all tenants are on one master")
	return nil
}

// lostUnits reports how many units Redis no longer knows of, at most those of the last 100 ms.
func (m *measurement) lostUnits(r *rig, h *history) {
	m.Helper()
	all, wrong := r.tallies(h)
	twice, lost, rate := 0, 0, h.load.streams[tallyStream].rate
	for _, t := range all {
		twice += max(0, t.used-t.sent)
		lost += max(0, t.counted-t.used)
	}
	m.none("replies for another subject", wrong)
	m.none("checks counted twice", twice)
	m.number("lost units", float64(lost), float64(rate)/10, "")
}

func masterKilled(m *measurement) {
	const nodeTimeout = 2 * time.Second
	r := newRig(m.T, withCluster(nodeTimeout))
	master := r.masterOf(r.probe, "local")
	other := r.elsewhere(master)
	r.startTallies()
	streams := r.probing()[:tallyStream+1]
	streams = append(streams, stream{from: other, resource: "requests", subjects: 500, rate: 60})
	l := r.load(streams...)
	l.seconds(5)
	fault := l.now()
	master.Kill()
	degraded := func() bool { return l.degradedOf(localStream) }
	l.until("the tenant is degraded", degraded)
	l.until("the replica serves the tenant", func() bool { return !degraded() })
	l.seconds(3)
	h := l.stop()
	m.decided(h)
	others := h.stream(len(streams) - 1)
	base := others.between(time.Second, fault).p99()
	m.number("degraded answers of a tenant on another master", float64(others.count(func(rec *record) bool { return rec.degraded && rec.at > fault })), 0, "")
	m.within("p99 of that tenant", others.between(fault, h.load.ended).p99(), base*12/10)
	tenant := h.where(func(rec *record) bool { return rec.stream <= tallyStream })
	m.within("detect", tenant.detected(fault), 250*time.Millisecond)
	m.within("recover, counted from the fault", tenant.recovered(fault+tenant.detected(fault)+time.Millisecond)+tenant.detected(fault), nodeTimeout+2*time.Second)
	m.lostUnits(r, h)
	m.note("Base p99 of that tenant %s.", round(base))
}

// degradedOf reports whether the last answers of a stream were degraded.
func (l *load) degradedOf(s int) bool { return l.kinds[s].Load() < 0 }

func slotMoved(m *measurement) {
	r := newRig(m.T, withCluster(2*time.Second))
	master := r.masterOf(r.probe, "local")
	var key string
	for name := range r.counters() {
		if r.cluster.MasterOf(name) == master {
			key = name
		}
	}
	r.startTallies()
	l := r.load(r.probing()...)
	l.seconds(4)
	failover := l.now()
	r.cluster.Failover(master)
	l.until("the replica is the master", func() bool { return r.cluster.MasterOf(key) != master })
	l.seconds(4)
	move := l.now()
	from := r.cluster.MasterOf(key)
	to := r.cluster.Masters()[0]
	if to == from {
		to = r.cluster.Masters()[1]
	}
	moving := r.cluster.BeginMove(key, to)
	for moving.Keys(1) > 0 { // one by one, so that checks meet a slot that is half moved
		l.more(3)
	}
	moving.Finish()
	l.seconds(4)
	h := l.stop()
	m.decided(h)
	m.within("degraded during the failover", h.between(failover-100*time.Millisecond, move).longestDegraded(), time.Second)
	m.within("degraded during the move", h.between(move, h.load.ended).longestDegraded(), time.Second)
	m.lostUnits(r, h)
	m.note("%.0f calls were redirected.", r.total("weir_redis_redirects_total"))
}

func sentinelFailover(m *measurement) {
	r := newRig(m.T, withSentinels(time.Second))
	l := r.load(r.probing()...)
	l.seconds(5)
	old := r.sentinels.Primary()
	fault := l.now()
	old.Pause()
	l.awaitDegraded()
	l.until("a replica is promoted", func() bool {
		now := r.sentinels.Primary()
		return now != nil && now != old && r.sentinels.Role(now) == "master"
	})
	promoted := l.now()
	l.awaitHealthy()
	l.seconds(2)
	resumed := l.now()
	old.Resume()
	l.until("the old primary is demoted", func() bool { return r.sentinels.Role(old) == "slave" })
	l.seconds(4)
	command := l.now()
	before := r.sentinels.Primary()
	r.sentinels.Failover()
	l.until("another server is promoted", func() bool {
		now := r.sentinels.Primary()
		return now != nil && now != before && r.sentinels.Role(now) == "master" && r.sentinels.Role(before) == "slave"
	})
	l.seconds(4)
	l.awaitHealthy()
	h := l.stop()
	m.decided(h)
	m.within("detect", h.detected(fault), 250*time.Millisecond)
	m.within("recover after the promotion", h.recovered(promoted), time.Second)
	m.within("degraded while the old primary is demoted", h.between(resumed, command).longestDegraded(), time.Second)
	m.within("degraded during the failover by command", h.between(command-100*time.Millisecond, h.load.ended).longestDegraded(), time.Second)
	m.note("The promotion came %s after the fault, with `down-after-milliseconds` 1000.", round(promoted-fault))
}

func scriptsFlushed(m *measurement) {
	r := newRig(m.T)
	r.startTallies()
	l := r.load(r.probing()...)
	l.seconds(m.seconds(3, 2))
	control := admin(m.T, r.redis)
	flushing := l.now()
	for range int(m.seconds(50, 20)) {
		require.NoError(m.T, control.ScriptFlush(m.T.Context()).Err())
		l.seconds(0.1)
	}
	flushed := l.now()
	l.seconds(m.seconds(3, 1))
	require.NoError(m.T, control.FlushAll(m.T.Context()).Err())
	empty := l.now()
	l.seconds(m.seconds(5, 4))
	h := l.stop()
	m.decided(h)
	m.number("degraded answers while scripts are flushed", float64(h.between(flushing, flushed).count(func(rec *record) bool { return rec.degraded })), 0, "")
	inside, edges, outside := outage(h.stream(localStream).windows(probeWindow), incident{empty, empty, empty, empty + probeWindow}, h.load.ended)
	require.Empty(m.T, inside)
	m.none(fmt.Sprintf("O outside, units in %d windows", len(outside)), over(outside, probeLimit))
	m.none("U outside, units", under(outside, probeLimit))
	m.atMost(fmt.Sprintf("O after FLUSHALL, units of %d", probeLimit), over(edges, probeLimit), probeLimit)
	m.note("The full script was sent %.0f times.", r.total("weir_redis_script_loads_total"))
}

func memoryFull(m *measurement) {
	r := newRig(m.T)
	pairs := r.tenant("pairs", fmt.Sprintf(`{"rules":[
		{"slug":"one","resource":"pair","algorithm":"fixed_window","limit":1000000,"window":%[1]q,"on_unavailable":"allow"},
		{"slug":"two","resource":"pair","algorithm":"fixed_window_first_hit","limit":1000000,"window":%[1]q,"on_unavailable":"allow"}]}`, harness.QuietWindow(time.Now(), 30, 1)))
	r.awaitRulePair(pairs)
	streams := append(r.probing(), stream{from: pairs, resource: "pair", subjects: 20, rate: 60})
	l := r.load(streams...)
	l.seconds(m.seconds(4, 3))
	control := admin(m.T, r.redis)
	i := incident{fault: l.now()}
	require.NoError(m.T, control.ConfigSet(m.T.Context(), "maxmemory", "1").Err())
	l.awaitDegraded()
	i.degraded = l.now()
	l.seconds(m.seconds(5, 4))
	i.repair = l.now()
	require.NoError(m.T, control.ConfigSet(m.T.Context(), "maxmemory", "0").Err())
	l.awaitHealthy()
	i.healthy = l.now()
	l.seconds(m.seconds(4, 2))
	h := l.stop()
	m.decided(h)
	m.within("detect", h.detected(i.fault), 250*time.Millisecond)
	m.within("recover", h.recovered(i.repair), time.Second)
	m.localFigures(h, i)
	m.none("keys without expiry", int(keysWithoutExpiry(m.T, r.redis)))
	partial := 0
	for n := range 20 {
		used := r.pairUsed(pairs, n)
		if used[0] != used[1] {
			partial++
			m.Logf("%v", used)
		}
	}
	m.none("subjects whose two rules differ", partial)
}

func (r *rig) awaitRulePair(c *caller) {
	r.t.Helper()
	for _, n := range r.nodes {
		require.Eventually(r.t, func() bool {
			_, body, err := c.try(http.MethodPost, n.url()+"/v1/check", `{"subject":"peek","resource":"pair","cost":0}`)
			return err == nil && strings.Contains(string(body), `"rule":"one"`) && strings.Contains(string(body), `"rule":"two"`)
		}, patience, tick, "the rules are not in force")
	}
}

// pairUsed returns the used units of both rules of the tenant `pairs`.
func (r *rig) pairUsed(c *caller, subject int) (used []int64) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		var a struct {
			Degraded bool
			Rules    []struct {
				Rule      string
				Limit     int64
				Remaining *int64
			}
		}
		_, body := c.do(http.MethodPost, r.nodes[0].url()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":"pair","cost":0}`, subjectName(subject)))
		require.NoError(r.t, json.Unmarshal(body, &a))
		used = nil
		for _, rule := range a.Rules {
			if rule.Remaining != nil {
				used = append(used, rule.Limit-*rule.Remaining)
			}
		}
		return !a.Degraded && len(used) == 2
	}, patience, tick)
	return used
}

func redisUnusable(m *measurement) {
	for _, c := range []struct {
		name, class string
		lines       []string
		prepare     func(*testenv.Redis, *url.URL)
	}{
		{name: "wrong password", class: "wrong_credentials", prepare: func(s *testenv.Redis, u *url.URL) {
			require.NoError(m.T, admin(m.T, s).ConfigSet(m.T.Context(), "requirepass", "right").Err())
			u.User = url.UserPassword("", "wrong")
		}},
		{name: "no scripting", class: "no_permission", prepare: func(s *testenv.Redis, u *url.URL) {
			require.NoError(m.T, admin(m.T, s).Do(m.T.Context(), "acl", "setuser", "weir", "on", ">pass", "~*", "&*", "+@all", "-@scripting").Err())
			u.User = url.UserPassword("weir", "pass")
		}},
		{name: "replica", class: "read_only", lines: []string{"replicaof 127.0.0.1 1"}},
		{name: "no free clients", class: "too_many_clients", lines: []string{"maxclients 1"}, prepare: func(s *testenv.Redis, _ *url.URL) {
			conn := admin(m.T, s).Conn()
			m.Cleanup(func() { _ = conn.Close() })
			require.NoError(m.T, conn.Ping(m.T.Context()).Err()) // uses the only connection
		}},
		{name: "evicting policy", class: "redis_eviction", lines: []string{"maxmemory-policy allkeys-lru"}},
	} {
		s := testenv.StartRedis(m.T, c.lines...)
		u, err := url.Parse(s.URL)
		require.NoError(m.T, err)
		if c.prepare != nil {
			c.prepare(s, u)
		}
		settings := harness.NewSettings(m.T).With(harness.Settings{"WEIR_REDIS_URL": u.String()})
		delete(settings, "WEIR_REDIS_TIMEOUT")
		began := time.Now()
		i := harness.Start(m.T, settings).AwaitReady()
		visible := func(text string) bool { return strings.Contains(text, c.class) }
		require.Eventually(m.T, func() bool {
			response, err := http.Get(i.URL() + "/readyz")
			if err != nil {
				return false
			}
			defer response.Body.Close()
			var body strings.Builder
			buffer := make([]byte, 4096)
			n, _ := response.Body.Read(buffer)
			body.Write(buffer[:n])
			metrics := i.Metrics()
			if c.class == "redis_eviction" {
				return visible(body.String()) && strings.Contains(i.Log(), "allkeys-lru") && strings.Contains(metrics, "weir_redis_servers_evicting 1")
			}
			return visible(body.String()) && visible(i.Log()) && visible(metrics) && strings.Contains(metrics, "weir_degraded 1")
		}, patience, tick, c.name)
		m.within(c.name, time.Since(began), 5*time.Second)
		i.Kill()
	}
}

func redisBusy(m *measurement) {
	r := newRig(m.T, withRedis("key-load-delay 1000", "loading-process-events-interval-bytes 1024"))
	r.startTallies()
	l := r.load(r.probing()...)
	l.seconds(4)
	base := func(h *history, fault time.Duration) time.Duration { return h.between(time.Second, fault).p99() }
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
	l.awaitDegraded()
	l.seconds(7)
	m.holds("the log says `busy`", slices.ContainsFunc(r.nodes, func(n *node) bool { return n.metric(`weir_redis_failures_total{class="busy"}`) > 0 }))
	require.NoError(m.T, <-script)
	idle := l.now()
	l.awaitHealthy()
	l.seconds(2)

	control := admin(m.T, r.redis)
	filler := control.Pipeline()
	for n := range 4000 {
		filler.Set(m.T.Context(), fmt.Sprint("filler_", n), "x", time.Hour)
	}
	_, err := filler.Exec(m.T.Context())
	require.NoError(m.T, err)
	require.NoError(m.T, control.Save(m.T.Context()).Err())
	loading := l.now()
	r.redis.Kill()
	r.redis.Start() // returns after it has read its data
	loaded := l.now()
	l.awaitHealthy()
	l.seconds(2)
	h := l.stop()
	m.decided(h)
	m.within("detect", h.detected(busy), 250*time.Millisecond)
	m.within("p99 while busy", h.between(busy, idle).p99(), base(h, busy)+60*time.Millisecond)
	m.within("recover", h.recovered(idle), time.Second)
	m.within("p99 while it loads", h.between(loading, loaded).p99(), base(h, busy)+60*time.Millisecond)
	m.within("recover after loading", h.recovered(loaded), time.Second)
	m.note("Base p99 %s. It loaded for %s.", round(base(h, busy)), round(loaded-loading))
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
		m.within(name+": longest lock-out", local.between(at[n], end).lockOut(), probeWindow+100*time.Millisecond)
		// In the windows of the wall clock, a step gives at most one more limit: half of these
		// subjects' windows begin anywhere, so two limits fit into any window, and one more.
		m.atMost(name+": O, units of "+fmt.Sprint(probeLimit), max(0, local.between(at[n], end).densest(probeWindow)-2*probeLimit), probeLimit)
	}
	m.none("keys without expiry", int(keysWithoutExpiry(m.T, r.redis)))
	m.note("An instant before the newest stored one is decided at the stored one ([algorithms.md](algorithms.md#clock-steps)): after a step back, a subject that has used its limit waits until the clock is there again.")
}

// lockOut returns the longest time in which a subject got nothing but denials.
func (h *history) lockOut() (longest time.Duration) {
	since := map[int]time.Duration{}
	for i := range h.records {
		r := &h.records[i]
		if r.failure != "" {
			continue
		}
		if from, locked := since[r.subject]; r.allowed {
			if locked {
				longest = max(longest, r.at-from)
			}
			delete(since, r.subject)
		} else if !locked {
			since[r.subject] = r.at
		}
	}
	for subject, from := range since {
		if last := h.where(func(r *record) bool { return r.subject == subject }).records; len(last) > 0 {
			longest = max(longest, last[len(last)-1].at-from)
		}
	}
	return longest
}
