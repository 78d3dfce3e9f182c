package api

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// 7 of 5 units are used, which the rule allows: each kind of answer says so, with the excess.
func TestOverageAnswers(t *testing.T) {
	s := newEnvoyStack(t)
	at := s.check(`{"subject":"u","resource":"paid","cost":5}`)
	require.False(t, at.decision(200).Overage)
	require.Empty(t, at.header.Values(overageHeader))

	over := s.check(`{"subject":"u","resource":"paid","cost":2}`)
	d := over.decision(200)
	require.True(t, d.Overage)
	require.True(t, d.Rules[0].Overage)
	require.EqualValues(t, 2, d.Rules[0].OverageUnits)
	require.EqualValues(t, 0, *d.Remaining)
	require.EqualValues(t, 0, *d.RetryAfterMS)
	require.Equal(t, "paid", over.header.Get(overageHeader))
	require.Equal(t, decisionAllow, over.header.Get(decisionHeader))
	require.Contains(t, over.header.Get("RateLimit"), `"paid";r=0;t=`)

	a := s.authorize("GET", "Weir-Subject: u", "Weir-Resource: paid", "Weir-Cost: 0")
	require.Equal(t, http.StatusNoContent, a.status)
	require.Equal(t, "paid", a.header.Get(overageHeader))

	batch := s.post("/v1/check/batch", `{"checks":[{"subject":"v"},{"subject":"u","resource":"paid"}]}`)
	require.Equal(t, "paid", batch.header.Get(overageHeader))
	var results CheckResults
	require.NoError(t, json.Unmarshal(batch.ok(200).body, &results))
	require.EqualValues(t, 3, results.Results[1].Rules[0].OverageUnits)

	live := s.limits("u", "").rule("paid")
	require.True(t, live.Allowed)
	require.EqualValues(t, 3, live.OverageUnits)

	r := s.answered(asking(described("subject", "u", "resource", "paid")))
	require.Equal(t, "paid", envoyHeaders(r)[overageHeader])
	require.EqualValues(t, 4, s.limits("u", "").rule("paid").OverageUnits)

	// Several descriptors take the script for a single call.
	r = s.answered(asking(costing(3, described("subject", "u", "resource", "paid")), described("subject", "w", "resource", "paid")))
	require.Equal(t, "paid", envoyHeaders(r)[overageHeader])
	require.EqualValues(t, 7, s.limits("u", "").rule("paid").OverageUnits)
	require.EqualValues(t, 4, *s.limits("w", "").rule("paid").Remaining)
}
