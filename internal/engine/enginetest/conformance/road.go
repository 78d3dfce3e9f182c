package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/limit"
)

// road decides checks as a server does, over one engine, at instants that the rows say: from a rule
// with a window, a zone and an anchor, and a subject with a cycle anchor, to a decision.
type road struct {
	checker *check.Checker
	keys    check.Keys
	nowMS   int64
	clockMS int64 // what the instance's own clock shows
	rows    int
}

// atInstant is an engine whose time is that of the road.
type atInstant struct {
	engine.Engine
	road *road
}

func (a atInstant) Evaluate(ctx context.Context, calls ...*engine.Call) {
	for _, c := range calls {
		c.NowMS = a.road.nowMS
	}
	a.Engine.Evaluate(ctx, calls...)
}

func newRoad(eng engine.Engine) *road {
	r := &road{keys: check.NewKeys([16]byte(uuid.New()))}
	r.checker = check.NewChecker(check.CheckerOptions{
		Keys: r.keys, Engine: atInstant{eng, r}, Metrics: check.NewMetrics(prometheus.NewRegistry()),
		Clock: func() time.Time { return time.UnixMilli(r.clockMS) },
	})
	return r
}

// clocksOffMS are what the instance's clock is off by: a row must not depend on it.
var clocksOffMS = []int64{0, -90 * 60_000, 40 * 60_000, 400 * 86_400_000, -400 * 86_400_000}

// run decides a check of a row's rule and returns how the window differs.
func (r *road) run(b enginetest.Bounds) []enginetest.Failure {
	r.rows++
	name := fmt.Sprintf("a check by the %s in %s at %d", b.Window, b.Zone, b.TimeMS)
	policy, err := r.policy(b)
	if err != nil {
		return []enginetest.Failure{{Case: name, Field: "rule", Want: "a valid rule", Got: err.Error()}}
	}
	r.nowMS = b.TimeMS
	r.clockMS = max(1, b.TimeMS+clocksOffMS[r.rows%len(clocksOffMS)])
	decisions, err := r.checker.Check(context.Background(), policy, []check.Request{{Subject: "s", Resource: "r", Cost: 1}})
	if err != nil || decisions[0].Degraded || len(decisions[0].Rules) != 1 || decisions[0].NowMS != b.TimeMS {
		return []enginetest.Failure{{Case: name, Field: "decision", Want: "by one rule at the instant", Got: fmt.Sprint(decisions, err)}}
	}
	rule := decisions[0].Rules[0]
	var failures []enginetest.Failure
	field := func(field string, want, got int64) {
		if want != got {
			failures = append(failures, enginetest.Failure{Case: name, Field: field, Want: fmt.Sprint(want), Got: fmt.Sprint(got)})
		}
	}
	field("reset_after_ms", b.EndMS-b.TimeMS, rule.ResetAfterMS)
	field("window_ms", b.EndMS-b.StartMS, rule.WindowMS)
	field("remaining", 1, rule.Remaining)
	return failures
}

// policy compiles the policy of a tenant that has the row's rule, and a subject with the row's
// anchor.
func (r *road) policy(b enginetest.Bounds) (*check.Policy, error) {
	window, err := limit.ParseWindow(b.Window)
	if err != nil {
		return nil, err
	}
	rule := limit.NewRule("row")
	rule.Algorithm, rule.Window, rule.Zone, rule.Limit = limit.FixedWindow, window, b.Zone, 2
	subject := check.SubjectData{Subject: "s"}
	if b.AnchorMS != nil {
		rule.Anchor = limit.AnchorSubject
		anchor := time.UnixMilli(*b.AnchorMS)
		subject.CycleAnchor = &anchor
	}
	// Each row has counters of its own.
	policy, err := check.CompilePolicy(r.keys, limit.TenantID(uuid.New()), check.PolicyData{Slug: "t", Rules: []limit.Rule{rule}})
	if err != nil {
		return nil, err
	}
	policy.AddSubject(subject)
	return policy, nil
}
