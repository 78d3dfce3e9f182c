package api

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
)

// Without a valid key there is no decision. Every way of sending a key except one is refused,
// because proxies could read it differently.
func TestAuthorization(t *testing.T) {
	s := newCheckStack(t)
	random := tenants.NewKey(tenants.TenantKey)
	cut := s.key[:len(s.key)-1]
	wrong := "0"
	if strings.HasSuffix(s.key, wrong) {
		wrong = "1"
	}
	swapped := func(from, to string) string { return strings.Replace(s.key, from, to, 1) }
	otherCase := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r - 'a' + 'A'
		}
		return r
	}, s.key)
	for _, c := range []struct {
		name    string
		headers []string // values of Authorization
		status  int
		code    string
	}{
		{"none", nil, 401, "MISSING_KEY"},
		{"two", []string{"Bearer " + s.key, "Bearer " + s.key}, 400, "INVALID_HEADER"},
		{"two of two tenants", []string{"Bearer " + s.key, "Bearer " + s.other}, 400, "INVALID_HEADER"},
		{"empty", []string{""}, 401, "MISSING_KEY"},
		{"Basic", []string{"Basic " + s.key}, 401, "MISSING_KEY"},
		{"the key alone", []string{s.key}, 401, "MISSING_KEY"},
		{"the scheme alone", []string{"Bearer"}, 401, "MALFORMED_KEY"},
		{"another scheme that begins so", []string{"Bearerx " + s.key}, 401, "MALFORMED_KEY"},
		{"tab", []string{"Bearer\t" + s.key}, 401, "MALFORMED_KEY"},
		{"two spaces", []string{"Bearer  " + s.key}, 401, "MALFORMED_KEY"},
		{"two keys", []string{"Bearer " + s.key + " " + s.other}, 401, "MALFORMED_KEY"},
		{"two keys with a comma", []string{"Bearer " + s.key + "," + s.other}, 401, "MALFORMED_KEY"},
		{"quoted", []string{`Bearer "` + s.key + `"`}, 401, "MALFORMED_KEY"},
		{"wrong checksum", []string{"Bearer " + cut + wrong}, 401, "MALFORMED_KEY"},
		{"cut", []string{"Bearer " + cut}, 401, "MALFORMED_KEY"},
		{"extended", []string{"Bearer " + s.key + "0"}, 401, "MALFORMED_KEY"},
		{"other letter case", []string{"Bearer " + otherCase}, 401, "MALFORMED_KEY"},
		{"percent-encoded", []string{"Bearer " + swapped("_", "%5F")}, 401, "MALFORMED_KEY"},
		{"homoglyph", []string{"Bearer " + swapped("e", "\u0435")}, 401, "MALFORMED_KEY"},
		{"operator's kind on a tenant's key", []string{"Bearer " + swapped("_key_", "_op_")}, 401, "MALFORMED_KEY"},
		{"unknown, with the right checksum", []string{"Bearer " + random.Secret()}, 401, "UNKNOWN_KEY"},
	} {
		t.Run(c.name, func(t *testing.T) {
			headers := make([]header, len(c.headers))
			for i, v := range c.headers {
				headers[i] = header{"Authorization", v}
			}
			for _, path := range []string{"/v1/check", "/v1/rules"} {
				a := s.contract.call("", map[string]string{"/v1/check": "POST", "/v1/rules": "GET"}[path], path, `{"subject":"a"}`, headers...)
				a.problem(c.status, c.code)
				require.Equal(t, c.status == 401, a.header.Get("WWW-Authenticate") == `Bearer realm="weir"`)
			}
		})
	}
	// The letter case of the scheme has no meaning in HTTP.
	for _, scheme := range []string{"bearer", "BEARER", "bEaReR"} {
		s.contract.call("", "POST", "/v1/check", `{"subject":"ok"}`, header{"Authorization", scheme + " " + s.key}).decision(200)
	}
	s.untouched("a")

	c := s.dial()
	c.send("POST /v1/check HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer " + s.key + "\x00\r\nContent-Length: 0\r\n\r\n")
	require.Equal(t, 400, c.receive().status)
	c.closed()
	c = s.dial()
	c.send("POST /v1/check HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer " + strings.Repeat("k", 64<<10) + "\r\n\r\n")
	require.Equal(t, 431, c.receive().status)
	c.closed()
}

// A key outside of its header would be logged and sent to other sites. It is not accepted there,
// and not written to the log.
func TestKeyElsewhere(t *testing.T) {
	s := newCheckStack(t)
	for _, path := range []string{"/v1/check?key=" + s.key, "/v1/check?access_token=" + s.key, "/v1/rules?api_key=" + s.key, "/v1/rules/" + s.key, "/" + s.key} {
		for _, method := range []string{"POST", "GET"} {
			r, err := http.NewRequestWithContext(t.Context(), method, s.server.URL+path, strings.NewReader(`{"subject":"a"}`))
			require.NoError(t, err)
			r.Header.Set("Content-Type", "application/json")
			r.AddCookie(&http.Cookie{Name: "key", Value: s.key})
			require.GreaterOrEqual(t, s.contract.send(r).status, 401)
		}
	}
	s.contract.call("", "POST", "/v1/check", `{"subject":"a","key":"`+s.key+`"}`).problem(401, "MISSING_KEY")
	s.contract.call("", "POST", "/v1/check", "key="+url.QueryEscape(s.key), header{"Content-Type", "application/x-www-form-urlencoded"}).problem(401, "MISSING_KEY")
	s.untouched("a")
	require.NotContains(t, s.log.String(), s.key)
	require.NotEmpty(t, s.log.String(), "the log was looked at for nothing")
}

// Only a client with the real secret learns that the key was revoked. A key without the scope is
// refused.
func TestKeysThatEnd(t *testing.T) {
	s := newCheckStack(t)
	ctx := t.Context()
	make := func(scopes ...tenants.Scope) (tenants.APIKey, string) {
		k, secret, err := s.db.Store.CreateKey(ctx, s.actor, tenants.NewAPIKey{Name: "k", Kind: tenants.TenantKey, Scopes: scopes})
		require.NoError(t, err)
		return k, secret.Secret()
	}
	_, readOnly := make(tenants.ScopeRead, tenants.ScopeWrite)
	s.contract.call(readOnly, "POST", "/v1/check", `{"subject":"a"}`).problem(403, "INSUFFICIENT_SCOPE")
	s.contract.call(readOnly, "POST", "/v1/check/batch", `{"checks":[{"subject":"a"}]}`).problem(403, "INSUFFICIENT_SCOPE")
	_, checkOnly := make(tenants.ScopeCheck)
	s.contract.call(checkOnly, "POST", "/v1/check", `{"subject":"own"}`).decision(200)
	s.contract.call(checkOnly, "GET", "/v1/rules", nil).problem(403, "INSUFFICIENT_SCOPE")

	revoked, secret := make(tenants.ScopeCheck)
	s.contract.call(secret, "POST", "/v1/check", `{"subject":"own"}`).decision(200)
	require.NoError(t, s.db.Store.RevokeKey(ctx, s.actor, revoked.ID, tenants.Match{}))
	s.deps.Authenticator.Changed(ctx, s.actor.TenantID())
	s.contract.call(secret, "POST", "/v1/check", `{"subject":"a"}`).problem(401, "KEY_REVOKED")

	// After a rotation with overlap, both keys work.
	old, oldSecret := make(tenants.ScopeCheck)
	_, fresh, err := s.db.Store.RotateKey(ctx, s.actor, old.ID, 3_600_000_000_000)
	require.NoError(t, err)
	s.deps.Authenticator.Changed(ctx, s.actor.TenantID())
	s.contract.call(oldSecret, "POST", "/v1/check", `{"subject":"own"}`).decision(200)
	s.contract.call(fresh.Secret(), "POST", "/v1/check", `{"subject":"own"}`).decision(200)
	s.untouched("a")
}

// While Postgres is unavailable, a known key works. An unknown key is not refused as invalid,
// because clients do not retry a 401.
func TestChecksWithoutPostgres(t *testing.T) {
	s := newCheckStack(t)
	gate := newGate(t, s.db.URL)
	store, err := tenants.Open(t.Context(), tenants.Config{DatabaseURL: gate.url})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	s.db.Store = store
	s.registry = prometheusRegistry()
	s.deps = s.newDeps(t, memoryEngine())
	s.serve(Config{}, s.deps)
	s.check(`{"subject":"a"}`).decision(200)
	gate.close()

	require.Equal(t, int64(3), *s.check(`{"subject":"a"}`).decision(200).Remaining)
	a := s.contract.call(s.other, "POST", "/v1/check", `{"subject":"a"}`)
	a.problem(503, "KEY_LOOKUP_UNAVAILABLE")
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Empty(t, a.header.Get("WWW-Authenticate"))
}

// gate is a connection to Postgres that can be closed.
type gate struct {
	url      string
	listener net.Listener
	mu       sync.Mutex
	shut     bool
	conns    []net.Conn
}

func newGate(t *testing.T, databaseURL string) *gate {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	network, target := "tcp", u.Host
	if host := u.Query().Get("host"); host != "" { // a socket's directory
		network, target = "unix", host+"/.s.PGSQL."+u.Query().Get("port")
	}
	g := &gate{}
	g.listener, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	u.Host = g.listener.Addr().String()
	u.RawQuery = ""
	g.url = u.String()
	go func() {
		for {
			from, err := g.listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial(network, target)
			if err != nil {
				_ = from.Close()
				continue
			}
			g.mu.Lock()
			g.conns = append(g.conns, from, to)
			g.mu.Unlock()
			go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
			go func() { _, _ = io.Copy(from, to); _ = from.Close() }()
		}
	}()
	t.Cleanup(g.close)
	return g
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return
	}
	g.shut = true
	_ = g.listener.Close()
	for _, c := range g.conns {
		_ = c.Close()
	}
}

// With an operator key, a client would have no limits and no error.
func TestOperatorKeysCannotRunChecks(t *testing.T) {
	s := newCheckStack(t)
	_, key, err := s.db.Store.CreateOperatorKey(t.Context(), "test")
	require.NoError(t, err)
	s.key = key.Secret()
	s.check(`{"subject":"a"}`).problem(403, "INSUFFICIENT_SCOPE")
}

// A check in the operator's tenant would be taken from the quota of the tenant that its subject
// names, also with a key that is no operator key.
func TestChecksInTheOperatorsTenantAreRefused(t *testing.T) {
	s := newCheckStack(t)
	ctx, store := t.Context(), s.db.Store
	operator := s.quota(2)
	_, key, err := store.CreateKey(ctx, operator, tenants.NewAPIKey{Scopes: []tenants.Scope{tenants.ScopeCheck}})
	require.NoError(t, err)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	deps.Quota = check.NewQuota(deps.Checker, deps.Policies, operator.TenantID())
	s.serve(Config{}, deps)

	tenantsKey := s.key
	s.key = key.Secret()
	const acme = `{"subject":"acme","resource":"checks","cost":2}`
	s.check(acme).problem(403, "INSUFFICIENT_SCOPE")
	s.post("/v1/check/batch", `{"checks":[`+acme+`]}`).problem(403, "INSUFFICIENT_SCOPE")
	s.post("/v1/leases", acme).problem(403, "INSUFFICIENT_SCOPE")
	s.key = tenantsKey
	s.check(`{"subject":"a"}`).decision(200)
	s.check(`{"subject":"a"}`).decision(200)
	s.check(`{"subject":"a"}`).problem(429, "TENANT_QUOTA_EXCEEDED")
}
