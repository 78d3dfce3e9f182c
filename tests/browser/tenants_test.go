package browser

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// The operator makes a tenant, hands out its key, suspends it, opens it again and deletes it.
func TestOperator(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	slug := fmt.Sprintf("made-%d", tenantNumber.Add(1))
	p := w.operator().open("/").click("Tenants").at("/tenants").click("New tenant")
	p.fill("Slug", slug).fill("Name", "Made by hand").check()
	p.click("Make the tenant").sees("shown this once").check()
	secret := mustEval[string](p, `document.getElementById("secret").textContent`)
	require.True(t, w.ask(secret, "user_1", "orders"), "the key works at once")
	p.click("Done").at("/tenants/" + slug).sees("Made by hand").seesNot(secret)
	p.click("Suspend").fill("Reason", "owes us money").check()
	p.click("Suspend the tenant").sees("Within a second no key of " + slug + " works")
	p.click("Reopen").fill("Reason", "has paid").click("Reopen the tenant").sees("works again")
	p.phone().check()
	p.desktop().click("Delete").fill("Type “"+slug+"” to show that you mean it", "something else").fill("Reason", "has left").allow(422)
	p.click("Delete for good").sees("Must be " + slug).check()
	p.fill("Type “"+slug+"” to show that you mean it", slug).click("Delete for good").at("/tenants").sees("Deleted: " + slug)

	p = w.operator().open("/tenants").fill("Slug or name holds", w.tenant.Slug).click("Search").sees("Tenant of TestOperator").seesNot("Demo Inc.")
	p.open("/instances").sees("this one").sees("up to date").check()
	w.as(tenants.Owner).openFor("/tenants", 404).sees("There is nothing here")
}
