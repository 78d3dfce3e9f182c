package dashboard

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Role changes and removals take effect immediately. Only owners can change owners, and one must
// remain.
func TestChangeMembers(t *testing.T) {
	s := newStack(t)
	s.staff()
	members, _, err := s.store.Members(t.Context(), s.a, tenants.Page{})
	require.NoError(t, err)
	path := map[string]string{}
	for _, m := range members {
		path[m.Email] = "/members/" + m.ID.String()
	}
	owner, admin, editor := s.as("owner@example.com"), s.as("admin@example.com"), s.as("editor@example.com")
	role := func(b *browser, email, role string) page {
		return b.write(path[email], url.Values{"do": {"role"}, "role": {role}})
	}
	viewer := s.as("viewer@example.com")
	require.Equal(t, http.StatusForbidden, role(editor, "viewer@example.com", "admin").status)
	require.Equal(t, http.StatusForbidden, role(admin, "viewer@example.com", "owner").status)
	require.Equal(t, http.StatusForbidden, role(admin, "owner@example.com", "viewer").status)
	require.Equal(t, http.StatusUnprocessableEntity, role(admin, "viewer@example.com", "king").status)
	viewer.signedIn(true, "nothing was changed")
	require.Equal(t, http.StatusSeeOther, role(admin, "viewer@example.com", "support").status)
	require.Contains(t, admin.get("/members").body, "Role of viewer@example.com changed to support")
	viewer.signedIn(false, "the role has changed")

	support := s.as("support@example.com")
	require.Equal(t, http.StatusForbidden, admin.write(path["owner@example.com"], url.Values{"do": {"remove"}}).status)
	require.Equal(t, http.StatusSeeOther, admin.write(path["support@example.com"], url.Values{"do": {"remove"}}).status)
	support.signedIn(false, "removed")
	require.Equal(t, http.StatusNotFound, admin.write(path["support@example.com"], url.Values{"do": {"remove"}}).status)

	require.Equal(t, http.StatusSeeOther, owner.write(path["ann@example.com"], url.Values{"do": {"remove"}}).status)
	got := owner.write(path["owner@example.com"], url.Values{"do": {"remove"}})
	require.Equal(t, http.StatusConflict, got.status, "the last owner")
	require.Contains(t, got.body, "owner")
	require.Equal(t, http.StatusBadRequest, owner.write(path["admin@example.com"], url.Values{"do": {"?"}}).status)
	require.Equal(t, http.StatusNotFound, owner.write("/members/"+uuid.NewString(), url.Values{"do": {"remove"}}).status)
	theirs := url.Values{"do": {"remove"}, "tenant": {s.b.TenantID().String()}}
	require.Equal(t, http.StatusNotFound, s.as("bob@example.com").post(path["admin@example.com"], theirs).status, "another tenant's member")
}
