package check_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine/enginetest"
	"weir/internal/limit"
)

// simulate runs a simulation and returns copies of its decisions.
func simulate(t *testing.T, s check.Simulation) []check.Decision {
	t.Helper()
	var decisions []check.Decision
	require.NoError(t, check.Simulate(t.Context(), s, func(i int, d *check.Decision) error {
		require.Equal(t, len(decisions), i)
		decisions = append(decisions, *d)
		return nil
	}))
	require.Len(t, decisions, len(s.Requests))
	return decisions
}

func window(t *testing.T, text string) limit.Window {
	t.Helper()
	w, err := limit.ParseWindow(text)
	require.NoError(t, err)
	return w
}

func subjectRule(t *testing.T, slug string, lim int64) limit.Rule {
	t.Helper()
	return limit.Rule{
		Slug: slug, Resource: "*", Algorithm: limit.FixedWindow, Limit: lim,
		Window: window(t, "1m"), By: []string{"subject"},
	}
}

func ask(atMS int64, subject string, cost int64) check.SimulatedRequest {
	return check.SimulatedRequest{AtMS: atMS, Request: check.Request{Subject: subject, Resource: "default", Cost: cost}}
}

// ruleOf converts a rule of the vectors to one that a tenant could have written; ok is false for
// numbers that only the engine accepts.
func ruleOf(t *testing.T, r enginetest.Rule) (rule limit.Rule, ok bool) {
	t.Helper()
	algorithm, err := limit.ParseAlgorithm(r.Algorithm)
	require.NoError(t, err)
	rule = limit.Rule{Slug: "vector", Resource: "*", Algorithm: algorithm, Limit: r.Limit, By: []string{"subject"}}
	rule.Window.Duration = limit.Duration{Text: fmt.Sprint(r.WindowMS, "ms"), MS: r.WindowMS}
	if r.Calendar != "" {
		rule.Window = window(t, r.Calendar)
	}
	if algorithm.Bucket() {
		rule.Burst = r.Burst
	}
	if r.PrecisionMS != 0 {
		rule.Precision = limit.Duration{Text: fmt.Sprint(r.PrecisionMS, "ms"), MS: r.PrecisionMS}
	}
	return rule, len(rule.Validate()) == 0
}

// A simulation gives the same answers as the service: all vectors with one rule are simulated as
// requests.
func TestSimulationOfVectors(t *testing.T) {
	files := os.DirFS("../engine/enginetest/testdata/conformance")
	names, err := enginetest.FileNames(files)
	require.NoError(t, err)
	cases, answers := 0, 0
	for _, name := range names {
		file, err := enginetest.ReadFile(files, name)
		require.NoError(t, err)
		for _, c := range file.Cases {
			if len(c.Rules) != 1 {
				continue
			}
			rule, ok := ruleOf(t, c.Rules[0])
			if !ok {
				continue
			}
			s := check.Simulation{Policy: check.PolicyData{Rules: []limit.Rule{rule}}}
			for _, step := range c.Steps {
				if step.Expect == nil { // the rules change here; a simulation has one set of rules
					break
				}
				subject, named := step.Keys[c.Rules[0].Name]
				if !named {
					subject = "k"
				}
				s.Requests = append(s.Requests, ask(step.TimeMS, subject, step.Cost))
			}
			decisions := simulate(t, s)
			for i := range decisions {
				require.Equal(t, *c.Steps[i].Expect, vectorAnswer(&decisions[i], c.Steps[i].Expect), "%s, %s, step %d", name, c.Name, i)
			}
			cases, answers = cases+1, answers+len(decisions)
		}
	}
	t.Logf("%d cases, %d answers", cases, answers)
	require.Greater(t, cases, 50)
	require.Greater(t, answers, 1000)
}

// vectorAnswer converts a decision to the form of the vectors. It uses want only to decide whether
// to list each rule.
func vectorAnswer(d *check.Decision, want *enginetest.Answer) enginetest.Answer {
	r := &d.Rules[0]
	a := enginetest.Answer{Allowed: d.Allowed, Remaining: r.Remaining, ResetMS: d.NowMS + r.ResetAfterMS}
	if r.RetryAfterMS != limit.NeverMS {
		a.RetryAfterMS = &r.RetryAfterMS
	}
	if d.HasDelay {
		a.DelayMS = &d.DelayMS
	}
	if d.Code == check.CostExceedsLimit {
		a.Error = "cost_exceeds_limit"
	}
	if want.Rules != nil {
		a.Rules = []enginetest.RuleAnswer{{
			Name: want.Rules[0].Name, Allowed: r.Allowed, Remaining: r.Remaining, RetryAfterMS: a.RetryAfterMS, ResetMS: a.ResetMS,
		}}
	}
	return a
}

// A simulation supports everything in a policy: several rules, plans, overrides, states, shadow
// mode.
func TestSimulationOfPolicy(t *testing.T) {
	strict, shadow, byIP := subjectRule(t, "strict", 3), subjectRule(t, "shadow", 1), subjectRule(t, "by-ip", 1)
	shadow.Mode = limit.Shadow
	byIP.By = []string{"attributes.ip"}
	s := check.Simulation{
		Policy: check.PolicyData{
			Rules: []limit.Rule{strict, shadow, byIP},
			Plans: []check.PlanData{{Slug: "free", Default: true, Limits: map[string]limit.Limit{"strict": {Limit: 2}}}},
		},
		Subjects: []check.SubjectData{
			{Subject: "vip", Overrides: []check.OverrideData{{Rule: "strict", Limit: limit.Limit{Limit: 9}, ExpiresAt: time.UnixMilli(60_000)}}},
			{Subject: "bad", State: check.Blocked},
		},
		Requests: []check.SimulatedRequest{
			ask(0, "a", 1), ask(0, "a", 1), ask(59_999, "a", 1), ask(60_000, "a", 1),
			ask(59_999, "vip", 9), ask(60_000, "vip", 9), ask(0, "bad", 1),
		},
	}
	d := simulate(t, s)
	var allowed []bool
	for i := range d {
		allowed = append(allowed, d[i].Allowed)
	}
	require.Equal(t, []bool{true, true, false, true, true, false, false}, allowed)
	require.Equal(t, "plan:free", d[0].Rules[1].Source)
	require.Equal(t, "by-ip", d[0].Skipped[0].Rule.Slug)
	require.False(t, d[1].Rules[0].Allowed, "the rule in shadow mode would have denied")
	require.Equal(t, int64(1), d[2].Rules[1].RetryAfterMS)
	require.Equal(t, "override", d[4].Rules[1].Source)
	require.Equal(t, check.CostExceedsLimit, d[5].Code, "the override ends on the virtual clock")
	require.Equal(t, check.SubjectBlocked, d[6].Code)
}

// Every request of a full simulation has its own counters. None is shared with another subject.
func TestSimulationHasRoom(t *testing.T) {
	s := check.Simulation{Policy: check.PolicyData{Rules: []limit.Rule{subjectRule(t, "one", 1)}}}
	for i := range check.MaxSimulatedRequests {
		s.Requests = append(s.Requests, ask(0, fmt.Sprint("s", i), 1))
	}
	for _, d := range simulate(t, s) {
		require.True(t, d.Allowed)
	}
}

// A simulation that is not possible is refused with the reason. A simulation that takes too long is
// cancelled.
func TestSimulationErrors(t *testing.T) {
	rules := check.PolicyData{Rules: []limit.Rule{subjectRule(t, "one", 1)}}
	never := func(int, *check.Decision) error { t.Fatal("decided"); return nil }
	ctx := t.Context()

	req := ask(0, "a", 1)
	req.Plan = "gold"
	err := check.Simulate(ctx, check.Simulation{Policy: rules, Requests: []check.SimulatedRequest{req}}, never)
	require.Equal(t, &check.UnknownPlanError{Index: 0, Plan: "gold"}, err)

	err = check.Simulate(ctx, check.Simulation{Policy: rules, StartMS: limit.MaxInstantMS, Requests: []check.SimulatedRequest{ask(1, "a", 1)}}, never)
	require.ErrorContains(t, err, "instant is out of range")

	err = check.Simulate(ctx, check.Simulation{Policy: check.PolicyData{Rules: []limit.Rule{{Slug: "x"}}}}, never)
	require.ErrorContains(t, err, "compile simulated policy")

	s := check.Simulation{Policy: rules, Requests: []check.SimulatedRequest{ask(0, "a", 1), ask(0, "a", 1), ask(0, "a", 1)}}
	enough := errors.New("enough")
	err = check.Simulate(ctx, s, func(i int, _ *check.Decision) error {
		require.Zero(t, i)
		return enough
	})
	require.ErrorIs(t, err, enough)

	cancelled, cancel := context.WithCancel(ctx)
	seen := 0
	err = check.Simulate(cancelled, s, func(i int, _ *check.Decision) error {
		if seen++; i == 1 {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 2, seen)
}
