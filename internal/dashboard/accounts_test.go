package dashboard

import (
	"context"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/mail"
	"weir/internal/tenants"
	"weir/internal/testenv"
)

const publicURL = "https://weir.example"

// mailbox has the mails of a stack.
type mailbox struct {
	*mail.Box
	s    *stack
	post *mail.Post
}

// settle waits until all mails that answered requests cause are in the box: some are written after
// the answer, and all of them are sent later.
func (m *mailbox) settle() {
	m.s.t.Helper()
	m.s.pages.after.Wait()
	require.Eventually(m.s.t, func() bool { return m.post.Waiting() == 0 }, time.Minute, time.Millisecond)
}

// settled returns the mails, newest first, after settle. Without it, a mail of an earlier request
// could be taken for one of the last request.
func (m *mailbox) settled() []mail.Kept {
	m.s.t.Helper()
	m.settle()
	return m.Letters()
}

// mailing restarts the stack with mail, and returns the box of the mails.
func (s *stack) mailing(signup Signup) *mailbox {
	s.t.Helper()
	box := &mail.Box{}
	post, err := mail.NewPost(mail.Options{Box: box, PublicURL: publicURL, Logger: slog.New(slog.DiscardHandler), Now: s.clock.Now})
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var all sync.WaitGroup
	all.Go(func() { post.Run(ctx) })
	s.t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	s.serve(s.store, testenv.RedisURL(s.t), func(d *Deps) { d.Mail, d.Signup = post, signup })
	return &mailbox{box, s, post}
}

// newest returns the newest of n mails.
func newest(t *testing.T, box *mailbox, n int) mail.Kept {
	t.Helper()
	letters := box.settled()
	require.Len(t, letters, n)
	return letters[0]
}

// path returns the path of the link in a mail.
func path(t *testing.T, l mail.Kept) string {
	t.Helper()
	path, ours := strings.CutPrefix(l.Link.URL, publicURL)
	require.True(t, ours, "%s does not have the configured address", l.Link.URL)
	return path
}

// inTenant adds the tenant to a form.
func (s *stack) inTenant(a tenants.Actor, pairs ...string) url.Values {
	form := url.Values{"tenant": {a.TenantID().String()}}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return form
}

func TestForgottenPassword(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupClosed)
	ann := s.as("ann@example.com")
	b := s.browser()
	require.Contains(t, b.get("/login").body, `href="/forgot"`)
	checkHeaders(t, b.get("/forgot"), "/forgot")

	// The Host of a request must not become part of a link.
	r := b.request(http.MethodPost, "/forgot", url.Values{"email": {"Ann@example.com"}})
	r.Host = "evil.example"
	r.Header.Set("Origin", "https://evil.example")
	r.Header.Set("X-Forwarded-Host", "evil.example")
	known := b.send(r)
	require.Equal(t, http.StatusOK, known.status)
	unknown := b.post("/forgot", url.Values{"email": {"eve@example.com"}})
	require.Equal(t, strings.ReplaceAll(known.body, "Ann@example.com", "x"), strings.ReplaceAll(unknown.body, "eve@example.com", "x"), "it is not revealed who has a login")
	letter := newest(t, box, 1)
	require.Equal(t, "ann@example.com", letter.To)
	link := path(t, letter)

	for range 2 { // like robots that open links
		got := b.get(link)
		require.Equal(t, http.StatusOK, got.status)
		require.Contains(t, got.body, "ann@example.com")
		checkHeaders(t, got, "/reset/...")
	}
	got := b.post(link, url.Values{"password": {"password123"}})
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "most common passwords")
	require.NotContains(t, got.body, "password123")
	ann.signedIn(true, "nothing has changed yet")

	got = b.post(link, url.Values{"password": {"a better horse"}})
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	b.signedIn(true, "with the new password")
	require.Contains(t, newest(t, box, 2).Subject, "was changed", "she is notified, in case it was another person")
	ann.signedIn(false, "all sessions end")
	for _, path := range []string{link, "/reset/x", "/reset/" + strings.Repeat("A", 43)} {
		got = s.browser().post(path, url.Values{"password": {"another horse"}})
		require.Equal(t, http.StatusNotFound, got.status)
		require.Contains(t, got.body, "no longer valid")
		require.Equal(t, http.StatusNotFound, s.browser().get(path).status)
	}
	require.Equal(t, http.StatusUnauthorized, s.browser().login("ann@example.com", password).status)
	require.Equal(t, http.StatusSeeOther, s.browser().login("ann@example.com", "a better horse").status)
}

// A mailbox cannot be filled, and no answer reveals whether an account exists or was mailed to.
func TestAskingForMailIsLimited(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupOpen)
	asked := map[string]string{}
	for _, email := range []string{"ann@example.com", "nobody@example.com"} {
		for n := range 9 {
			got := s.browser().post("/forgot", url.Values{"email": {email}})
			require.Equal(t, http.StatusOK, got.status)
			body := strings.ReplaceAll(got.body, email, "x")
			require.Equal(t, body, orElseText(asked["forgot"], body), "request %d", n)
			asked["forgot"] = body
		}
	}
	newest(t, box, 1)
	for range 2 {
		require.Equal(t, http.StatusOK, s.browser().post("/signup", url.Values{"email": {"ann@example.com"}}).status)
	}
	newest(t, box, 2)
	got := s.browser().post("/forgot", url.Values{"email": {"ann@example.com"}})
	require.Equal(t, http.StatusTooManyRequests, got.status, "20 requests an hour from one address")
	require.Equal(t, got.body, strings.ReplaceAll(s.browser().post("/forgot", url.Values{"email": {"nobody@example.com"}}).body, "nobody@", "ann@"))
	require.Equal(t, http.StatusTooManyRequests, s.browser().post("/signup", url.Values{"email": {"eve@example.com"}}).status)
	elsewhere := s.browser().at("127.0.0.2")
	require.Equal(t, http.StatusOK, elsewhere.post("/forgot", url.Values{"email": {"ann@example.com"}}).status)
	newest(t, box, 2)
	s.clock.move(tenants.PasswordLinkLife)
	require.Equal(t, http.StatusOK, elsewhere.post("/forgot", url.Values{"email": {"ann@example.com"}}).status)
	newest(t, box, 3)
}

func orElseText(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

func TestAccount(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupClosed)
	b, other := s.as("ann@example.com"), s.as("ann@example.com")
	got := b.get("/account")
	require.Equal(t, http.StatusOK, got.status)
	checkHeaders(t, got, "/account")
	require.Contains(t, got.body, "tenant-a")
	require.Equal(t, http.StatusSeeOther, s.browser().get("/account").status)
	require.Equal(t, http.StatusSeeOther, s.browser().post("/account/password", url.Values{}).status)

	change := func(current, next string) page {
		return b.post("/account/password", url.Values{"current": {current}, "password": {next}})
	}
	got = change("wrong horse", "a better horse")
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "not your current password")
	got = change(password, "short")
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "at least 10 characters")
	require.NotContains(t, got.body, password)
	other.signedIn(true, "nothing has changed yet")

	before := b.token()
	got = change(password, "a better horse")
	require.Equal(t, http.StatusSeeOther, got.status)
	require.Contains(t, b.get("/account").body, "Password changed")
	require.NotEqual(t, before, b.token(), "a new session")
	other.signedIn(false, "all others end")
	newest(t, box, 1)

	for range 10 {
		change("wrong horse", "a better horse")
	}
	got = change("a better horse", "an even better horse")
	require.Equal(t, http.StatusTooManyRequests, got.status, "a person at her open browser cannot guess without limit")

	// A person without a tenant has an account, too.
	require.NoError(t, s.store.DeleteTenant(t.Context(), tenants.AsOperator("test"), "tenant-b", tenants.Match{}))
	require.Equal(t, http.StatusOK, s.as("bob@example.com").get("/account").status)
}

// The email of a login changes with the password and a link to the new address. The old address
// gets a notice.
func TestChangeEmail(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupClosed)
	b := s.as("ann@example.com")
	require.Equal(t, http.StatusSeeOther, s.browser().post("/account/email", url.Values{}).status, "signed in only")
	change := func(email, current string) page {
		return b.post("/account/email", url.Values{"email": {email}, "current": {current}})
	}
	got := change("ann@new.example", "wrong horse")
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "not your current password")
	got = change("nonsense", password)
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "Must be an address such as name@example.com")
	require.NotContains(t, got.body, password)
	require.Equal(t, http.StatusSeeOther, change("ann@new.example", password).status)
	newest(t, box, 2)
	to := map[string]mail.Kept{}
	for _, l := range box.settled() {
		to[l.To] = l
	}
	require.Contains(t, to["ann@example.com"].Subject, "was requested")
	link := path(t, to["ann@new.example"])
	for range 2 { // like robots that open links
		got = s.browser().get(link)
		require.Equal(t, http.StatusOK, got.status)
		checkHeaders(t, got, "/email/...")
	}
	require.Contains(t, b.get("/account").body, "You sign in with ann@example.com")
	require.Equal(t, http.StatusSeeOther, s.browser().post(link, url.Values{}).status)
	require.Contains(t, b.get("/account").body, "You sign in with ann@new.example", "the session continues")
	notice := newest(t, box, 3)
	require.Equal(t, "ann@example.com", notice.To)
	require.Contains(t, notice.Subject, "was changed")
	require.Equal(t, http.StatusUnauthorized, s.browser().login("ann@example.com", password).status)
	require.Equal(t, http.StatusSeeOther, s.browser().login("ann@new.example", password).status)
	for _, path := range []string{link, "/email/x"} {
		require.Equal(t, http.StatusNotFound, s.browser().get(path).status)
		require.Equal(t, http.StatusNotFound, s.browser().post(path, url.Values{}).status)
	}

	// Only the reader of the mailbox learns that an address is taken.
	require.Equal(t, http.StatusSeeOther, change("bob@example.com", password).status)
	newest(t, box, 5)
	for _, l := range box.settled()[:2] {
		if l.To == "bob@example.com" {
			got = s.browser().post(path(t, l), url.Values{})
		}
	}
	require.Equal(t, http.StatusConflict, got.status)
	require.Contains(t, got.body, "Another login or invitation has this address")

	for range 3 { // a mailbox cannot be filled
		got = change("victim@example.com", password)
	}
	require.Equal(t, http.StatusSeeOther, got.status)
	require.Equal(t, http.StatusTooManyRequests, change("victim@example.com", password).status)
}

// A person cannot have mails sent to any number of addresses, from however many addresses they ask.
func TestNewEmailsOfAPersonAreLimited(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupClosed)
	b := s.as("ann@example.com")
	change := func(n int) page {
		return b.at("127.0.1."+itoa(int64(n))).post("/account/email", url.Values{"email": {"victim" + itoa(int64(n)) + "@example.com"}, "current": {password}})
	}
	for n := range 10 {
		require.Equal(t, http.StatusSeeOther, change(n).status)
	}
	got := change(10)
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.NotEmpty(t, got.header.Get("Retry-After"))
	require.Len(t, box.settled(), 20, "a link and a notice each")
}

// A member leaves a tenant on the account page. The last owner cannot.
func TestLeaveTenant(t *testing.T) {
	s := newStack(t)
	ann := s.as("ann@example.com")
	leave := func(tenant string) page {
		return ann.write("/account/leave", url.Values{"do": {"leave"}, "leave": {tenant}})
	}
	got := leave(s.a.TenantID().String())
	require.Equal(t, http.StatusConflict, got.status)
	require.Contains(t, got.body, "This is the last owner of the tenant")
	require.Equal(t, http.StatusNotFound, leave(s.b.TenantID().String()).status, "another tenant")
	require.Equal(t, http.StatusNotFound, leave("nonsense").status)
	_, err := s.store.CreateMember(t.Context(), s.a, "second@example.com", password, tenants.Owner)
	require.NoError(t, err)
	require.Equal(t, http.StatusSeeOther, leave(s.a.TenantID().String()).status)
	got = ann.get("/account")
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, "You left ")
	require.Contains(t, got.body, "You belong to no active tenant")
}

func TestInvite(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupClosed)
	ann := s.as("ann@example.com")
	got := ann.post("/members/invite", s.inTenant(s.a, "email", "nonsense", "role", "root"))
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "name@example.com")
	require.Contains(t, got.body, "Must be one of owner")
	got = ann.post("/members/invite", s.inTenant(s.b, "email", "zoe@example.com", "role", "viewer"))
	require.Equal(t, http.StatusConflict, got.status, "the form is for another tenant")

	got = ann.post("/members/invite", s.inTenant(s.a, "email", "Zoe@example.com", "role", "editor"))
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	letter := newest(t, box, 1)
	require.Equal(t, "zoe@example.com", letter.To)
	require.Contains(t, letter.Before[0], "ann@example.com has invited you to work in tenant-a")
	require.Eventually(t, func() bool { return strings.Contains(ann.get("/members").body, "mail sent") }, time.Minute, 10*time.Millisecond)
	require.NotContains(t, ann.get("/members").body, path(t, letter), "only her mailbox has the link")
	got = ann.post("/members/invite", s.inTenant(s.a, "email", "zoe@example.com", "role", "editor"))
	require.Equal(t, http.StatusConflict, got.status)
	require.Contains(t, got.body, "member already")

	zoe := s.browser()
	got = zoe.get(path(t, letter))
	require.Equal(t, http.StatusOK, got.status)
	checkHeaders(t, got, "/invitation/...")
	require.Contains(t, got.body, "an editor")
	got = zoe.post(path(t, letter), url.Values{"password": {"short"}})
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	got = zoe.post(path(t, letter), url.Values{"password": {"zoe's own horse"}})
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	require.Contains(t, zoe.get("/rules").body, "zoe@example.com</b><span>editor")
	require.Equal(t, http.StatusNotFound, s.browser().get(path(t, letter)).status, "it is single-use")
}

// The limits of invitations are those of the API: what a key has sent counts, too.
func TestTooManyInvitations(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupClosed)
	ann := s.as("ann@example.com")
	for range 9 {
		m, err := s.store.InviteMember(t.Context(), s.a, "zoe@example.com", tenants.Viewer)
		require.NoError(t, err)
		require.NoError(t, s.store.RemoveMember(t.Context(), s.a, m.ID, tenants.Match{}))
	}
	require.Equal(t, http.StatusSeeOther, ann.post("/members/invite", s.inTenant(s.a, "email", "zoe@example.com", "role", "viewer")).status)
	id := regexp.MustCompile(`/members/([0-9a-f-]{36})/resend`).FindStringSubmatch(ann.get("/members").body)[1]
	got := ann.post("/members/"+id+"/resend", s.inTenant(s.a))
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Equal(t, "86400", got.header.Get("Retry-After"))
	require.Contains(t, got.body, "Too many invitations of this tenant, from your address, or of this person")
	require.Len(t, box.settled(), 1)
}

// An invitation is for one person, whatever person is signed in.
func TestInvitationOfSomebodyKnown(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupClosed)
	ann := s.as("ann@example.com")
	s.member(s.b, "carl@example.com", tenants.Viewer)
	require.Equal(t, http.StatusSeeOther, ann.post("/members/invite", s.inTenant(s.a, "email", "bob@example.com", "role", "viewer")).status)
	link := path(t, newest(t, box, 1))

	carl := s.as("carl@example.com")
	require.Contains(t, carl.get(link).body, "signed in as carl@example.com")
	got := carl.post(link, url.Values{"password": {"carl's own guess"}})
	require.Equal(t, http.StatusUnprocessableEntity, got.status, "another person's session is refused")
	require.Contains(t, carl.get("/rules").body, "carl@example.com")

	nobody := s.browser()
	require.Contains(t, nobody.get(link).body, "Sign in and join")
	for range 9 {
		require.Equal(t, http.StatusUnprocessableEntity, nobody.post(link, url.Values{"password": {"guess"}}).status)
	}
	require.Equal(t, http.StatusTooManyRequests, nobody.post(link, url.Values{"password": {password}}).status, "the limits of the sign-in apply")

	bob := s.browser()
	s.clock.move(15 * time.Minute)
	require.Equal(t, http.StatusSeeOther, bob.login("bob@example.com", password).status)
	got = bob.get(link)
	require.NotContains(t, got.body, `type="password"`)
	require.Equal(t, http.StatusSeeOther, bob.post(link, url.Values{}).status)
	require.Contains(t, bob.get("/rules").body, "bob@example.com</b><span>viewer", "in the tenant that he joined")
	require.Equal(t, http.StatusNotFound, bob.post(link, url.Values{}).status)
}

func TestResendAndWithdraw(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupClosed)
	ann := s.as("ann@example.com")
	invite := func(email, role string) string {
		t.Helper()
		before := len(box.settled())
		require.Equal(t, http.StatusSeeOther, ann.post("/members/invite", s.inTenant(s.a, "email", email, "role", role)).status)
		return path(t, newest(t, box, before+1))
	}
	first := invite("zoe@example.com", "viewer")
	id := regexp.MustCompile(`/members/([0-9a-f-]{36})/resend`).FindStringSubmatch(ann.get("/members").body)[1]
	bob := s.as("bob@example.com")
	for _, action := range []string{"resend", "withdraw"} {
		require.Equal(t, http.StatusNotFound, bob.post("/members/"+id+"/"+action, s.inTenant(s.b)).status, "another tenant's")
		require.Equal(t, http.StatusNotFound, ann.post("/members/nonsense/"+action, s.inTenant(s.a)).status)
	}
	require.Equal(t, http.StatusSeeOther, ann.post("/members/"+id+"/resend", s.inTenant(s.a)).status)
	second := path(t, newest(t, box, 2))
	require.Equal(t, http.StatusNotFound, s.browser().get(first).status, "replaced")
	require.Equal(t, http.StatusOK, s.browser().get(second).status)
	require.Equal(t, http.StatusSeeOther, ann.post("/members/"+id+"/withdraw", s.inTenant(s.a)).status)
	require.Equal(t, http.StatusNotFound, s.browser().get(second).status, "withdrawn")
	require.NotContains(t, ann.get("/members").body[strings.Index(ann.get("/members").body, "<table"):], "zoe@example.com")

	// A person who has joined is not removed by a page that was opened before.
	third := invite("yan@example.com", "viewer")
	id = regexp.MustCompile(`/members/([0-9a-f-]{36})/resend`).FindStringSubmatch(ann.get("/members").body)[1]
	require.Equal(t, http.StatusSeeOther, s.browser().post(third, url.Values{"password": {"yan's own horse"}}).status)
	for _, action := range []string{"resend", "withdraw"} {
		got := ann.post("/members/"+id+"/"+action, s.inTenant(s.a))
		require.Equal(t, http.StatusConflict, got.status)
		require.Contains(t, got.body, "joined already")
	}

	// Each role is enforced in the handler, not only by a hidden button.
	owners := invite("owner2@example.com", "owner")
	require.NotEmpty(t, owners)
	id = regexp.MustCompile(`/members/([0-9a-f-]{36})/resend`).FindStringSubmatch(ann.get("/members").body)[1]
	for _, role := range []tenants.Role{tenants.Admin, tenants.Editor, tenants.Support, tenants.Viewer} {
		s.member(s.a, string(role)+"@example.com", role)
		b := s.as(string(role) + "@example.com")
		require.Equal(t, http.StatusForbidden, b.post("/members/invite", s.inTenant(s.a, "email", "x@example.com", "role", "owner")).status, role)
		require.Equal(t, http.StatusForbidden, b.post("/members/"+id+"/resend", s.inTenant(s.a)).status, role)
		require.Equal(t, http.StatusForbidden, b.post("/members/"+id+"/withdraw", s.inTenant(s.a)).status, role)
		body := b.get("/members").body
		require.Equal(t, role == tenants.Admin, strings.Contains(body, "Invite member"), role)
		require.NotContains(t, body, `value="owner"`, role)
		require.NotContains(t, body, "/resend", "only owners can resend an owner's invitation")
		if role != tenants.Admin {
			require.Equal(t, http.StatusForbidden, b.post("/members/invite", s.inTenant(s.a, "email", "x@example.com", "role", "viewer")).status, role)
		}
	}
}

// Without mail, the link is shown once to the inviting person; nothing else needs mail.
func TestWithoutMail(t *testing.T) {
	s := newStack(t)
	s.serve(s.store, testenv.RedisURL(t), func(d *Deps) { d.Signup = SignupOpen })
	ann := s.as("ann@example.com")
	got := ann.post("/members/invite", s.inTenant(s.a, "email", "zoe@example.com", "role", "viewer"))
	require.Equal(t, http.StatusOK, got.status)
	link := regexp.MustCompile(`href="(/invitation/[^"]{43})"`).FindStringSubmatch(got.body)
	require.NotNil(t, link, got.body)
	require.NotContains(t, ann.get("/members").body, link[1])
	require.Equal(t, http.StatusSeeOther, s.browser().post(link[1], url.Values{"password": {"zoe's own horse"}}).status)

	require.Contains(t, s.browser().get("/forgot").body, "does not send email")
	require.Equal(t, http.StatusNotFound, s.browser().post("/forgot", url.Values{"email": {"ann@example.com"}}).status)
	require.Equal(t, http.StatusNotFound, s.browser().get("/dev/mail").status)

	b := s.browser()
	got = b.post("/signup", url.Values{"email": {"ann@example.com"}, "tenant": {"Mine"}, "password": {"taken over!"}})
	require.Equal(t, http.StatusConflict, got.status)
	got = b.post("/signup", url.Values{"email": {"new@example.com"}, "tenant": {"New & Co"}, "password": {"a new horse"}})
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	require.Contains(t, html.UnescapeString(b.get("/rules").body), "New & Co")
}

func TestSignUp(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupOpen)
	b := s.browser()
	require.Contains(t, b.get("/login").body, `href="/signup"`)
	checkHeaders(t, b.get("/signup"), "/signup")
	require.Equal(t, http.StatusUnprocessableEntity, b.post("/signup", url.Values{"email": {"nonsense"}}).status)
	require.Equal(t, http.StatusUnprocessableEntity, b.post("/signup", url.Values{"email": {"a@example.com\r\nBcc: x@example.com"}}).status)
	unknown := b.post("/signup", url.Values{"email": {"new@example.com"}})
	require.Equal(t, http.StatusOK, unknown.status)
	letter := newest(t, box, 1)
	known := b.post("/signup", url.Values{"email": {"ann@example.com"}})
	require.Equal(t, strings.ReplaceAll(unknown.body, "new@", "ann@"), known.body, "it is not revealed who has a login")
	require.Equal(t, "/login", path(t, newest(t, box, 2)))

	require.Equal(t, http.StatusUnauthorized, s.browser().login("new@example.com", "").status, "nothing is created before the link is used")
	link := path(t, letter)
	require.Contains(t, b.get(link).body, "new@example.com")
	got := b.post(link, url.Values{"tenant": {" "}, "password": {"new@example.com"}})
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "Must not be empty")
	require.Contains(t, got.body, "Must not be the email address")
	const name = `<b>"New" & Co</b>`
	got = b.post(link, url.Values{"tenant": {name}, "password": {"a new horse"}})
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	got = b.get("/members")
	require.Contains(t, got.body, "new@example.com</b><span>owner")
	require.NotContains(t, got.body, name)
	require.Equal(t, http.StatusNotFound, b.post(link, url.Values{"tenant": {"More"}, "password": {"a new horse"}}).status)
	require.Equal(t, http.StatusNotFound, b.get("/rules/requests").status)
}

func TestWhoMaySignUp(t *testing.T) {
	s := newStack(t)
	token, err := s.store.NewSignupLink(t.Context(), "new@example.com", tenants.SignupGiftLife)
	require.NoError(t, err)
	form := url.Values{"email": {"new@example.com"}, "tenant": {"New"}, "password": {"a new horse"}}
	s.mailing(SignupClosed)
	require.NotContains(t, s.browser().get("/login").body, "/signup")
	for _, path := range []string{"/signup", "/signup/" + token} {
		require.Equal(t, http.StatusNotFound, s.browser().get(path).status)
		require.Equal(t, http.StatusNotFound, s.browser().post(path, form).status)
	}
	s.mailing(SignupInvite)
	require.Contains(t, s.browser().get("/signup").body, "by invitation")
	require.Equal(t, http.StatusNotFound, s.browser().post("/signup", form).status)
	require.Equal(t, http.StatusSeeOther, s.browser().post("/signup/"+token, form).status)
}

func TestDevMail(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupOpen)
	b := s.browser()
	require.Contains(t, b.get("/dev/mail").body, "No messages yet")
	require.Contains(t, b.post("/forgot", url.Values{"email": {"ann@example.com"}}).body, `href="/dev/mail"`)
	letter := newest(t, box, 1)
	got := b.get("/dev/mail")
	require.Contains(t, got.body, letter.Link.URL)
	require.Contains(t, got.body, letter.Subject)

	// Links to sign in are only for a person at this machine.
	for name, change := range map[string]func(r *http.Request){
		"from elsewhere":         func(r *http.Request) { r.RemoteAddr = "192.0.2.7:4711" },
		"by another site's name": func(r *http.Request) { r.Host = "rebound.example" },
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/dev/mail", nil)
		r.RemoteAddr = "127.0.0.1:4711"
		change(r)
		w := httptest.NewRecorder()
		s.server.Config.Handler.ServeHTTP(w, r)
		require.Equal(t, http.StatusNotFound, w.Code, name)
	}
}

// While Postgres is unavailable, pages say so, and report nothing as done.
func TestAccountsWithoutPostgres(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupOpen)
	post, err := mail.NewPost(mail.Options{Box: box.Box, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	away := s.db.Open(tenants.Config{DatabaseURL: "postgres://nobody@127.0.0.1:1/none"})
	s.serve(away, testenv.RedisURL(t), func(d *Deps) { d.Mail, d.Signup = post, SignupOpen })
	token := strings.Repeat("A", 43)
	form := url.Values{"email": {"ann@example.com"}, "password": {"a better horse"}, "tenant": {"New"}}
	for _, path := range []string{"/forgot", "/signup", "/reset/" + token, "/invitation/" + token, "/signup/" + token} {
		got := s.browser().post(path, form)
		require.Equal(t, http.StatusServiceUnavailable, got.status, path)
		require.NotEmpty(t, got.header.Get("Retry-After"))
	}
	s.pages.after.Wait()
	require.Zero(t, post.Waiting())
	require.Empty(t, box.settled())
}

// Requests from another site's page are refused.
func TestCrossSiteAccounts(t *testing.T) {
	s := newStack(t)
	s.mailing(SignupOpen)
	ann := s.as("ann@example.com")
	token := strings.Repeat("A", 43)
	for _, path := range []string{"/forgot", "/signup", "/signup/" + token, "/reset/" + token, "/invitation/" + token, "/account/password", "/members/invite"} {
		r := ann.request(http.MethodPost, path, s.inTenant(s.a, "email", "x@example.com", "role", "viewer"))
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Origin", "https://evil.example")
		require.Equal(t, http.StatusForbidden, ann.send(r).status, path)
	}
}

// Each new password is a mail, so a person cannot change it without an end.
func TestNewPasswordsAreLimited(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupClosed)
	b := s.as("ann@example.com")
	change := func(current, next string) page {
		return b.post("/account/password", url.Values{"current": {current}, "password": {next}})
	}
	words := []string{password, "another good horse"}
	require.Equal(t, http.StatusUnprocessableEntity, change(password, "short").status, "it does not count")
	for n := range 20 {
		require.Equal(t, http.StatusSeeOther, change(words[n%2], words[(n+1)%2]).status)
	}
	got := change(password, words[1])
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.NotEmpty(t, got.header.Get("Retry-After"))
	require.Len(t, box.settled(), 20)
}
