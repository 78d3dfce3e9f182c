package api

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/origin"
	"weir/internal/route"
	"weir/internal/tenants"
)

// edge returns the route of these tests. Its templates lead to resources that have rules.
func edge() route.Route {
	r := route.New("edge")
	r.Subject = []string{"header:X-User", "cookie:sid"}
	r.Resources = []route.Template{
		{Match: "GET /health", Resource: "free"}, {Match: "GET /orders/{id}", Resource: "bulk"}, {Match: "POST /orders", Resource: "bulk", Cost: ptr(int64(5))},
	}
	r.DefaultResource = "other"
	return r
}

// addRoute stores a route, and waits until checks use it.
func (s *checkStack) addRoute(r route.Route) {
	s.t.Helper()
	_, _, err := s.db.Store.PutRoute(s.t.Context(), s.actor, r, tenants.Match{})
	require.NoError(s.t, err)
	s.deps.Policies.Reload(s.actor.TenantID())
	require.NoError(s.t, s.deps.Policies.Settle(s.t.Context(), s.actor.TenantID()))
}

// askRoute returns a request to a route in the lane's form.
func (s *checkStack) askRoute(method, path string, lines ...string) string {
	return strings.Replace(s.ask(method, lines...), authorizePath, authorizePath+path, 1)
}

// through sends a request to a route on both transports, and returns the answer, which must be the
// same. If a line contains SUBJECT, each transport uses another subject.
func (s *checkStack) through(method, path string, lines ...string) answer {
	s.t.Helper()
	var answers [2]answer
	for i, transport := range []string{"lane", "http"} {
		own := make([]string, 0, len(lines)+2)
		for _, line := range lines {
			own = append(own, strings.ReplaceAll(line, "SUBJECT", transport))
		}
		own = append(own, "X-Request-Id: same", map[string]string{"lane": "X-A: b", "http": "Te: trailers"}[transport])
		before := s.ordinary.Load()
		c := s.dial()
		c.send(s.askRoute(method, path, own...))
		c.method = method
		answers[i] = c.receive()
		answers[i].checkDecisionHeader()
		s.contract.checkContract(httptest.NewRequest(method, authorizePath+"/edge", nil), answers[i])
		if transport == "lane" && answers[i].header.Get(decisionHeader) != decisionNone {
			require.Equal(s.t, before, s.ordinary.Load(), "the lane answered")
		}
		answers[i].header.Del("Date")
		answers[i].body = bytes.ReplaceAll(answers[i].body, []byte(`"subject":"`+transport+`"`), []byte(`"subject":"SUBJECT"`))
	}
	require.Equal(s.t, answers[1].status, answers[0].status)
	require.Equal(s.t, withoutTimes(answers[1]), withoutTimes(answers[0]))
	return answers[0]
}

// A forwarded request becomes a check, on every transport.
func TestRoute(t *testing.T) { overBoth(t, testRoute) }

func testRoute(t *testing.T, s *checkStack) {
	s.addRoute(edge())
	a := s.through("GET", "/edge", "X-User: SUBJECT", "X-Forwarded-Method: POST", "X-Forwarded-Uri: /orders?x=1")
	require.Equal(t, http.StatusNoContent, a.status)
	require.Empty(t, a.body)
	require.EqualValues(t, 1_000_000-5, s.remaining("lane", "bulk"))
	s.through("DELETE", "/edge", "X-User: SUBJECT", "X-Original-Method: GET", "X-Original-URI: /orders/7")
	s.through("GET", "/edge/orders/7?page=2", "X-User: SUBJECT")
	s.through("GET", "/edge?ignored=1", "X-User: SUBJECT", "X-Forwarded-Uri: /orders/7")
	require.EqualValues(t, 1_000_000-8, s.remaining("lane", "bulk"))
	require.EqualValues(t, 1_000_000-8, s.remaining("http", "bulk"))

	// Of the headers Weir-*, only the key is read, because a customer may have sent the others.
	s.through("GET", "/edge/orders/7", "X-User: SUBJECT", "Weir-Cost: 0", "Weir-Subject: other", "Weir-Resource: free", "Weir-Plan: none",
		"Weir-Denied-Status: 999", "Weir-Encoding: x", "Weir-Attribute-A: a", "Weir-Attribute-a: b")
	require.EqualValues(t, 1_000_000-9, s.remaining("http", "bulk"))
	require.Equal(t, http.StatusNoContent, s.through("HEAD", "/edge/orders/7", "X-User: SUBJECT").status)

	// A denial has the route's status and the body of a check.
	r := edge()
	r.Name, r.DeniedStatus, r.Cost, r.DefaultResource = "Edge 2", 403, 100_000_000, "bulk"
	s.addRoute(r)
	a = s.through("GET", "/edge", "X-User: SUBJECT")
	require.Equal(t, http.StatusForbidden, a.status)
	require.Equal(t, decisionDeny, a.header.Get(decisionHeader))
	require.Contains(t, string(a.body), `"code":"COST_EXCEEDS_LIMIT"`)
	require.NotContains(t, string(a.body), `"plan":"enterprise"`)

	byHost := edge()
	byHost.Slug, byHost.Subject, byHost.DefaultResource = "host", []string{"header:Host"}, "bulk"
	s.addRoute(byHost)
	s.through("GET", "/host")
	require.EqualValues(t, 1_000_000-2, s.remaining("weir", "bulk"))

	// Another tenant's route is not found, and neither is an invalid name.
	for _, path := range []string{"/none", "/", "//edge", "/edge%2Forders", "/EDGE"} {
		c := s.dial()
		c.send(s.askRoute("GET", path, "X-User: a"))
		a := c.receive()
		a.problem(404, codeNotFound)
		a.checkDecisionHeader()
	}
	c := s.dial()
	c.send(strings.Replace(s.askRoute("GET", "/edge", "X-User: a"), s.key, s.other, 1))
	c.receive().problem(404, codeNotFound)
}

// Every value of a customer leads to a decision: it is used unchanged, or the request is denied.
func TestRouteHostileValues(t *testing.T) {
	s := newCheckStack(t)
	r := edge()
	r.Hash = route.HashNone
	r.Attributes = map[string]string{"region": "header:X-Region"}
	s.addRoute(r)
	long := strings.Repeat("x", 300)
	for _, value := range []string{
		`x","plan":"enterprise`, `"`, `\`, `{"subject":"a"}`, `%41`, `%00`, `%0d%0aWeir-Subject: b`, `a, b`, `a;b`, `a=b`, "a b", "é", "日本", "\u202e", "'", "<script>",
		"../..", "*", "null", "true", "0", "-1", "sha256:00", long, "\xff", "\xc3\x28", "a\x80", "\u0085", "a\u0085b", strings.Repeat("é", 128), strings.Repeat("é", 129),
	} {
		for name, line := range map[string]string{"header": "X-User: " + value, "cookie": "Cookie: sid=" + value, "attribute": "X-User: ada\r\nX-Region: " + value} {
			a := s.through("GET", "/edge/orders/1", line)
			switch a.header.Get(decisionHeader) {
			case decisionAllow:
				require.Equal(t, http.StatusNoContent, a.status, "%s %q", name, value)
			case decisionDeny:
				require.Equal(t, http.StatusTooManyRequests, a.status, "%s %q", name, value)
				require.Regexp(t, `"code":"(SUBJECT|ATTRIBUTE)_INVALID"`, string(a.body))
				require.Empty(t, a.header.Get("Retry-After"))
			default:
				t.Fatalf("%s %q: nothing was decided: %s", name, value, a.body)
			}
		}
		if value != long && strings.ToValidUTF8(value, "") == value && !strings.Contains(value, "\u0085") && len(value) <= 256 {
			require.Less(t, s.remaining(value, "bulk"), int64(1_000_000), "%q is counted as it is", value)
		}
	}
	for name, lines := range map[string][]string{
		"two subjects": {"X-User: a", "X-User: b"}, "two cookies": {"Cookie: sid=a", "Cookie: sid=b"}, "two URIs": {"X-User: a", "X-Forwarded-Uri: /health", "X-Original-URI: /orders/1"},
		"none": {}, "empty": {"X-User:", "Cookie: sid="}, "a bad URI": {"X-User: a", "X-Forwarded-Uri: /%zz"}, "dots": {"X-User: a", "X-Forwarded-Uri: /health/../orders/1"},
	} {
		require.Equal(t, http.StatusTooManyRequests, s.through("GET", "/edge", lines...).status, name)
	}
	// An invalid URI below the route is denied by the lane, because net/http would answer without a
	// decision.
	c := s.dial()
	c.send(s.askRoute("GET", "/edge/orders/%zz", "X-User: a"))
	a := c.receive()
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.Contains(t, string(a.body), `"code":"RESOURCE_INVALID"`)
}

// Without a subject, no_subject of the route decides.
func TestRouteWithoutSubject(t *testing.T) {
	s := newCheckStack(t)
	r := edge()
	r.NoSubject = route.AllowNoSubject
	s.addRoute(r)
	a := s.through("GET", "/edge/orders/1")
	require.Equal(t, http.StatusNoContent, a.status)
	require.Equal(t, decisionAllow, a.header.Get(decisionHeader))
	require.Equal(t, http.StatusTooManyRequests, s.through("GET", "/edge/orders/1", "X-User: \xff").status)

	r.Name, r.NoSubject = "by address", route.CountByAddress
	s.addRoute(r)
	require.Equal(t, http.StatusNoContent, s.through("GET", "/edge/orders/1", "X-Forwarded-For: 198.51.100.1, 192.0.2.9").status)
	require.EqualValues(t, 1_000_000-2, s.remaining("192.0.2.9", "bulk"), "what the gateway added counts, not what the customer wrote")
	require.Equal(t, http.StatusNoContent, s.through("GET", "/edge/orders/1", "X-Forwarded-For: 198.51.100.1", "X-Forwarded-For: 2001:db8::7").status)
	require.EqualValues(t, 1_000_000-2, s.remaining("2001:db8::/64", "bulk"))
	require.Equal(t, http.StatusNoContent, s.through("GET", "/edge/orders/1", "X-Forwarded-For: 192.0.2.10, unknown").status)
	require.EqualValues(t, 1_000_000-2, s.remaining("127.0.0.1", "bulk"), "a gateway that does not say is counted itself")
}

// Trusted proxies before the gateway are skipped.
func TestRouteBehindProxies(t *testing.T) {
	proxies := origin.Proxies{netip.MustParsePrefix("10.0.0.0/8")}
	q := authorizeQuestion{proxies: proxies, via: via{remote: "127.0.0.1:4711"}}
	for lines, want := range map[string]string{
		"":                               "127.0.0.1",
		"X-Forwarded-For: 192.0.2.1\r\n": "192.0.2.1",
		"X-Forwarded-For: 198.51.100.1, 192.0.2.1, 10.0.0.1\r\n":                                     "192.0.2.1",
		"x-forwarded-for: 192.0.2.1\r\nX-Forwarded-For: 10.0.0.1,10.0.0.2\r\n":                       "192.0.2.1",
		"X-Forwarded-For: 10.0.0.3, 10.0.0.1\r\n":                                                    "10.0.0.3",
		"X-Forwarded-For: 192.0.2.1, unknown, 10.0.0.1\r\n":                                          "10.0.0.1",
		"X-Forwarded-For: [2001:db8::1]:443\r\n":                                                     "2001:db8::1",
		fmt.Sprintf("X-Forwarded-For: %s192.0.2.1\r\n", strings.Repeat("10.0.0.1,", 1000)):           "192.0.2.1",
		fmt.Sprintf("X-Forwarded-For: %s192.0.2.1\r\n", strings.Repeat("x,", 1000)):                  "192.0.2.1",
		fmt.Sprintf("X-Forwarded-For: 192.0.2.1, %s10.0.0.1\r\n", strings.Repeat("10.0.0.1, ", 100)): "192.0.2.1",
	} {
		q.lines = headerLines(lines)
		require.Equal(t, want, q.client().String(), "%.60s", lines)
	}
}

// If nothing can be decided, the answer is that of the route's setting fail. Mistakes of the
// gateway are still errors.
func TestRouteFailsOpen(t *testing.T) {
	s := newCheckStack(t)
	r := edge()
	r.Fail = route.FailOpen
	s.addRoute(r)
	closed := edge()
	closed.Slug = "closed"
	s.addRoute(closed)
	ask := func(path, key string) answer {
		c := s.dial()
		c.send(strings.Replace(s.askRoute("GET", path+"/orders/1", "X-User: ada"), s.key, key, 1))
		a := c.receive()
		a.checkDecisionHeader()
		return a
	}
	require.Equal(t, http.StatusNoContent, ask("/edge", s.key).status)
	ask("/edge", "nonsense").problem(401, codeMalformedKey)
	ask("/none", s.key).problem(404, codeNotFound)

	// No room for the request. The request before has its answer and may not have left its slot
	// yet, so the slots are added to what is there.
	s.deps.Metrics.inFlight.Add(DefaultMaxInFlight)
	a := ask("/edge", s.key)
	require.Equal(t, http.StatusNoContent, a.status)
	require.Equal(t, decisionNone, a.header.Get(decisionHeader))
	require.Empty(t, a.body)
	a = ask("/closed", s.key)
	a.problem(503, codeOverloaded)
	require.Equal(t, decisionNone, a.header.Get(decisionHeader))
	ask("/none", s.key).problem(503, codeOverloaded)
}
