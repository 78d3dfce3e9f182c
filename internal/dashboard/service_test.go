package dashboard

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/usage"
)

// The overview of the operator is about all tenants, and not about the checks of the operator's own
// tenant.
func TestOperatorHome(t *testing.T) {
	s := newOperated(t)
	s.decided(s.a, usage.Hour, 0, "", 1200, 34)
	s.decided(s.b, usage.Hour, time.Hour, "", 300, 6)
	s.decided(s.b, usage.Hour, time.Hour, "requests", 7777, 0) // a verdict of a rule is no check
	s.decided(s.b, usage.Minute, 0, "", 5, 1)
	got := s.olga.get("/?period=24h")
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, "Checks of all tenants in the last 24 hours")
	require.Contains(t, got.body, `<b class="num">1,500</b> allowed`)
	require.Contains(t, got.body, `<b class="num">40</b> denied`)
	require.Regexp(t, `answered this instance in [0-9.,]+ (µs|ms)`, got.body)
	require.Contains(t, got.body, "No tenant has used 80 % of a quota.")
	for _, ofATenant := range []string{"Most denied subjects", "Share denied</dt>", "Send first check", "Nearest to a limit"} {
		require.NotContains(t, got.body, ofATenant)
	}
	require.Contains(t, s.olga.get("/").body, `<b class="num">5</b> allowed`, "minutes")
	live := s.olga.listen("/live/overview?period=24h")
	live.awaits("event: service")
	live.awaits("1,500")
	live.awaits("event: near")
	require.NotContains(t, s.as("ann@example.com").get("/?period=24h").body, "1,500", "for the operator only")
}
