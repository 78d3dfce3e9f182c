package browser

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// The operator creates a tenant with its key, suspends it, reactivates it and deletes it.
func TestOperator(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	slug := fmt.Sprintf("made-%d", tenantNumber.Add(1))
	p := w.operator().open("/").click("Tenants").at("/tenants").click("Create tenant")
	p.fill("Slug", slug).fill("Name", "Made by hand").fill("Owner’s email", "owner@"+slug+".example").check()
	p.click("Create tenant").sees("Weir shows it once").check()
	secret := mustEval[string](p, `document.getElementById("secret").textContent`)
	require.True(t, w.ask(secret, "user_1", "orders"), "the key works immediately")
	p.sees("owner@" + slug + ".example is invited as an owner.")
	p.click("Done").at("/tenants/" + slug).sees("owner@" + slug + ".example (invited)")
	p.click("Invite owner").fill("Email", "second@"+slug+".example").click("Send invitation").sees("second@" + slug + ".example is invited as an owner.")
	owner := w.visitor()
	owner.mail("second@"+slug+".example").click("Accept the invitation").fill("Choose a password", "an owner's own horse").click("Save and join")
	owner.at("/").sees("Welcome to Made by hand")
	p.at("/tenants/" + slug).sees("Made by hand").seesNot(secret)
	p.click("Suspend tenant").fill("Reason", "owes us money").check()
	p.click("Suspend tenant").sees("Tenant " + slug + " suspended.")
	p.click("Reopen tenant").fill("Reason", "has paid").click("Reopen tenant").sees("reopened")
	w.quota("checks-of-" + slug)
	p.openUntil("/tenants/"+slug, "Checks per tenant").click("Change quota").fill("Quota", "checks-of-"+slug).fill("Checks", "5000").fill("Reason", "bought more").check()
	p.click("Save quota").sees("5,000 per minute").sees("bought more")
	p.within("bought more").sees("Checks per tenant").seesNot("checks-of-" + slug) // the name, not the slug
	p.inspect("tenant-quota")
	p.phone().check()
	p.desktop().click("Delete tenant").fill("Type “"+slug+"” to confirm", "something else").fill("Reason", "has left").allow(422)
	p.click("Delete tenant permanently").sees("Must be " + slug).check()
	p.fill("Type “"+slug+"” to confirm", slug).click("Delete tenant permanently").at("/tenants").sees("Tenant " + slug)

	p = w.operator().open("/tenants").fill("Slug or name contains", w.tenant.Slug).sees("Tenant of TestOperator").seesNot("Demo Inc.").at("/tenants?q=" + w.tenant.Slug)
	p.settle()
	p.open("/instances").sees("this instance").sees("up to date").check()
	w.as(tenants.Owner).openFor("/tenants", 404).sees("Not found")
}

// The operator's overview is about the service and not about a first check.
func TestOperatorHome(t *testing.T) {
	t.Parallel()
	p := demo(t).operator().open("/?period=24h").sees("Redis").sees("Postgres available").sees("answered this instance in").sees("Instances").sees("Demo Inc.")
	p.sees("Checks of all tenants in the last 24 hours").sees("Nearest to their quota")
	p.seesNot("Send your first check").seesNot("Most denied subjects").seesNot("Denied in the last 15 minutes").seesNot("Nearest to a limit")
	require.Greater(t, mustEval[int](p, `document.querySelectorAll(".plot .step .allowed").length`), 3, "the checks of the demo's tenant")
	p.check()
	p.phone().check()
}

// quota creates a quota of checks that is too large to be reached during the test.
func (w *world) quota(slug string) {
	w.t.Helper()
	platform, err := w.store.EnsurePlatform(w.t.Context())
	require.NoError(w.t, err)
	actor := tenants.AsSystem(platform.ID, "tests")
	window, err := limit.ParseWindow("1m")
	require.NoError(w.t, err)
	_, err = w.store.CreateRule(w.t.Context(), actor, limit.Rule{
		Slug: slug, Name: "Checks per tenant", Resource: check.QuotaResource, Algorithm: limit.SlidingWindowCounter,
		Limit: 1_000_000_000, Window: window, By: []string{"subject"},
	})
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		require.NoError(w.t, w.store.DeleteRule(context.WithoutCancel(w.t.Context()), actor, slug, tenants.Match{}))
	})
}
