package tenants_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// longestReason is an override's longest reason: 500 characters of four bytes.
var longestReason = strings.Repeat("\U0001F600", 500)

// withManyOverrides gives each subject an override of each of so many rules r-1, r-2 and so on,
// with the longest reason.
func withManyOverrides(t *testing.T, d *tenantstest.Database, a tenants.Actor, rules int, subjects ...string) {
	t.Helper()
	d.Exec(`INSERT INTO rules (tenant_id, id, slug, resource, algorithm, limit_units, window_text, window_ms, by_values, mode, on_unavailable, version)
		SELECT $1, gen_random_uuid(), 'r-' || n, '*', 'fixed_window', 10, '1m', 60000, '{subject}', 'enforce', 'local', 1
		FROM generate_series(1, $2::int) n ON CONFLICT DO NOTHING`, a.TenantID(), rules)
	for _, subject := range subjects {
		mustSubject(t, d.Store, a, tenants.Subject{Subject: subject})
		d.Exec(`INSERT INTO overrides (tenant_id, subject, rule_id, limit_units, reason, version)
			SELECT tenant_id, $2, id, 5, $3, 1 FROM rules WHERE tenant_id = $1`, a.TenantID(), subject, longestReason)
	}
}

// heavyAndLight registers subjects with a thousand overrides each, and others with none.
func heavyAndLight(t *testing.T) (d *tenantstest.Database, a tenants.Actor, overrides map[string]int) {
	t.Helper()
	d, a, _ = two(t)
	overrides = map[string]int{}
	for i := range 12 {
		name := fmt.Sprintf("s%02d", i)
		if overrides[name] = 0; i%2 == 0 {
			overrides[name] = limit.MaxRules
			withManyOverrides(t, d, a, limit.MaxRules, name)
		} else {
			mustSubject(t, d.Store, a, tenants.Subject{Subject: name})
		}
	}
	return d, a, overrides
}

// A page of subjects with very many overrides ends early, because all of them are in memory. The
// pages have each subject once, with all of its overrides.
func TestPagesOfSubjectsEndByTheirOverrides(t *testing.T) {
	t.Parallel()
	d, a, want := heavyAndLight(t)
	for _, f := range []tenants.SubjectFilter{{}, {ByName: true}, {Prefix: "s"}} {
		got := map[string]int{}
		var order []string
		for page := (tenants.Page{Limit: 200}); ; {
			found, next, err := d.Store.Subjects(t.Context(), a, f, page)
			require.NoError(t, err)
			require.NotEmpty(t, found)
			heavy := 0
			for i := range found {
				s := &found[i]
				require.NotContains(t, got, s.Subject)
				got[s.Subject] = len(s.Overrides)
				order = append(order, s.Subject)
				if len(s.Overrides) > 0 {
					heavy++
				}
			}
			require.LessOrEqual(t, heavy, 2, "of 2 MB each")
			if next == "" {
				break
			}
			require.Equal(t, 2, heavy, "a page ends no earlier")
			page.After = next
		}
		require.Equal(t, want, got, "%+v", f)
		if f.ByName {
			require.True(t, slices.IsSorted(order))
		}
	}
}

// An export reads the overrides of few subjects at once.
func TestExportsReadOverridesInParts(t *testing.T) {
	t.Parallel()
	d, a, want := heavyAndLight(t)
	got := map[string]int{}
	err := d.Store.ExportSubjects(t.Context(), a, tenants.SubjectFilter{}, true, func(part []tenants.Subject) error {
		overrides := 0
		for i := range part {
			overrides += len(part[i].Overrides)
			got[part[i].Subject] = len(part[i].Overrides)
		}
		require.LessOrEqual(t, overrides, 2*limit.MaxRules)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// Lists that do not show overrides read none, and so their pages have as many subjects as wanted.
// Their numbers are read without their contents.
func TestSubjectHeads(t *testing.T) {
	t.Parallel()
	d, a, want := heavyAndLight(t)
	d.Exec("REVOKE SELECT ON overrides FROM weir_app")
	heads, next, err := d.Store.SubjectHeads(t.Context(), a, tenants.SubjectFilter{}, tenants.Page{Limit: 11})
	require.NoError(t, err)
	require.Len(t, heads, 11)
	last, end, err := d.Store.SubjectHeads(t.Context(), a, tenants.SubjectFilter{}, tenants.Page{Limit: 11, After: next})
	require.NoError(t, err)
	require.Empty(t, end)
	names := []string{}
	for _, s := range append(heads, last...) {
		require.Contains(t, want, s.Subject)
		require.Empty(t, s.Overrides)
		names = append(names, s.Subject)
	}
	require.Len(t, names, len(want))
	named, err := d.Store.SubjectHeadsByName(t.Context(), a, []string{"s03", "none", "s04", "a\x00"})
	require.NoError(t, err)
	require.Len(t, named, 2)

	d.Exec("GRANT SELECT (tenant_id, subject) ON overrides TO weir_app")
	counts, err := d.Store.OverrideCounts(t.Context(), a, append(names, "none", "a\x00"))
	require.NoError(t, err)
	require.Equal(t, limit.MaxRules, counts["s04"])
	require.Zero(t, counts["s03"])
	_, _, err = d.Store.Subjects(t.Context(), a, tenants.SubjectFilter{}, tenants.Page{})
	require.Error(t, err, "with overrides")
}

// An import of few overrides reads all overrides of their subjects, also for the trail. So lines
// whose subjects have many are a batch of their own.
func TestImportBatchesByOverrides(t *testing.T) {
	t.Parallel()
	d, a, want := heavyAndLight(t)
	d.Exec(`CREATE TABLE batches ();
		CREATE FUNCTION note_batch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			$$ BEGIN INSERT INTO batches DEFAULT VALUES; RETURN NULL; END $$;
		CREATE TRIGGER note_batch AFTER INSERT ON overrides FOR EACH STATEMENT EXECUTE FUNCTION note_batch()`)
	var lines []tenants.SubjectLine
	for name := range want {
		for _, subject := range []string{name, name + "-new"} {
			o := tenants.Override{Rule: "r-7", Limit: limit.Limit{Limit: 9}, ExpiresAt: ptr(time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC))}
			lines = append(lines, tenants.SubjectLine{Line: len(lines) + 1, Subject: subject, Overrides: []tenants.OverrideLine{{Override: o}}})
		}
	}
	require.Equal(t, tenants.ImportCounts{Created: 12, Updated: 12}, mustImport(t, d.Store, a, lines...))
	var batches, changed int
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		require.NoError(t, conn.QueryRow(ctx, "SELECT (SELECT count(*) FROM batches), (SELECT count(*) FROM overrides WHERE limit_units = 9)").Scan(&batches, &changed))
	})
	require.Equal(t, 2, batches)
	require.Equal(t, len(lines), changed)
	rows, _, err := d.Store.Audit(t.Context(), a, tenants.AuditFilter{Target: "s00"}, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Contains(t, string(rows[0].After), `"r-7":`)
	require.NotContains(t, string(rows[0].After), `"r-8":`)
}

// A migration keeps the overrides of the subjects that it moves in memory, before and after, for
// the trail. So it moves few subjects with many at once, and cancels as few.
func TestMigrationsMoveFewOverridesAtOnce(t *testing.T) {
	t.Parallel()
	d, a, _ := heavyAndLight(t)
	mustPlan(t, d.Store, a, "free")
	mustPlan(t, d.Store, a, "pro")
	withManyOverrides(t, d, a, limit.MaxRules, "last")
	in := func(plan, next string) (n int) {
		heads, _, err := d.Store.SubjectHeads(t.Context(), a, tenants.SubjectFilter{Plan: plan}, tenants.Page{})
		require.NoError(t, err)
		for i := range heads {
			if heads[i].NextPlan == next {
				n++
			}
		}
		return n
	}
	d.Exec("UPDATE subjects SET plan_id = (SELECT id FROM plans WHERE slug = 'free')")
	d.Store.SetTurnTime(time.Nanosecond) // a batch in each round
	run := func() (moved int) {
		moved, _, err := d.Store.RunPlanMigrations(t.Context())
		require.NoError(t, err)
		return moved
	}
	m, err := d.Store.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "free", To: "pro", AtCycleEnd: true})
	require.NoError(t, err)
	run()
	require.Less(t, in("free", "pro"), 13)
	run()
	require.Equal(t, 13, in("free", "pro"))
	_, err = d.Store.CancelPlanMigration(t.Context(), a, "free", m.ID)
	require.NoError(t, err)
	require.Positive(t, in("free", "pro"))
	run()
	require.Equal(t, 13, in("free", ""))

	_, err = d.Store.CreatePlanMigration(t.Context(), a, tenants.NewPlanMigration{Plan: "free", To: "pro"})
	require.NoError(t, err)
	moved := run()
	require.Less(t, moved, 13)
	require.Equal(t, moved, in("pro", ""))
	require.Equal(t, 13-moved, run())
}

// A document has all overrides of its subjects in memory, so it is refused if the stored subjects
// have more than a document may have.
func TestDocumentsBoundStoredOverrides(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	withManyOverrides(t, d, a, limit.MaxRules, "s0")
	d.Exec(`INSERT INTO subjects (tenant_id, subject, id, state, version)
		SELECT tenant_id, 's' || n, gen_random_uuid(), 'active', 1 FROM subjects, generate_series(1, 50) n`)
	d.Exec(`INSERT INTO overrides (tenant_id, subject, rule_id, limit_units, version)
		SELECT s.tenant_id, s.subject, r.id, 5, 1 FROM subjects s JOIN rules r USING (tenant_id) WHERE s.subject <> 's0'`)
	_, _, err := d.Store.Document(t.Context(), a, true)
	requireInvalid(t, err, "subjects")
	var all tenants.Document
	for i := range 51 {
		all.Subjects = append(all.Subjects, tenants.Subject{Subject: fmt.Sprintf("s%d", i)})
	}
	_, err = d.Store.ApplyDocument(t.Context(), a, all, tenants.Apply{})
	requireInvalid(t, err, "subjects")
	part := tenants.Document{Subjects: all.Subjects[:1]}
	_, err = d.Store.ApplyDocument(t.Context(), a, part, tenants.Apply{Prune: true})
	requireInvalid(t, err, "subjects")
	require.Empty(t, mustApply(t, d.Store, a, part, tenants.Apply{}))

	d.Exec("DELETE FROM subjects WHERE subject = 's50'")
	document, _, err := d.Store.Document(t.Context(), a, true)
	require.NoError(t, err)
	require.Len(t, document.Subjects, 50)
}
