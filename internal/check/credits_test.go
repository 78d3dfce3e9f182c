package check_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/engine"
	"weir/internal/limit"
)

// granted returns a subject with credits for the rule "api".
func granted(subject string, grants ...limit.Grant) check.SubjectData {
	d := check.SubjectData{Subject: subject}
	for i, g := range grants {
		g.ID[0] = byte(i + 1)
		d.Grants = append(d.Grants, check.GrantData{Rule: "api", Grant: g})
	}
	return d
}

// opening opens credits as soon as a decision misses them.
func opening(t *testing.T, r *checktest.Rig, spent ...int64) *check.Checker {
	store := r.Store.Engine.(engine.CreditStore)
	return check.NewChecker(check.CheckerOptions{
		Keys: check.NewKeys([16]byte{1}), Engine: r.Stack, Metrics: r.Metrics, Clock: r.Clock,
		Credits: func(tenant limit.TenantID, subject string, d *check.RuleDecision) {
			if !d.Unopened {
				return
			}
			var grants []limit.Spent
			for i, units := range spent {
				grants = append(grants, limit.Spent{ID: limit.GrantID{byte(i + 1)}, Units: units})
			}
			key := check.NewKeys([16]byte{1}).CreditsKey(tenant, 1, subject, d.Rule.Slug)
			_, err := store.OpenCredits(context.Background(), &engine.Opening{Key: key, Grants: grants})
			require.NoError(t, err)
		},
	})
}

// A customer with credits continues where the window ends, and another one does not. What the store
// does not know is asked for, and denied until then.
func TestCreditsOfASubject(t *testing.T) {
	rule := checktest.Minute("api", 2)
	r := checktest.NewRig(t, check.PolicyData{Rules: []limit.Rule{rule}}, nil, granted("paying", limit.Grant{Units: 5}), granted("other"))
	r.Checker = opening(t, r, 2)
	ask := func(subject string, cost int64) check.Decision {
		return r.Check(check.Request{Subject: subject, Cost: cost})
	}
	first := ask("paying", 3)
	require.False(t, first.Allowed)
	require.True(t, first.Rules[0].Unopened)
	require.Equal(t, limit.OpenedWithinMS, first.Rules[0].RetryAfterMS)
	r.Move(200 * time.Millisecond) // until the denial is verified
	d := ask("paying", 3)
	require.True(t, d.Allowed)
	require.Equal(t, []int64{0, 1, 2}, []int64{d.Rules[0].Remaining, d.Rules[0].CreditsSpent, d.Rules[0].Credits})
	state := r.Checker.Inspect(t.Context(), r.Policy, check.Request{Subject: "paying"})
	require.True(t, state.Rules[0].Allowed)
	require.EqualValues(t, 2, state.Rules[0].Credits)
	require.EqualValues(t, 4, state.Rules[0].MostCost())
	require.True(t, ask("paying", 2).Allowed)
	d = ask("paying", 1)
	require.False(t, d.Allowed)
	require.True(t, d.Rules[0].HasCredits)
	require.True(t, ask("other", 2).Allowed)
	d = ask("other", 1)
	require.False(t, d.Allowed)
	require.False(t, d.Rules[0].HasCredits)
}

// Reading the limits of a customer opens credits that the store has forgotten, so that the next
// read shows them, and no check must miss them first.
func TestReadsOpenCredits(t *testing.T) {
	r := checktest.NewRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 2)}}, nil, granted("paying", limit.Grant{Units: 5}))
	r.Checker = opening(t, r, 2)
	read := func() check.RuleDecision {
		return r.Checker.InspectRule(t.Context(), r.Policy, "api", check.Request{Subject: "paying"}).Rules[0]
	}
	require.True(t, read().Unopened)
	opened := read()
	require.False(t, opened.Unopened)
	require.EqualValues(t, 3, opened.Credits)
}

// Eight resources of one customer in one call share its credits of a rule that counts by subject
// and resource: 10 units are 10 units, and not 10 for each resource.
func TestCreditsOfItemsDecidedTogether(t *testing.T) {
	rule := checktest.Minute("api", 2)
	rule.By = []string{"subject", "resource"}
	r := checktest.NewRig(t, check.PolicyData{Rules: []limit.Rule{rule}}, nil, granted("paying", limit.Grant{Units: 10}))
	r.Checker = opening(t, r, 0)
	r.Check(check.Request{Subject: "paying", Resource: "other", Cost: 3}) // opens the grant
	r.Move(200 * time.Millisecond)
	together := func(cost int64) (allowed bool, spent, left int64) {
		var reqs []check.Request
		for i := range 8 {
			reqs = append(reqs, check.Request{Subject: "paying", Resource: fmt.Sprintf("r%d", i), Cost: cost})
		}
		decisions, err := r.Checker.CheckTogetherInTurns(t.Context(), r.Policy, reqs, new(check.Scratch), nil)
		require.NoError(t, err)
		allowed = true
		for i := range decisions {
			rule := &decisions[i].Rules[0]
			allowed, spent, left = allowed && decisions[i].Allowed, spent+rule.CreditsSpent, rule.Credits
		}
		return allowed, spent, left
	}
	allowed, spent, left := together(12)
	require.Equal(t, []any{false, int64(0), int64(10)}, []any{allowed, spent, left}, "80 units of credits")
	allowed, spent, left = together(3)
	require.Equal(t, []any{true, int64(8), int64(2)}, []any{allowed, spent, left})
	allowed, spent, left = together(1)
	require.Equal(t, []any{false, int64(0), int64(2)}, []any{allowed, spent, left})
	require.True(t, r.Check(check.Request{Subject: "paying", Resource: "r0", Cost: 2}).Allowed)
}

// What a dry run reports to be left of credits is not spent: all of them can be spent after it.
func TestCreditsAfterADryRun(t *testing.T) {
	rule := checktest.Minute("api", 2)
	r := checktest.NewRig(t, check.PolicyData{Rules: []limit.Rule{rule}}, nil, granted("paying", limit.Grant{Units: 5}))
	r.Checker = opening(t, r, 0)
	r.Check(check.Request{Subject: "paying", Cost: 3}) // opens the grant
	r.Move(200 * time.Millisecond)
	all := check.Request{Subject: "paying", Cost: 7}
	dry := all
	dry.DryRun = true
	d := r.Check(dry)
	require.True(t, d.Allowed)
	require.Equal(t, []int64{5, 0}, []int64{d.Rules[0].CreditsSpent, d.Rules[0].Credits})
	_, err := r.Checker.CheckTogetherInTurns(t.Context(), r.Policy, []check.Request{dry}, new(check.Scratch), nil)
	require.NoError(t, err)
	d = r.Check(all)
	require.True(t, d.Allowed, "%+v", d.Rules[0])
	require.Equal(t, []int64{5, 0}, []int64{d.Rules[0].CreditsSpent, d.Rules[0].Credits})
	require.False(t, r.Check(check.Request{Subject: "paying", Cost: 1}).Allowed)
}

// Credits that are granted while a change of partitions is in progress can be spent all the time,
// first at the old place of their subject and then at the new one, and not a unit more of them. A
// check misses them once at each place.
func TestCreditsWhilePartitionsChange(t *testing.T) {
	const units = 300 // for longer than the change takes, of a check each second
	rule := checktest.Minute("api", 2)
	numbers, keys := rule.Numbers(), check.NewKeys([16]byte{1})
	change := check.PartitionChange{Partitions: 64, Before: 1, Changed: time.UnixMilli(checktest.Start)}
	data := check.PolicyData{Rules: []limit.Rule{rule}, Partitions: 64, PartitionsBefore: 1, PartitionsChanged: change.Changed}
	r := checktest.NewRig(t, data, nil, granted("paying", limit.Grant{Units: units}))
	store := r.Store.Engine.(engine.CreditStore)
	var places []string
	r.Checker = check.NewChecker(check.CheckerOptions{
		Keys: keys, Engine: r.Stack, Metrics: r.Metrics, Clock: r.Clock,
		Credits: func(tenant limit.TenantID, subject string, d *check.RuleDecision) {
			if !d.Unopened {
				return
			}
			key, other := keys.CreditsKeys(tenant, &change, subject, d.Rule.Slug, &numbers, r.Now.Load())
			require.NotEmpty(t, other, "the subject moves")
			outbox, us := keys.CreditsOutboxes(tenant, 1)[0], r.Now.Load()*1000
			from := &engine.Opening{Key: other, Outbox: engine.Retag(outbox, other), AskedUS: us, ReadUS: us, Grants: []limit.Spent{{ID: limit.GrantID{1}}}}
			require.NoError(t, store.CloseCredits(context.Background(), from)[0])
			to := &engine.Opening{Key: key, Outbox: engine.Retag(outbox, key), AskedUS: us, ReadUS: us, Grants: from.Grants}
			_, err := store.OpenCredits(context.Background(), to)
			require.NoError(t, err)
			places = append(places, key)
		},
	})
	spent, window, missed := int64(0), 0, 0
	for {
		d := r.Check(check.Request{Subject: "paying", Cost: 1})
		r.Move(time.Second)
		if !d.Allowed && !d.Rules[0].Unopened {
			break
		}
		if d.Rules[0].Unopened {
			missed++
		} else if d.Rules[0].CreditsSpent == 0 {
			window++
		}
		spent += d.Rules[0].CreditsSpent
		require.Less(t, r.Now.Load(), int64(checktest.Start+400_000))
	}
	require.EqualValues(t, units, spent)
	require.Greater(t, r.Now.Load(), int64(checktest.Start+200_000), "the change has ended before")
	require.Len(t, places, 2)
	require.NotEqual(t, places[0], places[1])
	require.Equal(t, 2, missed)
	require.LessOrEqual(t, window, 12, "2 in each of 6 minutes")
}
