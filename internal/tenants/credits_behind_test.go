package tenants_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// While credits of one tenant cannot be read, or not be told, those of another one are told again
// without a pause, a bounded number in each round.
func TestCreditsBehindOfOtherShards(t *testing.T) {
	t.Parallel()
	d, away, a := two(t)
	if away.TenantID().String() > a.TenantID().String() { // the first one in each round fails
		away, a = a, away
	}
	s, keys, memory := d.Store, check.NewKeys([16]byte{1}), engine.NewMemory(engine.MemoryOptions{})
	const subjects = 25
	grants := map[string]limit.GrantID{}
	name := func(n int) string { return fmt.Sprintf("subject-%02d", n) }
	grant := func(of tenants.Actor, subject string) {
		c, _, err := s.GrantCredits(t.Context(), of, subject, tenants.NewCredits{Rule: "api", Units: 10})
		require.NoError(t, err)
		grants[subject] = limit.GrantID(c.ID)
		_, err = s.OpenCredits(t.Context(), keys, memory, of.TenantID(), tenants.CreditsOf{Subject: subject, Rule: "api"})
		require.NoError(t, err)
	}
	mustRule(t, s, away, fixedRule("api"))
	mustRule(t, s, a, fixedRule("api"))
	grant(away, "ada")
	for n := range subjects {
		grant(a, name(n))
	}
	spend := func(of tenants.Actor, subject string, units int64) {
		r, key := fixedRule("api"), keys.CreditsKey(of.TenantID(), 1, subject, "api")
		call := &engine.Call{Cost: units, Counters: []engine.Counter{{Key: key, Numbers: r.Numbers(), Credits: &engine.Credits{
			Key: key, Outbox: keys.CreditsOutboxes(of.TenantID(), 1)[0], Grants: []limit.Grant{{ID: grants[subject], Units: 10}},
		}}}}
		memory.Evaluate(t.Context(), call)
		require.NoError(t, call.Err)
	}
	settle := func(units, spent int64, counters engine.CreditStore) tenants.CreditsSettled {
		spend(away, "ada", units)
		for n := range subjects {
			spend(a, name(n), units)
		}
		d.Exec("UPDATE credit_grants SET spent = $1", spent)
		done, err := s.SettleCredits(t.Context(), keys, counters, []uuid.UUID{away.TenantID(), a.TenantID()})
		require.Error(t, err)
		return done
	}
	box, key := keys.CreditsOutboxes(away.TenantID(), 1)[0], keys.CreditsKey(away.TenantID(), 1, "ada", "api")
	require.Equal(t, tenants.CreditsSettled{Settled: 20, Reopened: 20, More: true},
		settle(6, 7, &halfAway{CreditStore: memory, reads: map[string]bool{box: true}}), "the window has 5")
	require.Equal(t, tenants.CreditsSettled{Settled: 19, Reopened: 19, More: true},
		settle(1, 9, &openings{CreditStore: memory, broken: key}), "one of 20 has failed")
}
