package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

func TestLogin(t *testing.T) {
	s := newStack(t)
	b := s.browser()
	got := b.get("/rules?after=")
	require.Equal(t, http.StatusSeeOther, got.status)
	require.Equal(t, "/login?next=%2Frules%3Fafter%3D", got.header.Get("Location"), "back to the requested page")
	require.Contains(t, b.get(got.header.Get("Location")).body, `value="/rules?after="`)

	wrong := b.login("ann@example.com", "wrong horse")
	unknown := b.login("nobody@example.com", "wrong horse")
	require.Equal(t, http.StatusUnauthorized, wrong.status)
	require.Equal(t, wrong.status, unknown.status)
	require.Equal(t, strings.ReplaceAll(wrong.body, "ann@", "nobody@"), unknown.body, "it is not revealed who has a login")
	require.NotContains(t, wrong.body, "wrong horse")
	require.Empty(t, b.token())

	_, err := s.store.InviteMember(t.Context(), s.a, "invited@example.com", tenants.Viewer)
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, b.login("invited@example.com", "").status, "an invitation is not a password")

	got = b.post("/login", url.Values{"email": {"Ann@Example.com"}, "password": {password}, "next": {"/rules"}})
	require.Equal(t, http.StatusSeeOther, got.status)
	require.Equal(t, "/rules", got.header.Get("Location"))
	cookie, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
	require.NoError(t, err)
	require.Equal(t, "__Host-weir", cookie.Name)
	require.True(t, cookie.Secure && cookie.HttpOnly && cookie.Path == "/" && cookie.Domain == "")
	require.Equal(t, http.SameSiteLaxMode, cookie.SameSite)
	require.Len(t, cookie.Value, 43, "256 bits")
	b.signedIn(true, "after the login")
	require.Equal(t, http.StatusSeeOther, b.get("/login").status, "a signed-in person need not sign in")
}

// A long password is not hashed, and a form is not read without limit.
func TestLoginBounds(t *testing.T) {
	s := newStack(t)
	b := s.browser()
	require.Equal(t, http.StatusBadRequest, b.login("ann@example.com", strings.Repeat("x", 5000)).status)
	require.Equal(t, http.StatusUnauthorized, b.login("ann@example.com", strings.Repeat("x", 1500)).status)
	require.Equal(t, http.StatusUnauthorized, b.login("ann@example.com\r\nBcc: x", "x").status)
}

// Guessing is stopped early, and the owner can sign in after the wait.
func TestLoginLimit(t *testing.T) {
	s := newStack(t)
	b := s.browser()
	for range 9 {
		require.Equal(t, http.StatusUnauthorized, b.login("ann@example.com", "guess").status)
	}
	require.Equal(t, http.StatusSeeOther, b.login("ann@example.com", password).status, "the tenth attempt is allowed")
	other := s.browser()
	for range 10 {
		require.Equal(t, http.StatusUnauthorized, other.login("ann@example.com", "guess").status, "a success resets the failures before it")
	}
	got := other.login("ANN@example.com", password)
	require.Equal(t, http.StatusTooManyRequests, got.status, "with the right password, too")
	require.Equal(t, "900", got.header.Get("Retry-After"))
	require.Contains(t, got.body, "15 minutes")
	require.Equal(t, http.StatusSeeOther, other.login("bob@example.com", password).status, "another person at this address")
	require.Equal(t, http.StatusTooManyRequests, other.login("ann@example.com", password).status)
	s.clock.move(15 * time.Minute)
	require.Equal(t, http.StatusSeeOther, other.login("ann@example.com", password).status)
}

// Concurrent guesses are limited like sequential ones.
func TestLoginLimitAtOnce(t *testing.T) {
	now := &clock{now: time.Now()}
	a := newAttempts(now.Now)
	var running []*attempt
	for range 10 {
		try, _ := a.begin("ann@example.com", "192.0.2.1")
		require.NotNil(t, try)
		running = append(running, try)
	}
	try, wait := a.begin("ann@example.com", "192.0.2.1")
	require.Nil(t, try)
	require.Equal(t, time.Second, wait, "an attempt may be possible as soon as one of them ends")
	running[0].undecided()
	try, _ = a.begin("ann@example.com", "192.0.2.1")
	require.NotNil(t, try)
	running[0] = try
	var all sync.WaitGroup
	for _, try := range running {
		all.Go(try.failed)
	}
	all.Wait()
	require.Empty(t, a.trying)
	try, wait = a.begin("ann@example.com", "192.0.2.1")
	require.Nil(t, try)
	require.Equal(t, 15*time.Minute, wait)
	try, _ = a.begin("ann@example.com", "192.0.2.2")
	require.NotNil(t, try, "her own address has its own limit")
	try.undecided()
}

// One address cannot try many accounts, nor many addresses one account.
func TestLoginLimitsOfAddressAndAccount(t *testing.T) {
	now := &clock{now: time.Now()}
	a := newAttempts(now.Now)
	fail := func(email, address string) bool {
		try, _ := a.begin(email, address)
		if try != nil {
			try.failed()
		}
		return try != nil
	}
	for i := range 50 {
		require.True(t, fail(itoa(int64(i)), "address"))
	}
	require.False(t, fail("one more", "address"))
	for i := range 100 {
		require.True(t, fail("account", "from "+itoa(int64(i))))
	}
	require.False(t, fail("account", "one more"))
	now.move(15 * time.Minute)
	require.True(t, fail("account", "her own"), "slower, not locked out")
	require.False(t, fail("account", "one more"))
}

func TestAddressOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64", "[fe80::1%eth0]:80": "fe80::/64",
	} {
		require.Equal(t, want, addressOf(remote))
	}
}

// A link to the sign-in page must not lead to another site.
func TestNextStaysHere(t *testing.T) {
	for _, next := range []string{
		"", "//evil.example", "https://evil.example/rules", "https:evil", "javascript:alert(1)", `/\evil.example`, `/rules\..`, "/rules\r\nX: y",
		"/%0d%0a", "rules", "/login", "/logout", "/v1/rules", "///rules", "/rules/\x00", "http:/rules", "//rules", "/\t/evil.example",
	} {
		require.Equal(t, "/", localPath(next), "%q", next)
	}
	for _, next := range []string{"/rules", "/subjects/a%2Fb?resource=x", "/subjects?q=https://x"} {
		require.Equal(t, next, localPath(next))
	}
}

// A token that somebody planted before the sign-in is invalid after it.
func TestSessionFixation(t *testing.T) {
	s := newStack(t)
	b := s.as("bob@example.com")
	planted := b.token()
	require.Equal(t, http.StatusSeeOther, b.login("ann@example.com", password).status)
	require.NotEqual(t, planted, b.token())
	_, err := s.store.Session(t.Context(), planted)
	require.ErrorIs(t, err, tenants.ErrNoSession, "the former session has ended")

	fresh := s.browser()
	r := fresh.request(http.MethodPost, "/login", url.Values{"email": {"ann@example.com"}, "password": {password}})
	chosen := strings.Repeat("A", 43)
	r.AddCookie(&http.Cookie{Name: sessionCookie, Value: chosen})
	require.Equal(t, http.StatusSeeOther, fresh.send(r).status)
	require.NotEqual(t, chosen, fresh.token())
}

func TestLogout(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	token := b.token()
	require.Equal(t, http.StatusMethodNotAllowed, b.get("/logout").status, "a GET, as of an image, must not sign a person out")
	b.signedIn(true, "after GET")
	got := b.post("/logout", url.Values{})
	require.Equal(t, http.StatusSeeOther, got.status)
	require.Empty(t, b.token(), "the cookie is deleted")
	_, err := s.store.Session(t.Context(), token)
	require.ErrorIs(t, err, tenants.ErrNoSession)
	b.signedIn(false, "after the logout")
}

func TestSessionsEnd(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	s.clock.move(tenants.SessionIdle - time.Second)
	b.signedIn(true, "in use")
	s.clock.move(tenants.SessionIdle)
	b.signedIn(false, "idle")

	b = s.as("ann@example.com")
	for range 15 {
		s.clock.move(11 * time.Hour)
		b.signedIn(true, "in use")
	}
	s.clock.move(3 * time.Hour)
	b.signedIn(false, "after seven days")
	require.NoError(t, s.store.Purge(t.Context()))

	for _, value := range []string{"", "x", strings.Repeat("A", 43), strings.Repeat("A", 8000)} {
		r := s.browser().request(http.MethodGet, "/", nil)
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: value})
		require.Equal(t, http.StatusSeeOther, s.browser().send(r).status)
	}
}

// A changed role takes effect with the next request, not with the next sign-in.
func TestRightsEndAtOnce(t *testing.T) {
	s := newStack(t)
	member := s.member(s.a, "eve@example.com", tenants.Editor)
	b := s.as("eve@example.com")
	require.NoError(t, s.store.RemoveMember(t.Context(), s.a, member.ID, tenants.Match{}))
	b.signedIn(false, "after the membership ended")
	b = s.as("eve@example.com")
	got := b.get("/rules")
	require.Equal(t, http.StatusForbidden, got.status)
	require.Contains(t, got.body, "not a member of an active tenant")

	member = s.member(s.a, "eve@example.com", tenants.Editor) // the server sets a new password
	b.signedIn(false, "after a change of the password")
	b = s.as("eve@example.com")
	_, err := s.store.EditMember(t.Context(), s.a, member.ID, tenants.Match{}, func(m *tenants.Member) { m.Role = tenants.Viewer })
	require.NoError(t, err)
	b.signedIn(false, "after a change of the role")

	b = s.as("eve@example.com")
	require.NoError(t, s.store.DeleteTenant(t.Context(), tenants.AsOperator("test"), "tenant-a", tenants.Match{}))
	require.Equal(t, http.StatusForbidden, b.get("/rules").status, "the tenant is gone")
}

func TestSessionsPage(t *testing.T) {
	s := newStack(t)
	b, other, third := s.as("ann@example.com"), s.as("ann@example.com"), s.as("ann@example.com")
	bob := s.as("bob@example.com")
	otherSession, err := s.store.Session(t.Context(), other.token())
	require.NoError(t, err)
	bobSession, err := s.store.Session(t.Context(), bob.token())
	require.NoError(t, err)
	got := b.get("/sessions")
	require.Contains(t, got.body, otherSession.ID.String())
	require.NotContains(t, got.body, bobSession.ID.String())
	require.NotContains(t, got.body, b.token(), "tokens are never shown")

	require.Equal(t, http.StatusNotFound, b.post("/sessions/end", url.Values{"session": {bobSession.ID.String()}}).status)
	bob.signedIn(true, "another person cannot end it")
	require.Equal(t, http.StatusNotFound, b.post("/sessions/end", url.Values{"session": {"nonsense"}}).status)
	require.Equal(t, http.StatusSeeOther, b.post("/sessions/end", url.Values{"session": {otherSession.ID.String()}}).status)
	other.signedIn(false, "ended")
	require.Equal(t, http.StatusSeeOther, b.post("/sessions/end", url.Values{"session": {"others"}}).status)
	third.signedIn(false, "ended with all others")
	b.signedIn(true, "this one stays")
}

// Another site's page can neither send forms nor sign its visitor in as another person.
func TestCrossSiteForms(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	for _, path := range []string{"/login", "/logout", "/tenant", "/sessions/end"} {
		for name, set := range map[string]func(http.Header){
			"cross site":       func(h http.Header) { h.Set("Sec-Fetch-Site", "cross-site"); h.Set("Origin", "https://evil.example") },
			"no origin":        func(h http.Header) { h.Set("Sec-Fetch-Site", "cross-site"); h.Del("Origin") },
			"same site":        func(h http.Header) { h.Set("Sec-Fetch-Site", "same-site") },
			"null origin":      func(h http.Header) { h.Del("Sec-Fetch-Site"); h.Set("Origin", "null") },
			"an older browser": func(h http.Header) { h.Del("Sec-Fetch-Site"); h.Set("Origin", "https://evil.example") },
			"plain text":       func(h http.Header) { h.Set("Sec-Fetch-Site", "cross-site"); h.Set("Content-Type", "text/plain") },
		} {
			r := b.request(http.MethodPost, path, url.Values{"email": {"bob@example.com"}, "password": {password}, "session": {"others"}})
			set(r.Header)
			require.Equal(t, http.StatusForbidden, b.send(r).status, "%s: %s", path, name)
		}
	}
	b.signedIn(true, "nothing was done")
}
