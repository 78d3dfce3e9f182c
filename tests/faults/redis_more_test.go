package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

// counterOf returns the name of a counter of a tenant. No other tenant may send checks meanwhile:
// it is the key that a new subject creates.
func (r *rig) counterOf(c *caller, resource string) (key string) {
	r.t.Helper()
	before := r.counters()
	for n := 0; key == ""; n++ {
		require.Less(r.t, n, 1000, "no counter of the tenant was found")
		_ = c.check(r.nodes[0], fmt.Sprint("new_", n), resource, 1)
		for name := range r.counters() {
			if !before[name] {
				key = name
			}
		}
	}
	return key
}

// masterOf returns the master that has the counters of a tenant. No other tenant may send checks
// meanwhile.
func (r *rig) masterOf(c *caller, resource string) *testenv.Redis {
	r.t.Helper()
	return r.cluster.MasterOf(r.counterOf(c, resource))
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

// lostUnits reports how many units Redis no longer knows of: at most those of this time.
func (m *measurement) lostUnits(r *rig, h *history, within time.Duration) {
	m.Helper()
	m.number("lost units", float64(m.tallyFigures(r, h)), float64(h.load.streams[tallyStream].rate)*within.Seconds(), "")
}

// replication is how old the newest writes may be that a replica has not got, and the goal for what
// a failover loses.
const replication = 100 * time.Millisecond

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
	m.lostUnits(r, h, replication)
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
	l.steady(4)
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
	m.limitHeld("", h.exactWindows())
	m.overDegraded(h)
	m.lostUnits(r, h, replication)
	m.note("%.0f calls were redirected.", r.total("weir_redis_redirects_total"))
}

// overDegraded reports by how many units the limit was exceeded in windows with degraded answers,
// in which each instance may count on its own.
func (m *measurement) overDegraded(h *history) {
	m.Helper()
	windows := filter(h.stream(localStream).windows(probeWindow), func(w window) bool {
		return w.begins >= 0 && w.ends <= h.load.ended && !w.exact()
	})
	m.atMost(fmt.Sprintf("O, units of %d in the worst of %d windows with degraded answers", probeLimit, len(windows)), over(windows, probeLimit), probeLimit)
}

func sentinelFailover(m *measurement) {
	r := newRig(m.T, withSentinels(time.Second))
	r.startTallies()
	l := r.load(r.probing()...)
	l.steady(5)
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
	healthy := l.now()
	l.seconds(4) // complete windows
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
	demoted := l.now()
	l.seconds(4)
	l.awaitHealthy()
	h := l.stop()
	m.decided(h)
	m.sentinelCounts(r, h, incident{fault: fault, healthy: healthy}, incident{fault: command, healthy: demoted})
	m.within("detect", h.detected(fault), 250*time.Millisecond)
	m.within("recover after the promotion", h.recovered(promoted), time.Second)
	m.within("degraded while the old primary is demoted", h.between(resumed, command).longestDegraded(), time.Second)
	m.within("degraded during the failover by command", h.between(command-100*time.Millisecond, h.load.ended).longestDegraded(), time.Second)
	m.note("The promotion came %s after the fault, with `down-after-milliseconds` 1000.", round(promoted-fault))
}

// sentinelCounts reports O and U outside two failovers by Sentinels, O in the windows that they
// touch, and lost units. A Sentinel does not stop the old primary before it promotes a replica:
// until the instances know, they write to the old one, and lose these writes.
func (m *measurement) sentinelCounts(r *rig, h *history, failovers ...incident) {
	m.Helper()
	var affected, outside []window
	unsafe := replication
	for _, f := range failovers[1:] {
		unsafe += f.healthy - f.fault
	}
	for _, w := range h.stream(localStream).windows(probeWindow) {
		touched := slices.ContainsFunc(failovers, func(f incident) bool { return w.ends > f.fault-replication && w.begins < f.healthy+replication })
		switch {
		case w.begins < 0 || w.ends > h.load.ended:
		case touched:
			affected = append(affected, w)
		case w.exact():
			outside = append(outside, w)
		}
	}
	m.limitHeld(" outside", outside)
	m.atMost(fmt.Sprintf("O during the failovers, units of %d in the worst of %d windows", probeLimit, len(affected)), over(affected, probeLimit), probeLimit)
	m.judged("O during the failovers", affected)
	m.lostUnits(r, h, unsafe)
}

func scriptsFlushed(m *measurement) {
	r := newRig(m.T)
	r.startTallies()
	l := r.load(r.probing()...)
	l.steady(m.seconds(3, 2))
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
	m.limitHeld(" outside", outside)
	m.atMost(fmt.Sprintf("O after FLUSHALL, units of %d", probeLimit), over(edges, probeLimit), probeLimit)
	m.judged("O after FLUSHALL", edges)
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
	l.steady(m.seconds(4, 3))
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
