package check

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// A subject has the limits of its version of a plan; a check that names the plan, or a subject
// without one, has those of the newest.
func TestPlanVersions(t *testing.T) {
	data := inspected()
	data.Plans[0].Version = 3
	data.Plans[0].Older = []PlanVersionData{{Number: 1, Limits: map[string]limit.Limit{"everywhere": {Limit: 7}}}, {Number: 2}}
	r := newRig(t, data)
	for version := range 5 {
		r.policy.AddSubject(SubjectData{Subject: string(rune('0' + version)), Plan: "pro", PlanVersion: version})
	}
	for subject, want := range map[string]int64{"0": 50, "1": 7, "2": 5, "3": 50, "4": 50, "nobody": 50} {
		for named, want := range map[string]int64{"": want, "pro": 50} {
			d, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: subject, Plan: named, Resource: "x"}})
			require.NoError(t, err)
			require.Equal(t, "pro", d[0].Plan)
			for _, rule := range d[0].Rules {
				if rule.Rule.Slug == "everywhere" {
					require.Equal(t, want, rule.Limit, "version %s, named %q", subject, named)
				}
			}
		}
	}
	_, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: "1", Plan: "pro 1", Resource: "x"}})
	require.Error(t, err, "a version has no name")
	known, _ := r.policy.Subject("2")
	require.Equal(t, SubjectData{Subject: "2", Plan: "pro", PlanVersion: 2}, known)

	data.Plans[0].Older[0].Limits["none"] = limit.Limit{Limit: 1}
	_, err = CompilePolicy(r.checker.keys, r.policy.tenant, data)
	require.ErrorContains(t, err, "none")
}

// Subjects that would be denied immediately are listed with their numbers, also those that are
// denied already. Nothing is consumed.
func TestForesee(t *testing.T) {
	onEachStore(t, func(t *testing.T, r *rig) {
		r.policy.AddSubject(SubjectData{Subject: "raised", Overrides: []OverrideData{{Rule: "everywhere", Limit: limit.Limit{Limit: 60}}}})
		r.policy.AddSubject(SubjectData{Subject: "blocked", State: Blocked})
		r.policy.AddSubject(SubjectData{Subject: "seats", Plan: "pro", Multiplier: 3})
		for subject, cost := range map[string]int64{"heavy": 50, "middle": 20, "light": 2, "raised": 8, "seats": 20} { // as much as tenant-wide allows
			_, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: subject, Resource: "x", Cost: cost}})
			require.NoError(t, err)
		}
		all := []string{"heavy", "middle", "light", "raised", "blocked", "seats", "unseen"}
		to := func(n int64) PlanChange {
			return PlanChange{Limits: map[string]limit.Limit{"everywhere": {Limit: n}, "gone": {Limit: 1}}}
		}
		for range 2 {
			require.Equal(t, Foresight{Compared: 6, Counters: 6, OverSubjects: 2, Over: []Over{
				{Subject: "heavy", Rule: "everywhere", Used: 50, Limit: 50, NewLimit: 20, Denied: true},
				{Subject: "middle", Rule: "everywhere", Used: 20, Limit: 50, NewLimit: 20},
			}}, r.checker.Foresee(t.Context(), r.policy, to(20), all))
		}
		require.Equal(t, []Over{{Subject: "seats", Rule: "everywhere", Used: 20, Limit: 150, NewLimit: 15}},
			r.checker.Foresee(t.Context(), r.policy, to(5), []string{"seats"}).Over)
		require.Empty(t, r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: map[string]limit.Limit{"everywhere": {Unlimited: true}}}, all).Over)
		require.Empty(t, r.checker.Foresee(t.Context(), r.policy, PlanChange{Plan: "pro"}, all).Over, "nothing changes")
		require.Equal(t, int64(5), r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: map[string]limit.Limit{}}, all).Over[0].NewLimit, "the rule's own")
		require.Zero(t, r.checker.Foresee(t.Context(), r.policy, PlanChange{Plan: "none"}, all))
	})
}

// Of a bucket the same is told, as far as it is known.
func TestForeseeBuckets(t *testing.T) {
	data := inspected()
	data.Rules[0].Algorithm, data.Rules[0].Window = limit.TokenBucket, limit.Window{Duration: limit.Duration{Text: "24h", MS: 86_400_000}}
	r := newRig(t, data)
	_, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: "heavy", Resource: "x", Cost: 30}})
	require.NoError(t, err)
	over := r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: map[string]limit.Limit{"everywhere": {Limit: 10}}}, []string{"heavy", "unseen"}).Over
	for _, o := range over {
		require.Equal(t, Over{Subject: "heavy", Rule: "everywhere", Used: 30, Limit: 50, NewLimit: 10}, o)
	}
}

// If Redis is unavailable, no subject is reported over a limit, because usage is unknown.
func TestForeseeDegraded(t *testing.T) {
	r := newRig(t, inspected())
	r.store.fail.Store(true)
	got := r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: map[string]limit.Limit{"everywhere": {Limit: 1}}}, []string{"heavy"})
	require.True(t, got.Degraded)
	require.Empty(t, got.Over)
}

// many returns a policy of the most rules that a tenant may have, 7 of which do not count by
// subject alone, and subjects.
func many(subjects int) (data PolicyData, names []string, to map[string]limit.Limit) {
	to = map[string]limit.Limit{}
	for i := range limit.MaxRules {
		r := minute(fmt.Sprintf("rule-%03d", i), 9)
		r.Resource = r.Slug
		if i < 7 {
			r.By = nil
		}
		data.Rules = append(data.Rules, r)
		to[r.Slug] = limit.Limit{Limit: 1}
	}
	for i := range subjects {
		names = append(names, fmt.Sprintf("subject-%05d", i))
	}
	return data, names, to
}

// A preview ends before the subject whose counters would be too many, and says so. Rules that
// change nothing do not count.
func TestForeseeBounded(t *testing.T) {
	data, names, to := many(MaxForeseen)
	r := newRig(t, data)
	const rules = limit.MaxRules - 7
	got := r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: to}, names)
	require.Equal(t, Foresight{Compared: MaxForeseen / rules, Counters: MaxForeseen / rules * rules, Truncated: true}, got)
	require.Equal(t, int64(2*got.Counters), r.store.calls.Load())

	got = r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: to, Most: 2*rules + 1}, names)
	require.Equal(t, Foresight{Compared: 2, Counters: 2 * rules, Truncated: true}, got)
	got = r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: to, Most: 2 * rules}, names[:2])
	require.False(t, got.Truncated, "all were compared")

	one := map[string]limit.Limit{"rule-999": {Limit: 1}}
	got = r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: one, Most: 5000}, names[:5000])
	require.Equal(t, Foresight{Compared: 5000, Counters: 5000}, got, "rules that stay the same take none of the bound")
}

// Of those over a limit, the first are kept and the others counted.
func TestForeseeKeepsTheFirst(t *testing.T) {
	data, names, _ := many(2)
	to := map[string]limit.Limit{}
	for i := range data.Rules {
		data.Rules[i].By = []string{"subject"}
		to[data.Rules[i].Slug] = limit.Limit{Limit: 1}
	}
	r := newRig(t, data)
	var used []Request
	for _, name := range names {
		for i := range data.Rules {
			used = append(used, Request{Subject: name, Resource: data.Rules[i].Slug, Cost: 2})
		}
	}
	_, err := r.checker.Check(t.Context(), r.policy, used)
	require.NoError(t, err)
	got := r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: to}, names)
	require.Equal(t, MaxOver, len(got.Over)) // a failure of Len prints them all
	require.Equal(t, Over{Subject: names[0], Rule: "rule-000", Used: 2, Limit: 9, NewLimit: 1}, got.Over[0])
	require.Equal(t, []int{2*limit.MaxRules - MaxOver, 2}, []int{got.MoreOver, got.OverSubjects})
}

// leaving is an engine whose client goes with the first call.
type leaving struct {
	engine.Engine
	leave func()
}

func (l *leaving) Evaluate(ctx context.Context, calls ...*engine.Call) {
	l.leave()
	l.Engine.Evaluate(ctx, calls...)
}

// After the client has gone, no more counters are read, not even of the same subject.
func TestForeseeEndsWithItsClient(t *testing.T) {
	data, names, to := many(2)
	r := newRig(t, data)
	ctx, leave := context.WithCancel(t.Context())
	r.checker.engine = &leaving{r.stack, leave}
	r.checker.Foresee(ctx, r.policy, PlanChange{Limits: to}, names)
	require.Equal(t, int64(2*compareChunk), r.store.calls.Load())
}

// An instance has two places for previews, and a tenant has one of them: another one of the tenant
// is refused at once. Before, two tenants kept out a third one.
func TestPreviewPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Checker{previews: newPreviews()}
		var last func()
		for tenant := range byte(maxPreviews) {
			end, err := c.BeginPreview(t.Context(), limit.TenantID{tenant})
			require.NoError(t, err)
			_, err = c.BeginPreview(t.Context(), limit.TenantID{tenant})
			require.ErrorIs(t, err, ErrTooManyPreviews, "its second one")
			last = end
		}
		_, err := c.BeginPreview(t.Context(), limit.TenantID{100})
		require.ErrorIs(t, err, ErrTooManyPreviews, "no place was left for %s", previewWait)
		waits := make(chan error)
		go func() {
			_, err := c.BeginPreview(t.Context(), limit.TenantID{100})
			waits <- err
		}()
		synctest.Wait()
		last()
		_, err = c.BeginPreview(t.Context(), limit.TenantID{100})
		require.ErrorIs(t, err, ErrTooManyPreviews)
		require.NoError(t, <-waits, "it has the place of the one that ended")
		_, err = c.BeginPreview(t.Context(), limit.TenantID{maxPreviews - 1})
		require.ErrorIs(t, err, ErrTooManyPreviews)
	})
}
