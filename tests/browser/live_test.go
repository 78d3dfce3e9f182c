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
	p.open("/decisions").sees("Nobody was denied lately.")
	require.Eventually(t, func() bool { return !w.ask(key, "user_42", "requests") }, patience, tick, "the rule is heard of")
	p.sees("user_42").sees("The one unit there is was used.").check()
	p.click("Live")
	require.True(t, w.ask(key, "later", "requests"))
	require.False(t, w.ask(key, "later", "requests"))
	p.seesNot("later")
	p.click("Live").sees("later")
	p.click("user_42").sees("Denied lately").sees("The one unit there is was used.")
	p.open("/").sees("Nearest their limit").sees("user_42")
	p.open("/usage").click("Show").sees("Complete until")
	p.open("/audit").click("Verify the trail").sees("The trail is whole.")
}
