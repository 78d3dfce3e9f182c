package dashboard

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/testenv"
)

// Forms count as writes like requests of the admin API.
func TestWriteRate(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.serve(s.db.Open(tenants.Config{Now: s.clock.Now, WriteRates: tenants.WriteRates{Writes: 2, Resets: 1}}), testenv.RedisURL(t))
	b := s.as("ann@example.com")
	reset := url.Values{"do": {"reset"}, "rule": {"*"}, "reason": {"they wrote in"}}
	block := url.Values{"do": {"state"}, "state": {"blocked"}, "reason": {"abuse"}}
	for range 10 {
		require.Equal(t, http.StatusSeeOther, b.write("/subjects/user_7", reset).status)
	}
	got := b.write("/subjects/user_7", reset)
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Equal(t, "1", got.header.Get("Retry-After"))
	require.Contains(t, got.body, "Too many changes")
	for range 10 {
		require.Equal(t, http.StatusSeeOther, b.write("/subjects/user_7", block).status)
	}
	require.Equal(t, http.StatusTooManyRequests, b.write("/subjects/user_7", block).status)
	key, _, err := s.store.CreateKey(t.Context(), s.a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	link, _, err := s.store.CreatePortalLink(t.Context(), s.a, tenants.NewPortalLink{Subject: "user_7"})
	require.NoError(t, err)
	joined := s.member(s.a, "eve@example.com", tenants.Editor)
	invited, err := s.store.InviteMember(t.Context(), s.a, "mallory@example.com", tenants.Editor)
	require.NoError(t, err)
	for path, form := range map[string]url.Values{
		"/keys/" + key.ID.String():                      {"do": {"revoke"}},
		"/members/" + joined.ID.String():                {"do": {"remove"}},
		"/members/" + invited.ID.String() + "/withdraw": {},
		"/subjects/user_7":                              {"do": {"revoke-link"}, "link": {link.ID.String()}},
	} {
		require.Equal(t, http.StatusSeeOther, b.write(path, form).status, "%s ends access", path)
	}
	require.Equal(t, http.StatusTooManyRequests, b.write("/subjects/user_7", block).status)
	require.Equal(t, http.StatusOK, b.get("/subjects/user_7").status)
	require.Equal(t, http.StatusOK, s.as("bob@example.com").post("/keys", s.inTenant(s.b, "name", "k", "check", "on")).status)
	s.clock.move(time.Second)
	require.Equal(t, http.StatusSeeOther, b.write("/subjects/user_7", block).status)
}
