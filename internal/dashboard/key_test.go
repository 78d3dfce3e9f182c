package dashboard

import (
	"net/http"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

var secretPattern = regexp.MustCompile(`<code id="secret">(weir_[a-zA-Z0-9_]+)</code>`)

// A key's secret is shown once, when it is created.
func TestKeyIsShownOnce(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	got := b.write("/keys", url.Values{"name": {"checkout"}, "check": {"on"}, "read": {"on"}, "expires_at": {"2099-01-01T00:00"}})
	require.Equal(t, http.StatusOK, got.status, got.body)
	checkHeaders(t, page{got.status, withoutNoTransform(got.header), got.body}, "/keys")
	require.Contains(t, got.header.Get("Cache-Control"), "no-transform")
	require.Empty(t, got.header.Get("Content-Encoding"))
	require.Empty(t, got.header.Values("Set-Cookie"), "no cookie contains the secret")
	found := secretPattern.FindStringSubmatch(got.body)
	require.NotNil(t, found)
	actor, err := tenants.NewAuthenticator(s.store).Authenticate(t.Context(), found[1])
	require.NoError(t, err)
	require.Equal(t, s.a.TenantID(), actor.TenantID())
	require.True(t, actor.Has(tenants.ScopeCheck) && actor.Has(tenants.ScopeRead))
	require.False(t, actor.Has(tenants.ScopeWrite))

	path := "/keys/" + actor.KeyID().String()
	for _, later := range []string{"/keys", path, "/", "/search?q=checkout"} {
		require.NotContains(t, b.get(later).body, found[1], later)
	}
	rows, _, err := s.store.Audit(t.Context(), s.a, tenants.AuditFilter{Kind: "key"}, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "ann@example.com", rows[0].ActorName)
	require.NotContains(t, string(rows[0].After), found[1])

	// rotated: the new key is shown, the old key works for another day
	got = b.write(path, url.Values{"do": {"rotate"}, "overlap": {"1d"}})
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Contains(t, got.body, "keeps working for 1 day")
	next := secretPattern.FindStringSubmatch(got.body)
	require.NotNil(t, next)
	require.NotEqual(t, found[1], next[1])
	old, err := s.store.KeyByID(t.Context(), s.a, actor.KeyID())
	require.NoError(t, err)
	require.WithinDuration(t, s.clock.Now().Add(24*time.Hour), *old.ExpiresAt, time.Minute)
	got = b.write(path, url.Values{"do": {"rotate"}, "overlap": {"1d"}})
	require.Equal(t, http.StatusConflict, got.status, "once")
	require.Contains(t, got.body, "rotated already")

	// revoked
	got = b.write(path, url.Values{"do": {"revoke"}})
	require.Equal(t, http.StatusSeeOther, got.status)
	require.Contains(t, b.get(path).body, "revoked")
}

func withoutNoTransform(h http.Header) http.Header {
	h = h.Clone()
	h.Set("Cache-Control", "no-store")
	return h
}

// A user without the right cannot manage keys, whatever they send. An invalid form is shown again.
func TestKeyActionsRefuse(t *testing.T) {
	s := newStack(t)
	s.staff()
	made, _, err := s.store.CreateKey(t.Context(), s.a, tenants.NewAPIKey{Name: "old name", Scopes: []tenants.Scope{tenants.ScopeCheck}})
	require.NoError(t, err)
	path := "/keys/" + made.ID.String()
	for _, role := range []string{"editor", "support", "viewer"} {
		b := s.as(role + "@example.com")
		require.Equal(t, http.StatusForbidden, b.write("/keys", url.Values{"name": {"x"}, "check": {"on"}}).status, role)
		require.Equal(t, http.StatusForbidden, b.write(path, url.Values{"do": {"revoke"}}).status, role)
		require.NotContains(t, b.get(path).body, "Revoke", role)
		require.NotContains(t, b.get("/keys").body, "Create API key", role)
	}
	admin := s.as("admin@example.com")
	got := admin.write("/keys", url.Values{"name": {"x"}})
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "Must name at least one of check, read, write, manage")
	got = admin.write("/keys", url.Values{"name": {"x"}, "check": {"on"}, "expires_at": {"2001-01-01T00:00"}})
	require.Contains(t, got.body, "Must be in the future")
	require.Equal(t, http.StatusUnprocessableEntity, admin.write(path, url.Values{"do": {"rotate"}, "overlap": {"x"}}).status)
	require.Equal(t, http.StatusBadRequest, admin.write(path, url.Values{"do": {"?"}}).status)
	got = admin.write(path, url.Values{"do": {"edit"}, "name": {"mine"}, "check": {"on"}, "version": {itoa(made.Version - 1)}})
	require.Equal(t, http.StatusPreconditionFailed, got.status)
	require.Contains(t, got.body, `value="mine"`)
	require.Equal(t, http.StatusSeeOther, admin.write(path, url.Values{"do": {"edit"}, "name": {"mine"}, "check": {"on"}, "version": {itoa(made.Version)}}).status)
	require.Contains(t, admin.get("/keys").body, ">mine<")

	other := s.as("bob@example.com")
	require.Equal(t, http.StatusNotFound, other.get(path).status, "another tenant's key")
	theirs := url.Values{"do": {"revoke"}, "tenant": {s.b.TenantID().String()}}
	require.Equal(t, http.StatusNotFound, other.post(path, theirs).status)
	require.Equal(t, http.StatusNotFound, admin.get("/keys/"+uuid.NewString()).status)
	require.Equal(t, http.StatusNotFound, admin.get("/keys/x").status)
}

// Only admins and owners can change the tenant's name.
func TestSettings(t *testing.T) {
	s := newStack(t)
	s.staff()
	admin := s.as("admin@example.com")
	require.Contains(t, s.as("viewer@example.com").get("/settings").body, "tenant-a")
	require.Equal(t, http.StatusForbidden, s.as("editor@example.com").write("/settings", url.Values{"name": {"New"}}).status)
	require.Equal(t, http.StatusSeeOther, admin.write("/settings", url.Values{"name": {"New & <b>bold</b>"}}).status)
	got := admin.get("/settings")
	require.Contains(t, got.body, "New &amp; &lt;b&gt;bold")
	checkHeaders(t, got, "/settings")
	require.Equal(t, http.StatusUnprocessableEntity, admin.write("/settings", url.Values{"name": {string(make([]byte, 300))}}).status)
	require.Equal(t, http.StatusPreconditionFailed, admin.write("/settings", url.Values{"name": {"x"}, "version": {"1"}}).status)
}

// A resource can contain spaces and commas, so each line is one. Networks cannot.
func TestKeyFormBounds(t *testing.T) {
	f := &form{values: url.Values{"resources": {" GET /orders \r\n\r\nsearch, all\n"}, "addresses": {"192.0.2.0/24, 2001:db8::/32\r\n10.0.0.1 10.0.0.2"}}}
	require.Equal(t, tenants.KeyBounds{
		Addresses: []string{"192.0.2.0/24", "2001:db8::/32", "10.0.0.1", "10.0.0.2"}, Resources: []string{"GET /orders", "search, all"},
	}, f.bounds())
	none := (&form{values: url.Values{}}).bounds()
	require.Empty(t, append(none.Addresses, none.Resources...))
}
