package browser

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
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
	w.quota("checks-of-" + slug)
	p.open("/tenants/"+slug).sees("Checks of a tenant").click("Give it a quota of its own").fill("Checks", "5000").fill("Reason", "bought more").check()
	p.click("Save the quota").sees("5 000 per minute").sees("bought more").looked("tenant-quota")
	p.phone().check()
	p.desktop().click("Delete").fill("Type “"+slug+"” to show that you mean it", "something else").fill("Reason", "has left").allow(422)
	p.click("Delete for good").sees("Must be " + slug).check()
	p.fill("Type “"+slug+"” to show that you mean it", slug).click("Delete for good").at("/tenants").sees("Deleted: " + slug)

	p = w.operator().open("/tenants").fill("Slug or name holds", w.tenant.Slug).click("Search").sees("Tenant of TestOperator").seesNot("Demo Inc.")
	p.open("/instances").sees("this one").sees("up to date").check()
	w.as(tenants.Owner).openFor("/tenants", 404).sees("There is nothing here")
}

// quota makes a quota of checks that is too large for any tenant to notice, as long as the test runs.
func (w *world) quota(slug string) {
	w.t.Helper()
	platform, err := w.store.EnsurePlatform(w.t.Context())
	require.NoError(w.t, err)
	actor := tenants.AsSystem(platform.ID, "tests")
	window, err := check.ParseWindow("1m")
	require.NoError(w.t, err)
	_, err = w.store.CreateRule(w.t.Context(), actor, check.Rule{
		Slug: slug, Name: "Checks of a tenant", Resource: check.QuotaResource, Algorithm: check.SlidingWindowCounter,
		Limit: 1_000_000_000, Window: window, By: []string{"subject"},
	})
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		require.NoError(w.t, w.store.DeleteRule(context.WithoutCancel(w.t.Context()), actor, slug, tenants.Match{}))
	})
}
