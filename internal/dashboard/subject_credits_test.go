package dashboard

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// An editor grants credits and revokes the rest, and the customer sees them, with the metered usage
// of the month.
func TestCreditsOnPages(t *testing.T) {
	s := newStack(t)
	s.staff()
	prepaid := limit.NewRule("prepaid")
	prepaid.Name, prepaid.Limit, prepaid.Window, prepaid.Metering = "Map tiles", 10, limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}, limit.MeterUnits
	_, err := s.store.CreateRule(t.Context(), s.a, prepaid)
	require.NoError(t, err)

	editor := s.as("editor@example.com")
	grant := url.Values{"do": {"grant"}, "rule": {"prepaid"}, "units": {"5 000"}, "expires_at": {"2099-01-01T00:00"}, "reference": {"invoice <7>"}, "reason": {"they paid"}}
	require.Equal(t, http.StatusForbidden, s.as("support@example.com").write("/subjects/user_7", grant).status)
	require.Equal(t, http.StatusSeeOther, editor.write("/subjects/user_7", grant).status)
	page := editor.get("/subjects/user_7").body
	require.Contains(t, page, "5,000 credits for Map tiles granted to user_7.")
	require.Contains(t, page, "invoice &lt;7&gt;")
	require.Contains(t, page, "Revoke 5,000 credits")
	grant.Set("units", "6000")
	require.Equal(t, http.StatusUnprocessableEntity, editor.write("/subjects/user_7", grant).status)

	hour := s.clock.Now().Truncate(time.Hour)
	require.NoError(t, s.store.WriteMetered(t.Context(), &usage.MeterBatch{
		Writer: uuid.New(), Sequence: 1, Last: true, CompleteUntil: hour, Rows: []usage.MeterRow{{
			MeterKey: usage.MeterKey{Tenant: s.a.TenantID(), StartMS: hour.UnixMilli(), Subject: "user_7", Rule: "prepaid"},
			Metered:  usage.Metered{Units: 1234, Overage: 34, Checks: 9},
		}},
	}))
	customer := s.customer(s.a, "user_7")
	home := customer.get(customer.home).body
	for _, words := range []string{"Your credits", "Map tiles", "<b>5,000</b> of 5,000", "Metered usage this month", "1,234"} {
		require.Contains(t, home, words)
	}
	require.NotContains(t, home, "they paid")
	outsider := s.customer(s.a, "user_8")
	require.NotContains(t, outsider.get(outsider.home).body, "Your credits")

	list, _, err := s.store.Credits(t.Context(), s.a, "user_7", tenants.Page{Limit: 10})
	require.NoError(t, err)
	revoke := url.Values{"do": {"revoke-credits"}, "grant": {list[0].ID.String()}, "reason": {"refunded"}}
	require.Equal(t, http.StatusSeeOther, editor.write("/subjects/user_7", revoke).status)
	require.Contains(t, editor.get("/subjects/user_7").body, "revoked")
}
