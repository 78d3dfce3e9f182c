package browser

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// From an empty tenant to the first check: one form creates what is needed, and the page shows the
// check as soon as it arrives.
func TestFirstRun(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Owner).open("/").click("Send first check")
	p.at("/start").fill("Limit", "5").fill("Window", "60").check()
	p.phone().check()
	p.desktop().click("Create rule and show command").sees("Waiting for the first check").check()
	secret := func() string { return mustEval[string](p, `document.getElementById("secret").textContent`) }
	key, subject := secret(), "user_1"
	for n := 2; !w.counts(key, subject, "orders"); n++ { // the page waits for a check that Redis has counted
		require.Less(t, n, 20)
		p.open("/start").click("Create API key and show command").sees("Waiting for the first check")
		key, subject = secret(), fmt.Sprintf("user_%d", n)
	}
	p.sees("It works.").sees(subject + " sent a check for “orders”. It was allowed: 4 of 5 remain under API requests.").check()
	p.click("Open " + subject + " See each limit live").at("/subjects/" + subject).sees("1 of 5 used")
}
