package dashboard

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/origin"
	"weir/internal/throttle"

	"weir/internal/tenants"
)

// Guessing is stopped early, and the owner can sign in after the wait.
func TestLoginLimit(t *testing.T) {
	s := newStack(t)
	b := s.browser()
	for range 9 {
		require.Equal(t, http.StatusUnauthorized, b.login("ann@example.com", "guess").status)
	}
	require.Equal(t, http.StatusSeeOther, b.login("ann@example.com", password).status, "the tenth attempt is allowed")
	other := s.browser().at("127.0.0.2")
	for range 10 {
		require.Equal(t, http.StatusUnauthorized, other.login("ann@example.com", "guess").status)
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

// A person's own browser has a limit, too, and a success resets the failures before it.
func TestLoginLimitOfOwnBrowser(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	for range 2 {
		for range 9 {
			require.Equal(t, http.StatusUnauthorized, b.login("ann@example.com", "guess").status)
		}
		require.Equal(t, http.StatusSeeOther, b.login("ann@example.com", password).status)
	}
	for range 10 {
		require.Equal(t, http.StatusUnauthorized, b.login("ann@example.com", "guess").status)
	}
	require.Equal(t, http.StatusTooManyRequests, b.login("ann@example.com", password).status)
}

// unknownAttempt is an attempt of a unknown.
func (s *stack) unknownAttempt(email, address string) (*throttle.Attempt, time.Duration) {
	return s.pages.limits.unknown.BeginFrom(s.t.Context(), accountKey(email), [3]string{address})
}

// Concurrent guesses are limited like sequential ones.
func TestLoginLimitAtOnce(t *testing.T) {
	s := newStack(t)
	var running []*throttle.Attempt
	for range 10 {
		try, _ := s.unknownAttempt("ann@example.com", "192.0.2.1")
		require.NotNil(t, try)
		running = append(running, try)
	}
	try, wait := s.unknownAttempt("ann@example.com", "192.0.2.1")
	require.Nil(t, try)
	require.Equal(t, 15*time.Minute, wait)
	running[0].Undecided(t.Context())
	try, _ = s.unknownAttempt("ann@example.com", "192.0.2.1")
	require.NotNil(t, try, "an attempt without a result does not count")
	try, _ = s.unknownAttempt("ann@example.com", "192.0.2.2")
	require.NotNil(t, try, "another address has its own limit")
}

// One address cannot try many accounts, nor many addresses one account.
func TestLoginLimitsOfAddressAndAccount(t *testing.T) {
	s := newStack(t)
	fail := func(email, address string) bool {
		try, _ := s.unknownAttempt(email, address)
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
	s.clock.move(15 * time.Minute)
	require.True(t, fail("account", "her own"), "slower, not locked out")
	require.False(t, fail("account", "one more"))
}

// guessFrom makes an attempt of an unknown client, on an account that does not exist.
func (s *stack) guessFrom(account, address string) bool {
	try, _ := s.pages.limits.unknown.BeginFrom(s.t.Context(), accountKey(account+"@example.org"), origin.WithinHost(address).Names())
	return try != nil
}

// loginFrom signs in from an address, with the cookies of a browser (nil: a new one).
func (s *stack) loginFrom(b *browser, address, email, password string) int {
	form := strings.NewReader(url.Values{"email": {email}, "password": {password}}.Encode())
	r := httptest.NewRequest(http.MethodPost, "/login", form)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.RemoteAddr = net.JoinHostPort(address, "1234")
	if b != nil {
		r.AddCookie(&http.Cookie{Name: deviceCookie, Value: b.cookie(deviceCookie)})
	}
	w := httptest.NewRecorder()
	s.server.Config.Handler.ServeHTTP(w, r)
	return w.Code
}

// A client that has all networks of a home or of a site has 4 or 16 times the attempts of one
// address, not 256 or 65,536 times. Before, each of its networks had its own.
func TestLoginLimitOfWideNetworks(t *testing.T) {
	for _, c := range []struct {
		name, address string // of the i-th client
		step, most    int
	}{
		{"home", "2001:db8:1:2%02x::1", 1, 200},
		{"site", "2001:db8:2:%04x::1", 0x40, 800},
		{"site of IPv4", "198.51.100.%d", 1, 800},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStack(t)
			allowed := 0
			for i := range 1000 {
				if s.guessFrom(itoa(int64(i)), fmt.Sprintf(c.address, i*c.step%(256*c.step))) {
					allowed++
				}
			}
			require.Equal(t, c.most, allowed)
			address := fmt.Sprintf(c.address, 255*c.step)
			require.Equal(t, http.StatusTooManyRequests, s.loginFrom(nil, address, "ann@example.com", password))
			require.Equal(t, http.StatusSeeOther, s.loginFrom(nil, "2001:db8:3::1", "ann@example.com", password), "another site")
			s.clock.move(2 * time.Hour)
			require.Equal(t, http.StatusSeeOther, s.loginFrom(nil, address, "ann@example.com", password))
		})
	}
}

// Requests for mails and sign-ups, and records of blocked clients, are limited for a site, too.
func TestMailsOfWideNetworks(t *testing.T) {
	s := newStack(t)
	count := func(begin func(r *http.Request) bool) (n int) {
		for i := range 1000 {
			r := httptest.NewRequest(http.MethodPost, "/forgot", nil)
			r.RemoteAddr = fmt.Sprintf("[2001:db8:1:%04x::1]:1234", i*64)
			if begin(r) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 320, count(func(r *http.Request) bool { return s.pages.mayAsk(r) == 0 }))
	accounts := 0
	require.Equal(t, 320, count(func(r *http.Request) bool {
		accounts++
		return s.pages.limits.asked.Take(t.Context(), itoa(int64(accounts)), networksOf(r).Names()) == 0
	}))
	require.Equal(t, 960, count(func(r *http.Request) bool {
		accounts++
		return s.pages.codes.Take(t.Context(), itoa(int64(accounts)), networksOf(r).Names()) == 0
	}))
	require.Equal(t, 320, count(func(r *http.Request) bool {
		accounts++
		return s.pages.limits.mayRecordBlocked(r, itoa(int64(accounts)))
	}))
}

// A site whose attempts are used up locks out neither its browsers nor its addresses from which a
// person has signed in.
func TestKnownClientsInWideNetworks(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	require.Equal(t, http.StatusSeeOther, s.loginFrom(nil, "2001:db8:1:2::1", "bob@example.com", password))
	for i := range 1000 {
		s.guessFrom(itoa(int64(i)), fmt.Sprintf("2001:db8:1:%04x::1", i*64))
	}
	require.Equal(t, http.StatusTooManyRequests, s.loginFrom(nil, "2001:db8:1:2::1", "ann@example.com", password), "an unknown client")
	require.Equal(t, http.StatusSeeOther, s.loginFrom(b, "2001:db8:1:2::1", "ann@example.com", password), "her browser")
	require.Equal(t, http.StatusSeeOther, s.loginFrom(nil, "2001:db8:1:2::7", "bob@example.com", password), "his address")
}

// An unknown client who guesses for hours locks neither a browser nor an address out from which the
// person has signed in, and cannot keep the person from getting a password link.
func TestUnknownClientsCannotLockOut(t *testing.T) {
	s := newStack(t)
	box := s.mailing(SignupClosed)
	home := s.browser().at("127.0.0.2")
	require.Equal(t, http.StatusSeeOther, home.login("ann@example.com", password).status)
	unknown := s.browser().at("127.0.0.66")
	refused := 0
	for range 16 {
		for range 11 {
			if unknown.login("ann@example.com", "guess").status == http.StatusTooManyRequests {
				refused++
			}
		}
		require.Equal(t, http.StatusOK, unknown.post("/forgot", url.Values{"email": {"ann@example.com"}}).status)
		s.clock.move(15 * time.Minute)
	}
	require.Greater(t, refused, 50, "the attempts on the account are used up")
	for _, address := range []string{"127.0.0.67", "127.0.0.68", "127.0.0.69", "127.0.0.70"} {
		unknown.at(address).login("ann@example.com", "guess")
	}
	require.Equal(t, http.StatusTooManyRequests, s.browser().at("127.0.0.71").login("ann@example.com", password).status, "of an unknown client, even with the right password")

	require.Equal(t, http.StatusSeeOther, s.browser().at("127.0.0.2").login("ann@example.com", password).status, "another browser at her address")
	require.Equal(t, http.StatusSeeOther, home.at("127.0.0.72").login("ann@example.com", password).status, "her browser at another address")
	mails := len(box.settled()) // a mail that comes later would be taken for the one below
	require.LessOrEqual(t, mails, 5, "one mail per hour in all")
	require.Equal(t, http.StatusOK, home.post("/forgot", url.Values{"email": {"ann@example.com"}}).status)
	link := path(t, newest(t, box, mails+1))
	require.Equal(t, http.StatusSeeOther, home.post(link, url.Values{"password": {"a better horse"}}).status)
	home.signedIn(true, "with the link that she requested herself")
}

// Failed sign-ins and blocked clients of an account are recorded a limited number of times a day,
// in all tenants of the person. Before, a client with a /48 caused 30 000 records a day, and a
// person 100 for each browser.
func TestRecordsOfAnAccountAreLimited(t *testing.T) {
	s := newStack(t)
	recorded := func(kind tenants.EventKind) (n int) {
		s.pages.after.Wait()
		for _, event := range s.events(s.a) {
			if event == kind {
				n++
			}
		}
		return n
	}
	r := httptest.NewRequest(http.MethodPost, "/login", nil)
	for i := range 30 {
		r.RemoteAddr = fmt.Sprintf("[2001:db8:1:%04x::1]:1234", i*64)
		s.pages.recordBlocked(r, "ann@example.com")
	}
	require.Equal(t, 20, recorded(tenants.EventSignInBlocked))
	for range 299 {
		try, _ := s.pages.limits.failed.Begin(t.Context(), accountKey("ann@example.com"))
		require.NotNil(t, try)
	}
	for _, address := range []string{"127.0.0.2", "127.0.0.3"} {
		require.Equal(t, http.StatusUnauthorized, s.browser().at(address).login("ann@example.com", "guess").status)
	}
	require.Equal(t, 1, recorded(tenants.EventSignInFailed))
	s.clock.move(24 * time.Hour)
	require.Equal(t, http.StatusUnauthorized, s.browser().at("127.0.0.2").login("ann@example.com", "guess").status)
	require.Equal(t, 2, recorded(tenants.EventSignInFailed))
}

// A session changes sessions a limited number of times: each change waits for Postgres, where those
// of others wait, too. It keeps the person from nothing in another session.
func TestChangesOfSessionsAreLimited(t *testing.T) {
	s := newStack(t)
	stolen, own := s.as("ann@example.com"), s.as("ann@example.com")
	choose := func() int { return stolen.post("/tenant", url.Values{"tenant": {s.a.TenantID().String()}}).status }
	others := url.Values{"session": {"others"}}
	for range 60 {
		require.Equal(t, http.StatusSeeOther, choose())
	}
	require.Equal(t, http.StatusTooManyRequests, choose())
	require.Equal(t, http.StatusTooManyRequests, stolen.post("/sessions/end", others).status)
	s.clock.move(time.Second)
	require.Equal(t, http.StatusSeeOther, choose())
	require.Equal(t, http.StatusSeeOther, own.post("/sessions/end", others).status)
	stolen.signedIn(false, "it has ended")
}

// A person who signs in without an end does not fill the security events of their tenants. Nobody
// else can use up their sign-ins.
func TestSignInsOfAPersonAreLimited(t *testing.T) {
	s := newStack(t)
	b := s.browser()
	for range 5 {
		b.login("ann@example.com", "guess")
	}
	ann, err := s.store.VerifyPassword(t.Context(), "ann@example.com", password)
	require.NoError(t, err)
	for range 299 {
		try, _ := s.pages.limits.proved.Begin(t.Context(), ann.ID.String())
		require.NotNil(t, try)
	}
	require.Equal(t, http.StatusSeeOther, b.login("ann@example.com", password).status)
	got := b.login("ann@example.com", password)
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Equal(t, "288", got.header.Get("Retry-After"))
	require.Equal(t, http.StatusSeeOther, s.browser().login("bob@example.com", password).status, "another person")
	s.clock.move(288 * time.Second)
	require.Equal(t, http.StatusSeeOther, b.login("ann@example.com", password).status)
}
