package api

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// More than 8 of 10 units are used: each kind of answer says so, in its body and in a header. A
// repeat with an idempotency key says it, too.
func TestWarnedAnswers(t *testing.T) {
	s := newEnvoyStack(t)
	quietly := s.check(`{"subject":"u","resource":"warned","cost":8}`)
	require.False(t, quietly.decision(200).Warning)
	require.Empty(t, quietly.header.Values(warningHeader))

	near := s.check(`{"subject":"u","resource":"warned"}`)
	d := near.decision(200)
	require.True(t, d.Warning)
	require.True(t, d.Rules[0].Warning)
	require.Equal(t, "warned", near.header.Get(warningHeader))
	for name, a := range map[string]answer{
		"peek":     s.check(`{"subject":"u","resource":"warned","cost":0}`),
		"dry run":  s.check(`{"subject":"u","resource":"warned","dry_run":true}`),
		"net/http": s.check(`{"subject":"u","resource":"warned","cost":0,"explain":true}`, header{"Weir-Denied-Status", "200"}),
	} {
		require.True(t, a.decision(200).Warning, name)
		require.Equal(t, "warned", a.header.Get(warningHeader), name)
	}
	denial := s.check(`{"subject":"u","resource":"warned","cost":2}`)
	require.True(t, denial.decision(429).Warning)
	require.Equal(t, "warned", denial.header.Get(warningHeader))

	a := s.authorize("GET", "Weir-Subject: u", "Weir-Resource: warned", "Weir-Cost: 0")
	require.Equal(t, http.StatusNoContent, a.status)
	require.Equal(t, "warned", a.header.Get(warningHeader))

	batch := s.post("/v1/check/batch", `{"checks":[{"subject":"v"},{"subject":"u","resource":"warned","cost":0}]}`)
	require.Equal(t, "warned", batch.header.Get(warningHeader))
	var results CheckResults
	require.NoError(t, json.Unmarshal(batch.ok(200).body, &results))
	require.False(t, results.Results[0].Warning)
	require.True(t, results.Results[1].Warning)

	limits := s.limits("u", "")
	for _, r := range limits.Rules {
		require.Equal(t, r.Rule == "warned", r.Warning, r.Rule)
	}

	r := s.answered(asking(described("subject", "w"), costing(0, described("subject", "u", "resource", "warned"))))
	require.Equal(t, "warned", envoyHeaders(r)[warningHeader])
	require.NotContains(t, envoyHeaders(s.answered(asking(described("subject", "w")))), warningHeader)

	for range 2 {
		a := s.check(`{"subject":"u","resource":"warned"}`, header{"Idempotency-Key", "k"})
		require.Equal(t, "warned", a.header.Get(warningHeader))
		require.True(t, a.decision(200).Warning)
	}
}
