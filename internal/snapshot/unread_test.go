package snapshot_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// unreadable makes reads of the subjects of these tenants fail.
func (f *fixture) unreadable(of ...tenants.Actor) {
	f.store.fails = map[limit.TenantID]bool{}
	for _, a := range of {
		f.store.fails[a.TenantID()] = true
	}
}

func (s *countingStore) ListSubjects(ctx context.Context, tenant limit.TenantID, after string, each func(check.SubjectData)) (int64, bool, error) {
	if s.fails[tenant] {
		each(check.SubjectData{Subject: "the first of a page that takes too long"})
		return 0, false, fmt.Errorf("list subjects: %w", tenants.ErrUnavailable)
	}
	return s.Store.ListSubjects(ctx, tenant, after, each)
}

func (s *countingStore) StoredKeys(ctx context.Context, tenant limit.TenantID) ([]tenants.StoredKey, int64, error) {
	if s.keysFail[tenant] {
		return nil, 0, fmt.Errorf("keys: %w", tenants.ErrUnavailable)
	}
	return s.Store.StoredKeys(ctx, tenant)
}

func (s *countingStore) Versions(ctx context.Context, tenant limit.TenantID) (tenants.Change, error) {
	if s.away {
		return tenants.Change{}, tenants.ErrUnavailable
	}
	return s.Store.Versions(ctx, tenant)
}

// The file has all tenants except for those that cannot be read, however many there are and
// whatever their order is. The next file has those, too, if they can be read then.
func TestTenantsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	c, _ := f.d.Tenant("third")
	failing := []tenants.Actor{f.a}
	for i := range 4 {
		actor, _ := f.d.Tenant(fmt.Sprintf("failing-%d", i))
		failing = append(failing, actor)
	}
	f.unreadable(failing...)
	f.write(true)
	file, err := f.open()
	require.NoError(t, err)
	require.Equal(t, []limit.TenantID{f.b.TenantID(), c.TenantID()}, file.Tenants)
	f.same(file, f.b.TenantID())
	f.same(file, c.TenantID())
	require.EqualValues(t, 5, f.gauge("weir_snapshot_unread_tenants"))
	require.Empty(t, f.write(false), "nothing has changed")
	before, err := os.Stat(f.path)
	require.NoError(t, err)
	f.now = f.now.Add(5 * time.Minute)
	require.Len(t, f.write(false), 5, "they are tried again, and nothing has changed")
	after, err := os.Stat(f.path)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.NoFileExists(t, f.path+".new")
	require.Empty(t, f.write(false), "they were tried again")
	require.NoError(t, f.d.Store.DeleteTenant(t.Context(), tenants.AsOperator("test"), "failing-3", tenants.Match{}))
	require.Empty(t, f.write(true), "one of them is gone")
	require.EqualValues(t, 4, f.gauge("weir_snapshot_unread_tenants"))
	f.now = f.now.Add(50 * time.Minute)
	require.Len(t, f.write(false), 4)
	f.now = f.now.Add(10 * time.Minute)
	require.Len(t, f.write(true), 4, "the file is an hour old")
	_, err = f.d.Store.EditRule(t.Context(), f.a, "api", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 11; return nil })
	require.NoError(t, err)
	require.Equal(t, []limit.TenantID{f.a.TenantID()}, f.write(true), "it has changed")

	f.unreadable()
	f.now = f.now.Add(5 * time.Minute)
	require.Len(t, f.write(true), 4)
	file, err = f.open()
	require.NoError(t, err)
	require.Len(t, file.Tenants, 6)
	f.same(file, f.a.TenantID())
	require.Zero(t, f.gauge("weir_snapshot_unread_tenants"))
	require.Empty(t, f.write(false))
}

// A tenant that can no longer be read keeps its part of the file, with its present keys, until that
// is too old.
func TestTenantThatCanNoLongerBeRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	a := f.a.TenantID()
	f.write(true)
	full, err := f.open()
	require.NoError(t, err)
	_, err = f.d.Store.EditRule(t.Context(), f.a, "api", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 11; return nil })
	require.NoError(t, err)
	f.d.Exec("UPDATE api_keys SET revoked_at = now() WHERE tenant_id = $1", a)
	f.d.Exec("UPDATE tenants SET keys_version = keys_version + 1 WHERE id = $1", a)
	f.unreadable(f.a)
	subjects := func(file interface {
		Subjects(limit.TenantID, func(check.SubjectData)) (int64, error)
	}) (list []check.SubjectData) {
		_, err := file.Subjects(a, func(d check.SubjectData) { list = append(list, d) })
		require.NoError(t, err)
		return list
	}
	for range 2 { // the second one from a file that has an older part, too
		f.now = f.now.Add(29 * time.Minute)
		f.write(true)
		f.write(false)
		file, err := f.open()
		require.NoError(t, err)
		policy, err := file.Policy(a)
		require.NoError(t, err)
		require.EqualValues(t, 10, policy.Rules[0].Limit)
		require.Equal(t, subjects(full), subjects(file))
		keys, version, err := file.Keys(a)
		require.NoError(t, err)
		now, versionNow, err := f.d.Store.StoredKeys(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, now, keys, "the key is revoked")
		require.Equal(t, versionNow, version)
		require.EqualValues(t, 1, f.gauge("weir_snapshot_unread_tenants"))
		f.d.Exec("UPDATE tenants SET keys_version = keys_version + 1 WHERE id = $1", a)
	}
	f.write(true)
	f.write(false)
	f.now = f.now.Add(3 * time.Minute)
	f.write(true)
	file, err := f.open()
	require.NoError(t, err)
	require.Equal(t, []limit.TenantID{f.b.TenantID()}, file.Tenants)
	require.EqualValues(t, 1, f.gauge("weir_snapshot_unread_tenants"))

	f.unreadable()
	f.now = f.now.Add(5 * time.Minute)
	f.write(true)
	file, err = f.open()
	require.NoError(t, err)
	f.same(file, a)
	require.Zero(t, f.gauge("weir_snapshot_unread_tenants"))
}

// A tenant that cannot be read keeps its part of the file of an earlier process, too, with its
// present keys. Nothing else is copied from that file: it may be of another history. When the
// tenant can be read, it is, even if its versions are the same.
func TestTenantThatCannotBeReadAfterARestart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	a := f.a.TenantID()
	f.write(true)
	f.restart(maxBytes)
	f.unreadable(f.a)
	f.now = f.now.Add(59 * time.Minute)
	for i := range 2 { // the second one from its own file
		f.d.Exec("UPDATE api_keys SET revoked_at = now() WHERE tenant_id = $1", a)
		f.d.Exec("UPDATE tenants SET keys_version = keys_version + $2 WHERE id = $1", a, i)
		require.Contains(t, f.write(true), f.a.TenantID())
		require.EqualValues(t, 1, f.gauge("weir_snapshot_unread_tenants"))
		file, err := f.open()
		require.NoError(t, err)
		f.same(file, a)
		f.same(file, f.b.TenantID())
	}
	f.unreadable()
	f.now = f.now.Add(5 * time.Minute)
	require.Equal(t, []limit.TenantID{a}, f.write(true))
	require.Zero(t, f.gauge("weir_snapshot_unread_tenants"))
	require.Empty(t, f.write(false))
}

// A part of a file that is too old, or of one that cannot be used, is not kept after a restart.
func TestTenantThatCannotBeReadAfterALongStop(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	f.write(true)
	f.unreadable(f.a)
	f.restart(maxBytes)
	f.now = f.now.Add(time.Hour + time.Second)
	f.write(true)
	file, err := f.open()
	require.NoError(t, err)
	require.Equal(t, []limit.TenantID{f.b.TenantID()}, file.Tenants)

	require.NoError(t, os.WriteFile(f.path, []byte("damaged"), 0o600))
	f.restart(maxBytes)
	f.write(true)
	file, err = f.open()
	require.NoError(t, err)
	require.Equal(t, []limit.TenantID{f.b.TenantID()}, file.Tenants)
}

// While Postgres does not answer, the present file stays as it is.
func TestNoSnapshotWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	f.write(true)
	before, err := os.ReadFile(f.path)
	require.NoError(t, err)
	_, err = f.d.Store.EditRule(t.Context(), f.a, "api", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 11; return nil })
	require.NoError(t, err)
	f.unreadable(f.a)
	f.store.away = true
	_, err = f.writer.Write(t.Context())
	require.ErrorIs(t, err, tenants.ErrUnavailable)
	after, err := os.ReadFile(f.path)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// A tenant whose keys cannot be read, either, stays in the file: that of before remains for an
// hour, and longer if its keys have not changed. As soon as it can be read, it is.
func TestTenantWhoseKeysCannotBeRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	a := f.a.TenantID()
	f.writer.MaxAge = 24 * time.Hour
	f.write(true)
	edit := func(units int64) {
		_, err := f.d.Store.EditRule(t.Context(), f.a, "api", tenants.Match{}, func(r *limit.Rule) error { r.Limit = units; return nil })
		require.NoError(t, err)
	}
	stays := func() {
		t.Helper()
		before, err := os.ReadFile(f.path)
		require.NoError(t, err)
		_, err = f.writer.Write(t.Context())
		require.ErrorIs(t, err, tenants.ErrUnavailable)
		after, err := os.ReadFile(f.path)
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
	edit(11)
	f.d.Exec("UPDATE tenants SET keys_version = keys_version + 1 WHERE id = $1", a)
	f.store.keysFail = map[limit.TenantID]bool{a: true}
	f.now = f.now.Add(time.Minute)
	stays()

	f.store.keysFail = nil
	f.write(true)
	file, err := f.open()
	require.NoError(t, err)
	f.same(file, a)

	edit(12)
	f.unreadable(f.a)
	f.store.keysFail = map[limit.TenantID]bool{a: true}
	f.write(true)
	file, err = f.open()
	require.NoError(t, err)
	f.same(file, f.b.TenantID())
	require.True(t, file.Has(a), "its keys are those of the file")

	f.d.Exec("UPDATE tenants SET keys_version = keys_version + 1 WHERE id = $1", a)
	f.now = f.now.Add(59 * time.Minute)
	stays()
	f.now = f.now.Add(time.Minute)
	f.write(true)
	file, err = f.open()
	require.NoError(t, err)
	require.False(t, file.Has(a))
	f.unreadable()
	f.store.keysFail = nil
	f.write(true)
	file, err = f.open()
	require.NoError(t, err)
	f.same(file, a)
}
