package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
)

// serveOnce sends one check to a handler, and checks the answer's Weir-Decision.
func (s *checkStack) serveOnce(h http.Handler, method, path, body string) answer {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	a := answer{t: s.t, status: w.Code, header: w.Header(), body: w.Body.Bytes()}
	a.checkDecisionHeader()
	return a
}

// Every answer says whether the subject was decided. The contract (checkContract) verifies this for
// all other tests.
func TestDecisionHeader(t *testing.T) {
	s := newCheckStack(t)
	s.check(`{"subject":"a"}`, header{"X-Unknown", "net/http"}).decision(200)
	s.check(`{"subject":"blocked"}`, header{"X-Unknown", "net/http"}).decision(429)
	s.check(`{"subject":"blocked"}`, header{"Weir-Denied-Status", "200"}).decision(200)
	s.post("/v1/check/batch", `{"checks":[{"subject":"a"}]}`).ok(200)
	s.post("/v1/check/batch", `{"checks":[{"subject":"a"},{"subject":"blocked"}]}`).ok(200)
	s.post("/v1/check/batch", `{"checks":[]}`).problem(422, "INVALID_REQUEST")
	s.contract.call(s.key, http.MethodGet, "/v1/check", nil).problem(405, "METHOD_NOT_ALLOWED")
	require.NotContains(t, s.contract.call(s.key, http.MethodGet, "/v1/rules", nil).ok(200).header, decisionHeader)

	c := s.dial()
	before := s.ordinary.Load()
	for body, status := range map[string]int{`{"subject":"a"}`: 200, `{"subject":"blocked"}`: 429} {
		c.send(s.laneRequest(body))
		a := c.receive()
		a.decision(status)
		a.checkDecisionHeader()
	}
	require.Equal(t, before, s.ordinary.Load(), "the lane answered")
	c.send(s.laneRequest(`{"subject":1}`))
	a := c.receive()
	a.problem(422, "INVALID_REQUEST")
	a.checkDecisionHeader()

	// Failures after a part of the answer is known.
	with := func(change func(*Deps)) http.Handler {
		deps := s.deps
		deps.Metrics = NewMetrics(prometheusRegistry())
		change(&deps)
		return New(Config{Headers: bothStyles, MaxInFlight: 1}, deps)
	}
	broken := with(func(d *Deps) { d.Checker = nil })
	for path, body := range map[string]string{"/check": `{"subject":"a"}`, "/v1/check/batch": `{"checks":[{"subject":"a"}]}`} {
		s.serveOnce(broken, http.MethodPost, path, body).problem(500, "INTERNAL")
	}
	away := s.db.Open(tenants.Config{})
	away.Close()
	unread := with(func(d *Deps) {
		d.Policies = check.NewPolicies(away, check.NewKeys([16]byte{7}), d.Logger, check.NewMetrics(prometheusRegistry()))
	})
	s.serveOnce(unread, http.MethodPost, "/v1/check", `{"subject":"a"}`).problem(503, "POLICY_UNAVAILABLE")
}
