package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// An admin creates a key, copies it from the page that shows it once, rotates it, and revokes it.
func TestKeys(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Admin).open("/keys").click("Create API key")
	p.fill("Name", "Checkout").check()
	p.click("Create API key").sees("Weir shows it once").check()
	secret := mustEval[string](p, `document.getElementById("secret").textContent`)
	require.NotEmpty(t, secret)
	require.True(t, w.ask(secret, "user_1", "orders"))
	p.phone().check()
	p.desktop().click("Done").sees("Checkout").seesNot(secret)
	p.click("Rotate key").click("Create new key").sees("The old key keeps working for 1 day.")
	require.NotEqual(t, secret, mustEval[string](p, `document.getElementById("secret").textContent`))
	p.click("Done").click("Revoke key").check()
	p.click("Revoke key permanently").sees("Key revoked. All instances reject it within a second.")

	p = w.as(tenants.Owner).open("/settings").fill("Name", "Renamed").click("Save changes").sees("Saved.").sees("Renamed")
	p.check()
	w.as(tenants.Viewer).open("/keys").sees("Checkout").hasNot("Create API key")
}
