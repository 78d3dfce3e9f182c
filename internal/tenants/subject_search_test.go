package tenants_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// A list with a prefix is sorted by bytes, and its pages neither skip nor repeat subjects, also if
// the prefix ends with the last characters of Unicode.
func TestSubjectsByPrefixPages(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	names := []string{"a", "ab", "aé", "a\ud7ff", "a\ue000", "a\U0010ffff", "a\U0010ffff\U0010ffffz", "b", "Z", "\U0010ffff", "\U0010ffffx"}
	for _, name := range []int{4, 9, 0, 7, 2, 10, 6, 1, 8, 3, 5} { // in random order
		mustSubject(t, s, a, tenants.Subject{Subject: names[name]})
	}
	mustSubject(t, s, b, tenants.Subject{Subject: "ac"})
	for _, prefix := range []string{"a", "aé", "a\ud7ff", "a\U0010ffff", "a\U0010ffff\U0010ffff", "\U0010ffff", "b", "c"} {
		var want, got []string
		for _, name := range slices.Sorted(slices.Values(names)) {
			if strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		for page := (tenants.Page{Limit: 2}); ; {
			found, next, err := s.Subjects(t.Context(), a, tenants.SubjectFilter{Prefix: prefix}, page)
			require.NoError(t, err)
			for _, subject := range found {
				got = append(got, subject.Subject)
			}
			if next == "" {
				break
			}
			page.After = next
		}
		require.Equal(t, want, got, "%q", prefix)
	}
	_, _, err := s.Subjects(t.Context(), a, tenants.SubjectFilter{Prefix: "a"}, tenants.Page{After: "a\x00"})
	requireInvalid(t, err, "cursor")
	_, _, err = s.Subjects(t.Context(), a, tenants.SubjectFilter{}, tenants.Page{After: "a"})
	requireInvalid(t, err, "cursor")
}

// Searches by label read a separate table. It is consistent with the subjects after every kind of
// write.
func TestSubjectLabelsFollow(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	mustPlan(t, s, a, "free")
	mustPlan(t, s, a, "pro")
	mustRule(t, s, a, rule("r"))
	labels := map[string]string{"region": "eu", "vip": ""}
	same := func(step string) {
		t.Helper()
		requireLabelsFollow(t, d, step)
	}
	mustSubject(t, s, a, tenants.Subject{Subject: "one", Labels: labels})
	mustSubject(t, s, b, tenants.Subject{Subject: "one", Labels: labels})
	same("put")
	mustSubject(t, s, a, tenants.Subject{Subject: "one", Plan: "pro", Labels: labels})
	same("another plan")
	_, err := s.EditSubject(ctx, a, "one", tenants.Match{}, func(in *tenants.Subject) error {
		in.State, in.Labels = check.Blocked, map[string]string{"region": "us", "new": "x"}
		return nil
	})
	require.NoError(t, err)
	same("edited")
	_, _, err = s.PutOverride(ctx, a, "one", tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 5}}, tenants.Match{})
	require.NoError(t, err)
	_, _, err = s.PutOverride(ctx, a, "two", tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 5}}, tenants.Match{})
	require.NoError(t, err)
	same("overrides")

	var lines []tenants.SubjectLine
	for i := range 3000 { // more than one batch; "one" is among them
		line := tenants.SubjectLine{Line: i + 1, Subject: fmt.Sprint("s", i), Labels: tenants.PackLabels(map[string]string{"n": fmt.Sprint(i % 7)})}
		if i == 1500 {
			line.Subject = "one"
		}
		lines = append(lines, line)
	}
	_, err = s.ImportSubjects(ctx, a, lines, tenants.ImportMode{})
	require.NoError(t, err)
	same("imported")
	for i := range lines {
		lines[i].Labels = tenants.PackLabels(map[string]string{"n": fmt.Sprint(i % 5), "m": "x"})
	}
	_, err = s.ImportSubjects(ctx, a, lines, tenants.ImportMode{})
	require.NoError(t, err)
	same("imported again")
	d1 := tenants.Document{Subjects: []tenants.Subject{{Subject: "one", Plan: "free", Labels: labels}, {Subject: "doc", Labels: labels}}}
	_, err = s.ApplyDocument(ctx, a, d1, tenants.Apply{Prune: true})
	require.NoError(t, err)
	same("applied, pruned")
	found, _, err := s.Subjects(ctx, a, tenants.SubjectFilter{LabelKey: "region"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.NoError(t, s.DeleteSubject(ctx, a, "one", tenants.Match{}))
	same("deleted")
	require.NoError(t, s.DeleteTenant(ctx, tenants.AsOperator("test"), "tenant-a", tenants.Match{}))
	same("without the tenant")
}

// requireLabelsFollow compares both tables, as the owner sees them.
func requireLabelsFollow(t *testing.T, d *tenantstest.Database, step string) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		for _, table := range []string{"subjects", "subject_labels", "tenants"} {
			_, err := tx.Exec(ctx, "ALTER TABLE "+table+" NO FORCE ROW LEVEL SECURITY")
			require.NoError(t, err)
		}
		var labels, missing, extra int
		require.NoError(t, tx.QueryRow(ctx, `
			WITH want AS (SELECT s.tenant_id, l.key, s.subject, l.value, s.id,
				coalesce(s.plan_id, '00000000-0000-0000-0000-000000000000') AS plan_id, s.state FROM subjects s, jsonb_each_text(s.labels) l),
			have AS (SELECT tenant_id, key, subject, value, id, plan_id, state FROM subject_labels)
			SELECT (SELECT count(*) FROM want), (SELECT count(*) FROM (TABLE want EXCEPT TABLE have) m),
				(SELECT count(*) FROM (TABLE have EXCEPT TABLE want) e)`).Scan(&labels, &missing, &extra))
		require.Positive(t, labels, step)
		require.Zero(t, missing, step)
		require.Zero(t, extra, step)
	})
}

// For any number of subjects, a page of any combination of filters comes from one index, in its
// order: Postgres neither sorts nor discards rows, even if no subject meets all conditions and
// thousands meet each.
func TestSubjectSearchesGoByAnIndex(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustPlan(t, d.Store, a, "free")
	mustPlan(t, d.Store, a, "pro")
	const subjects = 20_000
	d.Conn(func(ctx context.Context, conn *pgx.Conn) { // all eu are free and odd, none is pro or blocked
		for _, statement := range []string{
			"ALTER TABLE subjects NO FORCE ROW LEVEL SECURITY", "ALTER TABLE subject_labels NO FORCE ROW LEVEL SECURITY",
			"ALTER TABLE plans NO FORCE ROW LEVEL SECURITY",
			fmt.Sprintf(`INSERT INTO subjects (tenant_id, subject, id, plan_id, state, labels, version)
				SELECT p.tenant_id, CASE WHEN n %% 2 = 1 THEN 'odd_' ELSE 'even_' END || to_char(n, 'FM00000'), gen_random_uuid(), p.id,
					CASE WHEN n %% 4 = 0 THEN 'blocked' ELSE 'active' END,
					jsonb_build_object('region', CASE WHEN n %% 2 = 1 THEN 'eu' ELSE 'us' END, 'n', (n %% 10)::text), 1
				FROM generate_series(1, %d) n JOIN plans p ON p.slug = CASE WHEN n %% 2 = 1 THEN 'free' ELSE 'pro' END`, subjects),
			"ALTER TABLE subjects FORCE ROW LEVEL SECURITY", "ALTER TABLE subject_labels FORCE ROW LEVEL SECURITY",
			"ALTER TABLE plans FORCE ROW LEVEL SECURITY",
			"ANALYZE",
		} {
			_, err := conn.Exec(ctx, statement)
			require.NoError(t, err)
		}
		_, err := conn.Exec(ctx, "SET ROLE weir_app; SET jit = on") // as it is by default
		require.NoError(t, err)
		_, err = conn.Exec(ctx, "SELECT set_config('weir.tenant_id', $1, false)", a.TenantID().String())
		require.NoError(t, err)
		_, err = conn.Exec(ctx, strings.ReplaceAll(tenants.ByIndexSQL, "true", "false")) // for the session
		require.NoError(t, err)
		eu := "eu"
		for _, prefix := range []string{"", "odd_", "even_", "odd_1234"} {
			for _, plan := range []string{"", "free", "pro"} {
				for _, state := range []*check.SubjectState{nil, ptr(check.Active), ptr(check.Blocked), ptr(check.Exempt)} {
					for _, label := range []struct {
						key   string
						value *string
					}{{"", nil}, {"region", nil}, {"region", &eu}, {"none", nil}} {
						f := tenants.SubjectFilter{Prefix: prefix, Plan: plan, State: state, LabelKey: label.key, LabelValue: label.value}
						requireIndexed(ctx, t, conn, a.TenantID(), f)
					}
				}
			}
		}
	})
}

func requireIndexed(ctx context.Context, t *testing.T, conn *pgx.Conn, tenant uuid.UUID, f tenants.SubjectFilter) {
	t.Helper()
	sql, args := tenants.SubjectSearchSQL(tenant, f, f.Prefix != "", "", 51)
	var raw []byte
	require.NoError(t, conn.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "+sql, args...).Scan(&raw))
	var plans []struct{ Plan map[string]any }
	require.NoError(t, json.Unmarshal(raw, &plans))
	state := "any"
	if f.State != nil {
		state = f.State.String()
	}
	what := fmt.Sprintf("prefix %q, plan %q, state %s, label %q %v\n%s", f.Prefix, f.Plan, state, f.LabelKey, f.LabelValue != nil, raw)
	// The matches of a narrow prefix may be scanned. The indexes by state have no active subjects;
	// a search for these may discard others between them.
	allowed := 20.0
	if f.State != nil && *f.State == check.Active {
		allowed = 200
	}
	require.NotContains(t, string(raw), `"JIT"`, what)
	eachNode(plans[0].Plan, func(node map[string]any) {
		if node["Relation Name"] == "subjects" || node["Relation Name"] == "subject_labels" {
			require.Contains(t, node["Node Type"], "Index", what)
		}
		if removed, ok := node["Rows Removed by Filter"].(float64); ok && node["Relation Name"] != "plans" {
			require.LessOrEqual(t, removed, allowed, what)
		}
	})
	blocks, _ := plans[0].Plan["Shared Hit Blocks"].(float64)
	require.Less(t, blocks, 700.0, what) // 51 subjects, each by a tree of three levels; the tables have ten times as many
}

func eachNode(node map[string]any, do func(map[string]any)) {
	do(node)
	children, _ := node["Plans"].([]any)
	for _, child := range children {
		eachNode(child.(map[string]any), do)
	}
}
