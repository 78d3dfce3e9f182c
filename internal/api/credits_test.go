package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/tenants"
)

// The answer to a check says which credits it spent and how many are left, and the header names the
// rules. Rules without credits of the subject have neither.
func TestCreditsInAnswers(t *testing.T) {
	s := newAdminStack(t)
	s.counters = engine.NewMemory(engine.MemoryOptions{})
	s.url = s.serve(s.store)
	s.call(s.wKey, http.MethodPut, "/v1/rules/prepaid", obj{"limit": 2, "window": "1d", "algorithm": "fixed_window_first_hit"}).ok(201)
	grant := obj{"rule": "prepaid", "units": 5, "reference": "invoice-1001"}
	s.call(s.wKey, http.MethodPost, "/v1/subjects/ada/credits", grant).ok(201)
	s.call(s.wKey, http.MethodPost, "/v1/subjects/ada/credits", grant).ok(200)
	s.call(s.wKey, http.MethodPost, "/v1/subjects/ada/credits", obj{"rule": "prepaid", "units": 6, "reference": "invoice-1001"}).problem(409, "CREDIT_REFERENCE_USED")
	_, _, err := s.store.SweepCredits(t.Context(), check.NewKeys([16]byte{}), s.counters, tenants.CreditsSweep{})
	require.NoError(t, err)

	ask := func(subject string, cost, status int) (rule obj, header http.Header) {
		t.Helper()
		a := s.call(s.checkKey, http.MethodPost, "/v1/check", obj{"subject": subject, "cost": cost}).ok(status)
		return a.json()["rules"].([]any)[0].(obj), a.header
	}
	rule, header := ask("ada", 2, 200)
	require.Equal(t, 0.0, rule["credits_spent"], "the units of the window go first")
	require.Equal(t, 5.0, rule["credits_remaining"])
	require.Empty(t, header.Get(creditsHeader))
	rule, header = ask("ada", 3, 200)
	require.Equal(t, 3.0, rule["credits_spent"])
	require.Equal(t, 2.0, rule["credits_remaining"])
	require.Equal(t, 0.0, rule["remaining"])
	require.Equal(t, "prepaid", header.Get(creditsHeader))
	rule, header = ask("ada", 3, 429)
	require.Equal(t, 0.0, rule["credits_spent"], "a denied check spends none")
	require.Equal(t, 2.0, rule["credits_remaining"])
	require.Empty(t, header.Get(creditsHeader))
	rule, _ = ask("bob", 1, 200)
	require.NotContains(t, rule, "credits_spent")
	require.NotContains(t, rule, "credits_remaining")

	_, _, err = s.store.SweepCredits(t.Context(), check.NewKeys([16]byte{}), s.counters, tenants.CreditsSweep{})
	require.NoError(t, err)
	list := s.call(s.readKey, http.MethodGet, "/v1/subjects/ada/credits", nil).ok(200).json()["items"].([]any)
	require.Equal(t, 3.0, list[0].(obj)["spent"])
	require.Equal(t, 2.0, list[0].(obj)["balance"])
	limits := s.call(s.readKey, http.MethodGet, "/v1/subjects/ada/limits", nil).ok(200)
	require.Contains(t, string(limits.body), `"credits_remaining":2`)
}
