package redis

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// refundRig charges counters of one tenant, and returns units while their slot is moved.
type refundRig struct {
	t       *testing.T
	cluster *testenv.Cluster
	engine  *Engine
}

func newRefundRig(t *testing.T) *refundRig {
	cluster, e := newShards(t, 2, 0)
	return &refundRig{t: t, cluster: cluster, engine: e}
}

func (r *refundRig) counter(name string, lim int64) engine.Counter {
	n := limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: lim, WindowMS: 86_400_000}
	return engine.Counter{Key: tenantKey(0) + name, Numbers: n, Leased: true}
}

func (r *refundRig) charge(units int64, counters ...engine.Counter) *engine.Call {
	r.t.Helper()
	call := &engine.Call{Cost: units, Counters: counters}
	r.engine.Evaluate(r.t.Context(), call)
	require.NoError(r.t, call.Err)
	require.True(r.t, call.Outcome.Allowed)
	return call
}

// refund returns units of a call to all of its counters.
func (r *refundRig) refund(call *engine.Call, units int64) *engine.Refund {
	out := &call.Outcome
	refund := &engine.Refund{}
	for i := range call.Counters {
		c := &call.Counters[i]
		refund.Parts = append(refund.Parts, engine.RefundPart{
			Key: c.OwnKey(), ID: c.ID, Numbers: c.Numbers, Units: units, Ground: c.Numbers.Ground(&out.Verdicts[i], out.NowMS), ChargedMS: out.NowMS,
		})
	}
	r.engine.Refund(r.t.Context(), refund)
	return refund
}

// returns expects that all units of a call return.
func (r *refundRig) returns(call *engine.Call, units int64, message string) {
	r.t.Helper()
	refund := r.refund(call, units)
	require.NoError(r.t, refund.Err, message)
	require.Zero(r.t, refund.Refused, message)
}

func (r *refundRig) left(want int64, c engine.Counter, message string) {
	r.t.Helper()
	call := &engine.Call{Counters: []engine.Counter{c}}
	r.engine.Evaluate(r.t.Context(), call)
	require.NoError(r.t, call.Err, message)
	require.Equal(r.t, want, call.Outcome.Verdicts[0].Remaining, message)
}

// begin begins to move the slot of the counters to the other master.
func (r *refundRig) begin() *testenv.Move {
	r.t.Helper()
	from := r.cluster.MasterOf(tenantKey(0))
	for _, to := range r.cluster.Masters() {
		if to != from {
			return r.cluster.BeginMove(tenantKey(0), to)
		}
	}
	r.t.Fatal("there is no other master")
	return nil
}

// Units return while the slot of their counters is moved, wherever the counters are.
func TestRefundsOfASlotThatIsBeingMoved(t *testing.T) {
	r := newRefundRig(t)
	a, b, gone := r.counter("123456789", 100_000), r.counter("987654321", 100_000), r.counter("111111111", 9)
	call, both := r.charge(25_000, a), r.charge(1_000, a, b)
	move := r.begin()
	r.returns(call, 24_000, "the counter is on the old master")
	r.left(100_000-2_000, a, "on the old master")
	move.Key(a.Key)
	r.returns(call, 900, "the counter is on the new master")
	r.left(100_000-1_100, a, "on the new master")
	r.returns(both, 600, "each counter is on another master")
	r.left(100_000-500, a, "the one on the new master")
	r.left(100_000-400, b, "the one on the old master")

	missing := r.refund(&engine.Call{Counters: []engine.Counter{gone}, Outcome: call.Outcome}, 1)
	require.NoError(t, missing.Err)
	require.Equal(t, 1, missing.Refused, "there is no such counter")
	move.Finish()
	r.returns(both, 400, "the move is over")
	r.left(100_000-100, a, "in the end")
}

// The units of a counter that was scaled return scaled, also if its latest changes are not on the
// same master as the counter.
func TestRefundsOfScaledCountersOfASlotThatIsBeingMoved(t *testing.T) {
	for _, first := range []string{"", ":s"} {
		t.Run("moved"+first, func(t *testing.T) {
			r := newRefundRig(t)
			c := r.counter("123456789", 100_000)
			call := r.charge(20_000, c)
			to := c.Numbers
			to.Limit = 1_000
			a := &engine.Amendment{Once: tenantKey(0) + "amendment", Done: tenantKey(0) + "newest", Number: 7, Parts: []engine.AmendPart{{Counter: c, To: to}}}
			require.NoError(t, r.engine.Amend(t.Context(), a))
			c.Numbers = to
			r.left(800, c, "200 of 1000 are used")
			move := r.begin()
			r.returns(call, 400, "both are on the old master")
			r.left(804, c, "4 of 1000")
			move.Key(c.Key + first)
			r.returns(call, 400, "one of them was moved")
			r.left(808, c, "8 of 1000")
			move.Finish()
			r.returns(call, 400, "the move is over")
			r.left(812, c, "12 of 1000")
		})
	}
}

// A counter is in the value of its group, which only the old master has. It cannot leave the group
// there, because no key is created in a slot that is moved away. Nothing returns until the group
// was moved, and the caller learns that nothing did.
func TestRefundsOfGroupsOfASlotThatIsBeingMoved(t *testing.T) {
	r := newRefundRig(t)
	var group []engine.Counter
	for _, id := range []string{"0001-rule", "0002-rule"} {
		c := r.counter("group0001", 100)
		c.ID, c.Grouped = id, true
		group = append(group, c)
	}
	alone := r.counter("123456789", 100)
	call := r.charge(10, append([]engine.Counter{alone}, group...)...)
	move := r.begin()
	move.Key(alone.Key)
	refund := r.refund(call, 4)
	require.ErrorIs(t, refund.Err, engine.ErrMoving)
	require.ErrorIs(t, refund.Err, engine.ErrRedirected, "the master has not failed")
	require.True(t, engine.NotCounted(refund.Err))
	r.left(90, alone, "not returned either, so that all can be repeated")
	move.Key(group[0].Key)
	r.returns(call, 4, "the group was moved")
	r.left(94, alone, "returned once")
	for _, c := range group {
		c.Key, c.Grouped = c.OwnKey(), false
		r.left(94, c, "returned once")
	}
	move.Finish()
}
