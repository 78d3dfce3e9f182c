package faults

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// awaitReplica waits until a replica has the data of its primary.
func awaitReplica(m *measurement, replica *testenv.Redis) {
	m.Helper()
	control := admin(m.T, replica)
	require.Eventually(m.T, func() bool {
		return strings.Contains(control.Info(m.T.Context(), "replication").Val(), "master_link_status:up")
	}, patience, tick)
}

// promote makes a replica a primary, to which the addresses of Redis lead from then on.
func (r *rig) promote(replica *testenv.Redis) {
	r.t.Helper()
	require.NoError(r.t, admin(r.t, replica).SlaveOf(r.t.Context(), "no", "one").Err())
	to, err := url.Parse(replica.URL)
	require.NoError(r.t, err)
	for _, n := range r.nodes {
		n.redis.leadTo(to.Host)
	}
}

// densest returns the most units that a subject was allowed in any period of this length.
func (h *history) densest(length time.Duration) (most int) {
	allowed := map[int][]time.Duration{}
	for i := range h.records {
		if r := &h.records[i]; r.allowed {
			allowed[r.subject] = append(allowed[r.subject], r.at)
		}
	}
	for _, times := range allowed {
		first := 0
		for last := range times {
			for times[last]-times[first] >= length {
				first++
			}
			most = max(most, last-first+1)
		}
	}
	return most
}

func replicaBehind(m *measurement) {
	primary := testenv.StartRedis(m.T, "repl-diskless-sync-delay 0")
	behind := newClock(m)
	behind.shift(-5 * time.Second)
	u, err := url.Parse(primary.URL)
	require.NoError(m.T, err)
	replica := behind.redis("repl-diskless-sync-delay 0", "replicaof "+u.Hostname()+" "+u.Port())
	awaitReplica(m, replica)
	r := newRig(m.T, func(r *rig) { r.redis = primary })
	l := r.load(r.probing()...)
	l.seconds(5)
	fault := l.now()
	primary.Kill()
	l.awaitDegraded()
	l.seconds(1)
	r.promote(replica)
	repair := l.now()
	l.awaitHealthy()
	l.seconds(10)
	h := l.stop()
	m.decided(h)
	m.within("detect", h.detected(fault), 250*time.Millisecond)
	m.within("recover", h.recovered(repair), time.Second)
	local := h.stream(localStream)
	m.lockedOut("longest lock-out", local.between(repair, h.load.ended), 5*time.Second+probeWindow)
	late := local.between(repair+5*time.Second+probeWindow, h.load.ended)
	m.lockedOut("longest lock-out after 7 s", late, probeWindow+100*time.Millisecond)
	m.atMost("O in any 2 s, beyond two limits, units", max(0, local.between(repair, h.load.ended).densest(probeWindow)-2*probeLimit), probeLimit)
}

// writesLost promotes a replica that has not got the writes of the last second. The counters of
// that second are then those from before it.
func writesLost(m *measurement) {
	primary := testenv.StartRedis(m.T, "repl-diskless-sync-delay 0")
	u, err := url.Parse(primary.URL)
	require.NoError(m.T, err)
	toReplica := newLink(m.T, u.Host)
	replica := testenv.StartRedis(m.T, "repl-diskless-sync-delay 0", "replicaof "+strings.Replace(toReplica.addr, ":", " ", 1))
	awaitReplica(m, replica)
	r := newRig(m.T, func(r *rig) { r.redis = primary })
	r.startTallies()
	l := r.load(r.probing()...)
	l.steady(5)
	cut := l.now()
	toReplica.cut()
	l.seconds(1)
	fault := l.now()
	primary.Kill()
	l.awaitDegraded()
	degraded := l.now()
	r.promote(replica)
	repair := l.now()
	l.awaitHealthy()
	healthy := l.now()
	l.seconds(5)
	h := l.stop()
	m.decided(h)
	m.within("detect", h.detected(fault), 250*time.Millisecond)
	m.within("recover", h.recovered(repair), time.Second)
	i := incident{fault: cut, degraded: degraded, repair: repair, healthy: healthy}
	_, edges, outside := outage(h.stream(localStream).windows(probeWindow), i, h.load.ended)
	m.atMost(fmt.Sprintf("O, units of %d in the worst of %d windows with lost writes", probeLimit, len(edges)), over(edges, probeLimit), probeLimit)
	m.judged("O with lost writes", edges)
	m.limitHeld(" otherwise", outside)
	rate := h.load.streams[tallyStream].rate
	lost := m.tallyFigures(r, h)
	m.number("lost units", float64(lost), float64(rate)*(fault-cut+replication).Seconds(), "")
	m.holds("writes were lost", lost > 0)
	m.none("keys without expiry", int(keysWithoutExpiry(m.T, replica)))
	m.note("The replica was %s behind. The tallies got %d units per second.", round(fault-cut), rate)
}
