package tenants_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// The trail shows who blocked a customer or changed a limit, also if the change was part of a file.
// The row is the same as that of a change of the subject alone.
func TestImportIsInTheTrailSubjectBySubject(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	mustPlan(t, s, a, "pro")
	require.NoError(t, second(s.CreateRule(ctx, a, rule("r"))))
	end := time.Date(2999, 1, 2, 3, 4, 5, 0, time.UTC)
	override := tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 500}, Reason: "launch <week>", ExpiresAt: &end}
	labels := map[string]string{"region": "eu", "z": "ü&\"<"}
	full := func(name string) tenants.Subject {
		return tenants.Subject{Subject: name, Plan: "pro", State: check.Blocked, BillingRef: "<" + name + ">", Labels: labels}
	}
	// The subjects of the file, each with another one that is changed in the same way alone.
	for _, name := range []string{"file-changed", "one-changed", "file-raised", "one-raised", "file-lowered", "one-lowered", "file-same"} {
		mustSubject(t, s, a, tenants.Subject{Subject: name, Labels: map[string]string{"region": "us"}})
	}
	for _, name := range []string{"file-lowered", "one-lowered"} {
		_, _, err := s.PutOverride(ctx, a, name, override, tenants.Match{})
		require.NoError(t, err)
	}
	line := func(of tenants.Subject) tenants.SubjectLine {
		return tenants.SubjectLine{
			Subject: of.Subject, Plan: &of.Plan, State: &of.State, BillingRef: &of.BillingRef, Labels: tenants.PackLabels(of.Labels),
		}
	}
	from := tenants.WithOrigin(ctx, tenants.Origin{Address: "192.0.2.7", RequestID: "the-import"})
	counts, err := s.ImportSubjects(from, a, numbered([]tenants.SubjectLine{
		line(full("file-new")), {Subject: "file-plain"}, line(full("file-changed")), {Subject: "file-same"},
		{Subject: "file-raised", Overrides: []tenants.OverrideLine{{Override: override}}},
		{Subject: "file-lowered", Overrides: []tenants.OverrideLine{{Override: tenants.Override{Rule: "r"}, Remove: true}}},
	}), tenants.ImportMode{})
	require.NoError(t, err)
	require.Equal(t, tenants.ImportCounts{Created: 2, Updated: 3, Unchanged: 1}, counts)
	mustSubject(t, s, a, full("one-new"))
	mustSubject(t, s, a, tenants.Subject{Subject: "one-plain"})
	require.NoError(t, second(s.EditSubject(ctx, a, "one-changed", tenants.Match{}, func(in *tenants.Subject) error { *in = full("one-changed"); return nil })))
	_, _, err = s.PutOverride(ctx, a, "one-raised", override, tenants.Match{})
	require.NoError(t, err)
	require.NoError(t, s.DeleteOverride(ctx, a, "one-lowered", "r", tenants.Match{}))

	last := func(target string) tenants.AuditEntry {
		t.Helper()
		rows, _, err := s.Audit(ctx, a, tenants.AuditFilter{Kind: "subject", Target: target}, tenants.Page{})
		require.NoError(t, err)
		require.NotEmpty(t, rows, target)
		return rows[0]
	}
	for _, what := range []string{"new", "plain", "changed", "raised", "lowered"} {
		file, one := last("file-"+what), last("one-"+what)
		require.Equal(t, one.Action, file.Action, what)
		require.Equal(t, one.Reason, file.Reason, what)
		require.Equal(t, one.Before == nil, file.Before == nil, what)
		if one.Before != nil {
			require.JSONEq(t, string(one.Before), string(file.Before), what)
		}
		// An import does not look up what each override replaces.
		after := strings.ReplaceAll(string(one.After), `,"replaced_limits":{"r":100}`, "")
		require.JSONEq(t, after, strings.ReplaceAll(string(file.After), "file-", "one-"), what)
		require.Equal(t, "192.0.2.7 the-import", file.Address+" "+file.RequestID)
	}
	require.Equal(t, "launch <week>", last("file-raised").Reason)
	require.Equal(t, "create", last("file-same").Action, "an unchanged subject has no row")
	imports, _, err := s.Audit(ctx, a, tenants.AuditFilter{Action: "import"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, imports, 1)
	require.Equal(t, last("file-lowered").Sequence+1, imports[0].Sequence, "after its subjects")
	require.True(t, trailIsIntact(t, s, a).Valid)
}

// The rows of a long import are one chain, and a failed import leaves no rows.
func TestLongImportsAreOneChain(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	lines := make([]tenants.SubjectLine, 4500)
	for i := range lines {
		lines[i].Subject = fmt.Sprint("user_", i)
	}
	before := trailIsIntact(t, s, a)
	lines[4400].Plan = ptr("none")
	require.Equal(t, []string{"4401 plan"}, refusedLines(t, s, a, tenants.ImportMode{}, lines...))
	require.Equal(t, before, trailIsIntact(t, s, a))
	lines[4400].Plan = nil
	mustImport(t, s, a, lines...)
	after := trailIsIntact(t, s, a)
	require.True(t, after.Valid)
	require.Equal(t, before.Rows+4501, after.Rows)
	mustImport(t, s, a, lines...)
	require.Equal(t, after, trailIsIntact(t, s, a), "an import without changes has no row")
}
