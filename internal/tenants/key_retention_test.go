package tenants_test

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// addKeys adds keys to a tenant that were revoked or expire at a time, or neither.
func addKeys(d *tenantstest.Database, a tenants.Actor, count int, revoked, expires *time.Time) {
	d.Exec(`INSERT INTO api_keys (tenant_id, id, kind, scopes, hash, last4, version, revoked_at, expires_at)
		SELECT $1, gen_random_uuid(), 'key', '{check}', sha256(gen_random_uuid()::text::bytea), 'last', 1, $3, $4
		FROM generate_series(1, $2::int)`, a.TenantID(), count, revoked, expires)
}

func countKeys(t *testing.T, d *tenantstest.Database, a tenants.Actor) (n int) {
	t.Helper()
	for page := (tenants.Page{Limit: 200}); ; {
		list, next, err := d.Store.Keys(t.Context(), a, page)
		require.NoError(t, err)
		n += len(list)
		if next == "" {
			return n
		}
		page.After = next
	}
}

// A tenant has a bounded number of keys that work, and of keys at all. There was no bound, and
// every instance kept and read all of them for ever.
func TestKeysOfATenantAreBounded(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	in := tenants.NewAPIKey{Scopes: tenants.AllScopes}
	made, _, err := s.CreateKey(ctx, a, in)
	require.NoError(t, err)
	addKeys(d, a, tenants.MaxKeys-2, nil, nil)
	_, _, err = s.CreateKey(ctx, a, in)
	requireInvalid(t, err, "name")
	require.ErrorContains(t, err, "may have 1000 that work")
	_, _, err = s.RotateKey(ctx, a, made.ID, time.Hour)
	requireInvalid(t, err, "overlap")
	next, _, err := s.RotateKey(ctx, a, made.ID, 0)
	require.NoError(t, err, "the old one stops working")
	_, _, err = s.CreateKey(ctx, b, in)
	require.NoError(t, err, "another tenant")

	require.NoError(t, s.RevokeKey(ctx, a, next.ID, tenants.Match{}))
	ended := time.Now().Add(-time.Hour)
	addKeys(d, a, 9000, &ended, nil)
	_, _, err = s.CreateKey(ctx, a, in)
	requireInvalid(t, err, "name")
	require.ErrorContains(t, err, "may have 10000, with those that have ended")
	_, err = s.PurgeKeys(ctx)
	require.NoError(t, err)
	_, _, err = s.CreateKey(ctx, a, in)
	require.NoError(t, err)
	require.Equal(t, 5000+tenants.MaxKeys, countKeys(t, d, a))
	_, err = s.KeyByID(ctx, a, next.ID)
	require.NoError(t, err, "those that ended last are kept")
}

// Keys that ended 90 days ago are deleted, also if another key names them as its successor.
func TestPurgeKeys(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	old, recent := time.Now().Add(-tenants.KeyRetention-time.Hour), time.Now().Add(time.Hour-tenants.KeyRetention)
	first, _, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	second, _, err := s.RotateKey(ctx, a, first.ID, time.Hour)
	require.NoError(t, err)
	d.Exec("UPDATE api_keys SET revoked_at = $2 WHERE id = $1", second.ID, old)
	before := countKeys(t, d, a)
	addKeys(d, a, 1500, &old, nil)
	addKeys(d, a, 1, nil, &old)
	addKeys(d, a, 1, &recent, nil)
	addKeys(d, a, 1, nil, &recent)
	removed, err := s.PurgeKeys(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1502, removed)
	require.Equal(t, before-1+2, countKeys(t, d, a))
	_, err = s.KeyByID(ctx, a, second.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	first, err = s.KeyByID(ctx, a, first.ID)
	require.NoError(t, err)
	require.Nil(t, first.RotatedTo)
}

// An instance keeps only the newest of the keys that have ended. An older one is looked up, and the
// answer is the same.
func TestEndedKeysAreNotKept(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	made, key, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	require.NoError(t, s.RevokeKey(ctx, a, made.ID, tenants.Match{}))
	ended := time.Now().Add(-time.Hour)
	addKeys(d, a, 1500, &ended, nil)
	d.Exec("UPDATE api_keys SET version = 0 WHERE id = $1", made.ID)
	rows, _, err := s.StoredKeys(ctx, a.TenantID())
	require.NoError(t, err)
	require.Len(t, rows, 1001, "and the one that works")

	auth := tenants.NewAuthenticator(s)
	lookups := lookupsOf(auth)
	for round, read := range []func(){
		func() { require.NoError(t, auth.Load(ctx)) },
		func() { auth.Changed(ctx, a.TenantID()) },
	} {
		read()
		_, err = auth.Authenticate(ctx, key.Secret())
		require.ErrorIs(t, err, tenants.ErrKeyRevoked)
		require.EqualValues(t, round+1, lookups())
	}
}

// Applying a change takes time in proportion to the keys of the tenant: other changes, and
// revocations that other instances tell, wait meanwhile. It was their square: 60 000 keys took 20
// seconds.
func BenchmarkApplyKeys(b *testing.B) {
	d := tenantstest.New(b)
	a, _ := d.Tenant("tenant-a")
	auth := tenants.NewAuthenticator(d.Store)
	for _, n := range []int{1_000, 10_000} {
		rows := make([]tenants.StoredKey, n)
		for i := range rows {
			hash := sha256.Sum256([]byte(fmt.Sprint(i)))
			rows[i] = tenants.StoredKey{TenantID: a.TenantID(), ID: uuid.New(), Kind: "key", Scopes: []string{"check"}, Hash: hash[:]}
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				auth.Restore(a.TenantID(), rows, 1)
			}
		})
	}
}
