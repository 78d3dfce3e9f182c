package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

func TestKeyLife(t *testing.T) {
	s := newAdminStack(t)
	made := s.call(s.key, http.MethodPost, "/v1/keys", obj{"name": "app", "scopes": []string{"write", "read"}, "expires_at": "2999-01-01T00:00:00Z"}).ok(201)
	key := made.json()
	secret := key["secret"].(string)
	require.Regexp(t, `^weir_key_[0-9A-Za-z]{36}$`, secret)
	require.Equal(t, secret[len(secret)-4:], key["last4"])
	require.Equal(t, "/v1/keys/"+key["id"].(string), made.header.Get("Location"))
	require.Equal(t, []any{"read", "write"}, key["scopes"])
	require.Equal(t, "2999-01-01T00:00:00Z", key["expires_at"])
	require.Equal(t, "key", key["kind"])
	require.Nil(t, key["revoked_at"])
	require.Equal(t, "no-store", made.header.Get("Cache-Control"))

	path := made.header.Get("Location")
	for _, later := range []answer{
		s.call(s.key, http.MethodGet, path, nil), s.call(s.key, http.MethodPatch, path, obj{"name": "renamed"}), s.call(s.key, http.MethodGet, "/v1/keys", nil),
	} {
		require.NotContains(t, string(later.ok(200).body), secret, "a secret is shown once")
		require.NotContains(t, string(later.body), `"secret"`)
	}
	s.call(secret, http.MethodGet, "/v1/rules", nil).ok(200)
	patched := s.call(s.key, http.MethodPatch, path, obj{"expires_at": nil, "scopes": []string{"read"}}).ok(200).json()
	require.Nil(t, patched["expires_at"])
	require.Equal(t, "renamed", patched["name"])

	rotated := s.call(s.key, http.MethodPost, path+"/rotate", nil).ok(201)
	next := rotated.json()
	require.NotEqual(t, key["id"], next["id"])
	require.Equal(t, "renamed", next["name"])
	require.Equal(t, []any{"read"}, next["scopes"])
	s.call(next["secret"].(string), http.MethodGet, "/v1/rules", nil).ok(200)
	old := s.call(s.key, http.MethodGet, path, nil).ok(200).json()
	require.Equal(t, next["id"], old["rotated_to"])
	end, err := time.Parse(time.RFC3339, old["expires_at"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), end, time.Minute, "the old key works for a day more")
	s.call(s.key, http.MethodPost, path+"/rotate", nil).problem(409, codeKeyNotActive)

	nextPath := rotated.header.Get("Location")
	s.call(s.key, http.MethodDelete, nextPath, nil).ok(204)
	require.NotNil(t, s.call(s.key, http.MethodGet, nextPath, nil).ok(200).json()["revoked_at"])
	s.call(s.key, http.MethodPatch, nextPath, obj{"name": "x"}).problem(409, codeKeyNotActive)
	s.call(s.key, http.MethodPost, nextPath+"/rotate", obj{}).problem(409, codeKeyNotActive)
	s.call(s.key, http.MethodDelete, nextPath, nil).ok(204)
}

// A rotation without overlap ends the old key immediately, for a secret that has leaked.
func TestRotationOverlap(t *testing.T) {
	s := newAdminStack(t)
	for overlap, want := range map[string]time.Duration{"0s": 0, "90m": 90 * time.Minute, "30d": 30 * 24 * time.Hour} {
		path := s.call(s.key, http.MethodPost, "/v1/keys", obj{"scopes": []string{"read"}}).ok(201).header.Get("Location")
		s.call(s.key, http.MethodPost, path+"/rotate", obj{"overlap": overlap}).ok(201)
		end, err := time.Parse(time.RFC3339, s.call(s.key, http.MethodGet, path, nil).ok(200).json()["expires_at"].(string))
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(want), end, time.Minute, overlap)
	}
	path := s.call(s.key, http.MethodPost, "/v1/keys", obj{"scopes": []string{"read"}}).ok(201).header.Get("Location")
	for _, overlap := range []any{"-1s", "31d", "2592001s", "1", "", 3600, "99999999999999999999d"} {
		require.Equal(t, []string{"/overlap"}, s.call(s.key, http.MethodPost, path+"/rotate", obj{"overlap": overlap}).pointers(422, codeInvalidRequest), overlap)
	}
	require.Nil(t, s.call(s.key, http.MethodGet, path, nil).ok(200).json()["rotated_to"])
}

// A key cannot create a key with more permissions (reliability rows 43 and 44).
func TestKeysCannotGrow(t *testing.T) {
	s := newAdminStack(t)
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	weak := s.newKey(tenants.NewAPIKey{Scopes: []tenants.Scope{tenants.ScopeManage}, ExpiresAt: &end})
	at := func(d time.Duration) string { return end.Add(d).Format(time.RFC3339) }
	create := func(key string, body obj) answer { return s.call(key, http.MethodPost, "/v1/keys", body) }

	create(weak, obj{"scopes": []string{"manage"}, "expires_at": at(0)}).ok(201)
	create(weak, obj{"scopes": []string{"manage", "read"}, "expires_at": at(0)}).problem(403, codeGrantExceeded)
	create(weak, obj{"scopes": []string{"check"}, "expires_at": at(0)}).problem(403, codeGrantExceeded)
	create(weak, obj{"scopes": []string{"manage"}, "expires_at": at(time.Second)}).problem(403, codeGrantExceeded)
	create(weak, obj{"scopes": []string{"manage"}}).problem(403, codeGrantExceeded)

	strong := create(s.key, obj{"scopes": []string{"check", "read", "write", "manage"}}).ok(201).header.Get("Location")
	s.call(weak, http.MethodPost, strong+"/rotate", nil).problem(403, codeGrantExceeded)
	s.call(weak, http.MethodPatch, strong, obj{"scopes": []string{"check"}}).problem(403, codeGrantExceeded)
	own := create(s.key, obj{"scopes": []string{"manage"}, "expires_at": at(0)}).ok(201).header.Get("Location")
	s.call(weak, http.MethodPatch, own, obj{"expires_at": nil}).problem(403, codeGrantExceeded)

	for _, kind := range []string{"op", "root"} {
		require.Equal(t, []string{"/kind"}, create(s.key, obj{"scopes": []string{"read"}, "kind": kind}).pointers(422, codeInvalidRequest), kind)
	}
	require.Equal(t, "op", create(s.operator, obj{"scopes": []string{"read"}, "kind": "op"}).ok(201).json()["kind"])
}

// The first key of a new tenant has all scopes, does not expire and works from everywhere, so only
// an operator key that has all of that creates tenants.
func TestOperatorKeysCannotGrowIntoTenants(t *testing.T) {
	s := newAdminStack(t)
	end := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for slug, body := range map[string]obj{
		"scopes":    {"kind": "op", "scopes": []string{"read", "write"}},
		"expires":   {"kind": "op", "scopes": []string{"check", "read", "write", "manage"}, "expires_at": end},
		"addresses": {"kind": "op", "scopes": []string{"check", "read", "write", "manage"}, "addresses": []string{"127.0.0.1"}},
	} {
		weak := s.call(s.operator, http.MethodPost, "/v1/keys", body).ok(201).json()["secret"].(string)
		s.call(weak, http.MethodGet, "/v1/tenants", nil).ok(200)
		s.call(weak, http.MethodPost, "/v1/tenants", obj{"slug": slug}).problem(403, codeGrantExceeded)
		s.call(s.operator, http.MethodGet, "/v1/tenants/"+slug, nil).problem(404, codeNotFound)
	}
	s.call(s.operator, http.MethodPost, "/v1/tenants", obj{"slug": "made"}).ok(201)
}

// Keys and members can be changed only with the scope manage. A membership does not expire, so a
// key with an expiry cannot invite.
func TestKeysCannotGrowIntoMembers(t *testing.T) {
	s := newAdminStack(t)
	end := time.Now().Add(30 * time.Minute)
	key := func(end *time.Time, scopes ...tenants.Scope) string {
		return s.newKey(tenants.NewAPIKey{Scopes: scopes, ExpiresAt: end})
	}
	invite := func(key, role string) answer {
		return s.call(key, http.MethodPost, "/v1/members", obj{"email": role + "-" + key[len(key)-4:] + "@example.com", "role": role})
	}
	write := key(nil, tenants.ScopeCheck, tenants.ScopeRead, tenants.ScopeWrite)
	invite(write, "viewer").problem(403, codeInsufficientScope)
	s.call(write, http.MethodPost, "/v1/keys", obj{"scopes": []string{"read"}}).problem(403, codeInsufficientScope)
	s.call(key(nil, tenants.ScopeManage), http.MethodPost, "/v1/rules", obj{"slug": "r", "limit": 1, "window": "1m"}).problem(403, codeInsufficientScope)
	s.call(write, http.MethodPatch, "/v1/tenant", obj{"name": "Renamed"}).ok(200)

	brief := key(&end, tenants.AllScopes...)
	invite(brief, "admin").problem(403, codeGrantExceeded)
	invite(brief, "viewer").problem(403, codeGrantExceeded)

	reader := key(nil, tenants.ScopeRead, tenants.ScopeManage)
	invite(reader, "editor").problem(403, codeGrantExceeded)
	invite(reader, "admin").problem(403, codeGrantExceeded)
	member := invite(reader, "viewer").ok(201).header.Get("Location")
	s.call(reader, http.MethodPatch, member, obj{"role": "admin"}).problem(403, codeGrantExceeded)
	s.call(reader, http.MethodDelete, member, nil).ok(204)
	invite(s.key, "admin").ok(201)

	// An admin of the operator's tenant is an operator, and may do more than a key of it that is
	// not the operator's.
	s.call(s.operator, http.MethodPost, "/v1/members", obj{"email": "first@example.com", "role": "admin"}).ok(201)
	plain := s.call(s.operator, http.MethodPost, "/v1/keys", obj{"scopes": []string{"check", "read", "write", "manage"}}).ok(201).json()["secret"].(string)
	s.call(plain, http.MethodGet, "/v1/tenants", nil).problem(403, codeOperatorOnly)
	operator := s.call(s.operator, http.MethodPost, "/v1/members", obj{"email": "second@example.com", "role": "admin"}).ok(201).header.Get("Location")
	invite(plain, "owner").problem(403, codeOperatorOnly)
	invite(plain, "admin").problem(403, codeOperatorOnly)
	editor := invite(plain, "editor").ok(201).header.Get("Location")
	s.call(plain, http.MethodPatch, editor, obj{"role": "admin"}).problem(403, codeOperatorOnly)
	s.call(plain, http.MethodPatch, operator, obj{"role": "viewer"}).problem(403, codeOperatorOnly)
	s.call(plain, http.MethodDelete, operator, nil).problem(403, codeOperatorOnly)
	s.call(plain, http.MethodDelete, editor, nil).ok(204)
	s.call(s.operator, http.MethodDelete, operator, nil).ok(204)
}

// A link to a customer's page shows what a key with the scope read can read, and ends with the key
// that created it. So does a page that it has opened.
func TestKeysCannotGrowIntoLinks(t *testing.T) {
	s := newAdminStack(t)
	link := func(key string, life string) answer {
		return s.call(key, http.MethodPost, "/v1/subjects/ada/portal-links", obj{"expires_in": life})
	}
	link(s.newKey(tenants.NewAPIKey{Scopes: []tenants.Scope{tenants.ScopeWrite}}), "1h").problem(403, codeGrantExceeded)
	link(s.newKey(tenants.NewAPIKey{Scopes: []tenants.Scope{tenants.ScopeRead}}), "1h").problem(403, codeInsufficientScope)
	both := []tenants.Scope{tenants.ScopeRead, tenants.ScopeWrite}
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	brief := s.newKey(tenants.NewAPIKey{Scopes: both, ExpiresAt: &end})
	made := link(brief, "30d").ok(201).json()
	require.Equal(t, end.Format(time.RFC3339), made["expires_at"])
	address := made["url"].(string)
	session, secret, err := s.store.FollowPortalLink(t.Context(), address[strings.LastIndex(address, "/")+1:])
	require.NoError(t, err)
	visit, err := s.store.PortalVisit(t.Context(), session, secret, nil)
	require.NoError(t, err)
	require.Equal(t, end, visit.ExpiresAt.UTC())
	soon := link(brief, "10m").ok(201).json()
	require.Less(t, soon["expires_at"], made["expires_at"])
	for _, key := range []string{s.key, s.newKey(tenants.NewAPIKey{Scopes: both})} {
		at, err := time.Parse(time.RFC3339Nano, link(key, "30d").ok(201).json()["expires_at"].(string))
		require.NoError(t, err)
		require.Greater(t, time.Until(at), 29*24*time.Hour)
	}
}

// Events that are signed with the secret of a billing endpoint change plans, and notifications tell
// what happens. Both continue when the key that created the endpoint has expired.
func TestKeysCannotGrowIntoEndpoints(t *testing.T) {
	s := newAdminStack(t)
	end := time.Now().Add(time.Minute)
	manage := []tenants.Scope{tenants.ScopeManage}
	with := func(scope tenants.Scope) []tenants.Scope { return append(slices.Clone(manage), scope) }
	weak := map[string]string{
		"scope":     s.newKey(tenants.NewAPIKey{Scopes: manage}),
		"expiry":    s.newKey(tenants.NewAPIKey{Scopes: tenants.AllScopes, ExpiresAt: &end}),
		"addresses": s.newKey(tenants.NewAPIKey{Scopes: tenants.AllScopes, Bounds: tenants.KeyBounds{Addresses: []string{"127.0.0.1"}}}),
	}
	secret := strings.Repeat("0123456789abcdef", 2)
	billing := obj{"provider": "generic", "signing_secrets": []string{secret}}
	notify := obj{"url": "https://example.com/weir?token=secret-token"}
	biller, notifier := s.newKey(tenants.NewAPIKey{Scopes: with(tenants.ScopeWrite)}), s.newKey(tenants.NewAPIKey{Scopes: with(tenants.ScopeRead)})
	pays := s.call(biller, http.MethodPost, "/v1/billing/endpoints", billing).ok(201).header.Get("Location")
	tells := s.call(notifier, http.MethodPost, "/v1/notification-endpoints", notify).ok(201).header.Get("Location")
	for name, key := range weak {
		s.in(t).call(key, http.MethodPost, "/v1/billing/endpoints", billing).problem(403, codeGrantExceeded)
		s.call(key, http.MethodPatch, pays, obj{"signing_secrets": []string{secret}}).problem(403, codeGrantExceeded)
		s.call(key, http.MethodPatch, pays, obj{"name": "by " + name}).ok(200)
		s.call(key, http.MethodPost, "/v1/notification-endpoints", notify).problem(403, codeGrantExceeded)
		s.call(key, http.MethodPatch, tells, obj{"url": "https://elsewhere.example/"}).problem(403, codeGrantExceeded)
		s.call(key, http.MethodPatch, tells, obj{"types": []string{"security.event"}}).problem(403, codeGrantExceeded)
		s.call(key, http.MethodPost, tells+"/rotate", obj{}).problem(403, codeGrantExceeded)
		disabled := obj{"description": "by " + name, "enabled": false}
		for range 2 { // the second one changes nothing
			require.Contains(t, string(s.call(key, http.MethodPatch, tells, disabled).ok(200).body), `"url":"https://example.com/***"`)
		}
		s.call(key, http.MethodPatch, tells, obj{"enabled": true}).problem(403, codeGrantExceeded)
		if got := s.call(key, http.MethodGet, tells, nil); name != "scope" {
			require.Contains(t, string(got.ok(200).body), `"url":"https://example.com/***"`)
		}
		enabled := s.call(notifier, http.MethodPatch, tells, obj{"enabled": true}).ok(200)
		require.Contains(t, string(enabled.body), "secret-token", "who may set the address may see it")
		s.call(key, http.MethodPatch, tells, obj{"enabled": true}).ok(200) // it is
	}
	s.call(biller, http.MethodPatch, pays, obj{"signing_secrets": []string{secret}}).ok(200)
	s.call(notifier, http.MethodPost, tells+"/rotate", obj{}).ok(201)
}

func TestKeyRefusals(t *testing.T) {
	s := newAdminStack(t)
	for name, c := range map[string]struct {
		body obj
		at   []string
	}{
		"no scopes":       {obj{"name": "x"}, []string{"/scopes"}},
		"unknown scope":   {obj{"scopes": []string{"read", "admin"}}, []string{"/scopes/1"}},
		"scope twice":     {obj{"scopes": []string{"read", "read"}}, []string{"/scopes"}},
		"list of scopes":  {obj{"scopes": []any{"read", []any{}}}, []string{"/scopes/1"}},
		"object as scope": {obj{"scopes": []any{obj{}}}, []string{"/scopes/0"}},
		"in the past":     {obj{"scopes": []string{"read"}, "expires_at": "2020-01-01T00:00:00Z"}, []string{"/expires_at"}},
		"no time":         {obj{"scopes": []string{"read"}, "expires_at": "tomorrow"}, []string{"/expires_at"}},
		"no instant":      {obj{"scopes": []string{"read"}, "expires_at": "2999-01-01"}, []string{"/expires_at"}},
		"read-only":       {obj{"scopes": []string{"read"}, "secret": "weir_key_x", "id": "x", "created_at": "x", "last_used_at": nil, "last4": "x", "revoked_at": nil}, []string{"/created_at", "/id", "/last4", "/last_used_at", "/revoked_at", "/secret"}},
		"mass assignment": {obj{"scopes": []string{"read"}, "hash": "x", "role": "owner", "tier": "pro", "tenant_id": "x"}, []string{"/hash", "/role", "/tenant_id", "/tier"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.at, s.in(t).call(s.key, http.MethodPost, "/v1/keys", c.body).pointers(422, codeInvalidRequest))
		})
	}
	path := s.call(s.key, http.MethodPost, "/v1/keys", obj{"scopes": []string{"read"}}).ok(201).header.Get("Location")
	require.Equal(t, []string{"/scopes"}, s.call(s.key, http.MethodPatch, path, obj{"scopes": nil}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/kind"}, s.call(s.key, http.MethodPatch, path, obj{"kind": "op"}).pointers(422, codeInvalidRequest))
}
