package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// If scripts are blocked or broken, everything can still be read and submitted.
func TestWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 10)
	email := w.person(tenants.Owner)
	p := w.visitor().withoutScripts().open("/login")
	p.fill("Email", email).fill("Password", password).click("Sign in")
	p.at("/").sees("Overview")
	require.False(t, mustEval[bool](p, `"htmx" in window`), "scripts do not run")

	p.click(email + " owner").click("Dark").at("/")
	require.Equal(t, "dark", mustEval[string](p, "document.documentElement.dataset.theme"))
	p.click("Rules").at("/rules").sees("Requests")
	p.click(email + " owner").click("Sign out").at("/login")
}
