package tenants_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A subject gets its next plan once, when it is due, with any number of servers. A cancelled or
// rescheduled change is not executed.
func TestScheduledPlans(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	for _, slug := range []string{"free", "pro"} {
		for _, actor := range []tenants.Actor{a, b} {
			_, err := s.CreatePlan(t.Context(), actor, tenants.Plan{Slug: slug})
			require.NoError(t, err)
		}
	}
	past, future := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	schedule := func(subject, plan string, at *time.Time) tenants.Subject {
		out, _, err := s.PutSubject(t.Context(), a, tenants.Subject{Subject: subject, Plan: "pro", NextPlan: plan, NextPlanAt: at}, tenants.Match{})
		require.NoError(t, err)
		return out
	}
	schedule("due", "free", &past)
	require.Equal(t, "free", schedule("later", "free", &future).NextPlan)
	schedule("canceled", "free", &past)
	canceled, err := s.EditSubject(t.Context(), a, "canceled", tenants.Match{}, func(in *tenants.Subject) error {
		in.NextPlan, in.NextPlanAt = "", nil
		return nil
	})
	require.NoError(t, err)
	require.Nil(t, canceled.NextPlanAt)

	list, next, err := s.ScheduledPlans(t.Context(), a, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "due", list[0].Subject)
	list, next, err = s.ScheduledPlans(t.Context(), a, tenants.Page{Limit: 1, After: next})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Equal(t, []string{"later", "pro", "free"}, []string{list[0].Subject, list[0].Plan, list[0].NextPlan})
	list, _, err = s.ScheduledPlans(t.Context(), b, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Empty(t, list, "another tenant's")

	var servers sync.WaitGroup
	var applied atomic.Int64
	for range 4 {
		servers.Go(func() {
			n, err := s.ApplyDuePlans(t.Context())
			if err != nil {
				t.Error(err)
			}
			applied.Add(int64(n))
		})
	}
	servers.Wait()
	require.EqualValues(t, 1, applied.Load())
	plans := func(subject string) [2]string {
		got, err := s.SubjectByName(t.Context(), a, subject)
		require.NoError(t, err)
		return [2]string{got.Plan, got.NextPlan}
	}
	require.Equal(t, [2]string{"free", ""}, plans("due"))
	require.Equal(t, [2]string{"pro", "free"}, plans("later"))
	require.Equal(t, [2]string{"pro", ""}, plans("canceled"))

	trail, _, err := s.Audit(t.Context(), a, tenants.AuditFilter{Kind: "subject", Target: "due"}, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Equal(t, "scheduled plan change", trail[0].ActorName)
	require.Contains(t, string(trail[0].Before), "next_plan_at")
	require.Contains(t, string(trail[0].After), "free")

	for field, in := range map[string]tenants.Subject{
		"next_plan_at":  {Subject: "x", NextPlan: "free"},
		"next_plan":     {Subject: "x", NextPlanAt: &future},
		"next_plan_at ": {Subject: "x", NextPlan: "free", NextPlanAt: new(time.Now().Add(-time.Hour))},
	} {
		_, _, err := s.PutSubject(t.Context(), a, in, tenants.Match{})
		var wrong *tenants.InvalidError
		require.True(t, errors.As(err, &wrong))
		require.Equal(t, strings.TrimSpace(field), wrong.Fields[0].Field)
	}
	_, _, err = s.PutSubject(t.Context(), a, tenants.Subject{Subject: "x", NextPlan: "gold", NextPlanAt: &future}, tenants.Match{})
	require.ErrorContains(t, err, "next_plan")
	err = s.DeletePlan(t.Context(), a, "free", tenants.Match{})
	var conflict *tenants.ConflictError
	require.True(t, errors.As(err, &conflict), "a plan that a subject is to get cannot be deleted")
}

// A change at the end of the cycle follows the cycle anchor, whatever changes that: the API, the
// configuration document or an import. One at a fixed time does not.
func TestPlanChangesFollowTheCycle(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustPlan(t, s, a, "free")
	mustPlan(t, s, a, "pro")
	names := []string{"edited", "documented", "imported", "migrated", "fixed"}
	end := tenants.CycleEnd(nil, time.Now())
	for _, name := range names[:3] {
		mustSubject(t, s, a, tenants.Subject{Subject: name, Plan: "pro", NextPlan: "free", NextPlanAt: &end, NextPlanAtCycleEnd: true})
	}
	mustSubject(t, s, a, tenants.Subject{Subject: "migrated", Plan: "pro"})
	mustSubject(t, s, a, tenants.Subject{Subject: "fixed", Plan: "pro", NextPlan: "free", NextPlanAt: &end})
	_, err := s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "pro", To: "free", AtCycleEnd: true})
	require.NoError(t, err)
	_, _, err = s.RunPlanMigrations(t.Context())
	require.NoError(t, err)

	anchor := time.Now().UTC().AddDate(0, -3, 2).Truncate(time.Millisecond)
	for _, name := range []string{"edited", "migrated", "fixed"} {
		_, err := s.EditSubject(t.Context(), a, name, tenants.Match{}, func(in *tenants.Subject) error {
			in.CycleAnchor = &anchor
			return nil
		})
		require.NoError(t, err)
	}
	document, _ := documentOf(t, s, a)
	for i := range document.Subjects {
		if document.Subjects[i].Subject == "documented" {
			document.Subjects[i].CycleAnchor = &anchor
		}
	}
	mustApply(t, s, a, document, tenants.Apply{})
	mustImport(t, s, a, tenants.SubjectLine{Subject: "imported", CycleAnchor: ptr(&anchor)})
	for _, name := range names {
		got, err := s.SubjectByName(t.Context(), a, name)
		require.NoError(t, err)
		require.Equal(t, "free", got.NextPlan, name)
		want := tenants.CycleEnd(&anchor, time.Now())
		if name == "fixed" {
			want = end
		}
		require.Equal(t, want, *got.NextPlanAt, name)
		require.Equal(t, anchor, *got.CycleAnchor, name)
	}
	trailIsIntact(t, s, a)
}

func TestCycleEnd(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339, text)
		require.NoError(t, err)
		return parsed
	}
	anchor := at("2026-01-31T09:30:00+01:00")
	require.Equal(t, at("2026-02-28T08:30:00Z"), tenants.CycleEnd(&anchor, at("2026-02-10T00:00:00Z")))
	require.Equal(t, at("2026-03-31T08:30:00Z"), tenants.CycleEnd(&anchor, at("2026-02-28T08:30:00Z")))
	require.Equal(t, at("2026-03-01T00:00:00Z"), tenants.CycleEnd(nil, at("2026-02-10T00:00:00Z")))
}
