package redis

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
)

// A run of an amendment that fails in its middle, because a key that it does not declare is on the
// other master of a slot that is being moved, has changed some counters. They are not changed again
// when it is repeated. It begins at all only if the marks of penalties and the number exist, which
// are declared.
func TestAmendmentThatFailsWhileASlotIsBeingMoved(t *testing.T) {
	r := newRefundRig(t)
	before, plain, leased := r.counter("111111111", 100), r.counter("222222222", 100), r.counter("333333333", 100)
	before.Leased, plain.Leased = false, false
	all := []engine.Counter{before, plain, leased}
	r.charge(10, all...)
	step := func(follows bool, counters ...engine.Counter) error {
		a := &engine.Amendment{Once: tenantKey(0) + "amendment", Done: tenantKey(0) + "newest", Number: 7, Follows: follows}
		for _, c := range counters {
			to := c.Numbers
			to.Limit = 1_000
			a.Parts = append(a.Parts, engine.AmendPart{Counter: c, To: to})
		}
		return r.engine.Amend(t.Context(), a)
	}
	require.NoError(t, step(true, before))
	for _, c := range all {
		require.NoError(t, r.engine.client.Set(t.Context(), penaltyKey(c.Key), "", 0).Err())
	}
	require.NoError(t, r.engine.client.Set(t.Context(), tenantKey(0)+"newest", 6, 0).Err())
	move := r.begin()
	for range 2 {
		require.ErrorContains(t, step(false, plain, leased), "non local key", "the changes of the leased one would be on the other master")
	}
	move.Finish()
	for range 2 {
		require.NoError(t, step(false, plain, leased))
	}
	for _, c := range all {
		require.NoError(t, r.engine.client.Del(t.Context(), penaltyKey(c.Key)).Err())
		c.Numbers.Limit = 1_000
		r.left(900, c, "each is scaled once")
	}
}

// A reset that fails because it cannot be known whether the counter is in its group, which may be
// on the other master, has not deleted the counter: it would be deleted again each second.
func TestResetThatFailsWhileASlotIsBeingMoved(t *testing.T) {
	r := newRefundRig(t)
	before, c := r.counter("111111111", 100), r.counter("222222222", 100)
	c.ID = "ruleofnum"
	own := c
	own.Key, own.ID = c.OwnKey(), ""
	r.charge(10, before, own)
	step := func(follows bool, counters ...engine.Counter) error {
		a := &engine.Amendment{Once: tenantKey(0) + "amendment", Done: tenantKey(0) + "newest", Number: 7, Reset: true, Follows: follows}
		for _, c := range counters {
			a.Parts = append(a.Parts, engine.AmendPart{Counter: c, To: c.Numbers})
		}
		return r.engine.Amend(t.Context(), a)
	}
	require.NoError(t, step(true, before))
	mark := penaltyKey(own.Key)
	require.NoError(t, r.engine.client.Set(t.Context(), mark, "", 0).Err())
	require.NoError(t, r.engine.client.Set(t.Context(), tenantKey(0)+"newest", 6, 0).Err())
	move := r.begin()
	for range 2 {
		require.ErrorContains(t, step(false, c), "non local key")
	}
	require.EqualValues(t, 2, r.engine.client.Exists(t.Context(), own.Key, mark).Val())
	move.Finish()
	require.NoError(t, step(false, c))
	r.charge(20, own)
	require.NoError(t, step(false, c))
	r.left(80, own, "it is reset once")
	r.left(100, before, "it is reset once")
}
