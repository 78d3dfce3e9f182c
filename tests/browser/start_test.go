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
	p := w.as(tenants.Owner).open("/").click("Make the first check")
	p.at("/start").fill("Each subject may use", "5").check()
	p.phone().check()
	p.desktop().click("Make them and show the command").sees("Waiting for the first check").check()
	key := mustEval[string](p, `document.getElementById("secret").textContent`)
	require.True(t, w.ask(key, "user_42", "orders"))
	p.sees("user_42 asked for “orders” and was allowed: 4 of 5 are left under api-requests.").check()
	p.click("Look at user_42").at("/subjects/user_42").sees("4 of 5 left")
}
