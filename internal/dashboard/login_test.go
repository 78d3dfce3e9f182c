package dashboard

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/testenv"
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
	names := map[string]string{}
	for _, line := range got.header.Values("Set-Cookie") {
		cookie, err := http.ParseSetCookie(line)
		require.NoError(t, err)
		require.True(t, cookie.Secure && cookie.HttpOnly && cookie.Path == "/" && cookie.Domain == "")
		require.Equal(t, http.SameSiteLaxMode, cookie.SameSite)
		names[cookie.Name] = cookie.Value
	}
	require.Len(t, names, 2)
	require.Len(t, names["__Host-weir"], 43, "256 bits")
	require.NotEmpty(t, names["__Host-weir-device"])
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

// A network whose tasks after answers are slow leaves places for those of others.
func TestErrandsTakeTurns(t *testing.T) {
	s := newStack(t)
	request := func(address string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/forgot", nil)
		r.RemoteAddr = address + ":1234"
		return r
	}
	slow, started, other := make(chan struct{}), make(chan struct{}, 10), make(chan struct{})
	for range 10 {
		s.pages.errand(request("192.0.2.1"), "wait", func(context.Context) error {
			started <- struct{}{}
			<-slow
			return nil
		})
	}
	for range maxSiteErrands {
		<-started
	}
	s.pages.errand(request("198.51.100.1"), "work", func(context.Context) error {
		close(other)
		return nil
	})
	select {
	case <-other:
	case <-time.After(15 * time.Second): // its time has ended without a turn
		t.Error("slow tasks of another network were first")
	}
	close(slow)
	s.pages.after.Wait()
}

// requestWith has the cookie of a browser.
func requestWith(value string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.AddCookie(&http.Cookie{Name: deviceCookie, Value: value})
	return r
}

// The cookie of a browser counts for one account only, and nobody can forge it.
func TestBrowsersAreKnown(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	deviceFor := func(value, email string) (string, bool) {
		id, known, err := s.pages.deviceFor(t.Context(), requestWith(value), email)
		require.NoError(t, err)
		return id, known
	}
	value := b.cookie(deviceCookie)
	const ann, bob = "ann@example.com", "bob@example.com"
	id, known := deviceFor(value, ann)
	require.True(t, known)
	_, known = deviceFor(value, bob)
	require.False(t, known, "of another account")
	for at := range len(value) {
		forged := []byte(value)
		forged[at] ^= 1
		_, known = deviceFor(string(forged), ann)
		require.False(t, known, "changed at %d", at)
	}
	require.Equal(t, http.StatusSeeOther, b.login(bob, password).status)
	value = b.cookie(deviceCookie)
	again, known := deviceFor(value, ann)
	require.True(t, known, "a browser is known to several accounts")
	require.Equal(t, id, again)
	_, known = deviceFor(value, bob)
	require.True(t, known)
	s.clock.move(deviceLife)
	_, known = deviceFor(value, ann)
	require.False(t, known, "a year later")
}

// A new password, and the end of all other sessions, end that browsers and other addresses are
// known: a stolen cookie must not keep attempts of its own, nor share those of the browser that it
// was stolen from.
func TestStolenBrowserCookies(t *testing.T) {
	const newPassword = "a better horse"
	for name, end := range map[string]func(s *stack, b *browser) page{
		"a new password": func(_ *stack, b *browser) page {
			return b.post("/account/password", url.Values{"current": {password}, "password": {newPassword}})
		},
		"a password link": func(s *stack, b *browser) page {
			person, err := s.store.PersonWithLogin(s.t.Context(), "ann@example.com")
			require.NoError(s.t, err)
			token, err := s.store.NewPasswordLink(s.t.Context(), person)
			require.NoError(s.t, err)
			return b.post("/reset/"+token, url.Values{"password": {newPassword}})
		},
		"the end of other sessions": func(_ *stack, b *browser) page {
			return b.post("/sessions/end", url.Values{"session": {"others"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			own := func(cookie, address string) string {
				r := httptest.NewRequest(http.MethodPost, "/login", nil)
				r.RemoteAddr = address + ":1234"
				r.AddCookie(&http.Cookie{Name: deviceCookie, Value: cookie})
				name, err := s.pages.ownName(t.Context(), r, "ann@example.com")
				require.NoError(t, err)
				return name
			}
			b := s.as("ann@example.com")
			require.Equal(t, http.StatusSeeOther, s.loginFrom(nil, "198.51.100.1", "ann@example.com", password))
			bob := s.as("bob@example.com")
			stolen := b.cookie(deviceCookie)
			before := own(stolen, "192.0.2.1")
			require.NotEmpty(t, before)
			require.NotEmpty(t, own("", "198.51.100.1"))
			events := len(s.events(s.a))

			require.Equal(t, http.StatusSeeOther, end(s, b).status)
			b.signedIn(true, "in the browser that did it")
			require.Empty(t, own(stolen, "192.0.2.1"))
			require.Empty(t, own("", "198.51.100.1"), "an address from which the thief may have signed in")
			after := own(b.cookie(deviceCookie), "192.0.2.1")
			require.NotEmpty(t, after, "her browser stays known")
			require.NotEqual(t, before, after, "and shares no attempts with the stolen cookie")
			require.NotEmpty(t, own("", "127.0.0.1"), "her address")
			require.NotContains(t, s.events(s.a)[events:], tenants.EventNewDevice, "it is not new")
			_, known, err := s.pages.deviceFor(t.Context(), requestWith(bob.cookie(deviceCookie)), "bob@example.com")
			require.NoError(t, err)
			require.True(t, known, "another person's")

			s.clock.move(time.Hour)
			require.Equal(t, http.StatusSeeOther, b.login("ann@example.com", map[bool]string{true: password, false: newPassword}[name == "the end of other sessions"]).status)
			require.Equal(t, after, own(b.cookie(deviceCookie), "192.0.2.1"))
			require.Empty(t, own(stolen, "192.0.2.1"), "nor after her next sign-in")
			s.clock.move(tenants.AddressLife)
			require.NoError(t, s.store.Purge(t.Context()))
			require.Empty(t, own(stolen, "192.0.2.1"), "nor much later")
		})
	}
}

// All instances count the same failures, in Redis. While Redis is unavailable, each counts alone.
func TestLoginLimitIsShared(t *testing.T) {
	s := newStack(t)
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // other tests use the same Redis and the same accounts
	counters := func(d *Deps) { d.Counters, d.Keys = s.engines, check.NewKeys(secret) }
	for range 2 {
		s.serve(s.store, testenv.RedisURL(t), counters)
		for range 5 {
			require.Equal(t, http.StatusUnauthorized, s.browser().login("ann@example.com", "guess").status)
		}
	}
	s.serve(s.store, testenv.RedisURL(t), counters)
	require.Equal(t, http.StatusTooManyRequests, s.browser().login("ann@example.com", password).status)

	s.serve(s.store, "redis://127.0.0.1:1/0", counters)
	for range 10 {
		require.Equal(t, http.StatusUnauthorized, s.browser().login("ann@example.com", "guess").status)
	}
	require.Equal(t, http.StatusTooManyRequests, s.browser().login("ann@example.com", password).status)
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

// Anybody may request the sign-in page with a destination, so a long one is not used.
func TestNextIsBounded(t *testing.T) {
	s := newStack(t)
	b := s.browser()
	longest := "/subjects?q=" + strings.Repeat("%", maxNext-len("/subjects?q="))
	page := func(next string) string { return b.get("/login?next=" + url.QueryEscape(next)).body }
	require.Contains(t, page(longest), `value="`+longest+`"`)
	require.Contains(t, page(longest+"%"), `name="next" value="/"`)
	got := b.post("/login", url.Values{"email": {"ann@example.com"}, "password": {"wrong"}, "next": {"/rules?after=" + strings.Repeat("x", maxNext)}})
	require.Contains(t, got.body, `name="next" value="/"`)
	require.Equal(t, "/login", b.get("/rules?after="+strings.Repeat("x", maxNext)).header.Get("Location"))
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
