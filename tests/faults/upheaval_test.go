package faults

import (
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
)

// An upheaval is what operators do with a Cluster under load, without losing a write: they move the
// slot of the counters to another master with its keys, make a replica the master by command, and
// flush scripts.
type upheaval struct {
	rig *rig
	key string // of a counter: all counters of a tenant are in one slot

	moves, failovers, flushes atomic.Int64
}

// upheavalCounts is how often each kind has occurred.
type upheavalCounts struct{ moves, failovers, flushes int64 }

// counts returns how often each kind has occurred so far; of nil, never.
func (u *upheaval) counts() (c upheavalCounts) {
	if u == nil {
		return c
	}
	return upheavalCounts{u.moves.Load(), u.failovers.Load(), u.flushes.Load()}
}

// eachSince reports whether each kind has occurred since then; of nil, it is true.
func (u *upheaval) eachSince(then upheavalCounts) bool {
	now := u.counts()
	return u == nil || now.moves > then.moves && now.failovers > then.failovers && now.flushes > then.flushes
}

// startOf returns since when an algorithm must meet each kind: since its start, or in quick runs,
// which have no time for that, since that of the first algorithm.
func (u *upheaval) startOf(m *measurement) (since upheavalCounts) {
	if m.quick {
		return since
	}
	return u.counts()
}

// during repeats the upheaval until do returns, which runs in the background.
func (u *upheaval) during(do func()) {
	u.rig.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	for turn := 0; ; turn++ {
		select {
		case <-done:
			return
		default:
		}
		u.move(turn)
		u.failOver()
		if u.rig.t.Failed() { // do may wait for what will not occur
			<-done
			return
		}
	}
}

// flush makes all masters forget the scripts.
func (u *upheaval) flush() {
	u.rig.t.Helper()
	for _, master := range u.rig.cluster.Masters() {
		require.NoError(u.rig.t, admin(u.rig.t, master).ScriptFlush(u.rig.t.Context()).Err())
	}
	u.flushes.Add(1)
}

// move moves the slot to one of the other masters, in steps, so that checks meet a slot that is
// half moved.
func (u *upheaval) move(turn int) {
	u.rig.t.Helper()
	cluster := u.rig.cluster
	from, to := cluster.MasterOf(u.key), cluster.Masters()
	for n := range to {
		if to[n] == from {
			to = append(to[:n:n], to[n+1:]...)
			break
		}
	}
	moving := cluster.BeginMove(u.key, to[turn%len(to)])
	u.flush()
	for moving.Keys(20) > 0 {
	}
	moving.Finish()
	cluster.AwaitAgreement()
	u.moves.Add(1)
}

// failOver makes the replica of the slot's master the master. It waits until all servers follow, so
// that the next one has a replica with all data.
func (u *upheaval) failOver() {
	u.rig.t.Helper()
	master := u.rig.cluster.MasterOf(u.key)
	const givesUp = 6 * time.Second // a replica gives up after 5 s, as on a busy machine
	for began := time.Now(); u.rig.cluster.IsMaster(master); {
		require.Less(u.rig.t, time.Since(began), patience, "no replica becomes the master")
		u.rig.cluster.Failover(master)
		for sent := time.Now(); u.rig.cluster.IsMaster(master) && time.Since(sent) < givesUp; {
			u.rig.pause(5 * time.Millisecond)
		}
	}
	u.rig.cluster.AwaitAgreement()
	u.failovers.Add(1)
}

// upheavals reports how often each kind has occurred, which must not be never.
func (m *measurement) upheavals(u *upheaval) {
	m.Helper()
	m.some("moves of the slot", int(u.moves.Load()))
	m.some("failovers by command", int(u.failovers.Load()))
	m.some("flushes of the scripts", int(u.flushes.Load()))
	m.note("%.0f calls were redirected.", u.rig.total("weir_redis_redirects_total"))
}
