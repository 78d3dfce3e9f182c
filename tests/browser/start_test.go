package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// From an empty tenant to the first check: one form makes what is needed, and the page tells of the
// check as soon as it arrives.
func TestFirstRun(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Owner).open("/").click("Send first check")
	p.at("/start").fill("Limit, in units", "5").check()
	p.phone().check()
	p.desktop().click("Create rule and show command").sees("Waiting for the first check").check()
	key := mustEval[string](p, `document.getElementById("secret").textContent`)
	require.True(t, w.ask(key, "user_42", "orders"))
	p.sees("user_42 sent a check for “orders”. It was allowed: 4 of 5 remain under api-requests.").check()
	p.click("Open user_42").at("/subjects/user_42").sees("1 of 5 used")
}
