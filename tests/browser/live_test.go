package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Support has the page open while the customer tries again: the denial appears by itself, with its
// reason, unless the page is told to stand still.
func TestDenialAppears(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 1)
	key := w.key()
	p := w.as(tenants.Support)
	p.open("/decisions").sees("No recent denials.")
	require.Eventually(t, func() bool { return !w.ask(key, "user_42", "requests") }, patience, tick, "the rule is live")
	p.sees("user_42").sees("1 of 1 used.").check()
	p.click("Live")
	require.True(t, w.ask(key, "later", "requests"))
	require.False(t, w.ask(key, "later", "requests"))
	p.seesNot("later")
	p.click("Live").sees("later")
	p.click("user_42").sees("Recent denials").sees("1 of 1 used.")
	p.open("/").sees("Nearest to a limit").sees("user_42")
	p.open("/usage").click("Apply filters").sees("Complete until")
	p.open("/audit").click("Verify audit log").sees("The audit log is intact.")
}
