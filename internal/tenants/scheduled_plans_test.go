package tenants_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
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
			n, _, err := s.ApplyDuePlans(t.Context())
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

// dueSince creates subjects of a tenant whose next plan has been due for some time.
func dueSince(t *testing.T, d *tenantstest.Database, a tenants.Actor, subjects int, since time.Duration) {
	t.Helper()
	mustPlan(t, d.Store, a, "free")
	mustPlan(t, d.Store, a, "pro")
	pro := "pro"
	var lines []tenants.SubjectLine
	for n := range subjects {
		lines = append(lines, tenants.SubjectLine{Line: n + 1, Subject: fmt.Sprintf("s%03d", n), Plan: &pro})
	}
	_, err := d.Store.ImportSubjects(t.Context(), a, lines, tenants.ImportMode{})
	require.NoError(t, err)
	d.Exec("UPDATE subjects SET next_plan_at = $2, next_plan_id = (SELECT id FROM plans WHERE tenant_id = $1 AND slug = 'free') WHERE tenant_id = $1",
		a.TenantID(), time.Now().Add(-since))
}

// Tenants take turns with their scheduled changes: hundreds of earlier ones of a tenant, or an
// error of one, do not delay those of others.
func TestScheduledPlansInTurn(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	s.SetTurnTime(time.Hour)
	dueSince(t, d, a, 600, time.Hour)
	dueSince(t, d, b, 2, time.Minute)
	left := func(actor tenants.Actor) int {
		list, _, err := s.ScheduledPlans(t.Context(), actor, tenants.Page{Limit: 1000})
		require.NoError(t, err)
		return len(list)
	}
	d.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`)
	d.Exec(fmt.Sprintf("CREATE TRIGGER refuse BEFORE UPDATE ON subjects FOR EACH ROW WHEN (OLD.tenant_id = '%s') EXECUTE FUNCTION refuse()", a.TenantID()))
	applied, more, err := s.ApplyDuePlans(t.Context())
	require.ErrorContains(t, err, a.TenantID().String())
	require.Equal(t, 2, applied)
	require.False(t, more, "the others have none left")
	require.Zero(t, left(b))
	require.Equal(t, 600, left(a))

	d.Exec("DROP TRIGGER refuse ON subjects")
	d.Exec("UPDATE subjects SET next_plan_at = now(), next_plan_id = (SELECT id FROM plans WHERE tenant_id = $1 AND slug = 'pro') WHERE tenant_id = $1", b.TenantID())
	applied, more, err = s.ApplyDuePlans(t.Context())
	require.NoError(t, err)
	require.Equal(t, 500, applied)
	require.True(t, more)
	require.Zero(t, left(b))
	applied, more, err = s.ApplyDuePlans(t.Context())
	require.NoError(t, err)
	require.Equal(t, 102, applied)
	require.False(t, more)
	require.Zero(t, left(a))
}

// The changes of counters take turns in the same way.
func TestCounterChangesInTurn(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	d.Exec(insertCounterChanges, a.TenantID(), 600)
	d.Exec(insertCounterChanges, b.TenantID(), 2)
	count := map[uuid.UUID]int{}
	refused := a.TenantID()
	carry := func(tenant uuid.UUID, c check.CounterChange) error {
		if tenant == refused {
			return errors.New("refused")
		}
		count[tenant]++
		require.Equal(t, fmt.Sprintf("s%d", count[tenant]), c.Subject, "in order")
		return nil
	}
	done, more, err := d.Store.CarryOutCounterChanges(t.Context(), carry)
	require.ErrorContains(t, err, "refused")
	require.Equal(t, 2, done)
	require.False(t, more)
	require.Equal(t, 2, count[b.TenantID()])

	refused = uuid.Nil
	done, more, err = d.Store.CarryOutCounterChanges(t.Context(), carry)
	require.NoError(t, err)
	require.Equal(t, 500, done)
	require.True(t, more)
	done, more, err = d.Store.CarryOutCounterChanges(t.Context(), carry)
	require.NoError(t, err)
	require.Equal(t, 100, done)
	require.False(t, more)
}
