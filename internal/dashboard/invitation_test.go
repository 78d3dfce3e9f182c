package dashboard

import (
	"net/http"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/testenv"
)

// A browser that is signed in joins with its session. Otherwise one that was stolen could join a
// tenant of the thief, and count as one whose person has just entered the password.
func TestJoiningProvesNothing(t *testing.T) {
	s := newStack(t)
	s.serve(s.store, testenv.RedisURL(t), func(*Deps) {})
	tenant, _, _, err := s.store.CreateTenant(t.Context(), tenants.AsOperator("test"), tenants.NewTenant{Slug: "thief", Name: "Thief"})
	require.NoError(t, err)
	thief := tenants.AsSystem(tenant.ID, "test")
	_, err = s.store.CreateMember(t.Context(), thief, "eve@example.com", password, tenants.Owner)
	require.NoError(t, err)
	ann := s.as("ann@example.com")
	session := ann.token()
	s.clock.move(15 * time.Minute)
	got := s.as("eve@example.com").post("/members/invite", s.inTenant(thief, "email", "ann@example.com", "role", "viewer"))
	require.Equal(t, http.StatusOK, got.status, got.body)
	link := regexp.MustCompile(`href="(/invitation/[^"]{43})"`).FindStringSubmatch(got.body)
	require.NotNil(t, link, got.body)
	require.Equal(t, http.StatusSeeOther, ann.post(link[1], url.Values{}).status)
	require.Equal(t, session, ann.token())
	require.Contains(t, ann.get("/rules").body, "Thief", "it is the current tenant")
	require.Equal(t, http.StatusSeeOther, ann.post("/tenant", s.inTenant(s.a)).status)
	got = ann.write("/keys", url.Values{"name": {"checkout"}, "check": {"on"}})
	require.Equal(t, http.StatusForbidden, got.status)
	require.Contains(t, got.body, "Confirm your password")
}
