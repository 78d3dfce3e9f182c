package tenants_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

func FuzzParseKey(f *testing.F) {
	valid := "weir_key_000000000000000000000000000000"
	key := tenants.NewKey(tenants.OperatorKey)
	for _, seed := range []string{
		"", "weir_", "weir_key_", valid + "000000", key.Secret(), key.Secret()[1:], key.Secret() + "0",
		strings.ToLower(key.Secret()), key.Secret()[:20] + "\x00" + key.Secret()[21:], "weir_op_" + strings.Repeat("é", 18),
		strings.Repeat("weir_key_", 5), "weir_own_" + strings.Repeat("0", 36),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key, err := tenants.ParseKey(text)
		if err != nil {
			require.ErrorIs(t, err, tenants.ErrMalformedKey)
			require.ErrorIs(t, err, tenants.ErrUnauthorized)
			return
		}
		require.Equal(t, text, key.Secret(), "a key is accepted as it is or not at all")
		require.Contains(t, []tenants.KeyKind{tenants.TenantKey, tenants.OperatorKey}, key.Kind())
		require.Len(t, strings.TrimPrefix(text, "weir_"+string(key.Kind())+"_"), 36)
	})
}

func TestKeyForm(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		key := tenants.NewKey(tenants.TenantKey)
		require.Regexp(t, `^weir_key_[0-9A-Za-z]{36}$`, key.Secret())
		require.False(t, seen[key.Secret()])
		seen[key.Secret()] = true
		parsed, err := tenants.ParseKey(key.Secret())
		require.NoError(t, err)
		require.Equal(t, key, parsed)
	}
	// The checksum is part of the format for secret scanners: it must never change.
	_, err := tenants.ParseKey("weir_key_" + strings.Repeat("0", 30) + "4TL41Z")
	require.NoError(t, err)
}

// A single wrong character is detected without a lookup.
func TestKeyChecksum(t *testing.T) {
	t.Parallel()
	text := tenants.NewKey(tenants.TenantKey).Secret()
	for i := range text {
		for _, c := range "0aZ_-\x00\xff" {
			if wrong := text[:i] + string(c) + text[i+1:]; wrong != text {
				_, err := tenants.ParseKey(wrong)
				require.ErrorIs(t, err, tenants.ErrMalformedKey, "%q", wrong)
			}
		}
	}
}

// A key that is printed in a log, an error or a dump by mistake is masked.
func TestKeyMasked(t *testing.T) {
	t.Parallel()
	key := tenants.NewKey(tenants.TenantKey)
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("made", "key", key, "in", struct{ Key tenants.Key }{key})
	slog.New(slog.NewTextHandler(&log, nil)).Info("made", "key", key, "in", struct{ Key tenants.Key }{key})
	encoded, err := json.Marshal(map[string]any{"key": key})
	require.NoError(t, err)
	for _, text := range []string{log.String(), string(encoded), fmt.Sprint(key), fmt.Sprintf("%v %+v %#v %s %q", key, key, key, key, key)} {
		require.NotContains(t, text, key.Secret()[9:39])
		require.Contains(t, text, key.Last4())
	}
}

func TestCreateKey(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	ends := time.Now().Add(time.Hour)
	made, key, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Name: "ci", Scopes: []tenants.Scope{tenants.ScopeWrite, tenants.ScopeCheck}, ExpiresAt: &ends})
	require.NoError(t, err)
	require.Equal(t, []tenants.Scope{tenants.ScopeCheck, tenants.ScopeWrite}, made.Scopes)
	require.Equal(t, "test", made.CreatedBy)
	got, err := s.KeyByID(ctx, a, made.ID)
	require.NoError(t, err)
	require.Equal(t, made, got)
	require.Equal(t, made.Version, versionsOf(t, d, a).keys)
	actor := d.Actor(key)
	require.True(t, actor.Has(tenants.ScopeCheck))
	require.False(t, actor.Has(tenants.ScopeRead))
	require.WithinDuration(t, ends, actor.KeyExpiresAt(), time.Millisecond)

	_, err = s.KeyByID(ctx, b, made.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	require.ErrorIs(t, s.RevokeKey(ctx, b, made.ID, tenants.Match{}), tenants.ErrNotFound)
	_, _, err = s.RotateKey(ctx, b, made.ID, 0)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = s.EditKey(ctx, b, made.ID, tenants.Match{}, func(*tenants.APIKey) error { return nil })
	require.ErrorIs(t, err, tenants.ErrNotFound)

	for name, c := range map[string]struct {
		in     tenants.NewAPIKey
		fields []string
	}{
		"no scope":     {tenants.NewAPIKey{}, []string{"scopes"}},
		"unknown":      {tenants.NewAPIKey{Scopes: []tenants.Scope{"admin"}}, []string{"scopes"}},
		"twice":        {tenants.NewAPIKey{Scopes: []tenants.Scope{"read", "read"}}, []string{"scopes"}},
		"past":         {tenants.NewAPIKey{Scopes: tenants.AllScopes, ExpiresAt: ptr(time.Now().Add(-time.Second))}, []string{"expires_at"}},
		"year 10000":   {tenants.NewAPIKey{Scopes: tenants.AllScopes, ExpiresAt: ptr(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC))}, []string{"expires_at"}},
		"unknown kind": {tenants.NewAPIKey{Scopes: tenants.AllScopes, Kind: "root", Name: "\x00"}, []string{"kind", "name"}},
	} {
		_, _, err := s.CreateKey(ctx, a, c.in)
		requireInvalid(t, err, c.fields...)
		require.NotEmpty(t, name)
	}
	list, _, err := s.Keys(ctx, a, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, made, list[0])
}

// A key cannot grant more permissions than it has, in any way.
func TestKeyCannotExceedItself(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	ends := time.Now().Add(time.Hour)
	later := ends.Add(time.Minute)
	_, key, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: []tenants.Scope{"manage"}, ExpiresAt: &ends})
	require.NoError(t, err)
	strong, _, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	weak := d.Actor(key)
	for name, in := range map[string]tenants.NewAPIKey{
		"more scopes": {Scopes: tenants.AllScopes, ExpiresAt: &ends},
		"longer":      {Scopes: []tenants.Scope{"manage"}, ExpiresAt: &later},
		"for ever":    {Scopes: []tenants.Scope{"manage"}},
	} {
		_, _, err := s.CreateKey(ctx, weak, in)
		require.ErrorIs(t, err, tenants.ErrNotPermitted, name)
	}
	child, _, err := s.CreateKey(ctx, weak, tenants.NewAPIKey{Scopes: []tenants.Scope{"manage"}, ExpiresAt: &ends})
	require.NoError(t, err)
	for name, change := range map[string]func(*tenants.APIKey){
		"more scopes": func(k *tenants.APIKey) { k.Scopes = tenants.AllScopes },
		"for ever":    func(k *tenants.APIKey) { k.ExpiresAt = nil },
	} {
		_, err := s.EditKey(ctx, weak, child.ID, tenants.Match{}, func(k *tenants.APIKey) error { change(k); return nil })
		require.ErrorIs(t, err, tenants.ErrNotPermitted, name)
	}
	_, _, err = s.RotateKey(ctx, weak, strong.ID, 0)
	require.ErrorIs(t, err, tenants.ErrNotPermitted, "the new secret would have more permissions than the actor")
	_, err = s.EditKey(ctx, weak, strong.ID, tenants.Match{}, func(k *tenants.APIKey) error { k.Name = "renamed"; return nil })
	require.NoError(t, err, "a name grants nothing")
	_, _, err = s.RotateKey(ctx, weak, weak.KeyID(), 0)
	require.NoError(t, err, "its own key")
}

// In the platform tenant, an ordinary key is not an operator key.
func TestOnlyPlatformHasOperatorKeys(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	s, ctx := d.Store, t.Context()
	op, opKey, err := s.CreateOperatorKey(ctx, "ops")
	require.NoError(t, err)
	opActor := d.Actor(opKey)
	_, plainKey, err := s.CreateKey(ctx, opActor, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	plain := d.Actor(plainKey)
	require.False(t, plain.Operator())
	require.ErrorIs(t, s.RevokeKey(ctx, plain, op.ID, tenants.Match{}), tenants.ErrNotOperator)
	_, _, err = s.RotateKey(ctx, plain, op.ID, 0)
	require.ErrorIs(t, err, tenants.ErrNotOperator)
	_, next, err := s.CreateKey(ctx, opActor, tenants.NewAPIKey{Kind: tenants.OperatorKey, Scopes: tenants.AllScopes})
	require.NoError(t, err)
	require.True(t, d.Actor(next).Operator())
	a, _ := d.Tenant("tenant-a")
	d.Exec("ALTER TABLE api_keys NO FORCE ROW LEVEL SECURITY")
	_, stray, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	d.Exec("UPDATE api_keys SET kind = 'op' WHERE tenant_id = $1", a.TenantID())
	require.False(t, d.Actor(stray).Operator(), "a key of another tenant is not an operator key, whatever its row says")
}

func TestEditAndRevokeKey(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	made, _, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Name: "one", Scopes: tenants.AllScopes})
	require.NoError(t, err)
	before := versionsOf(t, d, a)
	same, err := s.EditKey(ctx, a, made.ID, at(made.Version), func(*tenants.APIKey) error { return nil })
	require.NoError(t, err)
	require.Equal(t, made, same)
	require.Equal(t, before, versionsOf(t, d, a))
	edited, err := s.EditKey(ctx, a, made.ID, at(made.Version), func(k *tenants.APIKey) error {
		k.Name, k.Scopes = "two", []tenants.Scope{tenants.ScopeRead}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "two", edited.Name)
	require.Equal(t, []tenants.Scope{tenants.ScopeRead}, edited.Scopes)
	_, err = s.EditKey(ctx, a, made.ID, at(made.Version), func(*tenants.APIKey) error { return nil })
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	_, err = s.EditKey(ctx, a, made.ID, tenants.Match{}, func(k *tenants.APIKey) error { k.Scopes = nil; return nil })
	requireInvalid(t, err, "scopes")
	_, err = s.EditKey(ctx, a, uuid.New(), tenants.Match{}, func(*tenants.APIKey) error { return nil })
	require.ErrorIs(t, err, tenants.ErrNotFound)

	require.ErrorIs(t, s.RevokeKey(ctx, a, made.ID, at(made.Version)), tenants.ErrPreconditionFailed)
	require.NoError(t, s.RevokeKey(ctx, a, made.ID, at(edited.Version)))
	revoked, err := s.KeyByID(ctx, a, made.ID)
	require.NoError(t, err)
	require.NotNil(t, revoked.RevokedAt)
	require.NoError(t, s.RevokeKey(ctx, a, made.ID, tenants.Match{}), "a second revocation is not an error")
	again, err := s.KeyByID(ctx, a, made.ID)
	require.NoError(t, err)
	require.Equal(t, revoked, again)
	_, err = s.EditKey(ctx, a, made.ID, tenants.Match{}, func(k *tenants.APIKey) error { k.Name = "three"; return nil })
	requireConflict(t, err, tenants.CodeKeyInactive)
	_, _, err = s.RotateKey(ctx, a, made.ID, 0)
	requireConflict(t, err, tenants.CodeKeyInactive)
}

func TestRotateKey(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	s, ctx := d.Store, t.Context()
	authenticator := tenants.NewAuthenticator(s)
	made, old, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Name: "ci", Scopes: []tenants.Scope{"check"}})
	require.NoError(t, err)
	for _, overlap := range []time.Duration{-1, tenants.MaxRotationOverlap + 1} {
		_, _, err := s.RotateKey(ctx, a, made.ID, overlap)
		requireInvalid(t, err, "overlap")
	}
	next, key, err := s.RotateKey(ctx, a, made.ID, time.Hour)
	require.NoError(t, err)
	require.Equal(t, "ci", next.Name)
	require.Equal(t, made.Scopes, next.Scopes)
	require.Nil(t, next.ExpiresAt)
	replaced, err := s.KeyByID(ctx, a, made.ID)
	require.NoError(t, err)
	require.Equal(t, &next.ID, replaced.RotatedTo)
	require.Equal(t, now.now().Add(time.Hour), *replaced.ExpiresAt)

	for _, k := range []tenants.Key{old, key} {
		_, err := authenticator.Authenticate(ctx, k.Secret())
		require.NoError(t, err, "both work during the overlap")
	}
	_, _, err = s.RotateKey(ctx, a, made.ID, time.Hour)
	requireConflict(t, err, tenants.CodeKeyInactive)
	now.nowMS += time.Hour.Milliseconds() - 1
	_, err = authenticator.Authenticate(ctx, old.Secret())
	require.NoError(t, err)
	now.nowMS++
	_, err = authenticator.Authenticate(ctx, old.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyRotated)
	_, err = authenticator.Authenticate(ctx, key.Secret())
	require.NoError(t, err)

	soon := now.now().Add(time.Minute)
	short, _, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: []tenants.Scope{"check"}, ExpiresAt: &soon})
	require.NoError(t, err)
	_, _, err = s.RotateKey(ctx, a, short.ID, time.Hour)
	require.NoError(t, err)
	got, err := s.KeyByID(ctx, a, short.ID)
	require.NoError(t, err)
	require.Equal(t, soon, *got.ExpiresAt, "an overlap never extends a key")
	now.nowMS += time.Hour.Milliseconds()
	_, err = s.EditKey(ctx, a, next.ID, tenants.Match{}, func(k *tenants.APIKey) error { k.ExpiresAt = ptr(now.now().Add(time.Second)); return nil })
	require.NoError(t, err)
	now.nowMS += 1000
	_, err = s.EditKey(ctx, a, next.ID, tenants.Match{}, func(k *tenants.APIKey) error { k.ExpiresAt = nil; return nil })
	requireConflict(t, err, tenants.CodeKeyInactive)
}
