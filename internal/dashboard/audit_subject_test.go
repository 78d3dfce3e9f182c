package dashboard

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// The trail describes what happened to a customer, not which object was written.
func TestAuditSaysWhatHappenedToASubject(t *testing.T) {
	t.Parallel()
	names := ruleNames{"api-requests": "API requests"}
	for want, change := range map[string][2]string{
		"boosted API requests to 200 until 23 Nov 2026, 10:00 UTC for":     {``, `{"state": "active", "overrides": {"api-requests": {"limit": 200, "expires_at": "2026-11-23T10:00:00Z", "reason": "launch"}}}`},
		"boosted API requests 100 to 200 until 23 Nov 2026, 10:00 UTC for": {``, `{"state": "active", "overrides": {"api-requests": {"limit": 200, "expires_at": "2026-11-23T10:00:00Z"}}, "replaced_limits": {"api-requests": 100}}`},
		"set API requests 100 to 200 for":                                  {`{"overrides": {"api-requests": {"limit": 100}}}`, `{"overrides": {"api-requests": {"limit": 200}}}`},
		"made API requests unlimited for":                                  {`{}`, `{"overrides": {"api-requests": {"unlimited": true}}}`},
		"removed the override of API requests for":                         {`{"overrides": {"api-requests": {"limit": 100}}}`, `{}`},
		"changed the plan to pro for":                                      {`{"plan": "free"}`, `{"plan": "pro"}`},
		"blocked":                                                          {`{"state": "active"}`, `{"state": "blocked"}`},
		"":                                                                 {`{"plan": "free", "state": "active"}`, `{"plan": "pro", "state": "blocked"}`},
	} {
		e := &tenants.AuditEntry{Kind: "subject", Action: "update"}
		if change[0] != "" {
			e.Before = json.RawMessage(change[0])
		}
		e.After = json.RawMessage(change[1])
		require.Equal(t, want, inUTC(subjectVerb(e, fieldChanges(e.Before, e.After), names, nil)))
	}
	require.Empty(t, subjectVerb(&tenants.AuditEntry{Kind: "rule", Action: "update"}, nil, names, nil))
}
