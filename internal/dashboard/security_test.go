package dashboard

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// events returns the kinds of the events of tenant A, oldest first.
func (s *stack) events(a tenants.Actor) (kinds []tenants.EventKind) {
	s.t.Helper()
	s.pages.after.Wait()
	all, _, err := s.store.SecurityEvents(s.t.Context(), a, tenants.EventFilter{}, tenants.Page{Limit: 200})
	require.NoError(s.t, err)
	for _, e := range all {
		kinds = append([]tenants.EventKind{e.Kind}, kinds...)
	}
	return kinds
}

// A blocked client that invents accounts causes a limited number of records, each of which is work
// for Postgres.
func TestBlockedRecordsAreLimited(t *testing.T) {
	s := newStack(t)
	r := httptest.NewRequest(http.MethodPost, "/login", nil)
	counted := func() (n int) {
		for i := range 100 {
			email := "nobody" + itoa(int64(i)) + "@example.com"
			if s.pages.limits.mayRecordBlocked(r, email) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 20, counted())
	r.RemoteAddr = "198.51.100.7:1234"
	require.Equal(t, 20, counted(), "of each address")
	for range 30 {
		s.pages.recordBlocked(r, "ann@example.com")
	}
	s.pages.after.Wait()
	require.NotContains(t, s.events(s.a), tenants.EventSignInBlocked, "the address has used up its records")
}

// Sign-ins, failures, blocked addresses, new browsers, passwords, keys and roles are in one stream,
// of the person's tenants only.
func TestSecurityEvents(t *testing.T) {
	s := newStack(t)
	begun := len(s.events(s.a))
	b := s.as("ann@example.com")
	require.Equal(t, http.StatusUnauthorized, b.login("ann@example.com", "guess").status)
	require.Equal(t, []tenants.EventKind{tenants.EventSignIn, tenants.EventNewDevice, tenants.EventSignInFailed}, s.events(s.a)[begun:])
	for range 12 {
		b.login("ann@example.com", "guess")
		s.pages.after.Wait() // so that the events are in order
	}
	kinds := s.events(s.a)[begun+3:]
	require.Len(t, kinds, 10, "9 more failures, and one event that the browser is blocked")
	require.Equal(t, tenants.EventSignInBlocked, kinds[9])
	for _, path := range []string{"/keys", "/members/invite"} {
		got := b.write(path, url.Values{"name": {"checkout"}, "check": {"on"}, "email": {"eve@example.com"}, "role": {"viewer"}})
		require.Less(t, got.status, 400, got.body)
	}
	require.Equal(t, http.StatusOK, b.get("/audit?format=csv").status)
	require.Equal(t, []tenants.EventKind{tenants.EventKeyCreated, tenants.EventMemberAdded, tenants.EventExported}, s.events(s.a)[begun+13:])
	for _, kind := range s.events(s.b) {
		require.NotContains(t, []tenants.EventKind{tenants.EventSignIn, tenants.EventSignInFailed, tenants.EventExported}, kind, "of another tenant's person")
	}
	require.NoError(t, s.store.RecordOfEmail(t.Context(), "nobody@example.com", tenants.EventSignInFailed))

	got := b.get("/settings/security?kind=sign_in.blocked")
	require.Contains(t, got.body, "Sign-in blocked")
	require.NotContains(t, got.body, ">checkout</a>")
	require.Contains(t, b.get("/settings/security?actor=ann@example.com").body, "API key created")
	for query, says := range map[string]string{
		"kind=none": "Must be one of the listed options.", "period=1y": "Must be one of the listed options.", "period=custom&from=soon": "Must be a time such as",
	} {
		got := b.get("/settings/security?" + query)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, query)
		require.Contains(t, got.body, says, query)
	}
	got = b.get("/settings/security?period=7d")
	require.Contains(t, got.body, "Sign-in blocked")
	require.Contains(t, got.body, `aria-current="true">Last 7 days`)
	require.Contains(t, got.body, "format=csv&amp;period=7d", "the download has the same period")
	require.Contains(t, got.body, `<option value="ann@example.com">`, "suggested as an actor")
	lines := strings.Split(strings.TrimSpace(b.get("/settings/security?format=jsonl&kind=device.new").body), "\n")
	require.Len(t, lines, 1)
	var line tenants.EventLine
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &line))
	require.Equal(t, tenants.EventNewDevice, line.Kind)
	require.Equal(t, "127.0.0.1", line.Address)
	require.Contains(t, b.get("/settings/security?format=csv").body, "id,at,kind,actor_kind")

	s.clock.move(8 * 24 * time.Hour)
	b = s.as("ann@example.com")
	require.NotContains(t, b.get("/settings/security?period=7d").body, "Sign-in blocked</span>", "the period ends now")
}

// Keys, members, billing, notifications and the security settings need a password that was entered
// a short time ago. The form that waits is then done with its own fields.
func TestConfirmPassword(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	fields := func(extra ...string) url.Values {
		form := url.Values{"name": {"checkout"}, "check": {"on"}}
		for i := 0; i < len(extra); i += 2 {
			form.Set(extra[i], extra[i+1])
		}
		return form
	}
	require.Equal(t, http.StatusOK, b.write("/keys", fields()).status, "after the sign-in")
	s.clock.move(15 * time.Minute)
	for path, form := range map[string]url.Values{
		"/keys": fields(), "/members/invite": {"email": {"eve@example.com"}, "role": {"admin"}}, "/billing": {"do": {"create"}},
		"/start": {"only": {"key"}}, notificationsURL: {"url": {"https://example.com/hook"}}, securityURL: {"session_idle": {"1h"}},
	} {
		got := b.write(path, form)
		require.Equal(t, http.StatusForbidden, got.status, path)
		require.Contains(t, got.body, "Confirm your password", path)
	}
	keys, _, err := s.store.Keys(t.Context(), s.a, tenants.Page{Limit: 10})
	require.NoError(t, err)
	got := b.write("/keys", fields("confirm_password", "guess"))
	require.Equal(t, http.StatusForbidden, got.status)
	require.Contains(t, got.body, "Is not your password")
	require.NotContains(t, got.body, "guess")
	require.Contains(t, got.body, `<input type="hidden" name="name" value="checkout">`)
	again, _, err := s.store.Keys(t.Context(), s.a, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, again, len(keys), "nothing was changed")
	require.Equal(t, http.StatusOK, b.write("/keys", fields("confirm_password", password)).status)
	require.Equal(t, http.StatusOK, b.write("/keys", fields()).status, "for the next 15 minutes")
	again, _, err = s.store.Keys(t.Context(), s.a, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, again, len(keys)+2)
	require.Equal(t, http.StatusSeeOther, b.write("/settings", url.Values{"name": {"A"}}).status, "other changes need no password")
}

// unconfirmed are the forms that need no confirmed password. They change no API key, member,
// invitation, billing, notification endpoint or security setting, or ask for the password
// themselves.
var unconfirmed = map[string]bool{
	// for people who are not signed in
	"/login": true, "/forgot": true, "/reset/{token}": true, "/invitation/{token}": true, "/signup": true, "/signup/{token}": true, "/email/{token}": true,
	"/theme": true, "/portal/open/{token}": true, "/portal/{visit}/requests": true,
	// of one's own login; the first two ask for the password
	"/account/password": true, "/account/email": true, "/sessions/end": true, "/tenant": true, "/logout": true,
	// previews and tests, which change nothing
	"/rules/preview": true, "/plans/{plan}/limits/{rule}/preview": true, "/plans/{plan}/migrations/preview": true, "/routes/{slug}": true, "/routes/{slug}/": true,
	// rules, plans, routes, subjects and the tenant itself
	"/rules": true, "/rules/{slug}/edit": true, "/rules/{slug}/mode": true, "/rules/{slug}/delete": true, "/rules/{slug}/restore": true,
	"/plans": true, "/plans/changes/cancel": true, "/plans/{plan}/edit": true, "/plans/{plan}/default": true, "/plans/{plan}/delete": true, "/plans/{plan}/versions": true,
	"/plans/{plan}/versions/{version}/delete": true, "/plans/{plan}/migrations": true, "/plans/{plan}/migrations/{id}/cancel": true, "/plans/{plan}/limits/{rule}": true,
	"/routes": true, "/routes/{slug}/edit": true, "/routes/{slug}/delete": true, "/subjects/*": true, "/requests/{id}": true,
	"/settings": true, "/settings/customer-page": true,
	"/device/deny": true, // it ends a sign-in without a key
}

// Every form asks for the password again, except for the listed ones, so that a new form cannot
// forget it. A member without the right to manage gets none of them.
func TestEveryFormIsConfirmed(t *testing.T) {
	s := newOperated(t)
	s.staff()
	ann := s.as("ann@example.com")
	s.clock.move(15 * time.Minute)
	editor := s.as("editor@example.com")
	routes, ok := s.pages.handler().(chi.Routes)
	require.True(t, ok)
	values := strings.NewReplacer("{id}", uuid.NewString(), "{slug}", "x", "*", "x")
	confirmed, listed := 0, map[string]bool{}
	require.NoError(t, chi.Walk(routes, func(method, pattern string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if method != http.MethodPost {
			require.Equal(t, http.MethodGet, method, "a GET changes nothing, and there are no other methods")
			return nil
		}
		if unconfirmed[pattern] {
			listed[pattern] = true
			return nil
		}
		confirmed++
		path := values.Replace(pattern)
		require.NotContains(t, path, "{", "a parameter without a value")
		var got page
		if strings.HasPrefix(pattern, "/tenants") {
			got = s.send(path)
			require.Equal(t, http.StatusNotFound, ann.write(path, url.Values{}).status, "only for the operator: %s", pattern)
		} else {
			got = ann.write(path, url.Values{})
		}
		require.Equal(t, http.StatusForbidden, got.status, pattern)
		require.Contains(t, got.body, "Confirm your password", pattern)
		switch {
		case pattern == "/account/leave": // every role may
		case strings.HasPrefix(pattern, "/tenants"):
			require.Equal(t, http.StatusNotFound, editor.write(path, url.Values{}).status, pattern)
		default:
			got = editor.write(path, url.Values{})
			require.Equal(t, http.StatusForbidden, got.status, pattern)
			require.Contains(t, got.body, "Your role does not allow this", pattern)
		}
		return nil
	}))
	require.Greater(t, confirmed, 15)
	require.Equal(t, unconfirmed, listed, "each is still a form")
}

// A tenant sets how long sessions last and how many a member has, for itself only.
func TestSessionsOfTenant(t *testing.T) {
	s := newStack(t)
	_, err := s.store.EditSecuritySettings(t.Context(), s.a, tenants.Match{}, func(e *tenants.SecuritySettings) error {
		e.SessionIdle.Text, e.SessionLife.Text, e.MaxSessions = "10m", "1h", 2
		return nil
	})
	require.NoError(t, err)
	ann, bob := s.as("ann@example.com"), s.as("bob@example.com")
	s.clock.move(10 * time.Minute)
	ann.signedIn(false, "idle for 10 minutes")
	bob.signedIn(true, "another tenant has its own settings")
	ann = s.as("ann@example.com")
	for range 11 {
		s.clock.move(5 * time.Minute)
		ann.signedIn(true, "in use")
	}
	s.clock.move(5 * time.Minute)
	ann.signedIn(false, "an hour after the sign-in")

	first := s.as("ann@example.com")
	s.clock.move(time.Second)
	second := s.as("ann@example.com")
	s.clock.move(time.Second)
	third := s.as("ann@example.com")
	first.signedIn(false, "two sessions at most")
	second.signedIn(true, "used later")
	third.signedIn(true, "the newest")

	got := third.write(securityURL, url.Values{
		"session_idle": {"2m"}, "session_life": {"7d"}, "max_sessions": {"0"}, "confirm_after": {"15m"}, "event_retention": {"365d"}, "version": {""},
	})
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "5m to 12h")
	require.Contains(t, got.body, "from 1 to 100")
}
