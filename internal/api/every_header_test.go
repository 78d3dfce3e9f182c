package api

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// An answer can have every header of a decision at once. Each kind of answer sends all of them, or
// a check would be counted without an answer.
func TestAnswersWithEveryHeader(t *testing.T) {
	t.Run("combinations", testHeaderCombinations)
	t.Run("transports", testEveryHeaderOnEachTransport)
}

// testHeaderCombinations writes the headers of every combination into the memory of a request.
func testHeaderCombinations(t *testing.T) {
	t.Parallel()
	for bits := range 1 << 6 {
		denied, warned, over, paid := bits&1 != 0, bits&2 != 0, bits&4 != 0, bits&8 != 0
		style := HeaderStyle{Draft: bits&16 != 0, X: bits&32 != 0}
		rule := check.RuleDecision{
			Rule: &limit.Rule{Slug: "api"}, Mode: limit.Enforce, Allowed: !denied, Limit: 10, Quota: 10,
			WindowMS: 60_000, RetryAfterMS: 1, NextAfterMS: 1, Warning: warned,
		}
		if over {
			rule.Overage = 1
		}
		if paid {
			rule.CreditsSpent = 1
		}
		d := check.Decision{Allowed: !denied, Rules: []check.RuleDecision{rule}, Warning: warned, Overage: over, Credits: paid}
		if denied {
			d.Code = check.RateLimitExceeded
		}
		want := 1 + count(denied) + count(warned) + count(over) + count(paid) + 2*count(style.Draft) + 3*count(style.X)

		var h headerWriter
		h.build(style, &d)
		require.Equal(t, want, h.count, "%+v %+v", d, style)
		q := &request{ResponseWriter: httptest.NewRecorder(), left: true}
		h.write(q.Header(), q.headers[1:])
		require.Len(t, q.Header(), want)
	}
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

func testEveryHeaderOnEachTransport(t *testing.T) {
	s := newCheckStack(t)
	near, over, prepaid := hourly("near", "every", 20, "subject"), hourly("over", "every", 3, "subject"), hourly("prepaid", "every", 4, "subject")
	near.WarnAt = limit.PortionOrNone(new(0.2))
	over.Overage = limit.OverageAllow
	near.Consistency, over.Consistency = limit.Strict, limit.Strict
	for _, r := range []limit.Rule{near, over, prepaid} {
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, r)
		require.NoError(t, err)
	}
	memory := engine.NewMemory(engine.MemoryOptions{})
	s.registry = prometheus.NewRegistry()
	deps := s.newDeps(t, memory)
	s.serve(Config{Headers: bothStyles}, deps)
	for _, subject := range []string{"lane", "http", "twice", "many"} {
		_, _, err := s.db.Store.GrantCredits(t.Context(), s.actor, subject, tenants.NewCredits{Rule: "prepaid", Units: 2})
		require.NoError(t, err)
	}
	_, _, err := s.db.Store.SweepCredits(t.Context(), check.NewKeys([16]byte{7}), memory, tenants.CreditsSweep{})
	require.NoError(t, err)

	all := []string{"Ratelimit", "Ratelimit-Policy", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", decisionHeader, warningHeader, overageHeader}
	paid, denied := append(all, creditsHeader), append(all, "Retry-After")
	holds := func(a answer, status int, names []string) {
		t.Helper()
		require.Equal(t, status, a.status, "%s", a.body)
		for _, name := range names {
			require.NotEmpty(t, a.header.Get(name), "%s in %v", name, a.header)
		}
	}
	ask := func(body string, headers ...string) answer {
		c := s.dial()
		c.send(s.laneRequest(body, headers...))
		return c.receive()
	}
	for subject, headers := range map[string][]string{"lane": nil, "http": {"X-Unknown: 1"}} {
		before := s.ordinary.Load()
		body := `{"subject":"` + subject + `","resource":"every"`
		holds(ask(body+`,"cost":4}`, headers...), http.StatusOK, all[:6])
		holds(ask(body+`}`, headers...), http.StatusOK, paid)
		holds(ask(body+`,"cost":2}`, headers...), http.StatusTooManyRequests, denied)
		if headers == nil {
			require.Equal(t, before, s.ordinary.Load(), "the lane has answered")
		}
	}
	// The customer's gateway asks for the same subjects, on both transports.
	holds(s.authorize("GET", "Weir-Subject: SUBJECT", "Weir-Resource: every"), http.StatusNoContent, paid)
	holds(s.authorize("GET", "Weir-Subject: SUBJECT", "Weir-Resource: every"), http.StatusTooManyRequests, denied)

	s.serve(Config{Headers: bothStyles}, deps)
	for range 2 { // the second one is a replay, or has as many headers
		holds(s.check(`{"subject":"twice","resource":"every","cost":6}`, header{"Idempotency-Key", "k"}), http.StatusOK, paid)
		if deps.Once == nil {
			break
		}
	}
	batch := s.post("/v1/check/batch", `{"checks":[{"subject":"many","resource":"every","cost":6}]}`)
	holds(batch, http.StatusOK, []string{decisionHeader, warningHeader, overageHeader, creditsHeader})
}
