package dashboard

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// The line of the limit is what the limit was: an override, a change of the subject's plan and one
// of the plan's limit are steps.
func TestLimitLineFollowsOverridesAndPlans(t *testing.T) {
	s := newStack(t)
	s.clock.to(time.Now().Truncate(time.Hour).Add(10 * time.Minute))
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	line := func() (limits []int64) {
		t.Helper()
		policy, err := s.policies.Get(t.Context(), s.a.TenantID())
		require.NoError(t, err)
		values, _, err := countedValues("user_7", nil)
		require.NoError(t, err)
		now := s.clock.Now()
		drawn, err := s.pages.subjectChart(t.Context(), s.a, "user_7", periods[0], s.checker.Inspect(t.Context(), policy, values).Rules, now, &keptTrail{})
		require.NoError(t, err)
		require.NotNil(t, drawn.line)
		for i, p := range drawn.line.Parts {
			limits = append(limits, p.Limit)
			if i > 0 {
				require.Equal(t, drawn.line.Parts[i-1].To, p.From)
			}
		}
		require.True(t, drawn.line.Parts[len(limits)-1].To.After(now))
		return limits
	}
	do := func(form url.Values) {
		t.Helper()
		form.Set("reason", "because")
		require.Equal(t, http.StatusSeeOther, b.write("/subjects/user_7", form).status)
		s.follow(t.Context())
	}
	before := line()
	require.Len(t, before, 1)
	now := before[0]
	s.clock.move(5 * time.Minute)
	do(url.Values{"do": {"boost"}, "rule": {"requests"}, "factor": {"5"}, "for": {"1d"}})
	s.clock.move(5 * time.Minute)
	require.Equal(t, []int64{now, 5 * now}, line())
	do(url.Values{"do": {"remove-override"}, "rule": {"requests"}})
	s.clock.move(5 * time.Minute)
	require.Equal(t, []int64{now, 5 * now, now}, line())
	_, _, err := s.store.PutPlanLimit(t.Context(), s.a, "free", "requests", limit.Limit{Limit: now / 2}, tenants.Match{})
	require.NoError(t, err)
	s.follow(t.Context())
	s.clock.move(5 * time.Minute)
	require.Equal(t, []int64{now, 5 * now, now, now / 2}, line())
}

// The line follows the tenant's default plan, of a subject that had none of its own for a time.
func TestLimitLineFollowsDefaultPlan(t *testing.T) {
	s := newStack(t)
	s.clock.to(time.Now().Truncate(time.Hour).Add(10 * time.Minute))
	s.fill(s.a, "mark")
	change := func(do func() error) {
		t.Helper()
		s.clock.move(5 * time.Minute)
		require.NoError(t, do())
	}
	change(func() error {
		_, err := s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: "more", Default: true, Limits: map[string]limit.Limit{"requests": {Limit: 40}}})
		return err
	})
	put := func(plan string) func() error {
		return func() error {
			_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: "user_7", Plan: plan}, tenants.Match{})
			return err
		}
	}
	change(put("free"))
	change(put(""))
	change(func() error {
		_, _, err := s.store.PutPlanLimit(t.Context(), s.a, "more", "requests", limit.Limit{Limit: 50}, tenants.Match{})
		return err
	})
	change(func() error {
		_, err := s.store.EditPlan(t.Context(), s.a, "free", tenants.Match{}, func(p *tenants.Plan) error { p.Default = true; return nil })
		return err
	})
	s.clock.move(5 * time.Minute)
	drawn := s.subjectDrawn("user_7", &keptTrail{})
	var limits []int64
	for _, p := range drawn.line.Parts {
		limits = append(limits, p.Limit)
	}
	require.Equal(t, []int64{20, 40, 20, 40, 50, 20}, limits)
}

func (s *stack) subjectDrawn(subject string, kept *keptTrail) *drawnSubject {
	s.t.Helper()
	s.follow(s.t.Context())
	policy, err := s.policies.Get(s.t.Context(), s.a.TenantID())
	require.NoError(s.t, err)
	values, _, err := countedValues(subject, nil)
	require.NoError(s.t, err)
	require.NoError(s.t, s.pages.renew(s.t.Context(), s.a, kept, policy.Version(), subject))
	limits := s.checker.Inspect(s.t.Context(), policy, values).Rules
	drawn, err := s.pages.subjectChart(s.t.Context(), s.a, subject, periods[0], limits, s.clock.Now(), kept)
	require.NoError(s.t, err)
	require.NotNil(s.t, drawn.line)
	return drawn
}

// A live chart reads the trail of the limit again only after a change, and draws it up to now.
func TestLiveChartKeepsTheTrail(t *testing.T) {
	s := newStack(t)
	s.clock.to(time.Now().Truncate(time.Hour).Add(10 * time.Minute))
	s.fill(s.a, "mark")
	var kept keptTrail
	drawn := s.subjectDrawn("user_7", &kept)
	require.Len(t, drawn.marks, 1, "what was made at the start")
	first := kept.limits
	s.clock.move(50 * time.Minute)
	drawn = s.subjectDrawn("user_7", &kept)
	require.Same(t, first, kept.limits)
	require.Len(t, drawn.marks, 1)
	require.True(t, drawn.line.Parts[len(drawn.line.Parts)-1].To.After(s.clock.Now()))
	s.clock.move(20 * time.Minute)
	drawn = s.subjectDrawn("user_7", &kept)
	require.Same(t, first, kept.limits)
	require.Empty(t, drawn.marks, "it was before the period")
	require.EqualValues(t, 20, drawn.line.Parts[0].Limit)

	_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: "user_7", Plan: "free"}, tenants.Match{})
	require.NoError(t, err)
	drawn = s.subjectDrawn("user_7", &kept)
	require.NotSame(t, first, kept.limits)
	require.Len(t, drawn.marks, 1)
	first = kept.limits
	_, _, err = s.store.PutPlanLimit(t.Context(), s.a, "free", "requests", limit.Limit{Limit: 25}, tenants.Match{})
	require.NoError(t, err)
	drawn = s.subjectDrawn("user_7", &kept)
	require.NotSame(t, first, kept.limits)
	require.EqualValues(t, 25, drawn.line.Parts[len(drawn.line.Parts)-1].Limit)
}

// Where no decision is kept any more, the page says what usage knows of the period.
func TestDecisionsOfAnOldPeriod(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	for _, rule := range []string{"", "requests"} {
		s.decided(s.a, usage.Minute, 30*time.Minute, rule, 1200, 34)
	}
	b := s.as("ann@example.com")
	at := func(ago time.Duration) string {
		return url.QueryEscape(s.clock.Now().Add(-ago).UTC().Truncate(time.Minute).Format(minuteForm))
	}
	got := b.get("/decisions?show=all&from=" + at(30*time.Minute) + "&to=" + at(29*time.Minute)).body
	require.Contains(t, got, "Decisions of this time are not kept any more.")
	require.Contains(t, got, "In this period: 1,200 allowed, 34 denied.")
	require.Regexp(t, `<a href="/rules/requests">Rule mark</a></th> ?<td class="num">34</td>`, got)
	require.NotContains(t, b.get("/decisions?show=all&from="+at(50*time.Minute)+"&to="+at(49*time.Minute)).body, "34 denied.")
}
