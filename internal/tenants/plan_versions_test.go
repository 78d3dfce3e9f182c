package tenants_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

func limitsOf(n int64) map[string]limit.Limit { return map[string]limit.Limit{"r": {Limit: n}} }

func mustPublish(t *testing.T, s *tenants.Store, a tenants.Actor, plan string, n int64) tenants.Plan {
	t.Helper()
	out, err := s.PublishPlan(t.Context(), a, plan, limitsOf(n), tenants.Match{})
	require.NoError(t, err)
	return out
}

// versionOf returns the plan and version of a subject, as in "pro 1".
func versionOf(t *testing.T, s *tenants.Store, a tenants.Actor, subject string) string {
	t.Helper()
	got, err := s.SubjectByName(t.Context(), a, subject)
	require.NoError(t, err)
	return fmt.Sprint(got.Plan, " ", got.PlanVersion)
}

// Customers keep the limits that they signed up for when a new version is published; new ones get
// the newest.
func TestPlanVersions(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	for _, actor := range []tenants.Actor{a, b} {
		mustRule(t, s, actor, rule("r"))
		mustPlan(t, s, actor, "free")
		_, err := s.CreatePlan(t.Context(), actor, tenants.Plan{Slug: "pro", Limits: limitsOf(10)})
		require.NoError(t, err)
	}
	mustSubject(t, s, a, tenants.Subject{Subject: "old", Plan: "pro"})
	changed := versionsOf(t, d, a)
	published := mustPublish(t, s, a, "pro", 20)
	require.Equal(t, 2, published.NewestVersion)
	require.Equal(t, limitsOf(20), published.Limits)
	require.Equal(t, changed.subjects, versionsOf(t, d, a).subjects, "no subject is written, however many have the plan")

	mustSubject(t, s, a, tenants.Subject{Subject: "new", Plan: "pro"})
	require.Equal(t, "pro 1", versionOf(t, s, a, "old"))
	require.Equal(t, "pro 2", versionOf(t, s, a, "new"))
	mustSubject(t, s, a, tenants.Subject{Subject: "old", Plan: "pro", BillingRef: "cus_1"})
	require.Equal(t, "pro 1", versionOf(t, s, a, "old"), "a write of the same plan keeps the version")
	mustSubject(t, s, a, tenants.Subject{Subject: "old", Plan: "free"})
	mustSubject(t, s, a, tenants.Subject{Subject: "old", Plan: "pro"})
	require.Equal(t, "pro 2", versionOf(t, s, a, "old"), "a subject that returns to the plan gets the newest version")
	mustSubject(t, s, a, tenants.Subject{Subject: "old", Plan: "pro", GivePlanVersion: 1})
	require.Equal(t, "pro 1", versionOf(t, s, a, "old"))
	_, _, err := s.PutSubject(t.Context(), a, tenants.Subject{Subject: "old", Plan: "pro", GivePlanVersion: 3}, tenants.Match{})
	requireInvalid(t, err, "plan_version")

	list, next, err := s.PlanVersions(t.Context(), a, "pro", tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, []any{2, true, limitsOf(20), int64(1)}, []any{list[0].Number, list[0].Newest, list[0].Limits, list[0].Subjects})
	list, next, err = s.PlanVersions(t.Context(), a, "pro", tenants.Page{Limit: 1, After: next})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Equal(t, []any{1, false, limitsOf(10), int64(1)}, []any{list[0].Number, list[0].Newest, list[0].Limits, list[0].Subjects})

	// A change in place changes the newest version.
	_, _, err = s.PutPlanLimit(t.Context(), a, "pro", "r", limit.Limit{Limit: 25}, tenants.Match{})
	require.NoError(t, err)
	policy := policyOf(t, s, a.TenantID())
	require.Equal(t, check.PlanData{
		Slug: "pro", Limits: limitsOf(25), Version: 2, Older: []check.PlanVersionData{{Number: 1, Limits: limitsOf(10)}},
	}, policy.Plans[1])
	data := map[string]int{}
	_, err = s.LoadSubjects(t.Context(), a.TenantID(), 0, func(d check.SubjectData) { data[d.Subject] = d.PlanVersion })
	require.NoError(t, err)
	require.Equal(t, map[string]int{"old": 1, "new": 2}, data)

	// A change of a rule must keep the limits of older versions valid.
	_, err = s.EditRule(t.Context(), a, "r", tenants.Match{}, func(r *limit.Rule) error {
		r.Algorithm = limit.SlidingWindowLog
		return nil
	})
	require.NoError(t, err)

	requireConflict(t, s.DeletePlanVersion(t.Context(), a, "pro", 1, tenants.Match{}), tenants.CodePlanInUse)
	requireConflict(t, s.DeletePlanVersion(t.Context(), a, "pro", 2, tenants.Match{}), tenants.CodePlanInUse)
	require.ErrorIs(t, s.DeletePlanVersion(t.Context(), a, "pro", 3, tenants.Match{}), tenants.ErrNotFound)
	require.ErrorIs(t, s.DeletePlanVersion(t.Context(), b, "pro", 1, tenants.Match{Versions: []int64{1}}), tenants.ErrPreconditionFailed)
	mustSubject(t, s, a, tenants.Subject{Subject: "old", Plan: "pro", GivePlanVersion: tenants.NewestPlanVersion})
	require.NoError(t, s.DeletePlanVersion(t.Context(), a, "pro", 1, tenants.Match{}))
	require.Empty(t, policyOf(t, s, a.TenantID()).Plans[1].Older)

	trail, _, err := s.Audit(t.Context(), a, tenants.AuditFilter{Kind: "plan", Target: "pro"}, tenants.Page{Limit: 10})
	require.NoError(t, err)
	var actions []string
	for _, row := range trail {
		actions = append(actions, row.Action)
	}
	require.Equal(t, []string{"update", "update", "publish", "create"}, actions)
	require.JSONEq(t, `{"newest_version":2,"limits":{"r":{"limit":20}},"older_versions":{"1":{"r":{"limit":10}}}}`, string(trail[2].After))

	_, err = s.PublishPlan(t.Context(), a, "gold", nil, tenants.Match{})
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = s.PublishPlan(t.Context(), a, "pro", map[string]limit.Limit{"none": {Limit: 1}}, tenants.Match{})
	requireInvalid(t, err, "limits.none")
}

// The number of versions of a plan is limited, because each costs memory on every instance.
func TestTooManyPlanVersions(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustRule(t, d.Store, a, rule("r"))
	mustPlan(t, d.Store, a, "pro")
	for n := range tenants.MaxOlderVersions {
		mustPublish(t, d.Store, a, "pro", int64(n)+1)
	}
	_, err := d.Store.PublishPlan(t.Context(), a, "pro", nil, tenants.Match{})
	requireConflict(t, err, tenants.CodeTooManyVersions)
	require.NoError(t, d.Store.DeletePlanVersion(t.Context(), a, "pro", 7, tenants.Match{}))
	require.Equal(t, tenants.MaxOlderVersions+2, mustPublish(t, d.Store, a, "pro", 5).NewestVersion)
}

// migrated returns a tenant with 700 subjects on version 1 of pro, 2 on version 2, and 1 with
// another plan.
func migrated(t *testing.T, onChange string) (s *tenants.Store, a, b tenants.Actor) {
	t.Helper()
	d, a, b := two(t)
	s = d.Store
	mustRule(t, s, a, rule("r"))
	mustPlan(t, s, a, "free")
	_, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "pro", Limits: limitsOf(10), OnChange: onChange})
	require.NoError(t, err)
	pro := "pro"
	var lines []tenants.SubjectLine
	for n := range 700 {
		lines = append(lines, tenants.SubjectLine{Line: n + 1, Subject: fmt.Sprintf("s%03d", n), Plan: &pro})
	}
	_, err = s.ImportSubjects(t.Context(), a, lines, tenants.ImportMode{})
	require.NoError(t, err)
	mustPublish(t, s, a, "pro", 20)
	mustSubject(t, s, a, tenants.Subject{Subject: "new", Plan: "pro"})
	mustSubject(t, s, a, tenants.Subject{Subject: "newer", Plan: "pro"})
	mustSubject(t, s, a, tenants.Subject{Subject: "other", Plan: "free"})
	return s, a, b
}

// runAll runs migrations until nothing is left to do now.
func runAll(t *testing.T, s *tenants.Store) (moved int) {
	t.Helper()
	for {
		n, more, err := s.RunPlanMigrations(t.Context())
		require.NoError(t, err)
		if moved += n; !more {
			return moved
		}
	}
}

// A migration moves the selected subjects, each once, and reports its progress.
func TestPlanMigration(t *testing.T) {
	t.Parallel()
	s, a, b := migrated(t, "")
	total, names, err := s.MigrationSubjects(t.Context(), a, tenants.NewPlanMigration{Plan: "pro"}, 10)
	require.NoError(t, err)
	require.EqualValues(t, 700, total)
	require.Len(t, names, 10)

	m, err := s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "pro"})
	require.NoError(t, err)
	require.Equal(t, []any{tenants.MigrationRunning, "pro", int64(700), int64(0)}, []any{m.State, m.To, m.Subjects, m.Moved})
	_, err = s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "pro"})
	requireConflict(t, err, tenants.CodeMigrationRunning)
	_, err = s.PlanMigrationByID(t.Context(), b, "pro", m.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = s.CancelPlanMigration(t.Context(), b, "pro", m.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)

	require.Equal(t, 700, runAll(t, s))
	m, err = s.PlanMigrationByID(t.Context(), a, "pro", m.ID)
	require.NoError(t, err)
	require.Equal(t, []any{tenants.MigrationDone, int64(700)}, []any{m.State, m.Moved})
	require.NotNil(t, m.EndedAt)
	require.Equal(t, "pro 2", versionOf(t, s, a, "s000"))
	require.Equal(t, "free 1", versionOf(t, s, a, "other"))
	_, err = s.CancelPlanMigration(t.Context(), a, "pro", m.ID)
	requireConflict(t, err, tenants.CodeMigrationEnded)
	require.NoError(t, s.DeletePlanVersion(t.Context(), a, "pro", 1, tenants.Match{}))

	trail, _, err := s.Audit(t.Context(), a, tenants.AuditFilter{Kind: "subject", Target: "s699"}, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "plan migration", trail[0].ActorName)
	require.JSONEq(t, `{"plan_version":2}`, string(trail[0].After))
	trail, _, err = s.Audit(t.Context(), a, tenants.AuditFilter{Kind: "migration"}, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, trail, 2, "its creation and its end, not each batch")
	require.Equal(t, "pro", trail[0].Target)

	// To another plan, from one version, at a later time.
	later := time.Now().Add(time.Hour)
	m, err = s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "pro", FromVersion: 2, To: "free", StartsAt: later})
	require.NoError(t, err)
	require.Equal(t, []any{tenants.MigrationScheduled, int64(702)}, []any{m.State, m.Subjects})
	require.Zero(t, runAll(t, s))
	m, err = s.CancelPlanMigration(t.Context(), a, "pro", m.ID)
	require.NoError(t, err)
	require.Equal(t, tenants.MigrationCanceled, m.State)
	m, err = s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "pro", FromVersion: 2, To: "free"})
	require.NoError(t, err)
	require.Equal(t, 702, runAll(t, s))
	require.Equal(t, "free 1", versionOf(t, s, a, "newer"))
	require.NoError(t, s.DeletePlan(t.Context(), a, "pro", tenants.Match{}), "it has no subjects any more")

	for field, in := range map[string]tenants.NewPlanMigration{
		"to": {Plan: "free", To: "gold"}, "from_version": {Plan: "free", FromVersion: 1},
	} {
		_, err = s.CreatePlanMigration(t.Context(), a, in)
		requireInvalid(t, err, field)
	}
	_, err = s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "gold"})
	require.ErrorIs(t, err, tenants.ErrNotFound)
}

// At the end of the cycle, each subject has its own day. A subject's own schedule is kept, a
// cancelled change is not scheduled again, and cancelling the migration leaves nothing behind.
func TestPlanMigrationAtCycleEnd(t *testing.T) {
	t.Parallel()
	s, a, _ := migrated(t, "")
	future := time.Now().Add(90 * 24 * time.Hour)
	anchor := time.Date(2026, 1, 15, 9, 0, 0, 0, time.UTC)
	mustSubject(t, s, a, tenants.Subject{Subject: "s000", Plan: "pro", NextPlan: "free", NextPlanAt: &future})
	mustSubject(t, s, a, tenants.Subject{Subject: "s001", Plan: "pro", CycleAnchor: &anchor})
	m, err := s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "pro", AtCycleEnd: true})
	require.NoError(t, err)
	require.Zero(t, runAll(t, s))
	m, err = s.PlanMigrationByID(t.Context(), a, "pro", m.ID)
	require.NoError(t, err)
	require.Equal(t, []any{tenants.MigrationWaiting, int64(0), int64(699)}, []any{m.State, m.Moved, m.Waiting})

	own, err := s.SubjectByName(t.Context(), a, "s000")
	require.NoError(t, err)
	require.Equal(t, "free", own.NextPlan)
	one, err := s.SubjectByName(t.Context(), a, "s001")
	require.NoError(t, err)
	require.Equal(t, tenants.CycleEnd(&anchor, time.Now()), *one.NextPlanAt)
	require.Equal(t, "pro", one.NextPlan)

	_, err = s.EditSubject(t.Context(), a, "s002", tenants.Match{}, func(in *tenants.Subject) error {
		in.NextPlan, in.NextPlanAt = "", nil
		return nil
	})
	require.NoError(t, err)
	_, err = s.EditSubject(t.Context(), a, "s003", tenants.Match{}, func(in *tenants.Subject) error {
		in.BillingRef = "cus_3" // and the change still belongs to the migration
		return nil
	})
	require.NoError(t, err)
	require.Zero(t, runAll(t, s))
	m, err = s.CancelPlanMigration(t.Context(), a, "pro", m.ID)
	require.NoError(t, err)
	require.Equal(t, []any{tenants.MigrationCanceling, int64(198)}, []any{m.State, m.Waiting})
	runAll(t, s)
	m, err = s.PlanMigrationByID(t.Context(), a, "pro", m.ID)
	require.NoError(t, err)
	require.Equal(t, []any{tenants.MigrationCanceled, int64(0)}, []any{m.State, m.Waiting})
	list, _, err := s.ScheduledPlans(t.Context(), a, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, list, 1, "what the subject had scheduled itself")
}

// A subject that leaves the plan before the end of its cycle, whatever moves it, does not get the
// plan again. What it scheduled itself stays.
func TestPlanMigrationOfSubjectsThatLeave(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustPlan(t, s, a, "free")
	mustPlan(t, s, a, "pro")
	names := []string{"edited", "documented", "imported", "stays", "scheduled"}
	for _, name := range names {
		mustSubject(t, s, a, tenants.Subject{Subject: name, Plan: "pro"})
	}
	future := time.Now().Add(90 * 24 * time.Hour)
	mustSubject(t, s, a, tenants.Subject{Subject: "scheduled", Plan: "pro", NextPlan: "pro", NextPlanAt: &future})
	_, err := s.PublishPlan(t.Context(), a, "pro", nil, tenants.Match{})
	require.NoError(t, err)
	m, err := s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "pro", AtCycleEnd: true})
	require.NoError(t, err)
	require.Zero(t, runAll(t, s))

	document, _ := documentOf(t, s, a)
	for i := range document.Subjects {
		if document.Subjects[i].Subject == "documented" {
			document.Subjects[i].Plan, document.Subjects[i].PlanVersion = "free", 0
		}
	}
	mustApply(t, s, a, document, tenants.Apply{})
	mustImport(t, s, a, tenants.SubjectLine{Subject: "imported", Plan: new("free")})
	for _, name := range []string{"edited", "scheduled"} {
		_, err := s.EditSubject(t.Context(), a, name, tenants.Match{}, func(in *tenants.Subject) error {
			in.Plan = "free"
			return nil
		})
		require.NoError(t, err)
	}
	m, err = s.PlanMigrationByID(t.Context(), a, "pro", m.ID)
	require.NoError(t, err)
	require.EqualValues(t, 1, m.Waiting)
	list, _, err := s.ScheduledPlans(t.Context(), a, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Equal(t, []string{"stays", "scheduled"}, []string{list[0].Subject, list[1].Subject})
	require.Len(t, list, 2)

	later := d.Open(tenants.Config{Now: func() time.Time { return time.Now().Add(40 * 24 * time.Hour) }})
	later.SetTurnTime(time.Hour)
	_, _, err = later.ApplyDuePlans(t.Context())
	require.NoError(t, err)
	for _, name := range names {
		want := "free 1"
		if name == "stays" {
			want = "pro 2"
		}
		require.Equal(t, want, versionOf(t, s, a, name), name)
	}
	require.Zero(t, runAll(t, s))
	m, err = s.PlanMigrationByID(t.Context(), a, "pro", m.ID)
	require.NoError(t, err)
	require.Equal(t, []any{tenants.MigrationDone, int64(1)}, []any{m.State, m.Moved})
	trailIsIntact(t, s, a)
}

// A scheduled change of a migration is executed as usual, and counted.
func TestPlanMigrationIsDone(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustRule(t, s, a, rule("r"))
	mustPlan(t, s, a, "pro")
	mustSubject(t, s, a, tenants.Subject{Subject: "ada", Plan: "pro"})
	mustPublish(t, s, a, "pro", 20)
	m, err := s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "pro", AtCycleEnd: true})
	require.NoError(t, err)
	require.Zero(t, runAll(t, s))
	later := d.Open(tenants.Config{Now: func() time.Time { return time.Now().Add(40 * 24 * time.Hour) }})
	applied, _, err := later.ApplyDuePlans(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, applied)
	require.Equal(t, "pro 2", versionOf(t, s, a, "ada"))
	require.Zero(t, runAll(t, s))
	m, err = s.PlanMigrationByID(t.Context(), a, "pro", m.ID)
	require.NoError(t, err)
	require.Equal(t, []any{tenants.MigrationDone, int64(1), int64(0)}, []any{m.State, m.Moved, m.Waiting})
}

// Migrations of a tenant that wait for the ends of cycles do not delay those of other tenants. They
// end when the changes that they scheduled were executed.
func TestWaitingMigrationsDelayNobody(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	mustRule(t, s, a, rule("r"))
	mustRule(t, s, b, rule("r"))
	migrations := map[string]uuid.UUID{}
	for n := range 100 {
		slug := fmt.Sprintf("p%02d", n)
		mustPlan(t, s, a, slug)
		mustSubject(t, s, a, tenants.Subject{Subject: "of-" + slug, Plan: slug})
		mustPublish(t, s, a, slug, 20)
		m, err := s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: slug, AtCycleEnd: true})
		require.NoError(t, err)
		migrations[slug] = m.ID
	}
	states := func() map[string]int {
		count := map[string]int{}
		for slug, id := range migrations {
			m, err := s.PlanMigrationByID(t.Context(), a, slug, id)
			require.NoError(t, err)
			count[m.State]++
		}
		return count
	}
	require.Zero(t, runAll(t, s))
	require.Equal(t, map[string]int{tenants.MigrationWaiting: 100}, states())

	mustPlan(t, s, b, "pro")
	mustSubject(t, s, b, tenants.Subject{Subject: "ada", Plan: "pro"})
	mustPublish(t, s, b, "pro", 20)
	_, err := s.CreatePlanMigration(t.Context(), b, tenants.NewPlanMigration{Plan: "pro"})
	require.NoError(t, err)
	moved, _, err := s.RunPlanMigrations(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, moved)
	require.Equal(t, "pro 2", versionOf(t, s, b, "ada"))

	later := d.Open(tenants.Config{Now: func() time.Time { return time.Now().Add(40 * 24 * time.Hour) }})
	later.SetTurnTime(time.Hour)
	_, _, err = later.ApplyDuePlans(t.Context())
	require.NoError(t, err)
	require.Zero(t, runAll(t, s))
	require.Equal(t, map[string]int{tenants.MigrationDone: 100}, states())
}

// The migrations of tenants take turns: a later one of another tenant is in the first round.
func TestMigrationsOfTenantsInTurn(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	migrate := func(actor tenants.Actor, slug string) {
		mustPlan(t, s, actor, slug)
		mustSubject(t, s, actor, tenants.Subject{Subject: "of-" + slug, Plan: slug})
		mustPublish(t, s, actor, slug, 20)
		_, err := s.CreatePlanMigration(t.Context(), actor, tenants.NewPlanMigration{Plan: slug})
		require.NoError(t, err)
	}
	mustRule(t, s, a, rule("r"))
	mustRule(t, s, b, rule("r"))
	for n := range 100 {
		migrate(a, fmt.Sprintf("p%02d", n))
	}
	migrate(b, "pro")
	_, more, err := s.RunPlanMigrations(t.Context())
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, "pro 2", versionOf(t, s, b, "of-pro"))
	runAll(t, s)
	require.Equal(t, "p99 2", versionOf(t, s, a, "of-p99"))
}

// on_change also applies between versions.
func TestPlanMigrationChangesCounters(t *testing.T) {
	t.Parallel()
	s, a, _ := migrated(t, tenants.OnChangeScale)
	_, err := s.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "pro"})
	require.NoError(t, err)
	runAll(t, s)
	seen := map[string]int{}
	for left := true; left; {
		left = false
		_, _, err := s.CarryOutCounterChanges(t.Context(), func(_ limit.TenantID, c check.CounterChange) error {
			left = true
			require.False(t, c.Reset)
			require.Equal(t, [2]int64{1, 1}, [2]int64{c.FromMultiplier, c.ToMultiplier})
			seen[fmt.Sprint(c.From, " ", c.FromVersion, ", ", c.To, " ", c.ToVersion)]++
			return nil
		})
		require.NoError(t, err)
	}
	require.Equal(t, map[string]int{"pro 1, pro 2": 700, "free 0, pro 1": 700, "free 0, pro 2": 2}, seen)
}

// A document makes another tenant equal, including versions and the subjects that have them.
func TestDocumentPlanVersions(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	mustRule(t, s, a, rule("r"))
	_, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "pro", Limits: limitsOf(10), OnChange: tenants.OnChangeReset})
	require.NoError(t, err)
	mustSubject(t, s, a, tenants.Subject{Subject: "old", Plan: "pro"})
	mustPublish(t, s, a, "pro", 20)
	mustSubject(t, s, a, tenants.Subject{Subject: "new", Plan: "pro"})

	read := func(actor tenants.Actor) tenants.Document {
		doc, _, err := s.Document(t.Context(), actor, true)
		require.NoError(t, err)
		doc.TenantName = nil
		for i := range doc.Subjects {
			doc.Subjects[i].GivePlanVersion = doc.Subjects[i].PlanVersion
		}
		return doc
	}
	apply := func(actor tenants.Actor, doc tenants.Document) []tenants.DocumentChange {
		t.Helper()
		applied, err := s.ApplyDocument(t.Context(), actor, doc, tenants.Apply{Prune: true})
		require.NoError(t, err)
		again, err := s.ApplyDocument(t.Context(), actor, doc, tenants.Apply{Prune: true, DryRun: true})
		require.NoError(t, err)
		require.Empty(t, again.Changes, "a document that was applied changes nothing")
		return applied.Changes
	}
	doc := read(a)
	apply(b, doc)
	for _, actor := range []tenants.Actor{a, b} {
		require.Equal(t, "pro 1", versionOf(t, s, actor, "old"))
		require.Equal(t, "pro 2", versionOf(t, s, actor, "new"))
		plan := policyOf(t, s, actor.TenantID()).Plans[0]
		require.Equal(t, check.PlanData{
			Slug: "pro", Default: true, Limits: limitsOf(20), Version: 2, Older: []check.PlanVersionData{{Number: 1, Limits: limitsOf(10)}},
		}, plan)
	}
	copied, err := s.PlanBySlug(t.Context(), b, "pro")
	require.NoError(t, err)
	require.Equal(t, tenants.OnChangeReset, copied.OnChange)

	// A greater number publishes a version; the previous one is kept.
	doc = read(b)
	doc.Plans[0].NewestVersion, doc.Plans[0].Limits = 3, limitsOf(30)
	changes := apply(b, doc)
	require.NotEmpty(t, changes)
	require.Equal(t, "pro 2", versionOf(t, s, b, "new"))
	require.Equal(t, check.PlanData{
		Slug: "pro", Default: true, Limits: limitsOf(30), Version: 3,
		Older: []check.PlanVersionData{{Number: 1, Limits: limitsOf(10)}, {Number: 2, Limits: limitsOf(20)}},
	}, policyOf(t, s, b.TenantID()).Plans[0])

	// A mistake in an older version can be corrected.
	doc = read(b)
	doc.Plans[0].Older[1].Limits = limitsOf(11)
	changes = apply(b, doc)
	require.Equal(t, "pro/1", changes[0].Name)
	require.Equal(t, limitsOf(11), policyOf(t, s, b.TenantID()).Plans[0].Older[0].Limits)

	for field, spoil := range map[string]func(*tenants.Document){
		"plans.0.newest_version":     func(d *tenants.Document) { d.Plans[0].NewestVersion = 2 },
		"plans.0.older_versions.3":   func(d *tenants.Document) { d.Plans[0].Older[0].Number = 3 },
		"plans.0.older_versions.2.x": func(d *tenants.Document) { d.Plans[0].Older[0].Limits = map[string]limit.Limit{"x": {Limit: 1}} },
		"subjects.0.plan_version":    func(d *tenants.Document) { d.Subjects[0].GivePlanVersion = 9 },
	} {
		doc := read(b)
		spoil(&doc)
		_, err := s.ApplyDocument(t.Context(), b, doc, tenants.Apply{})
		requireInvalid(t, err, field)
	}
}
