package snapshot_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// A tenant that changes while it is read is read again, so that the file has it.
func TestTenantChangesDuringSnapshot(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	f.store.before = func(tenant limit.TenantID) {
		if tenant == f.a.TenantID() {
			f.store.before = nil
			_, err := f.d.Store.EditRule(t.Context(), f.a, "api", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 11; return nil })
			require.NoError(t, err)
		}
	}
	f.write(true)
	file, err := f.open()
	require.NoError(t, err)
	require.ElementsMatch(t, []limit.TenantID{f.a.TenantID(), f.b.TenantID()}, file.Tenants)
	f.same(file, f.a.TenantID())
	require.Zero(t, f.gauge("weir_snapshot_changing_tenants"))
	require.Empty(t, f.write(false), "the versions that were read are known")
}

// A tenant that changes at every read is in the file with what was read last, with its present
// keys. It is reported, and read again for the next file.
func TestTenantChangesAtEveryRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	f.write(true)
	f.store.before = func(tenant limit.TenantID) {
		if tenant == f.a.TenantID() {
			_, _, err := f.d.Store.GrantCredits(t.Context(), f.a, "ada", tenants.NewCredits{Rule: "api", Units: 5})
			require.NoError(t, err)
		}
	}
	f.d.Exec("UPDATE api_keys SET revoked_at = now() WHERE tenant_id = $1", f.a.TenantID())
	f.d.Exec("UPDATE tenants SET keys_version = keys_version + 1 WHERE id = $1", f.a.TenantID())
	require.Equal(t, []limit.TenantID{f.a.TenantID(), f.a.TenantID(), f.a.TenantID()}, f.write(true))
	file, err := f.open()
	require.NoError(t, err)
	keys, version, err := file.Keys(f.a.TenantID())
	require.NoError(t, err)
	now, versionNow, err := f.d.Store.StoredKeys(t.Context(), f.a.TenantID())
	require.NoError(t, err)
	require.Equal(t, now, keys, "the key is revoked")
	require.Equal(t, versionNow, version)
	grants := 0
	subjects, err := file.Subjects(f.a.TenantID(), func(d check.SubjectData) { grants += len(d.Grants) })
	require.NoError(t, err)
	require.Equal(t, 4, grants, "with that of the last attempt")
	versions, err := f.d.Store.Versions(t.Context(), f.a.TenantID())
	require.NoError(t, err)
	require.Less(t, subjects, versions.SubjectsVersion, "so that the next file has them again")
	require.EqualValues(t, 1, f.gauge("weir_snapshot_changing_tenants"))

	f.store.before = nil
	require.Equal(t, []limit.TenantID{f.a.TenantID()}, f.write(true))
	file, err = f.open()
	require.NoError(t, err)
	f.same(file, f.a.TenantID())
	require.Zero(t, f.gauge("weir_snapshot_changing_tenants"))
	require.Empty(t, f.write(false))
}
