package browser

import (
	"testing"

	"weir/internal/tenants"
)

// An editor reads on the empty page what a route is for, creates one, and tests requests on it.
func TestRoutesWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 3)
	p := w.as(tenants.Editor)
	p.open("/routes").sees("No routes yet").inspect("routes-empty")
	p.click("Create route").sees("Subject sources").click("Create route").at("/routes/edge")
	p.sees("Test a request").inspect("route-new-made")

	p.fill("Method", "GET").fill("Path and query", "/orders/7?page=2").fill("Headers", "X-User: user_42").fill("Client address", "192.0.2.1")
	p.click("Test request").sees("is a check of").inspect("route-tested")
	p.fill("Headers", "X-User: user_42\nX-User: user_43").click("Test request").sees("SUBJECT_INVALID").inspect("route-denied")
	p.fill("Headers", "no colon").click("Test request").sees("Request not tested").inspect("route-invalid")
}
