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

// server decides checks as a real server does, with one engine, at the instants of the rows: from a
// rule with a window, a zone and an anchor, and a subject with a cycle anchor, to a decision.
type server struct {
	checker *check.Checker
	keys    check.Keys
	nowMS   int64
	clockMS int64 // time of the instance's own clock
	rows    int
}

// atInstant is an engine with the time of the server.
type atInstant struct {
	engine.Engine
	server *server
}

func (a atInstant) Evaluate(ctx context.Context, calls ...*engine.Call) {
	for _, c := range calls {
		c.NowMS = a.server.nowMS
	}
	a.Engine.Evaluate(ctx, calls...)
}

func newServer(eng engine.Engine) *server {
	r := &server{keys: check.NewKeys([16]byte(uuid.New()))}
	r.checker = check.NewChecker(check.CheckerOptions{
		Keys: r.keys, Engine: atInstant{eng, r}, Metrics: check.NewMetrics(prometheus.NewRegistry()),
		Clock: func() time.Time { return time.UnixMilli(r.clockMS) },
	})
	return r
}

// clocksOffMS are the errors of the instance's clock. The result of a row must not depend on them.
var clocksOffMS = []int64{0, -90 * 60_000, 40 * 60_000, 400 * 86_400_000, -400 * 86_400_000}

// run decides a check of a row's rule and returns how the window differs.
func (r *server) run(b enginetest.Bounds) []enginetest.Failure {
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

// policy compiles the policy of a tenant with the row's rule and a subject with the row's anchor.
func (r *server) policy(b enginetest.Bounds) (*check.Policy, error) {
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
	// Each row has its own counters.
	policy, err := check.CompilePolicy(r.keys, limit.TenantID(uuid.New()), check.PolicyData{Slug: "t", Rules: []limit.Rule{rule}})
	if err != nil {
		return nil, err
	}
	policy.AddSubject(subject)
	return policy, nil
}
