package api

import (
	"crypto/tls"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/route"
)

// A route that fails open lets a gateway's requests pass if Weir panics, one that fails closed
// does not. A panic over what a customer may have sent is a denial on both, or it would be a way
// around every limit.
func TestPanicsOfGateways(t *testing.T) { overPlainAndTLS(t, testPanicsOfGateways) }

func testPanicsOfGateways(t *testing.T, secure bool) {
	s := newFaultStack(t, secure)
	for slug, fail := range map[string]route.Fail{"open": route.FailOpen, "closed": route.FailClosed} {
		r := route.New(slug)
		r.Fail, r.Subject, r.DefaultResource, r.DeniedStatus = fail, []string{"header:X-User", "ip"}, "bulk", 403
		s.addRoute(r)
	}
	panics := 0
	ask := func(t *testing.T, stage, method, path string, lines ...string) answer {
		if stage != "policy" {
			require.NoError(t, s.deps.Policies.Preload(t.Context(), s.actor.TenantID()))
		}
		c := s.dial()
		c.t, c.method = t, method
		if conn, ok := c.Conn.(*tls.Conn); ok { // its places need the address, too
			require.NoError(t, conn.Handshake())
		}
		s.faults.arm(stage, c)
		c.send(s.askRoute(method, path, lines...))
		a := c.receive()
		panics++
		a.checkDecisionHeader()
		require.NotContains(t, string(a.body), "a fault")
		require.Empty(t, a.header.Values("RateLimit"))
		s.panicked(panics, "a fault during "+stage)
		return a
	}
	for _, stage := range []string{"authentication", "policy", "quota", "check"} {
		t.Run(stage, func(t *testing.T) {
			for _, transport := range []string{"X-A: b", "Te: trailers"} { // the lane, net/http
				for _, method := range []string{http.MethodGet, http.MethodHead} {
					for slug, status := range map[string]int{"/open": http.StatusNoContent, "/closed": http.StatusServiceUnavailable, "": http.StatusServiceUnavailable} {
						if stage == "policy" {
							s.deps.Policies.Gone(s.actor.TenantID())
							if slug == "/open" {
								continue // Weir does not know the route: see below
							}
						}
						a := ask(t, stage, method, slug, transport, "X-User: a", "Weir-Subject: a", "Weir-Resource: bulk")
						require.Equal(t, status, a.status, "%s %s %s", transport, method, slug)
						require.Equal(t, decisionNone, a.header.Get(decisionHeader))
						if status == http.StatusServiceUnavailable && method == http.MethodGet {
							a.problem(status, codeInternal)
						}
					}
				}
			}
		})
	}
	// The customer sends what the route reads.
	for _, slug := range []string{"/open", "/closed"} {
		a := ask(t, "address", http.MethodGet, slug)
		require.Equal(t, decisionDeny, a.header.Get(decisionHeader))
		require.EqualValues(t, requestInvalid, a.decision(http.StatusForbidden).Error.Code)
	}
	// The next request is answered as usual.
	c := s.dial()
	c.send(s.askRoute("GET", "/open", "X-User: a"))
	require.Equal(t, decisionAllow, c.receive().header.Get(decisionHeader))
	s.shutDown()
}

// If the policy cannot be loaded, the route is not known, and the request does not pass.
func TestPanicWhileLoadingTheRoute(t *testing.T) {
	s := newFaultStack(t, false)
	r := route.New("open")
	r.Fail, r.Subject = route.FailOpen, []string{"header:X-User"}
	s.addRoute(r)
	for i, transport := range []string{"X-A: b", "Te: trailers"} {
		s.deps.Policies.Gone(s.actor.TenantID())
		c := s.dial()
		s.faults.stage.Store("policy")
		c.send(s.askRoute("GET", "/open", "X-User: a", transport))
		c.receive().problem(http.StatusServiceUnavailable, codeInternal)
		s.panicked(i+1, "a fault during policy")
	}
	s.shutDown()
}

// The same over net/http, for a question without a route.
func TestPanicWhileReadingHeaders(t *testing.T) {
	s := newFaultStack(t, false)
	title := problemTitles[codeInvalidRequest]
	t.Cleanup(func() { problemTitles[codeInvalidRequest] = title })
	for _, transport := range []string{"X-A: b", "Te: trailers"} {
		delete(problemTitles, codeInvalidRequest) // a problem without a title panics
		c := s.dial()
		c.send(s.ask("GET", "Weir-Subject: a", "Weir-Cost: x", "Weir-Denied-Status: 403", transport))
		a := c.receive()
		problemTitles[codeInvalidRequest] = title
		require.EqualValues(t, requestInvalid, a.decision(http.StatusForbidden).Error.Code)
		require.Equal(t, decisionDeny, a.header.Get(decisionHeader))
	}
	s.shutDown()
}
