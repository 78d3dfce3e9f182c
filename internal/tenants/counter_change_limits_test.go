package tenants_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// scaled is a tenant with the plans base (default), old, between and new, which scale the usage of
// the rule r, and a counter store.
type scaled struct {
	*checktest.Rig
	d *tenantstest.Database
	s *tenants.Store
	a tenants.Actor
}

const (
	scaledOwn = 1_000 // the rule's own limit
	scaledOld = 100_000
	scaledNew = 1_000_000
)

func newScaled(t *testing.T) *scaled {
	t.Helper()
	d, a, _ := two(t)
	r := rule("r")
	r.Algorithm, r.Limit, r.Window = limit.FixedWindow, scaledOwn, window(t, "30d")
	mustRule(t, d.Store, a, r)
	for slug, limits := range map[string]map[string]limit.Limit{"base": nil, "old": limitsOf(scaledOld), "between": limitsOf(7 * scaledOwn), "new": limitsOf(scaledNew)} {
		_, err := d.Store.CreatePlan(t.Context(), a, tenants.Plan{Slug: slug, OnChange: tenants.OnChangeScale, Limits: limits, Default: slug == "base"})
		require.NoError(t, err)
	}
	return &scaled{checktest.NewRig(t, policyOf(t, d.Store, a.TenantID()), nil), d, d.Store, a}
}

// with gives the subject a plan, whose counters then have changed, and uses units.
func (s *scaled) with(in tenants.Subject, units int64) {
	s.T.Helper()
	mustSubject(s.T, s.s, s.a, in)
	s.carryOut()
	s.load(in.Subject)
	require.True(s.T, s.Check(check.Request{Subject: in.Subject, Cost: units}).Allowed)
}

// load is what an instance does after a change.
func (s *scaled) load(subject string) {
	s.T.Helper()
	got, err := s.s.SubjectByName(s.T.Context(), s.a, subject)
	require.NoError(s.T, err)
	s.Policy = s.Compile(policyOf(s.T, s.s, s.a.TenantID()), check.SubjectData{
		Subject: subject, Plan: got.Plan, PlanVersion: got.PlanVersion, Multiplier: int64(got.Multiplier),
	})
}

// carryOut changes the counters with the policy that the instance has.
func (s *scaled) carryOut() {
	s.T.Helper()
	_, _, err := s.s.CarryOutCounterChanges(s.T.Context(), func(_ uuid.UUID, c check.CounterChange) error {
		return s.Checker.Amend(s.T.Context(), s.Policy, c)
	})
	require.NoError(s.T, err)
}

// ruleLimit gives the rule another limit of its own.
func (s *scaled) ruleLimit(units int64) {
	s.T.Helper()
	_, err := s.s.EditRule(s.T.Context(), s.a, "r", tenants.Match{}, func(r *limit.Rule) error {
		r.Limit = units
		return nil
	})
	require.NoError(s.T, err)
}

func (s *scaled) left(subject string) int64 {
	s.T.Helper()
	s.load(subject)
	return s.Check(check.Request{Subject: subject}).Rules[0].Remaining
}

// What counts for a change of counters are the limits that the plans had when the subject got the
// new one: the plans may be edited or deleted before the counters change, and the instance may have
// an old policy.
func TestCounterChangesKeepLimits(t *testing.T) {
	t.Parallel()
	half := int64(scaledNew / 2)
	for name, c := range map[string]struct {
		before tenants.Subject
		used   int64
		after  tenants.Subject
		then   func(t *testing.T, s *scaled)
		old    bool // the instance has the policy of before
		left   int64
	}{
		"the old plan is deleted": {
			before: tenants.Subject{Plan: "old"}, used: scaledOld / 2, after: tenants.Subject{Plan: "new"}, left: half,
			then: func(t *testing.T, s *scaled) {
				require.NoError(t, s.s.DeletePlan(t.Context(), s.a, "old", tenants.Match{}))
			},
		},
		"another plan between them is deleted": {
			before: tenants.Subject{Plan: "old"}, used: scaledOld / 2, after: tenants.Subject{Plan: "between"}, left: half,
			then: func(t *testing.T, s *scaled) {
				mustSubject(t, s.s, s.a, tenants.Subject{Subject: "ada", Plan: "new"})
				require.NoError(t, s.s.DeletePlan(t.Context(), s.a, "between", tenants.Match{}))
			},
		},
		"the old version is deleted": {
			before: tenants.Subject{Plan: "old"}, used: scaledOld / 2, after: tenants.Subject{Plan: "old", GivePlanVersion: 2}, left: half,
			then: func(t *testing.T, s *scaled) {
				require.NoError(t, s.s.DeletePlanVersion(t.Context(), s.a, "old", 1, tenants.Match{}))
			},
		},
		"the old plan gets a limit": {
			before: tenants.Subject{Plan: "base"}, used: scaledOwn / 2, after: tenants.Subject{Plan: "new"}, left: half,
			then: func(t *testing.T, s *scaled) {
				_, _, err := s.s.PutPlanLimit(t.Context(), s.a, "base", "r", limit.Limit{Limit: scaledOld}, tenants.Match{})
				require.NoError(t, err)
			},
		},
		"the rule gets another limit, and the old plan has none": {
			before: tenants.Subject{Plan: "base"}, used: scaledOwn / 2, after: tenants.Subject{Plan: "new"}, left: half,
			then: func(_ *testing.T, s *scaled) { s.ruleLimit(scaledOld) },
		},
		"the rule gets another limit, and the new plan has none": {
			before: tenants.Subject{Plan: "old"}, used: scaledOld / 2, after: tenants.Subject{Plan: "base"}, left: 7*scaledOwn - scaledOwn/2,
			then: func(_ *testing.T, s *scaled) { s.ruleLimit(7 * scaledOwn) },
		},
		"the rule's limit is not multiplied": {
			before: tenants.Subject{Plan: "base", Multiplier: 3}, used: scaledOwn / 2, after: tenants.Subject{Plan: "new"}, left: 3 * half,
			then: func(_ *testing.T, s *scaled) { s.ruleLimit(scaledOld); s.ruleLimit(scaledNew) },
		},
		"multiplied": {
			before: tenants.Subject{Plan: "old", Multiplier: 2}, used: scaledOld, after: tenants.Subject{Plan: "new", Multiplier: 3}, left: 3 * half,
			then: func(t *testing.T, s *scaled) {
				require.NoError(t, s.s.DeletePlan(t.Context(), s.a, "old", tenants.Match{}))
			},
		},
		"the instance has an old policy": {
			before: tenants.Subject{Plan: "old"}, used: scaledOld / 2, after: tenants.Subject{Plan: "old", GivePlanVersion: 2}, left: half,
			old: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScaled(t)
			c.before.Subject, c.after.Subject = "ada", "ada"
			s.with(c.before, c.used)
			mustPublish(t, s.s, s.a, "old", scaledNew)
			mustSubject(t, s.s, s.a, c.after)
			if c.then != nil {
				c.then(t, s)
			}
			if !c.old {
				s.load("ada")
			}
			s.carryOut()
			require.Equal(t, c.left, s.left("ada"))
		})
	}
}

// A rule's own limit counts as it was at each change, whatever the instance knows of it.
func TestCounterChangesKeepOwnLimits(t *testing.T) {
	t.Parallel()
	s := newScaled(t)
	limits := []int64{scaledOwn, 2 * scaledOwn, scaledOld, 4 * scaledOwn}
	subject := func(n int) string { return fmt.Sprint("s", n) }
	for n := range limits {
		s.with(tenants.Subject{Subject: subject(n), Plan: "base"}, scaledOwn/2)
	}
	for n, own := range limits {
		s.ruleLimit(2 * own) // it counts for no change
		s.ruleLimit(own)
		mustSubject(t, s.s, s.a, tenants.Subject{Subject: subject(n), Plan: "new"})
	}
	s.carryOut()
	for n, own := range limits {
		require.Equal(t, scaledNew-scaledNew*(scaledOwn/2)/own, s.left(subject(n)))
	}
}

// A document may give subjects another plan and delete the one that they had.
func TestCounterChangesOfAPrunedPlan(t *testing.T) {
	t.Parallel()
	s := newScaled(t)
	s.with(tenants.Subject{Subject: "ada", Plan: "old"}, scaledOld/2)
	_, err := s.s.ApplyDocument(t.Context(), s.a, tenants.Document{
		Plans: []tenants.Plan{
			{Slug: "base", OnChange: tenants.OnChangeScale, Default: true},
			{Slug: "next", OnChange: tenants.OnChangeScale, Limits: limitsOf(scaledNew)},
		},
		Subjects: []tenants.Subject{{Subject: "ada", Plan: "next"}},
	}, tenants.Apply{Prune: true})
	require.NoError(t, err)
	s.load("ada")
	s.carryOut()
	require.Equal(t, int64(scaledNew/2), s.left("ada"))
}

// Limits are kept once, however many subjects get a plan, until no change needs them.
func TestKeptLimitsArePurged(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	mustRule(t, d.Store, a, rule("r"))
	mustRule(t, d.Store, b, rule("r"))
	subjects := make([]tenants.Subject, 300)
	for i := range subjects {
		subjects[i] = tenants.Subject{Subject: fmt.Sprint("s", i), Plan: "pro"}
	}
	kept := func(actor tenants.Actor) (n int) {
		t.Helper()
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM counter_change_limits WHERE tenant_id = $1", actor.TenantID()).Scan(&n))
		})
		return n
	}
	for _, actor := range []tenants.Actor{a, b} {
		_, err := d.Store.ApplyDocument(t.Context(), actor, tenants.Document{
			Plans: []tenants.Plan{
				{Slug: "free", OnChange: tenants.OnChangeScale, Default: true},
				{Slug: "pro", OnChange: tenants.OnChangeScale, Limits: map[string]limit.Limit{"r": {Limit: 500}}},
				{Slug: "max", OnChange: tenants.OnChangeReset, Limits: map[string]limit.Limit{"r": {Unlimited: true}}},
			},
			Subjects: subjects,
		}, tenants.Apply{})
		require.NoError(t, err)
		mustSubject(t, d.Store, actor, tenants.Subject{Subject: "another", Plan: "pro"})
		mustSubject(t, d.Store, actor, tenants.Subject{Subject: "another", Plan: "max"})
		require.Equal(t, 2, kept(actor), "a reset needs none")
		_, _, err = d.Store.PutPlanLimit(t.Context(), actor, "pro", "r", limit.Limit{Limit: 600}, tenants.Match{})
		require.NoError(t, err)
		mustSubject(t, d.Store, actor, tenants.Subject{Subject: "another", Plan: "pro"})
		require.Equal(t, 4, kept(actor), "of pro after the edit, and of max")
	}
	var mu sync.Mutex
	limits := map[int64]int{}
	carry := func(tenant uuid.UUID, c check.CounterChange) error {
		mu.Lock()
		defer mu.Unlock()
		if tenant == b.TenantID() {
			return errors.New("not yet")
		}
		if !c.Reset {
			require.NotNil(t, c.FromLimits)
			limits[c.ToLimits["r"].Limit]++
		}
		return nil
	}
	for range 4 {
		_, _, err := d.Store.CarryOutCounterChanges(t.Context(), carry)
		require.ErrorContains(t, err, "not yet")
	}
	require.Equal(t, map[int64]int{500: 301, 600: 1}, limits)
	require.NoError(t, d.Store.Purge(t.Context()))
	require.Zero(t, kept(a))
	require.Equal(t, 4, kept(b), "its changes wait")
}

// A tenant that edits plans and moves subjects all the time keeps a bounded number of limits. Its
// further changes are still carried out.
func TestKeptLimitsAreBounded(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	for _, actor := range []tenants.Actor{a, b} {
		mustRule(t, d.Store, actor, rule("r"))
		_, err := d.Store.ApplyDocument(t.Context(), actor, tenants.Document{Plans: []tenants.Plan{
			{Slug: "free", OnChange: tenants.OnChangeScale, Default: true},
			{Slug: "pro", OnChange: tenants.OnChangeScale, Limits: map[string]limit.Limit{"r": {Limit: 500}}},
		}}, tenants.Apply{})
		require.NoError(t, err)
	}
	d.Exec(`INSERT INTO counter_change_limits (tenant_id, plan_id, number, plan_version, rule_ids, limit_units, burst_units, overages)
		SELECT $1, gen_random_uuid(), 1, 1, '{}', '{}', '{}', '{}' FROM generate_series(1, 999)`, a.TenantID())
	for _, actor := range []tenants.Actor{a, b} {
		mustSubject(t, d.Store, actor, tenants.Subject{Subject: "s", Plan: "pro"})
	}
	var mu sync.Mutex
	limits := map[uuid.UUID]int{} // how many of the two were kept
	_, _, err := d.Store.CarryOutCounterChanges(t.Context(), func(tenant uuid.UUID, c check.CounterChange) error {
		mu.Lock()
		defer mu.Unlock()
		limits[tenant] = 0
		for _, kept := range []map[string]limit.Limit{c.FromLimits, c.ToLimits} {
			if kept != nil {
				limits[tenant]++
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, map[uuid.UUID]int{a.TenantID(): 1, b.TenantID(): 2}, limits)
}

// The limit that a rule had is kept once for all changes that wait, however often it is edited,
// until none of them needs it. A tenant has a bounded number of them.
func TestKeptOwnLimits(t *testing.T) {
	t.Parallel()
	s := newScaled(t)
	kept := func() (n int) {
		t.Helper()
		s.d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM counter_change_own_limits WHERE limit_units > 0").Scan(&n))
		})
		return n
	}
	s.ruleLimit(2 * scaledOwn)
	require.Zero(t, kept(), "no change waits")
	for n := range 2 {
		for m := range 3 {
			mustSubject(t, s.s, s.a, tenants.Subject{Subject: fmt.Sprint("s", n, "-", m), Plan: "new"})
		}
		for m := range 3 {
			s.ruleLimit(int64(10*n + m + 1))
		}
	}
	_, err := s.s.EditRule(t.Context(), s.a, "r", tenants.Match{}, func(r *limit.Rule) error {
		r.Name = "another one"
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 2, kept())
	require.NoError(t, s.s.Purge(t.Context()))
	require.Equal(t, 2, kept(), "changes wait")

	s.d.Exec("INSERT INTO counter_change_own_limits (tenant_id, rule_id, until, limit_units) SELECT $1, gen_random_uuid(), n, 0 FROM generate_series(1, 998) AS n", s.a.TenantID())
	mustSubject(t, s.s, s.a, tenants.Subject{Subject: "last", Plan: "new"})
	s.ruleLimit(scaledOld)
	require.Equal(t, 2, kept())
	own := map[string]int64{}
	_, _, err = s.s.CarryOutCounterChanges(t.Context(), func(_ uuid.UUID, c check.CounterChange) error {
		own[c.Subject] = c.OwnLimits["r"].Limit
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{
		"s0-0": 2 * scaledOwn, "s0-1": 2 * scaledOwn, "s0-2": 2 * scaledOwn, "s1-0": 3, "s1-1": 3, "s1-2": 3, "last": scaledOld,
	}, own)
	require.NoError(t, s.s.Purge(t.Context()))
	require.Zero(t, kept())
}
