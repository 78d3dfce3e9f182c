package browser

import (
	"testing"

	"weir/internal/tenants"
)

// look is a page of the demo as a role sees it.
type look struct {
	name, path string
	as         tenants.Role // or operator; "" for a visitor
	says       string       // a text on the page
}

// page returns a page of the role.
func (l *look) page(w *world) *page {
	w.t.Helper()
	switch l.as {
	case "":
		return w.visitor()
	case operator:
		return w.operator()
	}
	return w.as(l.as)
}

// operator is used as a role for an owner of the tenant platform.
const operator tenants.Role = "operator"

// looks has every page.
var looks = []look{
	{"login", "/login", "", "Sign in"},
	{"docs", "/docs", "", "Send requests from this page"},
	{"overview", "/", tenants.Owner, "Overview"},
	{"overview-month", "/?period=30d", tenants.Viewer, "Checks in the last 30 days"},
	{"decisions", "/decisions?show=all", tenants.Support, "Decisions"},
	{"usage", "/usage?period=7d&by=rule", tenants.Viewer, "Usage"},
	{"audit", "/audit?verify=1", tenants.Viewer, "The audit trail is intact."},
	{"rules", "/rules", tenants.Owner, "Bursts of orders"},
	{"rule", "/rules/api-requests", tenants.Owner, "API requests"},
	{"rule-history", "/rules/api-requests/history", tenants.Editor, "current"},
	{"rule-new", "/rules/new", tenants.Editor, "Steady"},
	{"rule-edit", "/rules/order-bursts/edit", tenants.Editor, "Save changes"},
	{"plans", "/plans", tenants.Owner, "Enterprise"},
	{"plan-edit", "/plans/pro/edit", tenants.Editor, "Make default"},
	{"plan-number", "/plans/pro/limits/order-bursts", tenants.Editor, "Preview impact"},
	{"routes", "/routes", tenants.Owner, "Public API"},
	{"route", "/routes/public-api", tenants.Editor, "Route tester"},
	{"route-new", "/routes/new", tenants.Editor, "Subject sources"},
	{"route-edit", "/routes/public-api/edit", tenants.Editor, "Save changes"},
	{"subjects", "/subjects", tenants.Support, "user_42"},
	{"subject", "/subjects/user_7", tenants.Support, "Moving their data in"},
	{"subject-denied", "/subjects/umbrella", tenants.Support, "Exports"},
	{"subject-unknown", "/subjects/nobody-yet", tenants.Support, "nobody-yet"},
	{"search", "/search?q=user", tenants.Support, "user_42"},
	{"keys", "/keys", tenants.Owner, "demo"},
	{"start", "/start", tenants.Owner, "This tenant has rules. Your application"},
	{"settings", "/settings", tenants.Admin, "Configuration file"},
	{"security", "/settings/security", tenants.Admin, "Sign-ins, new browsers"},
	{"customer-page-settings", "/settings/customer-page", tenants.Admin, "Requests for higher limits"},
	{"notifications", "/settings/notifications", tenants.Admin, "Notifications"},
	{"requests", "/requests?show=all", tenants.Support, "Requests"},
	{"tester", "/tester?subject=user_42&resource=orders:create", tenants.Support, "Matching rules"},
	{"playground", "/playground?traffic=silence&burst=20", "", "Summary"},
	{"algorithm", "/playground/sliding-window-counter", "", "Example"},
	{"playground-framed", "/playground", tenants.Viewer, "Summary"},
	{"plan-versions", "/plans/pro/versions", tenants.Editor, "scheduled"},
	{"tenant-quota", "/tenants/demo/quota", operator, "Enter the number of checks"},
	{"members", "/members", tenants.Owner, "demo@weir.example"},
	{"billing", "/billing", tenants.Owner, "Failed payments"},
	{"metered", "/metered", tenants.Viewer, "northwind"},
	{"billing-events", "/billing/events", tenants.Viewer, "pied-piper"},
	{"operator", "/?period=24h", operator, "Checks of all tenants"},
	{"tenants", "/tenants", operator, "Demo Inc."},
	{"tenant", "/tenants/demo", operator, "Tier and quota"},
	{"instances", "/instances", operator, "this instance"},
	{"sessions", "/sessions", tenants.Viewer, "Sessions"},
	{"account", "/account", tenants.Viewer, "Password"},
	{"forgot", "/forgot", "", "Reset password"},
	{"signup", "/signup", "", "Sign up"},
}

// Every page is usable with low vision, on a phone, and on a slow connection.
func TestLooks(t *testing.T) {
	for _, l := range looks {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			w := demo(t)
			p := l.page(w)
			p.open(l.path).sees(l.says).light()
			p.showcase(l.name)
			p.shot(l.name + "-light").check()
			p.theme("dark").shot(l.name + "-dark").theme("light")
			p.phone().open(l.path).shot(l.name + "-phone").check()
		})
	}
}
