package check_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/limit"
)

// scaleRig has a subject whose plan changes between free (1000) and ent (100 000), with a leased
// rule and counters that are scaled.
type scaleRig struct {
	*checktest.Rig
	t      *testing.T
	change int64
}

func newScaleRig(t *testing.T) *scaleRig {
	rule := checktest.Minute("api", 1000)
	rule.Window = limit.Window{Duration: limit.Duration{Text: "30d", MS: 30 * 86_400_000}}
	rule.Consistency, rule.Lease = limit.Leased, limit.Duration{Text: "10s", MS: 10_000}
	plans := []check.PlanData{
		{Slug: "free", Default: true, Limits: map[string]limit.Limit{"api": {Limit: 1000}}},
		{Slug: "ent", Limits: map[string]limit.Limit{"api": {Limit: 100_000}}},
	}
	return &scaleRig{Rig: checktest.NewRig(t, check.PolicyData{Rules: []limit.Rule{rule}, Plans: plans}, nil), t: t}
}

func (s *scaleRig) plan(from, to string) {
	s.t.Helper()
	s.change++
	s.Move(300 * time.Millisecond)
	s.Policy.AddSubject(check.SubjectData{Subject: "s", Plan: to})
	change := check.CounterChange{ID: s.change, Subject: "s", From: from, To: to}
	require.NoError(s.t, s.Checker.Amend(s.t.Context(), s.Policy, change))
	s.Move(300 * time.Millisecond)
}

func (s *scaleRig) lease(units int64) check.Lease {
	s.t.Helper()
	l, err := s.Checker.Lease(s.t.Context(), s.Policy, &check.Request{Subject: "s", Resource: "default", Cost: units}, new(check.Scratch))
	require.NoError(s.t, err)
	require.Equal(s.t, units, l.Units)
	return l
}

func (s *scaleRig) left(want int64, message string) {
	s.t.Helper()
	require.Equal(s.t, want, s.Rig.Check(check.Request{Subject: "s", Cost: 1, DryRun: true}).Rules[0].Remaining, message)
}

// A client returns a lease after the counters were scaled: its units are scaled, too.
func TestReturnOfALeaseAfterAScale(t *testing.T) {
	s := newScaleRig(t)
	s.plan("free", "ent")
	s.Check(check.Request{Subject: "s", Cost: 50_000})
	for range 2 { // again, it would be without any limit
		l := s.lease(500)
		s.plan("ent", "free")
		s.left(495-1, "50 500 of 100 000 are 505 of 1000; the dry run is one")
		require.NoError(t, s.Checker.ReturnLease(t.Context(), &l.Grant, 500))
		s.left(500-1, "5 of them are returned")
		s.plan("free", "ent")
		s.left(50_000-1, "as before")
	}

	s = newScaleRig(t)
	l := s.lease(250)
	s.plan("free", "ent")
	s.left(75_000-1, "a quarter is held")
	require.NoError(t, s.Checker.ReturnLease(t.Context(), &l.Grant, 250))
	s.left(100_000-1, "nothing was used")
}
