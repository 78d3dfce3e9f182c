package dashboard

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/places"
	"weir/internal/tenants"
)

// slowForm reports when it is read, and ends when it is released.
type slowForm struct {
	inside chan<- struct{}
	once   *sync.Once
	leave  <-chan struct{}
}

func (f slowForm) Read(p []byte) (int, error) {
	f.once.Do(func() { f.inside <- struct{}{} })
	<-f.leave
	return 0, io.EOF
}

// If many clients send forms slowly, pages are still served: a form takes a place for pages only
// when it is complete. Each address has a share of the places for forms.
func TestSlowForms(t *testing.T) {
	s := newStack(t)
	handler := s.server.Config.Handler
	inside, leave := make(chan struct{}), make(chan struct{})
	var sending sync.WaitGroup
	sendTo := func(path, address string, body io.Reader) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, path, body)
		require.NoError(t, err)
		r.RemoteAddr = address + ":1234"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := &status{header: http.Header{}}
		handler.ServeHTTP(w, r)
		return w.code
	}
	send := func(address string, body io.Reader) int { return sendTo("/login", address, body) }
	for range maxAddressUploads {
		sending.Go(func() { sendTo(customerPageURL, "192.0.2.4", slowForm{inside, new(sync.Once), leave}) })
		<-inside
	}
	require.Equal(t, http.StatusServiceUnavailable, sendTo(customerPageURL, "192.0.2.4", strings.NewReader("email=a")), "larger forms have fewer places")
	require.NotEqual(t, http.StatusServiceUnavailable, send("192.0.2.4", strings.NewReader("email=a")))
	for _, address := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} { // more than maxWorking
		for range maxAddressForms {
			sending.Go(func() { send(address, slowForm{inside, new(sync.Once), leave}) })
			<-inside
		}
	}
	require.Equal(t, http.StatusOK, s.browser().get("/login").status)
	s.as("ann@example.com")
	require.Equal(t, http.StatusServiceUnavailable, send("192.0.2.1", strings.NewReader("email=a")))
	close(leave)
	sending.Wait()
	require.NotEqual(t, http.StatusServiceUnavailable, send("192.0.2.1", strings.NewReader("email=a")))
}

// 32 slow addresses of different sites, each with all forms that it may send, leave places to
// others. Before, they had all of them.
func TestSlowFormsOfManyAddresses(t *testing.T) {
	s := newStack(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	var sending sync.WaitGroup
	post := func(address string, body io.Reader) int {
		r := httptest.NewRequest(http.MethodPost, "/login", body)
		r.RemoteAddr = address + ":1234"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := &status{header: http.Header{}}
		s.server.Config.Handler.ServeHTTP(w, r)
		return w.code
	}
	refused := make(chan struct{}, maxForms)
	for i := range 32 * maxAddressForms {
		sending.Go(func() {
			if post(fmt.Sprintf("198.18.%d.1", i%32), slowForm{inside, new(sync.Once), leave}) == http.StatusServiceUnavailable {
				refused <- struct{}{}
			}
		})
		select {
		case <-inside:
		case <-refused:
		}
	}
	require.Equal(t, maxForms*3/4, s.pages.forms.Taken())
	for i := range 10 {
		require.Equal(t, http.StatusUnauthorized, post(fmt.Sprintf("198.18.%d.1", 100+i), strings.NewReader("email=a&password=b")), "another site")
	}
	close(leave)
	sending.Wait()
	require.Zero(t, s.pages.forms.Taken())
}

// A client that has all networks of a site leaves places for pages, forms and pictures to others,
// and so do two of them. Before, one had all places.
func TestPlacesOfWideNetworks(t *testing.T) {
	s := newStack(t)
	networks := func(site string, n int) origin.Networks {
		return origin.WithinHost(fmt.Sprintf("2001:db8:%s:%x::1", site, n))
	}
	for _, c := range []struct {
		name                   string
		places                 *networkPlaces
		most, each, home, site int
	}{
		{"pages", s.pages.working, maxWorking, maxNetworkWorking, 40, 48},
		{"forms", s.pages.forms, maxForms, maxAddressForms, 128, 512},
		{"pictures", s.pages.uploads, maxUploads, maxAddressUploads, 15, 18},
	} {
		held := func(site string, step int) (n int) {
			for i := range 256 {
				if leave, ok := c.places.Take(networks(site, i%256*step), c.most, c.each); ok {
					t.Cleanup(leave)
					n++
				}
			}
			return n
		}
		require.Equal(t, c.home, held("1", 1), "%s of a home", c.name)
		require.Equal(t, c.site-c.home, held("1", 256)+held("1", 255), "%s of a site", c.name)
		held("2", 256)
		leave, ok := c.places.Take(networks("3", 1), c.most, c.each)
		require.True(t, ok, "%s: a third site", c.name)
		leave()
	}
	require.Equal(t, http.StatusOK, s.browser().get("/login").status)
	require.Equal(t, http.StatusServiceUnavailable, s.loginFrom(nil, "2001:db8:1:ffff::1", "ann@example.com", password), "of the site that has its share")
	require.Equal(t, http.StatusSeeOther, s.loginFrom(nil, "2001:db8:4::1", "ann@example.com", password))
}

// stuck is a browser that reads no page.
type stuck struct {
	status
	begun chan<- struct{}
	leave <-chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	s.begun <- struct{}{}
	<-s.leave
	return len(p), nil
}

// Browsers that never read their pages use no places for creating pages. Each network has a share
// of these places. Before, 64 unread pages took the dashboard from everybody.
func TestUnreadPages(t *testing.T) {
	s := newStack(t)
	handler := s.server.Config.Handler
	begun, leave := make(chan struct{}), make(chan struct{})
	var reading sync.WaitGroup
	ask := func(address string, w http.ResponseWriter) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/login", nil)
		require.NoError(t, err)
		r.RemoteAddr = address
		handler.ServeHTTP(w, r)
	}
	for range maxWorking + 1 {
		reading.Go(func() { ask("192.0.2.1:1234", &stuck{status{header: http.Header{}}, begun, leave}) })
		<-begun
	}
	for range 2 { // of another network, and of the same one
		require.Equal(t, http.StatusOK, s.browser().get("/login").status)
		w := &status{header: http.Header{}}
		ask("192.0.2.1:1234", w)
		require.Equal(t, http.StatusOK, w.code)
	}
	close(leave)
	reading.Wait()
}

// A file is created while it is sent, so its place does not end when its answer begins: a tenant
// has two files that nobody reads, and neither other tenants' files nor any page wait for them.
func TestUnreadExports(t *testing.T) {
	s := newStack(t)
	ann := s.as("ann@example.com")
	at, err := url.Parse(s.server.URL)
	require.NoError(t, err)
	handler := s.server.Config.Handler
	ask := func(path string, w http.ResponseWriter) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		require.NoError(t, err)
		for _, cookie := range ann.http.Jar.Cookies(at) {
			r.AddCookie(cookie)
		}
		handler.ServeHTTP(w, r)
	}
	for _, path := range []string{"/audit?format=csv", securityURL + "?format=csv", "/metered/export?format=csv"} {
		begun, leave := make(chan struct{}, 100), make(chan struct{})
		var reading sync.WaitGroup
		for range maxTenantExports {
			reading.Go(func() { ask("/audit?format=csv", &stuck{status{header: http.Header{}}, begun, leave}) })
			<-begun
		}
		got := ann.get(path)
		require.Equal(t, http.StatusServiceUnavailable, got.status, path)
		require.Contains(t, got.body, "Too many downloads")
		require.Equal(t, http.StatusOK, ann.get("/rules").status)
		require.Equal(t, http.StatusOK, s.as("bob@example.com").get(path).status, "of another tenant: %s", path)
		close(leave)
		reading.Wait()
		require.Equal(t, http.StatusOK, ann.get(path).status, path)
		sent(t, func() bool { return s.pages.exports.Taken() == 0 })
	}
}

// Long pages that browsers do not read are limited by tenant, in bytes. Before, a member could make
// an instance keep any number of pages of several MB.
func TestUnreadLongPages(t *testing.T) {
	s := newStack(t)
	for i := range 60 {
		r := limit.NewRule(fmt.Sprintf("rule-%d", i))
		r.Limit, r.Window, r.Resource = 10, window(t, "1m"), r.Slug
		_, err := s.store.CreateRule(t.Context(), s.a, r)
		require.NoError(t, err)
		_, err = s.store.CreateRule(t.Context(), s.b, r)
		require.NoError(t, err)
	}
	ann, bob := s.as("ann@example.com"), s.as("bob@example.com")
	require.Greater(t, len(ann.get("/audit").body), longPage)
	at, err := url.Parse(s.server.URL)
	require.NoError(t, err)
	begun, leave := make(chan struct{}), make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/audit", nil)
		for _, cookie := range ann.http.Jar.Cookies(at) {
			r.AddCookie(cookie)
		}
		s.server.Config.Handler.ServeHTTP(&stuck{status{header: http.Header{}}, begun, leave}, r)
	})
	<-begun
	require.Greater(t, s.pages.unread.Taken(), longPage)
	more := s.pages.unread.Hold(s.a.TenantID(), maxTenantUnread) // by many more of them
	got := ann.get("/audit")
	require.Equal(t, http.StatusServiceUnavailable, got.status)
	require.Equal(t, "1", got.header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, ann.get("/members").status, "short pages do not count")
	require.Equal(t, http.StatusServiceUnavailable, ann.get("/usage?format=csv").status, "a table of usage can be long")
	require.Equal(t, http.StatusOK, bob.get("/usage?format=csv").status)
	require.Equal(t, http.StatusOK, bob.get("/audit").status)
	more()
	require.Equal(t, http.StatusOK, ann.get("/audit").status)
	close(leave)
	reading.Wait()
	sent(t, func() bool { return s.pages.unread.Taken() == 0 })
}

// sent waits until answers have returned what they took: a client has the last byte of an answer
// before its handler returns.
func sent(t *testing.T, free func() bool) {
	t.Helper()
	require.Eventually(t, free, time.Minute, time.Millisecond)
}

// A tenant has one verification of its audit trail and one preview of a rule at once. Before, two
// of one tenant refused both to all others.
func TestWorkOfOneTenant(t *testing.T) {
	s := newStack(t)
	ann, bob := s.as("ann@example.com"), s.as("bob@example.com")
	s.pages.verifyWait = 0
	s.pages.verifying, s.pages.trying = places.NewTurns[uuid.UUID](2, 1, 0), places.NewTurns[uuid.UUID](2, 1, 0)
	verified, err := s.pages.verifying.Take(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	previewed, err := s.pages.trying.Take(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	require.Contains(t, ann.get("/audit?verify=1").body, "Too many verifications")
	require.Contains(t, bob.get("/audit?verify=1").body, "The audit trail is intact.")
	require.Contains(t, bob.preview("tenant", s.b.TenantID().String()).body, "300 of 450 requests allowed.")
	verified()
	previewed()
	require.Contains(t, ann.get("/audit?verify=1").body, "The audit trail is intact.")
	require.Contains(t, ann.preview().body, "300 of 450 requests allowed.")
}

// Four tenants that verify their audit trails keep out no other one: it waits for the next place.
// Its page shows the trail as it is afterwards, and can be sent for as long as one that did not
// wait.
func TestVerificationsTakeTurns(t *testing.T) {
	s := newStack(t)
	s.pages.verifyWait = time.Hour
	var leave func()
	for range max(minVerifying, places.OnHalf(runtime.GOMAXPROCS(0), maxVerifying)) {
		var err error
		leave, err = s.pages.verifyTurn(t.Context(), uuid.New())
		require.NoError(t, err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/audit?verify=1", nil)
	at, err := url.Parse(s.server.URL)
	require.NoError(t, err)
	for _, cookie := range s.as("bob@example.com").http.Jar.Cookies(at) {
		r.AddCookie(cookie)
	}
	page := &timedPage{ResponseRecorder: httptest.NewRecorder()}
	var reading sync.WaitGroup
	reading.Go(func() { s.server.Config.Handler.ServeHTTP(page, r) })
	sent(t, func() bool { return s.pages.verifying.Waiting() == 1 })
	rule := limit.NewRule("made-meanwhile")
	rule.Limit, rule.Window = 10, window(t, "1m")
	_, err = s.store.CreateRule(t.Context(), s.b, rule)
	require.NoError(t, err)
	since := time.Now()
	leave()
	reading.Wait()
	require.Contains(t, page.Body.String(), "The audit trail is intact.")
	require.Contains(t, page.Body.String(), "made-meanwhile")
	require.False(t, page.by.Before(since.Add(verifiedTime)))
}

// timedPage is an answer that must be sent by some time.
type timedPage struct {
	*httptest.ResponseRecorder
	by time.Time
}

// SetWriteDeadline is called by http.ResponseController.
func (p *timedPage) SetWriteDeadline(by time.Time) error {
	p.by = by
	return nil
}

// Of a tenant, two verifications wait for the one that runs. Further ones are refused at once.
func TestVerificationsOfATenantThatWait(t *testing.T) {
	s := newStack(t)
	s.pages.verifying = places.NewTurns[uuid.UUID](2, 1, 0)
	s.pages.verifyWait = time.Hour
	leave, err := s.pages.verifyTurn(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	ann := s.as("ann@example.com")
	var waiting sync.WaitGroup
	defer waiting.Wait()
	leave = sync.OnceFunc(leave)
	defer leave()
	for i := range 2 {
		waiting.Go(func() { assert.Contains(t, ann.get("/audit?verify=1").body, "The audit trail is intact.") })
		sent(t, func() bool { return s.pages.verifying.Waiting() == i+1 })
	}
	third := make(chan string, 1)
	waiting.Go(func() { third <- ann.get("/audit?verify=1").body })
	sent(t, func() bool { return len(third) > 0 || s.pages.verifying.Waiting() > 2 })
	require.Len(t, third, 1)
	require.Contains(t, <-third, "Too many verifications")
	require.Contains(t, s.as("bob@example.com").get("/audit?verify=1").body, "The audit trail is intact.")
	leave()
	waiting.Wait()
	require.Contains(t, ann.get("/audit?verify=1").body, "The audit trail is intact.")
}

// Eight tenants with all downloads keep out no other one, which gets the next place.
func TestDownloadsTakeTurns(t *testing.T) {
	s := newStack(t)
	var last *tenants.ExportPlace
	var holder uuid.UUID
	for i := range maxExports {
		if i%maxTenantExports == 0 {
			holder = uuid.New()
		}
		var err error
		last, err = s.pages.exports.Take(holder)
		require.NoError(t, err)
	}
	bob := s.as("bob@example.com")
	require.Equal(t, http.StatusServiceUnavailable, bob.get("/audit?format=csv").status)
	last.Leave()
	_, err := s.pages.exports.Take(holder)
	require.ErrorIs(t, err, tenants.ErrTooManyExports)
	require.Equal(t, http.StatusOK, bob.get("/audit?format=csv").status)
}

// status is an answer of which only the status matters.
type status struct {
	header http.Header
	code   int
}

func (s *status) Header() http.Header         { return s.header }
func (s *status) Write(p []byte) (int, error) { return len(p), nil }
func (s *status) WriteHeader(code int)        { s.code = code }

// Each form, and the address of each page, has at most 200 fields, which are counted before they
// are parsed and before anything is read for them. Before, pages repeated thousands of parameters
// in each of their addresses, and looked for each of thousands of values among all names.
func TestManyFieldsOfForms(t *testing.T) {
	s := newStack(t)
	many := strings.Repeat("a=b&", maxFields)
	parameters := regexp.MustCompile(`\{[^}]*\}|\*`)
	forms, pages := 0, 0
	ask := func(method, path, kind, body string) page {
		r, err := http.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		require.NoError(t, err)
		r.RemoteAddr = "192.0.2.1:1234"
		if kind != "" {
			r.Header.Set("Content-Type", kind)
		}
		w := httptest.NewRecorder()
		s.server.Config.Handler.ServeHTTP(w, r)
		return page{w.Code, w.Header(), w.Body.String()}
	}
	const form = "application/x-www-form-urlencoded"
	require.NoError(t, chi.Walk(s.server.Config.Handler.(chi.Routes), func(method, pattern string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		path := parameters.ReplaceAllString(pattern, "x")
		if method == http.MethodPost {
			got := ask(method, path, form, many)
			require.Equal(t, http.StatusBadRequest, got.status, pattern)
			require.Contains(t, got.body, "The form has more than 200 fields.", pattern)
			require.NotContains(t, ask(method, path, form, strings.TrimSuffix(many, "&")).body, "200 fields", pattern)
			forms++
		}
		got := ask(method, path+"?"+many, "", "")
		require.Equal(t, http.StatusBadRequest, got.status, pattern)
		require.Contains(t, got.body, "The address has more than 200 parameters.", pattern)
		pages++
		return nil
	}))
	require.Greater(t, forms, 40)
	require.Greater(t, pages, forms+40)

	for fields, refused := range map[int]bool{maxFields: false, maxFields + 1: true} {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for range fields {
			require.NoError(t, w.WriteField("offered_plans", "x"))
		}
		require.NoError(t, w.Close())
		got := ask(http.MethodPost, customerPageURL, w.FormDataContentType(), b.String())
		require.Equal(t, refused, strings.Contains(got.body, "The form has more than 200 fields."), "%d parts", fields)
	}
}

// Previews of rules and verifications of audit trails run on at most half of the processors.
// Before, four of each did, however few processors there were.
func TestPagesOnHalfOfTheProcessors(t *testing.T) {
	s := newStack(t)
	most := places.OnHalf(runtime.GOMAXPROCS(0), 4)
	for turns, want := range map[*places.Turns[uuid.UUID]]int{s.pages.trying: most, s.pages.verifying: max(minVerifying, most)} {
		taken := 0
		for range 10 {
			if _, err := turns.TakeWithin(t.Context(), uuid.New(), 0); err == nil {
				taken++
			}
		}
		require.Equal(t, want, taken)
	}
}
