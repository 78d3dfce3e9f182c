package tenants_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// halfAway is a counter store of which some outboxes cannot be reached.
type halfAway struct {
	engine.CreditStore
	reads, settles map[string]bool // outboxes that cannot be read, or settled
}

var errAway = errors.New("this shard is unavailable")

func (h *halfAway) SpentCredits(ctx context.Context, outboxes []string, most int) ([][]limit.Spent, []error) {
	found, errs := h.CreditStore.SpentCredits(ctx, outboxes, most)
	for i, box := range outboxes {
		if h.reads[box] {
			found[i], errs[i] = nil, errAway
		}
	}
	return found, errs
}

func (h *halfAway) SettleCredits(ctx context.Context, outbox string, totals []limit.Spent) error {
	if h.settles[outbox] {
		return errAway
	}
	return h.CreditStore.SettleCredits(ctx, outbox, totals)
}

// While one shard is unavailable, what others have counted is stored. The error names the tenants
// whose credits are not settled, and not Postgres.
func TestSettleCreditsOfOtherShards(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, keys, memory := d.Store, check.NewKeys([16]byte{1}), engine.NewMemory(engine.MemoryOptions{})
	outbox := func(of tenants.Actor) string { return keys.CreditsOutboxes(of.TenantID(), 1)[0] }
	all := []uuid.UUID{a.TenantID(), b.TenantID()}
	grants := map[uuid.UUID]tenants.Credits{}
	for _, of := range []tenants.Actor{a, b} {
		_, err := s.CreateRule(t.Context(), of, fixedRule("api"))
		require.NoError(t, err)
		grants[of.TenantID()], _, err = s.GrantCredits(t.Context(), of, "ada", tenants.NewCredits{Rule: "api", Units: 10})
		require.NoError(t, err)
	}
	_, _, err := s.SweepCredits(t.Context(), keys, memory, tenants.CreditsSweep{})
	require.NoError(t, err)
	spend := func(units int64) {
		t.Helper()
		for _, of := range []tenants.Actor{a, b} {
			key, r := keys.CreditsKey(of.TenantID(), 1, "ada", "api"), fixedRule("api")
			call := &engine.Call{Cost: 5 + units, Counters: []engine.Counter{{Key: key + "c", Numbers: r.Numbers(), Credits: &engine.Credits{
				Key: key, Outbox: outbox(of), Grants: []limit.Grant{{ID: limit.GrantID(grants[of.TenantID()].ID), Units: 10}},
			}}}}
			memory.Evaluate(t.Context(), call)
			require.NoError(t, call.Err)
			require.True(t, call.Outcome.Allowed)
		}
	}
	stored := func(of tenants.Actor) int64 {
		t.Helper()
		c, err := s.CreditsByID(t.Context(), of, "ada", grants[of.TenantID()].ID)
		require.NoError(t, err)
		return c.Spent
	}
	unsettled := func(err error, of ...uuid.UUID) {
		t.Helper()
		var some *tenants.UnsettledError
		require.ErrorAs(t, err, &some)
		require.Equal(t, of, some.Tenants)
		require.ErrorIs(t, err, errAway)
		require.ErrorIs(t, err, check.ErrCountersUnavailable)
		require.NotErrorIs(t, err, tenants.ErrUnavailable)
	}
	spend(3)
	away := &halfAway{CreditStore: memory, reads: map[string]bool{outbox(a): true}}
	_, err = s.SettleCredits(t.Context(), keys, away, all)
	unsettled(err, a.TenantID())
	require.EqualValues(t, 0, stored(a))
	require.EqualValues(t, 3, stored(b))

	away = &halfAway{CreditStore: memory, settles: map[string]bool{outbox(a): true}}
	_, err = s.SettleCredits(t.Context(), keys, away, all)
	unsettled(err, a.TenantID())
	require.EqualValues(t, 3, stored(a), "stored, but the outbox still has it")

	away = &halfAway{CreditStore: memory, reads: map[string]bool{outbox(a): true, outbox(b): true}}
	_, _, err = s.SweepCredits(t.Context(), keys, away, tenants.CreditsSweep{})
	require.ErrorIs(t, err, check.ErrCountersUnavailable)
	_, err = s.SettleCredits(t.Context(), keys, memory, all)
	require.NoError(t, err)
}
