package tenants_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// approving lets the tenant approve requests automatically, and returns how a subject sends one.
func approving(t *testing.T, s *tenants.Store, a tenants.Actor) func(subject string, had, asked int64) tenants.LimitRequest {
	t.Helper()
	mustRule(t, s, a, rule("api"))
	for _, plan := range []struct {
		slug  string
		limit int64
	}{{"free", 10}, {"pro", 50}} {
		mustPlan(t, s, a, plan.slug)
		_, _, err := s.PutPlanLimit(t.Context(), a, plan.slug, "api", limit.Limit{Limit: plan.limit}, tenants.Match{})
		require.NoError(t, err)
	}
	_, err := s.EditPortal(t.Context(), a, tenants.Match{}, func(p *tenants.Portal) error {
		p.AutoPercent, p.AutoFor.Text, p.AutoEvery.Text = 100, "30d", "1h"
		return nil
	})
	require.NoError(t, err)
	return func(subject string, had, asked int64) tenants.LimitRequest {
		visit := visitOf(t, s, a, subject)
		q, _, err := s.RequestLimit(t.Context(), &visit, tenants.NewLimitRequest{Rule: "api", Had: limit.Limit{Limit: had}, Asked: asked})
		require.NoError(t, err)
		return q
	}
}

func overridesOf(t *testing.T, s *tenants.Store, a tenants.Actor, subject string) []tenants.Override {
	t.Helper()
	out, err := s.SubjectByName(t.Context(), a, subject)
	require.NoError(t, err)
	return out.Overrides
}

// later moves the clock of a store.
type later = func(time.Duration)

// What was approved automatically ends with the plan and the multiplier that it was a part of, by
// whatever way these change. What a member decided stays.
func TestAutomaticApprovalsEndWithThePlan(t *testing.T) {
	t.Parallel()
	for way, change := range map[string]func(s *tenants.Store, a tenants.Actor, later later) error{
		"multiplier": func(s *tenants.Store, a tenants.Actor, _ later) error {
			_, err := s.EditSubject(t.Context(), a, "ada", tenants.Match{}, func(in *tenants.Subject) error { in.Multiplier = 1; return nil })
			return err
		},
		"plan": func(s *tenants.Store, a tenants.Actor, _ later) error {
			out, _, err := s.PutSubject(t.Context(), a, tenants.Subject{Subject: "ada", Plan: "free"}, tenants.Match{})
			require.Empty(t, out.Overrides)
			return err
		},
		"scheduled plan": func(s *tenants.Store, a tenants.Actor, later later) error {
			_, err := s.EditSubject(t.Context(), a, "ada", tenants.Match{}, func(in *tenants.Subject) error {
				at := time.Now().Add(24 * time.Hour)
				in.NextPlan, in.NextPlanAt = "free", &at
				return nil
			})
			require.NoError(t, err)
			require.Len(t, overridesOf(t, s, a, "ada"), 1)
			later(48 * time.Hour)
			_, _, err = s.ApplyDuePlans(t.Context())
			return err
		},
		"migration": func(s *tenants.Store, a tenants.Actor, _ later) error {
			_, err := s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "pro", To: "free"})
			require.NoError(t, err)
			_, _, err = s.RunPlanMigrations(t.Context())
			return err
		},
		"document": func(s *tenants.Store, a tenants.Actor, _ later) error {
			subjects := []tenants.Subject{{Subject: "ada", Plan: "free"}, {Subject: "bob", Plan: "free"}}
			_, err := s.ApplyDocument(t.Context(), a, tenants.Document{Subjects: subjects}, tenants.Apply{})
			return err
		},
		"import": func(s *tenants.Store, a tenants.Actor, _ later) error {
			_, err := s.ImportSubjects(t.Context(), a, numbered([]tenants.SubjectLine{{Subject: "ada", Plan: ptr("free")}, {Subject: "bob", Plan: ptr("free")}}), tenants.ImportMode{})
			return err
		},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			d, a, later := clocked(t)
			s := d.Store
			ask := approving(t, s, a)
			_, err := s.EditPlan(t.Context(), a, "free", tenants.Match{}, func(p *tenants.Plan) error { p.OnChange = tenants.OnChangeScale; return nil })
			require.NoError(t, err)
			for _, subject := range []string{"ada", "bob"} {
				mustSubject(t, s, a, tenants.Subject{Subject: subject, Plan: "pro", Multiplier: 10})
			}
			require.True(t, ask("ada", 500, 800).Automatic)
			require.Equal(t, int64(800), overridesOf(t, s, a, "ada")[0].Limit.Limit)
			q := ask("bob", 500, 2000)
			require.False(t, q.Automatic)
			_, err = s.ApproveLimitRequest(t.Context(), a, q.ID, tenants.Approval{For: 7 * 24 * time.Hour})
			require.NoError(t, err)

			require.NoError(t, change(s, a, later))
			require.Empty(t, overridesOf(t, s, a, "ada"))
			require.Len(t, overridesOf(t, s, a, "bob"), 1, "a member decided it")
			entries, _, err := s.Audit(t.Context(), a, tenants.AuditFilter{Kind: "subject", Target: "ada"}, tenants.Page{})
			require.NoError(t, err)
			require.Contains(t, string(entries[0].Before), "800")
			require.NotContains(t, string(entries[0].After), "800")

			// The counters of another plan are scaled from what the customer had.
			var amended []check.CounterChange
			_, _, err = s.CarryOutCounterChanges(t.Context(), func(_ uuid.UUID, c check.CounterChange) error {
				amended = append(amended, c)
				return nil
			})
			require.NoError(t, err)
			for _, c := range amended {
				if c.Subject == "ada" {
					require.Equal(t, map[string]limit.Limit{"api": {Limit: 800}}, c.Approved)
				} else {
					require.Nil(t, c.Approved, "the override of a member stays")
				}
			}
			require.Equal(t, way != "multiplier", len(amended) > 0)
		})
	}
}

// An approval that a line of an import keeps has not ended, so the counter does not follow the
// plan.
func TestKeptApprovalsAreNotScaled(t *testing.T) {
	t.Parallel()
	d, a, _ := clocked(t)
	s := d.Store
	ask := approving(t, s, a)
	_, err := s.EditPlan(t.Context(), a, "free", tenants.Match{}, func(p *tenants.Plan) error { p.OnChange = tenants.OnChangeScale; return nil })
	require.NoError(t, err)
	mustSubject(t, s, a, tenants.Subject{Subject: "ada", Plan: "pro"})
	require.True(t, ask("ada", 50, 80).Automatic)
	line := tenants.SubjectLine{Subject: "ada", Plan: ptr("free"), Overrides: []tenants.OverrideLine{{Override: overridesOf(t, s, a, "ada")[0]}}}
	_, err = s.ImportSubjects(t.Context(), a, numbered([]tenants.SubjectLine{line}), tenants.ImportMode{})
	require.NoError(t, err)
	require.Len(t, overridesOf(t, s, a, "ada"), 1)
	deleted, _, err := s.CarryOutCounterChanges(t.Context(), func(_ uuid.UUID, c check.CounterChange) error {
		require.Equal(t, "ada", c.Subject)
		require.Nil(t, c.Approved)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 1, deleted)
}

// A change of the subject that leaves its limits as they are ends no approval.
func TestAutomaticApprovalsStayWithThePlan(t *testing.T) {
	t.Parallel()
	d, a, _ := clocked(t)
	s := d.Store
	ask := approving(t, s, a)
	mustSubject(t, s, a, tenants.Subject{Subject: "ada", Plan: "pro", Multiplier: 2})
	require.True(t, ask("ada", 100, 150).Automatic)
	mustSubject(t, s, a, tenants.Subject{Subject: "ada", Plan: "pro", Labels: map[string]string{"region": "eu"}})
	_, err := s.ImportSubjects(t.Context(), a, numbered([]tenants.SubjectLine{{Subject: "ada", Plan: ptr("pro"), BillingRef: ptr("cus_1")}}), tenants.ImportMode{})
	require.NoError(t, err)
	require.Len(t, overridesOf(t, s, a, "ada"), 1)
}

// An instance that does not know yet that the plan went down shows the old limit. A request for a
// part more than that waits for a member.
func TestRequestsAboutAnOldLimitWait(t *testing.T) {
	t.Parallel()
	d, a, _ := clocked(t)
	s := d.Store
	ask := approving(t, s, a)
	mustSubject(t, s, a, tenants.Subject{Subject: "ada", Plan: "free"})
	require.False(t, ask("ada", 50, 60).Automatic, "50 is the limit of pro")
	require.True(t, ask("unregistered", 10, 15).Automatic, "the limit of the default plan")
}
