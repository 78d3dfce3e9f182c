package tenants_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// The time of a refusal reveals nothing about a key: a key that is nearly correct takes the same
// path as a random one, sends the same bytes to Postgres, and is looked up by its hash.
func TestNearlyCorrectKeysTakeTheSamePath(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, key := d.Tenant("tenant-a")
	k, revoked, err := d.Store.CreateKey(t.Context(), a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	require.NoError(t, d.Store.RevokeKey(t.Context(), a, k.ID, tenants.Match{}))
	p := newProxy(t, d.URL)
	auth := tenants.NewAuthenticator(d.Open(tenants.Config{DatabaseURL: p.url, MaxConns: 1, Now: now.now}))
	require.NoError(t, auth.Load(t.Context()))
	lookups := lookupsOf(auth)

	const checksum = 6
	tried := map[string]bool{key.Secret(): true, revoked.Secret(): true}
	ask := func(text string) (bytes, looked int64) {
		before, lookedBefore := p.asked.Load(), lookups()
		_, err := auth.Authenticate(t.Context(), text)
		require.ErrorIs(t, err, tenants.ErrUnknownKey)
		return p.asked.Load() - before, lookups() - lookedBefore
	}
	random := func() string { return tenants.NewKey(tenants.TenantKey).Secret() }
	_, _ = ask(random()) // prepares the statement
	bytes, looked := ask(random())
	require.EqualValues(t, 1, looked)
	require.Positive(t, bytes)
	near := 0
	for _, real := range []string{key.Secret(), revoked.Secret()} {
		body := real[:len(real)-checksum]
		for _, other := range []string{random(), random()} {
			for same := len("weir_key_"); same < len(body); same += 4 { // how much of it is guessed
				guess := tenants.Checksummed(body[:same] + other[same:len(body)])
				if tried[guess] {
					continue
				}
				tried[guess] = true
				near++
				again, looked := ask(guess)
				require.EqualValues(t, 1, looked, "%d characters right", same)
				require.Equal(t, bytes, again, "%d characters right", same)
				none, looked := ask(guess)
				require.Zero(t, looked+none, "the second request finds it in the list of unknown keys")
			}
		}
	}
	require.Greater(t, near, 20)
	// A revoked key is known, and only a client with the complete key learns that it was revoked.
	before := p.asked.Load()
	_, err = auth.Authenticate(t.Context(), revoked.Secret())
	require.ErrorIs(t, err, tenants.ErrKeyRevoked)
	require.Equal(t, before, p.asked.Load())
}

// The same holds for addresses: an unknown one sends the same query to Postgres as a known one with
// a wrong password, and a password is hashed in both cases.
func TestUnknownAddressesTakeTheSamePath(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	for _, email := range []string{"ann@example.com", "bob@example.com"} {
		require.NoError(t, second(d.Store.CreateMember(t.Context(), a, email, "correct horse", tenants.Viewer)))
	}
	require.NoError(t, second(d.Store.InviteMember(t.Context(), a, "ida@example.com", tenants.Viewer)))
	p := newProxy(t, d.URL)
	s := d.Open(tenants.Config{DatabaseURL: p.url, MaxConns: 1})
	ask := func(email string) int64 {
		before := p.asked.Load()
		_, err := s.VerifyPassword(t.Context(), email, "wrong horse")
		require.ErrorIs(t, err, tenants.ErrWrongPassword)
		return p.asked.Load() - before
	}
	ask("ann@example.com") // prepares the statements
	known := ask("ann@example.com")
	require.Positive(t, known)
	for _, email := range []string{"bob@example.com", "ida@example.com", "eve@example.com", "zoe@example.com"} {
		require.Equal(t, known, ask(email), email)
	}
}
