package check_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/engine"
	"weir/internal/limit"
)

// weighedStore notes the work of the script calls that a counter store gets, also from the probes
// of the breaker.
type weighedStore struct {
	engine.Engine
	mu        sync.Mutex
	most, sum int64
}

func (w *weighedStore) Evaluate(ctx context.Context, calls ...*engine.Call) {
	w.mu.Lock()
	for _, c := range calls {
		w.most, w.sum = max(w.most, c.Work()), w.sum+c.Work()
	}
	w.mu.Unlock()
	w.Engine.Evaluate(ctx, calls...)
}

// weighed returns the greatest work of a call since the last call of weighed, and that of all.
func (w *weighedStore) weighed() (most, sum int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	most, sum = w.most, w.sum
	w.most, w.sum = 0, 0
	return most, sum
}

// The largest request that a client can send is one of Envoy: 16 descriptors (maxDescriptors in
// internal/api), each with the greatest number of rules, of the algorithms that are the most work,
// and with as many grants as possible. It is charged all or none, and no script call is more than
// 1024 units of work, about 5 ms of Redis.
func TestLargestScriptCall(t *testing.T) {
	const descriptors = 16
	rulesOf := func(change func(*limit.Rule)) (rules []limit.Rule) {
		for i := range limit.MaxMatchingRules {
			r := checktest.Minute(fmt.Sprintf("rule-%d", i), 100)
			r.By = []string{"subject", "resource"}
			change(&r)
			rules = append(rules, r)
		}
		return rules
	}
	for name, c := range map[string]struct {
		rules    []limit.Rule
		grants   int
		subjects int
		full     int64 // work of the full request
	}{
		"logs with a penalty": {rulesOf(func(r *limit.Rule) {
			r.Algorithm, r.Penalty = limit.SlidingWindowLog, limit.Duration{Text: "1s", MS: 1000}
		}), 0, descriptors, 5120},
		"credits of many subjects": {rulesOf(func(r *limit.Rule) {
			r.Algorithm, r.Precision = limit.SlidingWindowBuckets, limit.Duration{Text: "1s", MS: 1000}
		}), limit.MaxGrants, descriptors, 8704},
		"credits of one subject": {rulesOf(func(r *limit.Rule) {
			r.Algorithm, r.Precision = limit.SlidingWindowBuckets, limit.Duration{Text: "1s", MS: 1000}
		}), limit.MaxGrants, 1, 8704},
		"small counters": {rulesOf(func(r *limit.Rule) { r.Algorithm = limit.FixedWindow }), 0, descriptors, 512},
	} {
		t.Run(name, func(t *testing.T) {
			store := &weighedStore{Engine: engine.NewMemory(engine.MemoryOptions{})}
			parts := checktest.New(t, checktest.Options{Shared: store})
			policy, err := check.CompilePolicy(check.Keys{}, limit.TenantID{1}, check.PolicyData{Rules: c.rules})
			require.NoError(t, err)
			var reqs []check.Request
			for i := range descriptors {
				subject := check.SubjectData{Subject: fmt.Sprintf("s%d", i%c.subjects)}
				for _, r := range c.rules {
					for g := range c.grants {
						subject.Grants = append(subject.Grants, check.GrantData{Rule: r.Slug, Grant: limit.Grant{ID: limit.GrantID{1, byte(g)}, Units: 5}})
					}
				}
				policy.AddSubject(subject)
				reqs = append(reqs, check.Request{Subject: subject.Subject, Resource: fmt.Sprintf("r%d", i), Cost: 40})
			}
			var sum int64
			decide := func() (remaining []int64, allowed bool) {
				store.weighed()
				decisions, err := parts.Checker.CheckTogetherInTurns(t.Context(), policy, reqs, new(check.Scratch), nil)
				require.NoError(t, err)
				allowed = true
				for i := range decisions {
					allowed = allowed && decisions[i].Allowed
					for j := range decisions[i].Rules {
						require.False(t, decisions[i].Rules[j].Degraded)
						remaining = append(remaining, decisions[i].Rules[j].Remaining)
					}
				}
				var most int64
				most, sum = store.weighed()
				require.LessOrEqual(t, most, int64(engine.MaxCallWork), "of %d in all", sum)
				require.Len(t, remaining, descriptors*limit.MaxMatchingRules)
				return remaining, allowed
			}
			remaining, allowed := decide()
			require.True(t, allowed)
			require.GreaterOrEqual(t, sum, c.full)
			for i := range remaining {
				require.EqualValues(t, 60, remaining[i])
			}
			reqs[descriptors-1].Cost = 70
			remaining, allowed = decide()
			require.False(t, allowed)
			for i := range remaining[:len(remaining)-limit.MaxMatchingRules] {
				require.EqualValues(t, 60, remaining[i], "nothing was charged")
			}
			reqs[descriptors-1].Cost = 0
			_, allowed = decide()
			require.True(t, allowed)
		})
	}
}
