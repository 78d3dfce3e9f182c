package tenants_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// mustImport imports lines, numbered in order.
func mustImport(t *testing.T, s *tenants.Store, a tenants.Actor, lines ...tenants.SubjectLine) tenants.ImportCounts {
	t.Helper()
	counts, err := s.ImportSubjects(t.Context(), a, numbered(lines), tenants.ImportMode{})
	require.NoError(t, err)
	return counts
}

func numbered(lines []tenants.SubjectLine) []tenants.SubjectLine {
	for i := range lines {
		lines[i].Line = i + 1
	}
	return lines
}

// refusedLines returns the errors of an import, as "LINE FIELD".
func refusedLines(t *testing.T, s *tenants.Store, a tenants.Actor, mode tenants.ImportMode, lines ...tenants.SubjectLine) (refused []string) {
	t.Helper()
	_, err := s.ImportSubjects(t.Context(), a, numbered(lines), mode)
	var wrong *tenants.LinesError
	require.ErrorAs(t, err, &wrong)
	require.Len(t, wrong.Lines, min(wrong.Total, tenants.MaxLineErrors))
	for _, l := range wrong.Lines {
		require.NotEmpty(t, l.Message)
		refused = append(refused, fmt.Sprint(l.Line, " ", l.Field))
	}
	return refused
}

// Omitted fields are unchanged, equal subjects are not written, and instances are notified of the
// rest.
func TestImportSubjects(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	mustPlan(t, s, a, "pro")
	kept := mustSubject(t, s, a, tenants.Subject{
		Subject: "kept", Plan: "pro", State: check.Blocked, BillingRef: "cus_1", Labels: map[string]string{"k": "v"},
	})
	mustSubject(t, s, a, tenants.Subject{Subject: "changed", Plan: "pro", BillingRef: "cus_2", Labels: map[string]string{"k": "v"}})
	mustSubject(t, s, a, tenants.Subject{Subject: "returned"})
	require.NoError(t, s.DeleteSubject(t.Context(), a, "returned", tenants.Match{}))
	before := versionsOf(t, d, a)
	theirs := mustSubject(t, s, b, tenants.Subject{Subject: "kept"}) // a version between this tenant's

	counts := mustImport(t, s, a,
		tenants.SubjectLine{Subject: "kept"},
		tenants.SubjectLine{Subject: "changed", Plan: ptr(""), State: ptr(check.Exempt), Labels: tenants.PackLabels(nil)},
		tenants.SubjectLine{Subject: "returned", Plan: ptr("pro")},
		tenants.SubjectLine{Subject: "new", BillingRef: ptr("cus_3"), Labels: tenants.PackLabels(map[string]string{"z": "ü", "a": "1"})},
	)
	require.Equal(t, tenants.ImportCounts{Created: 2, Updated: 1, Unchanged: 1}, counts)

	changed, err := s.SubjectByName(t.Context(), a, "changed")
	require.NoError(t, err)
	require.Equal(t, tenants.Subject{
		Subject: "changed", State: check.Exempt, BillingRef: "cus_2", Multiplier: 1, Labels: map[string]string{},
		Version: changed.Version, CreatedAt: changed.CreatedAt, UpdatedAt: changed.UpdatedAt,
	}, changed)
	same, err := s.SubjectByName(t.Context(), a, "kept")
	require.NoError(t, err)
	require.Equal(t, kept, same)
	untouched, err := s.SubjectByName(t.Context(), b, "kept")
	require.NoError(t, err)
	require.Equal(t, theirs, untouched)

	after := versionsOf(t, d, a)
	require.Greater(t, changed.Version, before.subjects)
	require.LessOrEqual(t, changed.Version, after.subjects)
	require.Equal(t, before.policy, after.policy)
	loaded := map[string]check.SubjectData{}
	_, err = s.LoadSubjects(t.Context(), a.TenantID(), 0, func(check.SubjectData) {})
	require.NoError(t, err)
	upTo, err := s.LoadSubjects(t.Context(), a.TenantID(), before.subjects, func(d check.SubjectData) { loaded[d.Subject] = d })
	require.NoError(t, err)
	require.Equal(t, after.subjects, upTo)
	require.Equal(t, map[string]check.SubjectData{
		"changed": {Subject: "changed", State: check.Exempt}, "returned": {Subject: "returned", Plan: "pro", PlanVersion: 1}, "new": {Subject: "new"},
	}, loaded, "instances are notified of changes only")

	rows, _, err := s.Audit(t.Context(), a, tenants.AuditFilter{Action: "import"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, rows, 1, "one row for the import")
	require.JSONEq(t, `{"created":2,"updated":1,"unchanged":1}`, string(rows[0].After))

	// The same import again changes nothing, and no instance is notified.
	require.Equal(t, tenants.ImportCounts{Unchanged: 2}, mustImport(t, s, a,
		tenants.SubjectLine{Subject: "changed", State: ptr(check.Exempt)}, tenants.SubjectLine{Subject: "new", BillingRef: ptr("cus_3")}))
	require.Equal(t, after, versionsOf(t, d, a))
	// A version that was read before the import is no longer current.
	require.ErrorIs(t, s.DeleteSubject(t.Context(), a, "changed", at(before.subjects)), tenants.ErrPreconditionFailed)
	require.NoError(t, s.DeleteSubject(t.Context(), a, "changed", at(changed.Version)))
}

// One invalid line among thousands, and nothing is imported; all invalid lines are reported at
// once.
func TestImportIsAllOrNothing(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	mustPlan(t, s, a, "pro")
	mustPlan(t, s, b, "theirs")
	mustSubject(t, s, a, tenants.Subject{Subject: "there"})
	before := versionsOf(t, d, a)
	lines := make([]tenants.SubjectLine, 5000)
	for i := range lines {
		lines[i].Subject = fmt.Sprint("user_", i)
	}
	lines[4500].Plan = ptr("theirs")
	require.Equal(t, []string{"4501 plan"}, refusedLines(t, s, a, tenants.ImportMode{}, lines...), "another tenant's plan is not found")
	for i := range lines {
		lines[i].Plan = ptr("none")
	}
	require.Len(t, refusedLines(t, s, a, tenants.ImportMode{}, lines...), tenants.MaxLineErrors)

	require.Equal(t, []string{"1 subject", "2 billing_ref", "2 labels", "3 subject", "5 subject", "6 overrides.r"}, refusedLines(t, s, a, tenants.ImportMode{CreateOnly: true},
		tenants.SubjectLine{Subject: "a\x00"},
		tenants.SubjectLine{Subject: "u", BillingRef: ptr("\x00"), Labels: tenants.PackLabels(map[string]string{"a b": ""})},
		tenants.SubjectLine{Subject: "there"},
		tenants.SubjectLine{Subject: "twice"},
		tenants.SubjectLine{Subject: "twice"},
		tenants.SubjectLine{Subject: "v", Overrides: []tenants.OverrideLine{{Override: tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 1}}}}},
	))

	for i := range lines {
		lines[i].Plan = ptr("pro")
	}
	counts, err := s.ImportSubjects(t.Context(), a, lines, tenants.ImportMode{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, tenants.ImportCounts{Created: 5000}, counts)
	got, _, err := s.Subjects(t.Context(), a, tenants.SubjectFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, before, versionsOf(t, d, a))
	rows, _, err := s.Audit(t.Context(), a, tenants.AuditFilter{Action: "import"}, tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, rows)

	require.Equal(t, counts, mustImport(t, s, a, lines...), "the dry run was right")
}

// Overrides are set and deleted one by one. An expired one may stay in a file, but cannot be
// created again.
func TestImportOverrides(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	s := d.Store
	for _, slug := range []string{"q", "r", "s"} {
		mustRule(t, s, a, rule(slug))
	}
	hour := tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 5, Burst: 7}, Reason: "trial", ExpiresAt: ptr(now.now().Add(time.Hour))}
	free := tenants.Override{Rule: "q", Limit: limit.Limit{Unlimited: true}}
	line := tenants.SubjectLine{Subject: "alice", Overrides: []tenants.OverrideLine{{Override: hour}, {Override: free}}}
	require.Equal(t, tenants.ImportCounts{Created: 1}, mustImport(t, s, a, line))
	alice, err := s.SubjectByName(t.Context(), a, "alice")
	require.NoError(t, err)
	require.Len(t, alice.Overrides, 2)
	for i, want := range []tenants.Override{free, hour} {
		got := alice.Overrides[i]
		require.Equal(t, alice.Version, got.Version)
		want.CreatedBy, want.Version, want.CreatedAt = got.CreatedBy, got.Version, got.CreatedAt
		require.Equal(t, want, got)
	}
	require.Equal(t, tenants.ImportCounts{Unchanged: 1}, mustImport(t, s, a, line))

	now.nowMS += 2 * 3600 * 1000
	require.Equal(t, tenants.ImportCounts{Unchanged: 1}, mustImport(t, s, a, line), "expired, but unchanged")
	require.Equal(t, []string{"1 overrides.r.expires_at"}, refusedLines(t, s, a, tenants.ImportMode{},
		tenants.SubjectLine{Subject: "bob", Overrides: []tenants.OverrideLine{{Override: hour}}}))
	require.Equal(t, []string{"1 overrides.s.limit"}, refusedLines(t, s, a, tenants.ImportMode{},
		tenants.SubjectLine{Subject: "bob", Overrides: []tenants.OverrideLine{{Override: tenants.Override{Rule: "s"}}}}))

	before := versionsOf(t, d, a)
	require.Equal(t, tenants.ImportCounts{Updated: 1}, mustImport(t, s, a, tenants.SubjectLine{Subject: "alice", Overrides: []tenants.OverrideLine{
		{Override: tenants.Override{Rule: "q"}, Remove: true}, {Override: tenants.Override{Rule: "s", Limit: limit.Limit{Limit: 1}}},
	}}))
	var loaded []check.SubjectData
	_, err = s.LoadSubjects(t.Context(), a.TenantID(), 0, func(check.SubjectData) {})
	require.NoError(t, err)
	_, err = s.LoadSubjects(t.Context(), a.TenantID(), before.subjects, func(d check.SubjectData) { loaded = append(loaded, d) })
	require.NoError(t, err)
	require.Len(t, loaded, 1)
	var rules []string
	for _, o := range loaded[0].Overrides {
		rules = append(rules, o.Rule)
	}
	require.ElementsMatch(t, []string{"r", "s"}, rules)
}

// While thousands of rows are written, other tenants can be changed.
func TestImportDoesNotBlockOtherTenants(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	mustSubject(t, d.Store, a, tenants.Subject{Subject: "held"})
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "SELECT FROM subjects WHERE subject = 'held' FOR UPDATE")
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() {
			_, err := d.Store.ImportSubjects(ctx, a, []tenants.SubjectLine{{Line: 1, Subject: "held", State: ptr(check.Blocked)}}, tenants.ImportMode{})
			ended <- err
		}()
		require.Eventually(t, func() bool {
			var waiting bool
			return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting) == nil && waiting
		}, time.Minute, time.Millisecond)
		mustSubject(t, d.Store, b, tenants.Subject{Subject: "other"})
		require.Empty(t, ended, "the import is still running")
		require.NoError(t, tx.Rollback(ctx))
		require.NoError(t, <-ended)
	})
}

// An export is of one instant and in one order, whatever is written at the same time.
func TestExportSubjects(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	s := d.Store
	mustRule(t, s, a, rule("r"))
	mustRule(t, s, a, rule("q"))
	lines := make([]tenants.SubjectLine, 2500)
	for i := range lines {
		lines[i].Subject = fmt.Sprintf("user_%04d", i*7919%2500)
	}
	lines[0].Overrides = []tenants.OverrideLine{ // user_0000
		{Override: tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 1}, ExpiresAt: ptr(now.now().Add(time.Second))}},
		{Override: tenants.Override{Rule: "q", Limit: limit.Limit{Limit: 2}}},
	}
	mustImport(t, s, a, lines...)
	mustSubject(t, s, b, tenants.Subject{Subject: "theirs"})
	now.nowMS += 2000

	var names []string
	export := func(f tenants.SubjectFilter, overrides bool, each func([]tenants.Subject)) error {
		names = nil
		return s.ExportSubjects(t.Context(), a, f, overrides, func(batch []tenants.Subject) error {
			for _, subject := range batch {
				names = append(names, subject.Subject)
			}
			each(batch)
			return nil
		})
	}
	first := true
	require.NoError(t, export(tenants.SubjectFilter{}, true, func(batch []tenants.Subject) {
		if !first {
			return
		}
		first = false
		require.Len(t, batch[0].Overrides, 1, "without expired overrides")
		require.Equal(t, "q", batch[0].Overrides[0].Rule)
		mustSubject(t, s, a, tenants.Subject{Subject: "user_9999"})
		require.NoError(t, s.DeleteSubject(t.Context(), a, "user_2400", tenants.Match{}))
	}))
	require.Len(t, names, 2500)
	require.True(t, slices.IsSorted(names))
	require.Contains(t, names, "user_2400")
	require.NotContains(t, names, "user_9999")

	require.NoError(t, export(tenants.SubjectFilter{Prefix: "user_1"}, false, func([]tenants.Subject) {}))
	require.Len(t, names, 1000, "one full batch")
	require.NoError(t, export(tenants.SubjectFilter{Prefix: "none"}, false, func([]tenants.Subject) {}))
	require.Empty(t, names)
	stop := errors.New("stop")
	require.ErrorIs(t, s.ExportSubjects(t.Context(), a, tenants.SubjectFilter{}, false, func([]tenants.Subject) error { return stop }), stop)
	requireInvalid(t, s.ExportSubjects(t.Context(), a, tenants.SubjectFilter{Prefix: "\x00"}, false, nil), "prefix")
}
