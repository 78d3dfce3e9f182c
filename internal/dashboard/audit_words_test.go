package dashboard

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Lines of the trail are what a person would say, and not the name of a call.
func TestAuditSpeaksAsAPerson(t *testing.T) {
	t.Parallel()
	names, plans := ruleNames{"api": "API requests"}, planNames{"pro": "Professional", "free": "Free"}
	for _, c := range []struct{ want, kind, action, target, before, after string }{
		{"started moving 12 subjects from version 2 to the newest version of", "migration", "create", "pro", ``, `{"id": "x", "from": "pro", "from_version": 2, "to": "pro", "subjects": 12}`},
		{"scheduled moving 1 subject from version 2 to the plan Free from", "migration", "create", "pro", ``, `{"from": "pro", "from_version": 2, "to": "free", "subjects": 1, "state": "scheduled"}`},
		{"finished moving subjects of the plan", "migration", "update", "pro", `{}`, `{"state": "done"}`},
		{"canceled the move of subjects of the plan", "migration", "update", "pro", `{}`, `{"state": "canceled"}`},
		{"changed the plan from version 2 to version 3 for", "subject", "update", "ada", `{"plan_version": 2}`, `{"plan_version": 3}`},
		{"scheduled the plan Professional for", "subject", "update", "ada", `{}`, `{"next_plan": "pro", "next_plan_at": "2026-12-01T00:00:00Z"}`},
		{"granted 500 credits of API requests to", "credits", "create", "ada", ``, `{"rule": "api", "units": 500}`},
		{"approved the request for a higher limit of", "limit_request", "update", "ada", `{"state": "open"}`, `{"state": "approved"}`},
		{"changed the role from viewer to admin for", "member", "update", "ada@example.com", `{"role": "viewer"}`, `{"role": "admin"}`},
	} {
		e := &tenants.AuditEntry{Kind: c.kind, Action: c.action, Target: c.target, After: json.RawMessage(c.after)}
		if c.before != "" {
			e.Before = json.RawMessage(c.before)
		}
		lines := auditLines([]tenants.AuditEntry{*e}, names, plans)
		require.Equal(t, c.want, inUTC(lines[0].What))
		require.Empty(t, lines[0].Brief(), "the sentence says all")
	}
	for want, c := range map[string][2]string{
		"mapped the price": {"price", "create"}, "removed the member": {"member", "delete"}, "registered": {"subject", "create"},
		"created a customer link for": {"portal_link", "create"}, "changed the settings of the": {"portal", "create"},
	} {
		require.Equal(t, want, auditVerb(&tenants.AuditEntry{Kind: c[0], Action: c[1]}))
	}
}
