package tenants_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// Old rows are deleted, and the rest can be verified as before. It must also be detected if the
// beginning is deleted in another way.
func TestAuditRetention(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	s, ctx := d.Store, t.Context()
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	for i := range 6 { // rows 3 to 8, a day apart
		now.nowMS += 24 * time.Hour.Milliseconds()
		mustRule(t, s, a, rule(fmt.Sprint("r", i)))
	}
	rows := trailOf(t, s, a, 0)
	require.Len(t, rows, 8)
	before := trailIsIntact(t, s, a).Head
	removed, err := s.PurgeAudit(ctx, rows[4].At)
	require.NoError(t, err)
	require.EqualValues(t, 4+2, removed, "tenant-b's two rows, too")
	report := trailIsIntact(t, s, a)
	require.True(t, report.Valid, report.Problem)
	require.EqualValues(t, 4, report.Rows)
	require.Equal(t, tenants.AuditMark{Sequence: 4, Hash: rows[3].Hash}, report.Removed)
	require.Equal(t, before, report.Head)
	require.True(t, trailIsIntact(t, s, b).Valid, "which has no rows left")
	removed, err = s.PurgeAudit(ctx, rows[4].At)
	require.NoError(t, err)
	require.Zero(t, removed)

	mustRule(t, s, b, rule("r"))
	report = trailIsIntact(t, s, b)
	require.True(t, report.Valid, "the trail continues: %s", report.Problem)
	require.EqualValues(t, 3, report.Head.Sequence)
	for mark, valid := range map[tenants.AuditMark]bool{
		{Sequence: 2, Hash: rows[1].Hash}: true, // it cannot be verified any more
		{Sequence: 4, Hash: rows[3].Hash}: true,
		{Sequence: 4, Hash: rows[2].Hash}: false,
		{Sequence: 6, Hash: rows[2].Hash}: false,
	} {
		report, err := s.VerifyAudit(ctx, a, tenants.AuditVerification{Remembered: &mark})
		require.NoError(t, err)
		require.Equal(t, valid, report.Valid, mark)
	}

	tenant := a.TenantID()
	for _, tamper := range []struct {
		sql      string
		brokenAt int64
	}{
		{"UPDATE audit SET reason = 'x' WHERE tenant_id = $1 AND sequence = 6", 6},
		{"DELETE FROM audit WHERE tenant_id = $1 AND sequence = 5", 5},
		{"DELETE FROM audit WHERE tenant_id = $1 AND sequence = 8", 8},
		{"UPDATE audit_heads SET removed_sequence = 3 WHERE tenant_id = $1", 4},
		{"UPDATE audit_heads SET removed_hash = sha256(hash) WHERE tenant_id = $1", 5},
	} {
		d.Exec("CREATE TABLE kept AS SELECT * FROM audit; CREATE TABLE kept_heads AS SELECT * FROM audit_heads")
		d.Exec(tamper.sql, tenant)
		report := trailIsIntact(t, s, a)
		require.False(t, report.Valid, tamper.sql)
		require.Equal(t, tamper.brokenAt, report.BrokenAt, tamper.sql)
		d.Exec("TRUNCATE audit, audit_heads; INSERT INTO audit SELECT * FROM kept; INSERT INTO audit_heads SELECT * FROM kept_heads; DROP TABLE kept, kept_heads")
	}

	d.Exec("DELETE FROM audit WHERE tenant_id = $1 AND sequence = 6", tenant)
	removed, err = s.PurgeAudit(ctx, now.now().Add(time.Hour))
	require.NoError(t, err)
	require.EqualValues(t, 1+1, removed, "row 5, and one of tenant-b: rows after a gap are kept, because deleting them would hide it")
	report = trailIsIntact(t, s, a)
	require.EqualValues(t, 6, report.BrokenAt)
}
