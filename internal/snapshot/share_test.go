package snapshot_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// subjects registers so many subjects of a tenant.
func (f *fixture) subjects(tenant limit.TenantID, count int) {
	f.t.Helper()
	f.d.Exec(`INSERT INTO subjects (tenant_id, subject, id, version)
		SELECT $1, 'customer' || lpad(n::text, 8, '0'), gen_random_uuid(), 1 FROM generate_series(1, $2::int) n`, tenant, count)
}

// gauge returns the value of a metric of the writer.
func (f *fixture) gauge(name string) float64 {
	f.t.Helper()
	families, err := f.registry.Gather()
	require.NoError(f.t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.Fail(f.t, "no metric "+name)
	return 0
}

// The operator's tenant comes first. A tenant that needs more than a quarter of the file comes
// after all others, however recently it was used, and only if there is space.
func TestSnapshotShares(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 300_000)
	c, _ := f.d.Tenant("large")
	small, _ := f.d.Tenant("small")
	f.d.Exec("UPDATE api_keys SET last_used_at = now() + interval '1 hour' WHERE tenant_id = $1", c.TenantID())
	f.subjects(f.a.TenantID(), 1000)
	f.subjects(c.TenantID(), 1000)
	require.Len(t, f.write(true), 6, "both large tenants are read once more")
	file, err := f.open()
	require.NoError(t, err)
	require.Equal(t, []limit.TenantID{f.b.TenantID(), small.TenantID(), c.TenantID()}, file.Tenants)
	for _, tenant := range file.Tenants {
		f.same(file, tenant)
	}
	require.EqualValues(t, 1, f.gauge("weir_snapshot_omitted_tenants"))
	require.Empty(t, f.write(false), "nothing has changed")

	f.now = f.now.Add(time.Hour)
	require.Empty(t, f.write(true), "it is known that the tenant does not fit")
	_, err = f.d.Store.EditRule(t.Context(), f.a, "api", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 11; return nil })
	require.NoError(t, err)
	f.d.Exec("DELETE FROM subjects WHERE tenant_id = $1 AND subject LIKE 'customer%'", f.a.TenantID())
	require.Equal(t, []limit.TenantID{f.a.TenantID()}, f.write(true))
	file, err = f.open()
	require.NoError(t, err)
	f.same(file, f.a.TenantID())
	require.Zero(t, f.gauge("weir_snapshot_omitted_tenants"))
	require.Empty(t, f.write(false))
}

// A name takes in the file as many bytes as it has.
func TestSnapshotOfMarkup(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	name := strings.Repeat("<&>", 80)
	f.d.Exec("INSERT INTO subjects (tenant_id, subject, id, version) VALUES ($1, $2, gen_random_uuid(), 1)", f.a.TenantID(), name)
	f.write(true)
	content, err := os.ReadFile(f.path)
	require.NoError(t, err)
	require.Contains(t, string(content), name)
	file, err := f.open()
	require.NoError(t, err)
	f.same(file, f.a.TenantID())
}
