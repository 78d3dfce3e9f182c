package check

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// manyVersions returns plans whose versions have a limit for every step-th rule. Version n of each
// plan differs from the one before in one limit, which is 1000 + n.
func manyVersions(rules, step, plans, versions int) PolicyData {
	var data PolicyData
	for i := range rules {
		data.Rules = append(data.Rules, minute(fmt.Sprintf("rule-%04d", i), 1))
	}
	limits := func(version int) map[string]limit.Limit {
		out := map[string]limit.Limit{}
		for i := 0; i < rules; i += step {
			out[data.Rules[i].Slug] = limit.Limit{Limit: 100}
			if i/step < version {
				out[data.Rules[i].Slug] = limit.Limit{Limit: 1000 + int64(i/step)}
			}
		}
		return out
	}
	for i := range plans {
		plan := PlanData{Slug: fmt.Sprintf("plan-%04d", i), Default: i == 0, Limits: limits(versions), Version: versions}
		for v := 1; v < versions; v++ {
			plan.Older = append(plan.Older, PlanVersionData{v, limits(v)})
		}
		data.Plans = append(data.Plans, plan)
	}
	return data
}

// Versions of a plan take little more memory than one, and the estimate knows how much. Those with
// few limits of many rules take none for the other rules.
func TestVersionsOfPlansShareLimits(t *testing.T) {
	for name, c := range map[string]struct {
		data PolicyData
		most int64 // for each limit of a version
	}{
		"most limits are equal":  {manyVersions(100, 1, 20, 50), 8},
		"few limits, many rules": {manyVersions(1000, 500, 200, 50), 300},
	} {
		without := PolicyData{Rules: c.data.Rules}
		before := heapInUse()
		bare, err := CompilePolicy(Keys{}, uuid.Nil, without)
		require.NoError(t, err)
		rules := heapInUse() - before
		before = heapInUse()
		policy, err := CompilePolicy(Keys{}, uuid.Nil, c.data)
		require.NoError(t, err)
		plans := heapInUse() - before - rules
		limits := int64(len(c.data.Plans) * 50 * len(c.data.Plans[0].Limits))
		t.Logf("%s: %d limits, %d bytes each; the estimate is %d", name, limits, plans/limits, (policy.size-bare.size)/limits)
		require.LessOrEqual(t, plans, limits*c.most, name)
		require.InEpsilon(t, plans, policy.size-bare.size, 0.2, name)
		runtime.KeepAlive([]*Policy{bare, policy})
	}
}

// Each version has its own limits, whichever of them it shares.
func TestVersionsOfPlansKeepTheirLimits(t *testing.T) {
	data := manyVersions(10, 2, 2, 5)
	delete(data.Plans[1].Older[2].Limits, "rule-0004")
	data.Plans[1].Older[3].Limits["rule-0001"] = limit.Limit{Unlimited: true}
	policy, err := CompilePolicy(Keys{}, uuid.Nil, data)
	require.NoError(t, err)
	for _, plan := range data.Plans {
		for _, version := range append(plan.Older, PlanVersionData{plan.Version, plan.Limits}) {
			compiled := policy.plans[plan.Slug].ofVersion(int32(version.Number))
			require.Equal(t, version.Number, compiled.version)
			for i := range policy.rules {
				l, has := version.Limits[policy.rules[i].rule.Slug]
				n := compiled.number(int32(i))
				require.Equal(t, has, n != nil, "%s %d %d", plan.Slug, version.Number, i)
				if has {
					require.Equal(t, policy.rules[i].number.with(l, "plan:"+plan.Slug), *n)
				}
			}
		}
	}
	data.Plans[0].Older[0].Limits["missing"] = limit.Limit{Limit: 1}
	_, err = CompilePolicy(Keys{}, uuid.Nil, data)
	require.ErrorContains(t, err, "there is no rule missing")
}
