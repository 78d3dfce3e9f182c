package api

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/throttle"
)

// A member from invitation to removal, and the changes that would lock out a tenant.
func TestMemberLife(t *testing.T) {
	s := newAdminStack(t)
	made := s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "Ann@Example.com", "role": "owner"}).ok(201)
	ann := made.json()
	require.Equal(t, "ann@example.com", ann["email"])
	require.Equal(t, "invited", ann["state"])
	path := made.header.Get("Location")
	require.Equal(t, "/v1/members/"+ann["id"].(string), path)
	require.Equal(t, made.body, s.call(s.key, http.MethodGet, path, nil).ok(200).body)

	s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "ANN@example.com", "role": "viewer"}).
		problem(http.StatusConflict, codeMemberExists)
	bob := s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "bob@example.com", "role": "owner"}).ok(201)
	patched := s.call(s.key, http.MethodPatch, path, obj{"role": "support"}, header{"If-Match", made.header.Get("ETag")}).ok(200)
	require.Equal(t, "support", patched.json()["role"])
	s.call(s.key, http.MethodPatch, path, obj{"role": "owner"}, header{"If-Match", made.header.Get("ETag")}).
		problem(http.StatusPreconditionFailed, codePreconditionFailed)
	same := s.call(s.key, http.MethodPatch, path, obj{}).ok(200)
	require.Equal(t, patched.body, same.body)

	// The same person may be a member of another tenant, with another id that is invalid here.
	elsewhere := s.call(s.other, http.MethodPost, "/v1/members", obj{"email": "ann@example.com", "role": "owner"}).ok(201)
	s.call(s.key, http.MethodGet, elsewhere.header.Get("Location"), nil).problem(http.StatusNotFound, codeNotFound)

	items := s.call(s.key, http.MethodGet, "/v1/members?limit=1", nil).ok(200).json()
	require.Equal(t, bob.json()["id"], items["items"].([]any)[0].(obj)["id"], "newest first")
	require.NotNil(t, items["next_cursor"])

	s.call(s.key, http.MethodDelete, path, nil).ok(204)
	s.call(s.key, http.MethodGet, path, nil).problem(http.StatusNotFound, codeNotFound)
	s.call(s.key, http.MethodGet, "/v1/members/"+strings.ToUpper(bob.json()["id"].(string)), nil).problem(http.StatusNotFound, codeNotFound)
	s.call(s.other, http.MethodGet, elsewhere.header.Get("Location"), nil).ok(200)
}

// A key is not an owner: once an owner has joined, a key cannot create an owner or remove one.
func TestKeysLeaveOwnersAlone(t *testing.T) {
	s := newAdminStack(t)
	mistyped := s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "olg@example.com", "role": "owner"}).ok(201)
	s.call(s.key, http.MethodDelete, mistyped.header.Get("Location"), nil).ok(204)
	owner, err := s.store.CreateMember(t.Context(), s.a, "olga@example.com", "correct horse", tenants.Owner)
	require.NoError(t, err)
	eve := s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "eve@example.com", "role": "admin"}).ok(201).header.Get("Location")
	for _, refused := range []answer{
		s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "mallory@example.com", "role": "owner"}),
		s.call(s.key, http.MethodPatch, eve, obj{"role": "owner"}),
		s.call(s.key, http.MethodPatch, "/v1/members/"+owner.ID.String(), obj{"role": "viewer"}),
		s.call(s.key, http.MethodDelete, "/v1/members/"+owner.ID.String(), nil),
	} {
		p := refused.problem(http.StatusForbidden, codeOwnersOnly)
		require.Contains(t, p.Detail, "only an owner can invite, change or remove owners", "what to do")
	}
}

// If an object never existed, the answer is 404 and not a failed condition.
func TestConditionsOnMissingObjects(t *testing.T) {
	s := newAdminStack(t)
	for path, body := range map[string]obj{
		"/v1/rules/new": {"limit": 1, "window": "1m"}, "/v1/plans/new": {}, "/v1/subjects/new": {},
	} {
		for _, match := range []string{"*", `"v1"`} {
			p := s.call(s.key, http.MethodPut, path, body, header{"If-Match", match}).problem(http.StatusPreconditionFailed, codePreconditionFailed)
			require.Equal(t, "The object does not exist. To create it, send the request without If-Match.", p.Detail)
			require.NotContains(t, p.Title, "has changed")
		}
	}
	made := s.call(s.key, http.MethodPut, "/v1/rules/new", obj{"limit": 1, "window": "1m"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/rules/new", obj{"limit": 2, "window": "1m"}).ok(200)
	p := s.call(s.key, http.MethodPut, "/v1/rules/new", obj{"limit": 3, "window": "1m"}, header{"If-Match", made.header.Get("ETag")}).
		problem(http.StatusPreconditionFailed, codePreconditionFailed)
	require.Contains(t, p.Detail, "has changed. Read it again")
}

// Addresses that would misdirect a mail, or that are slow to parse.
func TestMemberEmails(t *testing.T) {
	s := newAdminStack(t)
	for _, email := range []string{
		"", "ann", "@", "ann@", "@example.com", "a@b@c", "Ann <ann@example.com>", "ann@example.com\r\nBcc: bob@example.com",
		"ann\u0000@example.com", "ann @example.com", "ann@exam ple.com", strings.Repeat("a", 250) + "@b.cd",
		strings.Repeat("(", 200_000) + "@example.com",
	} {
		require.Equal(t, []string{"/email"}, s.call(s.key, http.MethodPost, "/v1/members", obj{"email": email, "role": "viewer"}).
			pointers(http.StatusUnprocessableEntity, codeInvalidRequest), "%.40q", email)
	}
	s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "a+b.c'd@sub.example.com", "role": "viewer"}).ok(201)
}

// An invited person gets exactly one mail, whatever happens to the request, and none if the
// invitation was not created.
func TestInvitationsAreSentOnce(t *testing.T) {
	s := newAdminStack(t)
	var told []tenants.Invitation
	s.invited = func(i tenants.Invitation) {
		_, err := s.store.InvitationByToken(context.WithoutCancel(t.Context()), i.Token)
		require.NoError(t, err, "it is there before the mail leaves")
		told = append(told, i)
	}
	s.url = s.serve(s.store)
	ann, once := obj{"email": "ann@example.com", "role": "viewer"}, header{"Idempotency-Key", "invite-ann"}
	first := s.call(s.key, http.MethodPost, "/v1/members", ann, once).ok(201)
	require.Len(t, told, 1)
	require.Equal(t, "ann@example.com", told[0].Email)
	require.NotContains(t, string(first.body), told[0].Token, "the link is for her alone")
	again := s.call(s.key, http.MethodPost, "/v1/members", ann, once).ok(201)
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	s.call(s.key, http.MethodPost, "/v1/members", ann).problem(http.StatusConflict, tenants.CodeMemberExists)
	s.call(s.key, http.MethodPost, "/v1/members", ann, header{"Idempotency-Key", "another"}).problem(http.StatusConflict, tenants.CodeMemberExists)
	require.Len(t, told, 1)
	s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "bob@example.com", "role": "viewer"}).ok(201)
	require.Len(t, told, 2)
}

// One API key cannot fill the queue of mails: too many invitations are refused, with the time to
// wait. The refusal is not what a repeat with the same Idempotency-Key gets after that time.
func TestInvitationsAreLimited(t *testing.T) {
	s := newAdminStack(t)
	now, sent := time.Now(), 0
	s.store.LimitInvitations(throttle.Memory(func() time.Time { return now }), check.NewKeys([16]byte{}).Private)
	s.invited = func(tenants.Invitation) { sent++ }
	s.url = s.serve(s.store)
	ann := obj{"email": "ann@example.com", "role": "viewer"}
	for range 10 {
		made := s.call(s.key, http.MethodPost, "/v1/members", ann).ok(201)
		s.call(s.key, http.MethodDelete, made.header.Get("Location"), nil).ok(204)
	}
	once := header{"Idempotency-Key", "invite-ann"}
	for _, headers := range [][]header{nil, {once}} {
		refused := s.call(s.key, http.MethodPost, "/v1/members", ann, headers...)
		p := refused.problem(http.StatusTooManyRequests, codeInvitationRateExceeded)
		require.Contains(t, p.Detail, "of this person")
		require.Equal(t, "86400", refused.header.Get("Retry-After"))
	}
	s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "bob@example.com", "role": "viewer"}).ok(201)
	require.Equal(t, 11, sent)
	now = now.Add(24 * time.Hour)
	s.call(s.key, http.MethodPost, "/v1/members", ann, once).ok(201)
	require.Equal(t, 12, sent)
}

// Without mail, only the inviting person can pass on the link: no page and no later answer has it.
func TestInvitationToHandOn(t *testing.T) {
	s := newAdminStack(t)
	s.unsentLink = func(i tenants.Invitation) string { return "https://weir.example.com/invitation/" + i.Token }
	s.url = s.serve(s.store)
	ann, once := obj{"email": "ann@example.com", "role": "owner"}, header{"Idempotency-Key", "invite-ann"}
	made := s.call(s.key, http.MethodPost, "/v1/members", ann, once).ok(201).json()
	token, found := strings.CutPrefix(made["link"].(string), "https://weir.example.com/invitation/")
	require.True(t, found)
	invitation, err := s.store.InvitationByToken(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, "ann@example.com", invitation.Email)

	again := s.call(s.key, http.MethodPost, "/v1/members", ann, once).ok(201)
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	require.Equal(t, made["id"], again.json()["id"])
	require.NotContains(t, again.json(), "link")
	require.NotContains(t, s.call(s.key, http.MethodGet, "/v1/members/"+made["id"].(string), nil).ok(200).json(), "link")
}
