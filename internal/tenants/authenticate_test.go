package tenants_test

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	s, ctx := d.Store, t.Context()
	a, key := d.Tenant("tenant-a")
	auth := tenants.NewAuthenticator(s)
	actor, err := auth.Authenticate(ctx, key.Secret())
	require.NoError(t, err)
	require.Equal(t, a.TenantID(), actor.TenantID())
	require.Equal(t, tenants.KeyActor, actor.Kind())
	require.Equal(t, "first key", actor.Name())

	_, err = auth.Authenticate(ctx, "weir_key_nonsense")
	require.ErrorIs(t, err, tenants.ErrMalformedKey)
	_, err = auth.Authenticate(ctx, tenants.NewKey(tenants.TenantKey).Secret())
	require.ErrorIs(t, err, tenants.ErrUnknownKey)

	ends := now.now().Add(time.Minute)
	_, short, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: tenants.AllScopes, ExpiresAt: &ends})
	require.NoError(t, err)
	_, err = auth.Authenticate(ctx, short.Secret())
	require.NoError(t, err)
	now.nowMS = ends.UnixMilli()
	_, err = auth.Authenticate(ctx, short.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyExpired)

	require.NoError(t, s.RevokeKey(ctx, a, actor.KeyID(), tenants.Match{}))
	auth.Changed(ctx, a.TenantID())
	_, err = auth.Authenticate(ctx, key.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyRevoked)
	_, err = tenants.NewAuthenticator(s).Authenticate(ctx, key.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyRevoked, "the error is the same at an instance that did not know the key")
}

// A key of a suspended or deleted tenant stops working immediately, and works again when the tenant
// is active again.
func TestAuthenticateTenantState(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	s, ctx := d.Store, t.Context()
	a, key := d.Tenant("tenant-a")
	_, other := d.Tenant("tenant-b")
	auth := tenants.NewAuthenticator(s)
	require.NoError(t, auth.Load(ctx))
	set := func(state string) {
		t.Helper()
		_, err := s.EditTenantByRef(ctx, operator, "tenant-a", tenants.Match{}, func(in *tenants.Tenant) error { in.State = state; return nil })
		require.NoError(t, err)
		auth.Apply(ctx, tenants.Change{Tenant: a.TenantID(), KeysVersion: versionsOf(t, d, a).keys})
	}
	set(tenants.TenantSuspended)
	_, err := auth.Authenticate(ctx, key.Secret())
	require.ErrorIs(t, err, tenants.ErrTenantSuspended)
	set(tenants.TenantActive)
	_, err = auth.Authenticate(ctx, key.Secret())
	require.NoError(t, err)
	require.NoError(t, s.DeleteTenant(ctx, operator, "tenant-a", tenants.Match{}))
	auth.Apply(ctx, tenants.Change{Tenant: a.TenantID(), Gone: true})
	_, err = auth.Authenticate(ctx, key.Secret())
	require.ErrorIs(t, err, tenants.ErrUnknownKey)
	_, err = auth.Authenticate(ctx, other.Secret())
	require.NoError(t, err)
}

// Clients that try random keys must neither load the database nor affect clients with valid keys.
func TestUnknownKeysCauseFewLookups(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	_, key := d.Tenant("tenant-a")
	auth := tenants.NewAuthenticator(d.Store)
	require.NoError(t, auth.Load(t.Context()))
	lookups := lookupsOf(auth)
	unknown := tenants.NewKey(tenants.TenantKey).Secret()
	for range 100 {
		_, err := auth.Authenticate(t.Context(), unknown)
		require.ErrorIs(t, err, tenants.ErrUnknownKey)
	}
	require.EqualValues(t, 1, lookups(), "an unknown key is remembered")
	began := time.Now()
	for range 2000 {
		_, err := auth.Authenticate(t.Context(), tenants.NewKey(tenants.TenantKey).Secret())
		require.ErrorIs(t, err, tenants.ErrUnknownKey)
	}
	require.LessOrEqual(t, float64(lookups()), 51+50*time.Since(began).Seconds())
	_, err := auth.Authenticate(t.Context(), key.Secret())
	require.NoError(t, err)

	now.nowMS += 5000
	before := lookups()
	require.Eventually(t, func() bool { // as soon as a lookup is allowed
		_, err := auth.Authenticate(t.Context(), unknown)
		return lookups() > before && err != nil
	}, time.Minute, time.Millisecond, "it is looked up again within five seconds")
}

// Many concurrent requests with one unknown key cause one lookup.
func TestLookupsAreShared(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	_, key := d.Tenant("tenant-a")
	auth := tenants.NewAuthenticator(d.Store)
	lookups := lookupsOf(auth)
	release := blockLookups(t, d)
	errs := make([]error, 50)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { _, errs[i] = auth.Authenticate(t.Context(), key.Secret()) })
	}
	waitForWaiters(t, d, 1)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err := auth.Authenticate(gone, key.Secret())
	require.ErrorIs(t, err, context.Canceled, "a canceled caller does not wait")
	release()
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.LessOrEqual(t, lookups(), int64(2)) // one may arrive after the others were answered
}

// Only so many requests wait for a lookup, also for the same key: anybody can send them.
func TestFewRequestsWaitForLookups(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	_, key := d.Tenant("tenant-a")
	auth := tenants.NewAuthenticator(d.Store)
	release := blockLookups(t, d)
	const more = 50
	errs := make(chan error, tenants.MaxWaiting+more)
	for range cap(errs) {
		go func() {
			_, err := auth.Authenticate(t.Context(), key.Secret())
			errs <- err
		}()
	}
	refused := 0
	for range more {
		if <-errs == tenants.ErrKeyLookupUnavailable { // without a cause
			refused++
		}
	}
	release()
	for range tenants.MaxWaiting {
		<-errs
	}
	require.Positive(t, refused)
	_, err := auth.Authenticate(t.Context(), key.Secret())
	require.NoError(t, err)
}

// blockLookups holds a lock for which readers of keys wait, until release.
func blockLookups(t *testing.T, d *tenantstest.Database) (release func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, d.URL)
	require.NoError(t, err)
	_, err = conn.Exec(ctx, "BEGIN; LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	return sync.OnceFunc(func() { require.NoError(t, conn.Close(ctx)) })
}

// waitForWaiters returns when count sessions of the server wait for a lock.
func waitForWaiters(t *testing.T, d *tenantstest.Database, n int) {
	t.Helper()
	require.Eventually(t, func() (enough bool) {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, `SELECT count(*) >= $1 FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock'`, n).Scan(&enough))
		})
		return enough
	}, time.Minute, 5*time.Millisecond)
}

// A lookup that read "active" just before the key was revoked must not restore it.
func TestLateFillDoesNotResurrect(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, key := d.Tenant("tenant-a")
	s, ctx := d.Store, t.Context()
	auth := tenants.NewAuthenticator(s)
	late := heldFill(t, auth, key) // has read the key, and not stored it yet
	list, _, err := s.Keys(ctx, a, tenants.Page{})
	require.NoError(t, err)
	require.NoError(t, s.RevokeKey(ctx, a, list[0].ID, tenants.Match{}))
	auth.Changed(ctx, a.TenantID())
	late()
	_, err = auth.Authenticate(ctx, key.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyRevoked)

	b, other := d.Tenant("tenant-b")
	late = heldFill(t, auth, other)
	require.NoError(t, s.DeleteTenant(ctx, operator, "tenant-b", tenants.Match{}))
	auth.Apply(ctx, tenants.Change{Tenant: b.TenantID(), Gone: true})
	late()
	_, err = auth.Authenticate(ctx, other.Secret())
	require.ErrorIs(t, err, tenants.ErrUnknownKey)
}

// While Postgres is unavailable, known keys work, and unknown keys are not refused as invalid.
func TestAuthenticateWithoutPostgres(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	proxy := newProxy(t, d.URL)
	s := d.Open(tenants.Config{DatabaseURL: proxy.url})
	a, known := d.Tenant("tenant-a")
	_, fresh, err := d.Store.CreateKey(t.Context(), a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	auth := tenants.NewAuthenticator(s)
	_, err = auth.Authenticate(t.Context(), known.Secret())
	require.NoError(t, err)
	proxy.cut()
	_, err = auth.Authenticate(t.Context(), known.Secret())
	require.NoError(t, err)
	for range 60 { // more than may be looked up in a second
		_, err = auth.Authenticate(t.Context(), fresh.Secret())
		require.ErrorIs(t, err, tenants.ErrKeyLookupUnavailable)
		require.NotErrorIs(t, err, tenants.ErrUnauthorized)
	}

	// When Postgres is available again, changes in the meantime are read without another
	// notification.
	auth.Changed(t.Context(), a.TenantID())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- auth.Run(ctx) }()
	list, _, err := d.Store.Keys(t.Context(), a, tenants.Page{})
	require.NoError(t, err)
	for _, k := range list {
		require.NoError(t, d.Store.RevokeKey(t.Context(), a, k.ID, tenants.Match{}))
	}
	proxy.restore()
	require.Eventually(t, func() bool {
		_, err := auth.Authenticate(t.Context(), known.Secret())
		return err != nil
	}, time.Minute, 10*time.Millisecond)
	_, err = auth.Authenticate(t.Context(), known.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyRevoked)
	stop()
	require.NoError(t, <-ended)
}

// An instance without Postgres learns from others which keys work differently, but believes no
// older version than its own, and nothing about keys of other tenants.
func TestAuthenticatorLearns(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	proxy := newProxy(t, d.URL)
	a, key := d.Tenant("tenant-a")
	b, other := d.Tenant("tenant-b")
	ctx := t.Context()
	reader, cutOff := tenants.NewAuthenticator(d.Store), tenants.NewAuthenticator(d.Open(tenants.Config{DatabaseURL: proxy.url}))
	var messages [][]byte
	reader.Tell(func(m []byte) { messages = append(messages, m) })
	require.NoError(t, reader.Load(ctx))
	require.NoError(t, cutOff.Load(ctx))
	require.Empty(t, messages, "the first reading changes nothing")
	proxy.cut()

	list, _, err := d.Store.Keys(ctx, a, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, list, 1)
	early := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	_, err = d.Store.EditKey(ctx, a, list[0].ID, tenants.Match{}, func(k *tenants.APIKey) error { k.Name = "renamed"; return nil })
	require.NoError(t, err)
	reader.Changed(ctx, a.TenantID())
	require.Empty(t, messages, "a name changes nothing for the users of a key")

	_, err = d.Store.EditKey(ctx, a, list[0].ID, tenants.Match{}, func(k *tenants.APIKey) error {
		k.Scopes = []tenants.Scope{tenants.ScopeRead}
		return nil
	})
	require.NoError(t, err)
	reader.Changed(ctx, a.TenantID())
	require.Len(t, messages, 1, "a scope was taken from the key")
	require.NoError(t, cutOff.Learn(messages[0]))
	actor, err := cutOff.Authenticate(ctx, key.Secret())
	require.NoError(t, err)
	require.True(t, actor.Has(tenants.ScopeRead))
	require.False(t, actor.Has(tenants.ScopeCheck))
	var earlier tenants.KeyChanges // as an earlier release sends it
	require.NoError(t, json.Unmarshal(messages[0], &earlier))
	earlier.Version, earlier.Keys[0].Scopes = earlier.Version+1, nil
	message, err := json.Marshal(earlier)
	require.NoError(t, err)
	require.NoError(t, cutOff.Learn(message))
	actor, err = cutOff.Authenticate(ctx, key.Secret())
	require.NoError(t, err)
	require.False(t, actor.Has(tenants.ScopeCheck), "the key keeps its scopes")
	_, err = d.Store.EditTenant(ctx, a, tenants.Match{}, func(n *tenants.Tenant) error { n.Name = "A"; return nil }) // a version above that
	require.NoError(t, err)
	messages = nil

	require.NoError(t, d.Store.RevokeKey(ctx, a, list[0].ID, tenants.Match{}))
	reader.Changed(ctx, a.TenantID())
	require.Len(t, messages, 1)
	reader.Changed(ctx, a.TenantID())
	require.Len(t, messages, 1, "once")
	_, err = cutOff.Authenticate(ctx, key.Secret())
	require.NoError(t, err)
	require.NoError(t, cutOff.Learn(messages[0]))
	_, err = cutOff.Authenticate(ctx, key.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyRevoked)

	var change tenants.KeyChanges
	require.NoError(t, json.Unmarshal(messages[0], &change))
	for what, edit := range map[string]func(*tenants.KeyChanges){
		"an older version":      func(c *tenants.KeyChanges) { c.Version--; c.Keys[0].State = 0 },
		"the same version":      func(c *tenants.KeyChanges) { c.Keys[0].State = 0 },
		"a key of another":      func(c *tenants.KeyChanges) { c.Tenant, c.Version, c.Keys[0].State = b.TenantID(), math.MaxInt64, 0 },
		"a key that is unknown": func(c *tenants.KeyChanges) { c.Version, c.Keys[0].Hash = math.MaxInt64, make([]byte, 32) },
	} {
		edited := change
		edited.Keys = slices.Clone(change.Keys)
		edit(&edited)
		message, err := json.Marshal(edited)
		require.NoError(t, err)
		require.NoError(t, cutOff.Learn(message), what)
		_, err = cutOff.Authenticate(ctx, key.Secret())
		require.ErrorIs(t, err, tenants.ErrKeyRevoked, what)
	}
	for _, message := range []string{"", "{", `{"keys":[{"hash":"AAAA"}]}`, `{"keys":[{"hash":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","state":99}]}`} {
		require.Error(t, cutOff.Learn([]byte(message)), message)
	}

	change.Version++
	change.Keys[0].State, change.Keys[0].ExpiresAtMS = 0, early.UnixMilli()
	message, err = json.Marshal(change)
	require.NoError(t, err)
	require.NoError(t, cutOff.Learn(message))
	_, err = cutOff.Authenticate(ctx, key.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyExpired)

	require.NoError(t, d.Store.DeleteTenant(ctx, operator, "tenant-b", tenants.Match{}))
	reader.Changed(ctx, b.TenantID())
	require.Len(t, messages, 2)
	_, err = cutOff.Authenticate(ctx, other.Secret())
	require.NoError(t, err)
	require.NoError(t, cutOff.Learn(messages[1]))
	_, err = cutOff.Authenticate(ctx, other.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyRevoked)
}

// The last use of a key is shown, without a write for each request.
func TestLastUsed(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, key := d.Tenant("tenant-a")
	auth := tenants.NewAuthenticator(d.Store)
	use := func() tenants.APIKey {
		t.Helper()
		_, err := auth.Authenticate(t.Context(), key.Secret())
		require.NoError(t, err)
		ended, stop := context.WithCancel(t.Context())
		stop()
		require.NoError(t, auth.Run(ended)) // stores what is left, and ends
		list, _, err := d.Store.Keys(t.Context(), a, tenants.Page{})
		require.NoError(t, err)
		return list[0]
	}
	before := versionsOf(t, d, a)
	first := now.now()
	require.Equal(t, first, *use().LastUsedAt)
	now.nowMS += 59_999
	require.Equal(t, first, *use().LastUsedAt)
	now.nowMS++
	require.Equal(t, now.now(), *use().LastUsedAt)
	require.Equal(t, before, versionsOf(t, d, a), "use does not change the configuration")
}

// Of many tenants, Load reads the keys of those that used theirs last. The others' are looked up at
// their first use, however many they are, and are followed from then on.
func TestFewKeysAreRead(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	ctx := t.Context()
	a, key := d.Tenant("tenant-a")
	_, used := d.Tenant("tenant-b")
	_, unused := d.Tenant("tenant-c")
	hash := used.Hash()
	d.Exec("UPDATE api_keys SET last_used_at = now() WHERE hash = $1", hash[:])
	auth := tenants.NewAuthenticator(d.Store)
	auth.ReadAtMost(1)
	const count = 120 // more than unknown keys may be looked up in a second
	keys := make([]tenants.Key, count)
	for i := range keys {
		var err error
		_, keys[i], err = d.Store.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: []tenants.Scope{tenants.ScopeCheck}})
		require.NoError(t, err)
	}
	require.NoError(t, auth.Load(ctx))
	lookups := lookupsOf(auth)
	works := func(k tenants.Key) {
		t.Helper()
		_, err := auth.Authenticate(ctx, k.Secret())
		require.NoError(t, err)
	}
	works(used)
	require.Zero(t, lookups())
	for _, k := range keys {
		works(k)
		works(k)
	}
	require.EqualValues(t, count, lookups())

	// Keys that change without having been used are not read, and those of a tenant in use are.
	apply := func(slug string) {
		var change tenants.Change
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT id, keys_version FROM tenants WHERE slug = $1", slug).Scan(&change.Tenant, &change.KeysVersion))
		})
		auth.Apply(ctx, change)
	}
	apply("tenant-c")
	works(unused)
	require.EqualValues(t, count+1, lookups(), "the change was before Load")
	d.Exec("UPDATE api_keys SET revoked_at = now()")
	d.Exec("UPDATE config_version SET version = version + 1")
	d.Exec("UPDATE tenants SET keys_version = (SELECT version FROM config_version)")
	for slug, k := range map[string]tenants.Key{"tenant-a": key, "tenant-b": used, "tenant-c": unused} {
		apply(slug)
		_, err := auth.Authenticate(ctx, k.Secret())
		require.ErrorIs(t, err, tenants.ErrKeyRevoked, slug)
	}
	_, err := auth.Authenticate(ctx, keys[0].Secret())
	require.ErrorIs(t, err, tenants.ErrKeyRevoked)
	require.EqualValues(t, count+1, lookups())
}

// A lookup that read "active" before the key was revoked must not be kept after Load, which did not
// read this key, and does not read it when the change is reported.
func TestLateFillAfterLoad(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, key := d.Tenant("tenant-a")
	s, ctx := d.Store, t.Context()
	auth := tenants.NewAuthenticator(s)
	auth.ReadAtMost(0)
	late := heldFill(t, auth, key)
	list, _, err := s.Keys(ctx, a, tenants.Page{})
	require.NoError(t, err)
	require.NoError(t, s.RevokeKey(ctx, a, list[0].ID, tenants.Match{}))
	require.NoError(t, auth.Load(ctx))
	auth.Apply(ctx, tenants.Change{Tenant: a.TenantID(), KeysVersion: versionsOf(t, d, a).keys})
	late()
	_, err = auth.Authenticate(ctx, key.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyRevoked)
}

func BenchmarkAuthenticate(b *testing.B) {
	d := tenantstest.New(b)
	_, key := d.Tenant("tenant-a")
	auth := tenants.NewAuthenticator(d.Store)
	text := key.Secret()
	_, err := auth.Authenticate(b.Context(), text)
	require.NoError(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := auth.Authenticate(b.Context(), text); err != nil {
				b.Error(err)
			}
		}
	})
}

// A check must not allocate memory for authentication.
func TestAuthenticateAllocatesNothing(t *testing.T) {
	d := tenantstest.New(t)
	_, key := d.Tenant("tenant-a")
	auth := tenants.NewAuthenticator(d.Store)
	text := key.Secret()
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if _, err := auth.Authenticate(ctx, text); err != nil {
			t.Error(err)
		}
	}))
}

// Reading all keys of a tenant may take longer than a lookup that begins later. It must not remove
// the new key that the lookup has found, because lookups are limited, and beyond the limit the key
// would get 401.
func TestOlderReadKeepsNewerKey(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	auth := tenants.NewAuthenticator(d.Store)
	require.NoError(t, auth.Load(t.Context()))
	lookups := lookupsOf(auth)
	replace, err := auth.ReadTenantKeys(t.Context(), a.TenantID())
	require.NoError(t, err)
	_, key, err := d.Store.CreateKey(t.Context(), a, tenants.NewAPIKey{Name: "new", Scopes: []tenants.Scope{tenants.ScopeCheck}})
	require.NoError(t, err)
	_, err = auth.Authenticate(t.Context(), key.Secret())
	require.NoError(t, err)
	replace()
	_, err = auth.Authenticate(t.Context(), key.Secret())
	require.NoError(t, err)
	require.EqualValues(t, 1, lookups())

	// A later read replaces it as usual.
	auth.Changed(t.Context(), a.TenantID())
	d.Exec("DELETE FROM api_keys WHERE name = 'new'")
	d.Exec("UPDATE tenants SET keys_version = keys_version + 1")
	auth.Changed(t.Context(), a.TenantID())
	_, err = auth.Authenticate(t.Context(), key.Secret())
	require.ErrorIs(t, err, tenants.ErrUnknownKey)
}
