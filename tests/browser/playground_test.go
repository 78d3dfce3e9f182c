package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A visitor compares the algorithms, and shares the result. The playground does not use the
// database.
func TestPlaygroundWalk(t *testing.T) {
	t.Parallel()
	p := demo(t).visitor()
	p.open("/playground").sees("Fixed window allowed 20 within 1.9 seconds, twice the limit.")
	require.True(t, mustEval[bool](p, `document.cookie === ""`))

	p.click("Spammer").sees("four times the limit").at("/playground?traffic=spammer")
	p.choose("Penalty", "30 seconds").sees("The penalty then denied everything for 30 seconds")
	p.fill("Limit", "500").sees("some settings are invalid")
	p.fill("Limit", "3").sees("The limit is 3 per 10 seconds.")
	p.check()

	// Manual requests: all algorithms allow three, and then some deny.
	p.open("/playground?traffic=own&limit=3&window=1m").sees("You send all requests.")
	for range 3 {
		p.click("Send request")
	}
	p.sees("was allowed by all algorithms")
	p.click("Send request").sees("was denied")
	p.sees("4 requests in 3 minutes")
	p.check()
	require.Equal(t, "Send request", mustEval[string](p, "document.activeElement.textContent"), "the button keeps the focus")
	shared := mustEval[string](p, "location.pathname + location.search")
	p.click("Remove my requests").sees("No requests.")

	// The address shows the same to a colleague, on a phone, without scripts.
	q := demo(t).visitor().phone()
	q.open(shared).sees("4 requests in 3 minutes")
	q.check()
	q.open("/playground/fixed-window").sees("Burst at window edge").check()
}

// A person who is signed in keeps the navigation in the playground, and the way back from the API
// reference.
func TestPlaygroundInTheFrame(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).open("/").click("Playground").at("/playground")
	p.sees("Audit trail").sees("Fixed window allowed 20 within 1.9 seconds").check()
	p.click("Spammer").sees("four times the limit")
	for _, width := range []int{1280, 1440} {
		p.width = width
		p.must(p.screen(p.height), "set the width of the screen")
		p.open("/playground").sees("Results as a table").click("Allowed requests over time")
		require.True(t, mustEval[bool](p, `[...document.querySelectorAll(".playground .scroll")].every(e => e.scrollWidth <= e.clientWidth)`), "the tables fit beside the navigation at %d pixels", width)
	}
	p.open("/playground/token-bucket").sees("Audit trail").click("Subjects").at("/subjects")

	// The reference has a way back. The page has the same bar without its script.
	q := demo(t).visitor().withoutScripts()
	q.open("/docs").sees("Weir API").click("Playground").at("/playground").sees("Summary")
}
