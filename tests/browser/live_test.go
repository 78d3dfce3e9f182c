package browser

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A member has the page open while the customer tries again: the denial appears without a reload,
// with its reason, unless the page is paused.
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
	later := w.counted(key, "later", "requests")
	require.Eventually(t, func() bool { return !w.ask(key, later, "requests") }, patience, tick, "its second check is denied")
	p.seesNot(later)
	p.click("Live").sees(later)
	p.click("user_42").sees("Denied by").sees("1 of 1 used")
	p.open("/").sees("Nearest to a limit").sees("user_42")
	p.open("/usage").sees("Complete until")
	p.open("/audit").click("Verify audit trail").sees("The audit trail is intact.")
}

// The list of the most denied subjects says that only denials are known of them. It never says that
// 0 checks were allowed.
func TestMostDeniedSaysWhatIsUnknown(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 3)
	key := w.key()
	subject := w.counted(key, "user", "requests")
	denied := 0
	require.Eventually(t, func() bool {
		if !w.ask(key, subject, "requests") {
			denied++
		}
		return denied == 2
	}, patience, time.Millisecond)
	p := w.as(tenants.Viewer)
	p.eventually(func() error { // instances write usage every few seconds
		p.open("/usage?period=1h&by=subject&top=denied")
		got := mustEval[string](p, `[...[...document.querySelectorAll("tbody tr")].find(row => row.textContent.includes("`+subject+`"))?.querySelectorAll("td.num") ?? []].slice(0, 3).map(td => td.textContent.trim()).join(" ")`)
		if got != "2 0" { // denied, and denied in shadow
			return fmt.Errorf("the row has %q", got)
		}
		return nil
	})
	p.sees("Only denials are known of the most denied subjects.").seesNot("Share denied")
}

// The chart shows the newest step: a tenant's first check appears in the current minute, within the
// plot, also in the chart of 30 days.
func TestChartShowsNewestStep(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 1)
	key := w.key()
	require.True(t, w.ask(key, "user_42", "requests"))
	require.False(t, w.ask(key, "user_42", "requests"))
	p := w.as(tenants.Viewer)
	p.open("/").sees("1 allowed")
	for _, path := range []string{"/", "/?period=30d", "/usage?period=1h", "/rules/requests"} {
		p.open(path)
		require.True(t, mustEval[bool](p, `(() => {
			const svg = document.querySelector(".plot svg").getBoundingClientRect();
			const bars = [...document.querySelectorAll(".plot .step")].slice(-2).flatMap(step => [...step.querySelectorAll(".allowed, .denied")]);
			return bars.length >= 2 && bars.every(bar => {
				const box = bar.getBoundingClientRect();
				return box.height > 1 && box.width > 1 && box.left >= svg.left && box.right <= svg.right + 1;
			});
		})()`), path)
		require.NotEmpty(t, mustEval[string](p, `document.querySelector(".plot .step:last-of-type [fill^=url]")?.getAttribute("fill") ?? ""`), "the current step is hatched: %s", path)
	}
}

// A page tells the server which requests it makes by itself, so that they do not keep its session
// in use: those of a part that it loads again every few seconds, and none that a person makes.
func TestPageMarksWhatItRepeats(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 5)
	key := w.key()
	subject := w.counted(key, "user_1", "requests")
	p := w.as(tenants.Viewer).open("/subjects/" + subject)
	mark := `document.addEventListener("htmx:beforeRequest", ({ detail }) => {
		window.sent = (detail.elt.matches("[data-live]") ? "part" : "page") + ": " + detail.requestConfig.headers["Weir-Repeated"];
	})`
	mustEval[any](p, mark)
	p.eventually(func() error {
		if sent := mustEval[string](p, `window.sent ?? ""`); sent != "part: true" {
			return fmt.Errorf("sent %q", sent)
		}
		return nil
	})
	p.click("Decisions").at("/decisions")
	require.Equal(t, "page: undefined", mustEval[string](p, "window.sent"))
}
