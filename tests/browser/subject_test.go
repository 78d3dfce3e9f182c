package browser

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// The page of a subject counts every check from the moment that it is opened, and shows the limit
// as a line. The tabs lead to the rest of what support needs.
func TestSubjectCountsLive(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	status, answer := w.post(w.key(), "/v1/rules", map[string]any{"slug": "all", "name": "All checks", "limit": 5, "window": "1m"})
	require.Equal(t, 201, status, "%s", answer)
	p := w.as(tenants.Support)
	p.eventually(func() error { // a busy instance may be too late with its part of the counts
		p.open("/subjects/user_live").sees("All checks: 5 per minute")
		counted, err := eval[bool](p, `document.body.innerText.includes("Counted live by")`)
		if err == nil && !counted {
			return errors.New("the page is not counted live by all instances")
		}
		return err
	})
	require.NotZero(t, mustEval[int](p, `document.querySelectorAll(".limitline").length`))
	key := w.key()
	require.Eventually(t, func() bool { return !w.ask(key, "user_live", "orders") }, time.Minute, time.Millisecond)
	p.eventually(func() error { // from the stream, without a reload
		got, err := eval[bool](p, `/[1-9][0-9]* denied/.test(document.querySelector(".legend").textContent)`)
		if err == nil && !got {
			return errors.New("no denial is shown yet")
		}
		return err
	})
	p.check()
	p.open("/subjects/user_live?tab=denials").sees("5 of 5 used").check()
	p.open("/subjects/user_live").within("Denials 1").click("Usage")
	p.at("/subjects/user_live?tab=usage").sees("Last 30 days").check()
	p.phone().open("/subjects/user_live").check()
}
