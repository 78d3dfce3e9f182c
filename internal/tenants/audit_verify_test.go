package tenants_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// The roles of the server can only append to the trail.
func TestAuditIsAppendOnly(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	for _, role := range []string{"weir_app", "weir_system"} {
		for _, statement := range []string{
			"UPDATE audit SET target = 'x'", "DELETE FROM audit", "TRUNCATE audit", "DELETE FROM audit_heads", "TRUNCATE audit_heads",
			"UPDATE audit_heads SET tenant_id = gen_random_uuid()", "ALTER TABLE audit DISABLE ROW LEVEL SECURITY",
		} {
			asRole(t, d, role, func(ctx context.Context, tx pgx.Tx) {
				_, err := tx.Exec(ctx, "SELECT set_config('weir.tenant_id', $1, true)", a.TenantID().String())
				require.NoError(t, err)
				if role == "weir_system" && statement == "DELETE FROM audit" {
					return // old rows: see TestAuditRetention
				}
				_, err = tx.Exec(ctx, statement)
				var pgErr *pgconn.PgError
				require.ErrorAs(t, err, &pgErr, "%s: %s", role, statement)
				require.Equal(t, "42501", pgErr.Code, "%s: %s", role, statement)
			})
		}
	}
	asRole(t, d, "weir_app", func(ctx context.Context, tx pgx.Tx) {
		_, err := tx.Exec(ctx, "SELECT set_config('weir.tenant_id', $1, true)", a.TenantID().String())
		require.NoError(t, err)
		for _, table := range []string{"audit", "audit_heads"} {
			var foreign int
			require.NoError(t, tx.QueryRow(ctx, "SELECT count(*) FROM "+table+" WHERE tenant_id <> $1", a.TenantID()).Scan(&foreign))
			require.Zero(t, foreign, table)
		}
		_, err = tx.Exec(ctx, "INSERT INTO audit_heads (tenant_id, sequence, hash) VALUES ($1, 0, $2)", b.TenantID(), make([]byte, 32))
		require.ErrorContains(t, err, "row-level security")
	})
}

// Changes by the owner of the database are detected: a hundred copies of a trail, each of them
// manipulated in another way.
func TestTamperedTrails(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	for i := range 18 {
		mustRule(t, s, a, rule(fmt.Sprintf("r%d", i)))
		mustRule(t, s, b, rule(fmt.Sprintf("r%d", i)))
		require.NoError(t, s.DeleteRule(t.Context(), a, fmt.Sprintf("r%d", i), tenants.Match{}))
	}
	verified := trailIsIntact(t, s, a)
	require.True(t, verified.Valid, verified.Problem)
	const last = 2 + 2*18
	require.EqualValues(t, last, verified.Rows)
	remembered := verified.Head
	again, err := tenants.ParseAuditMark(remembered.String())
	require.NoError(t, err)
	require.Equal(t, remembered, again)
	d.Exec("CREATE TABLE kept AS SELECT * FROM audit; CREATE TABLE kept_heads AS SELECT * FROM audit_heads")

	copies := tamperings(last)
	require.GreaterOrEqual(t, len(copies), 100)
	for _, tamper := range copies {
		d.Exec(strings.ReplaceAll(tamper.sql, "$A", "'"+a.TenantID().String()+"'"))
		report, err := s.VerifyAudit(t.Context(), a, tenants.AuditVerification{Remembered: &remembered})
		require.NoError(t, err)
		require.False(t, report.Valid, tamper.sql)
		require.NotEmpty(t, report.Problem)
		require.Equal(t, tamper.brokenAt, report.BrokenAt, "%s: %s", tamper.sql, report.Problem)
		require.Equal(t, tamper.brokenAt-1, report.Rows, tamper.sql)
		d.Exec("TRUNCATE audit, audit_heads; INSERT INTO audit SELECT * FROM kept; INSERT INTO audit_heads SELECT * FROM kept_heads")
	}
	report, err := s.VerifyAudit(t.Context(), a, tenants.AuditVerification{Remembered: &remembered})
	require.NoError(t, err)
	require.True(t, report.Valid, "and the copy itself is intact")
	t.Logf("%d tampered copies, all detected", len(copies))

	// A trail that was written again from some row on is valid by itself. Only a stored mark
	// detects it.
	d.Exec("DELETE FROM audit WHERE tenant_id = $1 AND sequence > 5", a.TenantID())
	d.Exec("UPDATE audit_heads h SET sequence = 5, hash = a.hash FROM audit a WHERE a.tenant_id = $1 AND h.tenant_id = $1 AND a.sequence = 5", a.TenantID())
	for i := range last {
		mustSubject(t, s, a, tenants.Subject{Subject: fmt.Sprintf("forged-%d", i)})
	}
	require.True(t, trailIsIntact(t, s, a).Valid)
	report, err = s.VerifyAudit(t.Context(), a, tenants.AuditVerification{Remembered: &remembered})
	require.NoError(t, err)
	require.False(t, report.Valid)
	require.EqualValues(t, last, report.BrokenAt)
}

// A long trail is verified in parts. Each part continues where the previous one ended, also if old
// rows are deleted in between, and detects errors in the rows that it reads.
func TestVerifyAuditInParts(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	s := d.Store
	a, _ := d.Tenant("tenant-a")
	for i := range 8 { // rows 3 to 10
		now.nowMS += 1000
		mustRule(t, s, a, rule(fmt.Sprintf("r%d", i)))
	}
	rows := trailOf(t, s, a, 0)
	mark := func(n int) *tenants.AuditMark { return &tenants.AuditMark{Sequence: int64(n), Hash: rows[n-1].Hash} }
	verify := func(v tenants.AuditVerification) tenants.AuditReport {
		t.Helper()
		report, err := s.VerifyAudit(t.Context(), a, v)
		require.NoError(t, err)
		return report
	}
	first := verify(tenants.AuditVerification{Rows: 4})
	require.True(t, first.Valid)
	require.False(t, first.Complete)
	require.EqualValues(t, 4, first.Rows)
	require.Equal(t, *mark(4), first.Head)
	rest := verify(tenants.AuditVerification{After: &first.Head})
	require.True(t, rest.Valid)
	require.True(t, rest.Complete)
	require.EqualValues(t, 6, rest.Rows)
	require.Equal(t, *mark(4), rest.From)
	require.Equal(t, *mark(10), rest.Head)

	for _, wrong := range []tenants.AuditMark{{Sequence: 4, Hash: rows[4].Hash}, {Sequence: 11, Hash: rows[4].Hash}} {
		report := verify(tenants.AuditVerification{After: &wrong})
		require.False(t, report.Valid)
		require.Equal(t, wrong.Sequence, report.BrokenAt)
		require.True(t, report.Complete)
	}
	require.False(t, verify(tenants.AuditVerification{After: mark(6), Remembered: &tenants.AuditMark{Sequence: 5, Hash: rows[3].Hash}}).Valid)
	require.True(t, verify(tenants.AuditVerification{After: mark(6), Remembered: mark(5)}).Valid)
	require.False(t, verify(tenants.AuditVerification{After: mark(6), Remembered: &tenants.AuditMark{Sequence: 8, Hash: rows[3].Hash}}).Valid)

	_, err := s.PurgeAudit(t.Context(), rows[6].At) // rows 1 to 6
	require.NoError(t, err)
	rest = verify(tenants.AuditVerification{After: &first.Head})
	require.True(t, rest.Valid, rest.Problem)
	require.EqualValues(t, 4, rest.Rows, "from the first remaining row on")
	require.Equal(t, *mark(6), rest.From)
	d.Exec("UPDATE audit SET reason = 'x' WHERE tenant_id = $1 AND sequence = 7", a.TenantID())
	require.True(t, verify(tenants.AuditVerification{After: mark(7)}).Valid, "verified rows are not read again")
	require.EqualValues(t, 7, verify(tenants.AuditVerification{After: mark(6)}).BrokenAt)
}

// A request for a long trail ends after the page in which its time is over.
func TestVerifyAuditWithin(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	var many tenants.Document
	for i := range 1200 {
		many.Subjects = append(many.Subjects, tenants.Subject{Subject: fmt.Sprint(i)})
	}
	_, err := d.Store.ApplyDocument(t.Context(), a, many, tenants.Apply{})
	require.NoError(t, err)
	var asked int64
	slow := d.Open(tenants.Config{Now: func() time.Time { asked++; return time.Unix(asked, 0) }})
	first, err := slow.VerifyAudit(t.Context(), a, tenants.AuditVerification{Within: time.Second})
	require.NoError(t, err)
	require.True(t, first.Valid)
	require.False(t, first.Complete)
	require.EqualValues(t, 20, first.Rows, "the first part is small, because rows can be large")
	rest, err := slow.VerifyAudit(t.Context(), a, tenants.AuditVerification{After: &first.Head})
	require.NoError(t, err)
	require.True(t, rest.Complete)
	require.EqualValues(t, 2+1200-20, rest.Rows)
}

type tampering struct {
	sql      string // $A is the tenant
	brokenAt int64
}

func tamperings(last int64) (all []tampering) {
	add := func(brokenAt int64, format string, args ...any) {
		all = append(all, tampering{fmt.Sprintf(format, args...), brokenAt})
	}
	for n := int64(1); n <= last; n += 3 { // edits of each column
		columns := []string{
			"at = at + interval '1 microsecond'", "actor_kind = 'key'", "actor_name = actor_name || ' '", "actor_id = gen_random_uuid()",
			"address = '::1'", "user_agent = 'x'", "request_id = 'x'", "action = 'forge'", "kind = 'plan'", "target = target || 'x'",
			"before = '{}'", "after = '{\"limit\":1}'", "reason = 'x'", "id = gen_random_uuid()", "hash = sha256(hash)",
			"actor_name = '', address = actor_name || 'x'",
		}
		for i := range 2 {
			add(n, "UPDATE audit SET %s WHERE tenant_id = $A AND sequence = %d", columns[(int(n)+7*i)%len(columns)], n)
		}
	}
	for n := int64(1); n <= last; n += 2 { // deletions; that of the last row is detected by the recorded end
		add(n, "DELETE FROM audit WHERE tenant_id = $A AND sequence = %d", n)
	}
	for n := int64(2); n < last; n += 3 { // a deletion after which all later rows are renumbered
		add(n, "DELETE FROM audit WHERE tenant_id = $A AND sequence = %d; "+
			"UPDATE audit SET sequence = sequence + 1000 WHERE tenant_id = $A AND sequence > %[1]d; "+
			"UPDATE audit SET sequence = sequence - 1001 WHERE tenant_id = $A AND sequence > 1000", n)
	}
	for n := int64(1); n <= last; n += 4 { // insertions of a copy of the row, and of another tenant's row
		for _, tenant := range []string{"= $A", "<> $A AND EXISTS (SELECT FROM audit b WHERE b.tenant_id = audit.tenant_id AND b.target = 'r1')"} {
			if n > 18 && tenant != "= $A" {
				continue
			}
			at := n // position of the other tenant's row
			if tenant == "= $A" {
				at++ // position of the row itself, after its copy
			}
			add(at, "UPDATE audit SET sequence = sequence + 1000 WHERE tenant_id = $A AND sequence >= %d; "+
				"INSERT INTO audit SELECT $A, %[1]d, id, at, actor_kind, actor_id, actor_name, address, user_agent, request_id, action, kind, target, "+
				"before, after, reason, hash FROM audit WHERE tenant_id %[2]s AND sequence = CASE WHEN tenant_id = $A THEN 1000 ELSE 0 END + %[1]d; "+
				"UPDATE audit SET sequence = sequence - 999 WHERE tenant_id = $A AND sequence > 1000; "+
				"UPDATE audit_heads SET sequence = sequence + 1 WHERE tenant_id = $A", n, tenant)
		}
	}
	for n := int64(1); n < last; n += 2 { // two rows exchanged
		add(n, "UPDATE audit SET sequence = 1000 WHERE tenant_id = $A AND sequence = %d; "+
			"UPDATE audit SET sequence = %[1]d WHERE tenant_id = $A AND sequence = %[2]d; "+
			"UPDATE audit SET sequence = %[2]d WHERE tenant_id = $A AND sequence = 1000", n, n+1)
	}
	for n := int64(0); n < last; n += 3 { // truncated, together with the recorded end
		add(n+1, "DELETE FROM audit WHERE tenant_id = $A AND sequence > %d; UPDATE audit_heads h SET sequence = %[1]d, "+
			"hash = coalesce((SELECT hash FROM audit a WHERE a.tenant_id = $A AND a.sequence = %[1]d), '\\x%064d') WHERE tenant_id = $A", n, 0)
	}
	add(last+1, "DELETE FROM audit_heads WHERE tenant_id = $A")
	return all
}

// An invalid text is not a mark.
func TestParseAuditMark(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "1", "1:", "x:" + strings.Repeat("0", 64), "1:" + strings.Repeat("0", 63), "-1:" + strings.Repeat("0", 64), "0:" + strings.Repeat("1", 64), "1:" + strings.Repeat("g", 64)} {
		_, err := tenants.ParseAuditMark(text)
		require.Error(t, err, text)
	}
}

// An empty trail is valid, for example that of a tenant from before there were trails.
func TestEmptyTrail(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	d.Exec("TRUNCATE audit, audit_heads")
	require.True(t, trailIsIntact(t, d.Store, a).Valid)
	mustRule(t, d.Store, a, rule("r"))
	report := trailIsIntact(t, d.Store, a)
	require.True(t, report.Valid)
	require.EqualValues(t, 1, report.Rows)
	var heads []string
	require.NoError(t, d.Store.AuditHeads(t.Context(), func(h tenants.AuditHead) { heads = append(heads, h.Slug+" "+h.String()) }))
	require.Equal(t, []string{"tenant-a " + report.Head.String()}, heads)
	require.NotEqual(t, uuid.Nil, a.TenantID())
}
