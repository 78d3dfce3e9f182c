package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Where scripts are blocked, or a bug stops them, everything can still be read and sent.
func TestWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 10)
	p := w.nobody().withoutScripts().open("/login")
	p.fill("Email", w.person(tenants.Owner)).fill("Password", password).click("Sign in")
	p.at("/").sees("Overview")
	require.False(t, mustEval[bool](p, `"htmx" in window`), "scripts do not run")

	p.click("Dark").at("/")
	require.Equal(t, "dark", mustEval[string](p, "document.documentElement.dataset.theme"))
	p.click("Rules").at("/rules").sees("Requests")
	p.click("Sign out").at("/login")
}
