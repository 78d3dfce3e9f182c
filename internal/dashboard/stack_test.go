package dashboard

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/recent"
	"weir/internal/route"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/testenv"
)

const password = "correct horse"

// clock is a time that only tests change.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// catchUp moves the clock to the real time, which decisions have: pages must not take one for later
// than the present, however long a test takes.
func (c *clock) catchUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.After(c.now) {
		c.now = now
	}
}

func (c *clock) to(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

func (c *clock) move(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(by)
}

// stack is the dashboard with a real database and a real Redis, and two tenants. Ann owns tenant A;
// Bob owns tenant B.
type stack struct {
	t        *testing.T
	db       *tenantstest.Database
	store    *tenants.Store
	clock    *clock
	checker  *check.Checker
	engines  *engine.Stack
	recent   *recent.Log
	policies *check.Policies // updated only with what pages write
	pages    *dashboard
	server   *httptest.Server
	stopping chan struct{} // closed when the process is about to end
	a, b     tenants.Actor
	url      string
}

func newStack(t *testing.T) *stack {
	t.Helper()
	t.Parallel()
	c := &clock{now: time.Now()}
	db := tenantstest.NewWith(t, tenants.Config{Now: c.Now})
	s := &stack{t: t, db: db, store: db.Store, clock: c}
	s.a, _ = db.Tenant("tenant-a")
	s.b, _ = db.Tenant("tenant-b")
	s.member(s.a, "ann@example.com", tenants.Owner)
	s.member(s.b, "bob@example.com", tenants.Owner)
	s.serve(db.Store, testenv.RedisURL(t))
	return s
}

// observers notifies a log of decisions that is created after its checker.
type observers struct{ *recent.Log }

// serve starts a dashboard with this store and this Redis.
func (s *stack) serve(store *tenants.Store, redisURL string, changes ...func(*Deps)) {
	s.t.Helper()
	client, err := redisengine.NewClient(redisURL, redisengine.WithTimeout(testenv.RedisTimeout))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = client.Close() })
	logger := testenv.Logger(s.t)
	keys := check.NewKeys([16]byte{1})
	var decisions observers
	parts := checktest.New(s.t, checktest.Options{
		Keys: keys, Shared: redisengine.New(client, redisengine.Options{Deadline: testenv.RedisTimeout}), Observers: []check.Observer{&decisions},
	})
	decisions.Log = recent.New(recent.Options{Keys: keys, Peers: parts.Peers, Self: func() recent.Instance {
		return recent.Instance{Latency: parts.Checker.Latency(), DegradedSince: parts.Stack.DegradedSince()}
	}})
	s.checker, s.engines, s.recent = parts.Checker, parts.Stack, decisions.Log
	s.policies = check.NewPolicies(store, keys, logger, parts.Metrics)
	s.stopping = make(chan struct{})
	deps := Deps{
		Store: store, Policies: s.policies, Checker: s.checker, Recent: decisions.Log, Instances: parts.Peers.Count,
		DegradedSince: parts.Stack.DegradedSince, Logger: logger, Now: s.clock.Now, Stopping: s.stopping,
		Follow: func(ctx context.Context, _ limit.TenantID) { s.follow(context.WithoutCancel(ctx)) },
	}
	for _, change := range changes {
		change(&deps)
	}
	s.pages = newDashboard(deps)
	s.pages.turns.wait = time.Minute // however busy the machine is
	s.server = httptest.NewTLSServer(s.pages.handler())
	s.t.Cleanup(s.server.Close)
	s.url = s.server.URL
}

func (s *stack) member(a tenants.Actor, email string, role tenants.Role) tenants.Member {
	s.t.Helper()
	m, err := s.store.CreateMember(s.t.Context(), a, email, password, role)
	require.NoError(s.t, err)
	return m
}

// follow applies what was written for the two tenants.
func (s *stack) follow(ctx context.Context) {
	for _, a := range []tenants.Actor{s.a, s.b} {
		change, err := s.store.Versions(ctx, a.TenantID())
		require.NoError(s.t, err)
		s.policies.Changed(a.TenantID(), change.PolicyVersion, change.SubjectsVersion)
		require.NoError(s.t, s.policies.Settle(ctx, a.TenantID()))
	}
}

// staff gives tenant A a member of every role, ROLE@example.com.
func (s *stack) staff() {
	s.t.Helper()
	for _, role := range tenants.Roles {
		s.member(s.a, string(role)+"@example.com", role)
	}
}

// check sends one check in tenant A, as an application would.
func (s *stack) check(subject string, cost int64) check.Decision {
	s.t.Helper()
	policy, err := s.policies.Get(s.t.Context(), s.a.TenantID())
	require.NoError(s.t, err)
	defer s.clock.catchUp()
	decisions, err := s.checker.Check(s.t.Context(), policy, []check.Request{{Subject: subject, Resource: "default", Cost: cost}})
	require.NoError(s.t, err)
	return decisions[0]
}

// browser keeps cookies and does not follow redirects.
type browser struct {
	s    *stack
	http *http.Client
}

func (s *stack) browser() *browser {
	jar, err := cookiejar.New(nil)
	require.NoError(s.t, err)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &browser{s, &http.Client{Jar: jar, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// at makes the browser connect from this address of the loopback network.
func (b *browser) at(address string) *browser {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := b.http.Transport.(*http.Transport)
	transport.CloseIdleConnections()
	transport.DialContext = dialer.DialContext
	return b
}

// as returns a browser in which this person is signed in.
func (s *stack) as(email string) *browser {
	s.t.Helper()
	b := s.browser()
	got := b.login(email, password)
	require.Equal(s.t, http.StatusSeeOther, got.status, got.body)
	return b
}

type page struct {
	status int
	header http.Header
	body   string
}

func (b *browser) send(r *http.Request) page {
	b.s.t.Helper()
	response, err := b.http.Do(r)
	require.NoError(b.s.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(b.s.t, err)
	return page{response.StatusCode, response.Header, string(body)}
}

func (b *browser) request(method, path string, form url.Values) *http.Request {
	b.s.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(b.s.t.Context(), method, b.s.url+path, body)
	require.NoError(b.s.t, err)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", b.s.url)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	return r
}

func (b *browser) get(path string) page { return b.send(b.request(http.MethodGet, path, nil)) }

func (b *browser) post(path string, form url.Values) page {
	return b.send(b.request(http.MethodPost, path, form))
}

// write sends a form of tenant A.
func (b *browser) write(path string, form url.Values) page {
	form.Set("tenant", b.s.a.TenantID().String())
	return b.post(path, form)
}

func (b *browser) login(email, password string) page {
	return b.post("/login", url.Values{"email": {email}, "password": {password}, "next": {"/"}})
}

// token returns the token of the session, or "".
func (b *browser) token() string { return b.cookie(sessionCookie) }

// cookie returns the value of a cookie, or "".
func (b *browser) cookie(name string) string {
	u, err := url.Parse(b.s.url)
	require.NoError(b.s.t, err)
	for _, c := range b.http.Jar.Cookies(u) {
		if c.Name == name {
			return c.Value
		}
	}
	return ""
}

// signedIn requires that the session is valid or not.
func (b *browser) signedIn(want bool, why string) {
	b.s.t.Helper()
	got := b.get("/")
	if want {
		require.Equal(b.s.t, http.StatusOK, got.status, why)
		return
	}
	require.Equal(b.s.t, http.StatusSeeOther, got.status, why)
	require.Equal(b.s.t, "/login", got.header.Get("Location"), why)
}

// fill adds objects for every page to a tenant. Texts contain mark.
func (s *stack) fill(a tenants.Actor, mark string) {
	s.t.Helper()
	ctx := context.WithoutCancel(s.t.Context())
	window, err := limit.ParseWindow("1m")
	require.NoError(s.t, err)
	for _, slug := range []string{"requests", "by-ip"} {
		by := []string{"subject"}
		if slug == "by-ip" {
			by = append(by, "attributes.ip")
		}
		_, err = s.store.CreateRule(ctx, a, limit.Rule{
			Slug: slug, Name: "Rule " + mark, Description: "About " + mark, Resource: "*", Algorithm: limit.SlidingWindowLog, Limit: 10, Window: window, By: by,
		})
		require.NoError(s.t, err)
	}
	_, err = s.store.CreatePlan(ctx, a, tenants.Plan{Slug: "free", Name: "Plan " + mark, Limits: map[string]limit.Limit{"requests": {Limit: 20}}})
	require.NoError(s.t, err)
	_, _, err = s.store.PutSubject(ctx, a, tenants.Subject{Subject: "ada " + mark, Labels: map[string]string{"name": "Label " + mark}, BillingRef: "ref " + mark}, tenants.Match{})
	require.NoError(s.t, err)
	ends := s.clock.Now().Add(48 * time.Hour)
	_, _, err = s.store.PutOverride(ctx, a, "ada "+mark, tenants.Override{Rule: "requests", Limit: limit.Limit{Limit: 30}, Reason: "Because " + mark, ExpiresAt: &ends}, tenants.Match{})
	require.NoError(s.t, err)
	edge := route.New("edge")
	edge.Name, edge.Description = "Route "+mark, "In front "+mark
	edge.Hash = route.HashNone // some tests search for the word of the default
	edge.Subject, edge.Resources = []string{"jwt:" + mark, "ip"}, []route.Template{{Match: "GET /orders/{id}", Resource: "orders " + mark}}
	_, err = s.store.CreateRoute(ctx, a, edge)
	require.NoError(s.t, err)
	_, _, err = s.store.CreateKey(ctx, a, tenants.NewAPIKey{Name: "Key " + mark, Scopes: tenants.AllScopes})
	require.NoError(s.t, err)
}
