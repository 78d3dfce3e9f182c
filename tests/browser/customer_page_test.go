package browser

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// customer is a page of a customer who follows a link, up to the page that it leads to.
func (w *world) customer(subject string) *page {
	w.t.Helper()
	_, token, err := w.store.CreatePortalLink(w.t.Context(), w.actor, tenants.NewPortalLink{Subject: subject, SingleUse: true})
	require.NoError(w.t, err)
	return w.visitor().open(tenants.PortalLinkPath(token)).sees("Your limits")
}

// The customer page can be read and used by everybody, in both themes and on a phone.
func TestCustomerPageLooks(t *testing.T) {
	t.Parallel()
	w := demo(t)
	p := w.customer("user_7").sees("Last 30 days")
	p.shot("customer-page-light").check()
	p.theme("dark").shot("customer-page-dark").check().theme("light")
	p.phone().shot("customer-page-phone").check()
}

// A customer asks for more, a member approves, and the page shows the new limit.
func TestCustomerAsksForMore(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("exports", 10)
	_, err := w.store.EditPortal(t.Context(), w.actor, tenants.Match{}, func(p *tenants.Portal) error {
		p.Brand, p.Accent = "Northwind <b>Maps</b>", "#ffee00"
		return nil
	})
	require.NoError(t, err)
	p := w.customer(`<i>"&'/..`).sees("You can use 10 units").sees("Northwind <b>Maps</b>")
	p.check()
	p.click("Request a higher limit").fill("New limit", "").click("Send request").sees("Enter the limit that you need.")
	require.Equal(t, []string{"limit", "true", "limit-hint-exports limit-exports-error"}, mustEval[[]string](p, `(f => [f.name, f.ariaInvalid, f.getAttribute("aria-describedby")])(document.activeElement)`))
	p.check().fill("New limit", "25").seesNot("Enter the limit that you need.").fill("What do you need it for?", "A long night").click("Send request")
	p.sees("Your request was sent").sees("waiting for an answer")

	support := w.as(tenants.Support).open("/requests").sees("10 to 25").sees("A long night")
	support.click("Approve").click("Approve request").sees("Approved: 25")
	p.openUntil(mustEval[string](p, "location.pathname"), "0 of 25 used").sees("raised until")

	requests, _, err := w.store.LimitRequests(t.Context(), w.actor, tenants.LimitRequestFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, requests, 1)
	require.Equal(t, tenants.RequestApproved, requests[0].State)
	subject, err := w.store.SubjectByName(t.Context(), w.actor, `<i>"&'/..`)
	require.NoError(t, err)
	require.Equal(t, limit.Limit{Limit: 25}, subject.Overrides[0].Limit)
}

// A member copies a link on the page of a subject, and it opens the page.
func TestCopyCustomerLink(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("exports", 10)
	p := w.as(tenants.Support).open("/subjects/ada").click("More actions").click("Copy customer link").click("Create link").sees("Copy this link now")
	link := mustEval[string](p, `document.getElementById("customer-link").textContent`)
	path, ours := strings.CutPrefix(link, w.url)
	require.True(t, ours, link)
	w.visitor().open(path).sees("You can use 10 units")
	p.open("/subjects/ada").sees("used").click("Revoke link").sees("Link revoked")
}

// Without a script, a button opens the page.
func TestCustomerPageWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("exports", 10)
	_, token, err := w.store.CreatePortalLink(t.Context(), w.actor, tenants.NewPortalLink{Subject: "ada"})
	require.NoError(t, err)
	p := w.visitor().withoutScripts().open(tenants.PortalLinkPath(token)).sees("See what you have used").click("Continue").sees("You can use 10 units")
	p.sees("Times are in UTC.")
}
