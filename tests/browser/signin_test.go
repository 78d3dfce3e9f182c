package browser

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Sign-in and sign-out: a wrong password shows an error and keeps the email, and after the sign-in
// a visitor gets the page that they requested. After sign-out, pages are not accessible.
func TestSignInAndOut(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	email := w.person(tenants.Owner)
	p := w.visitor().open("/rules").at("/login?next=%2Frules").sees("Sign in to Weir").has("Playground").has("API reference")

	p.allow(401)
	p.fill("Email", email).fill("Password", "wrong").click("Sign in")
	p.sees("Wrong email or password.").check()
	require.Equal(t, email, p.value("Email"))

	p.fill("Password", password).press(kb.Enter)
	p.at("/rules").sees(w.tenant.Name)

	p.click(email + " owner").check()
	p.click("Sign out").at("/login")
	p.open("/").at("/login").sees("Sign in")
}

// A member of two tenants sees which one is active, and nothing of the other.
func TestSwitchTenant(t *testing.T) {
	t.Parallel()
	one := newTenant(t)
	var two *world // sorts second: a person in both tenants begins in the first
	t.Run("Z", func(t *testing.T) { two = newTenant(t) })
	two.t = t
	one.rule("ones-rule", 10)
	two.rule("twos-rule", 20)
	email := one.person(tenants.Owner)
	_, err := two.store.CreateMember(t.Context(), two.actor, email, password, tenants.Viewer)
	require.NoError(t, err)

	p := one.signedIn(email, password).open("/rules").sees("Ones-rule").seesNot("Twos-rule")
	p.check()
	p.click(one.tenant.Name).check()
	p.click(two.tenant.Name).at("/")
	p.open("/rules").sees("Twos-rule").seesNot("Ones-rule")
	p.openFor("/rules/ones-rule", 404).sees("Not found")
	p.click(email + " viewer").click("Sign out").at("/login")
	p.fill("Email", email).fill("Password", password).click("Sign in").at("/").sees(two.tenant.Name)
	p.open("/rules").sees("Twos-rule") // the tenant used last, and not the first by slug
}

// The session of a lost laptop is ended from another device.
func TestEndSession(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	here, lost := w.as(tenants.Viewer), w.as(tenants.Viewer)
	lost.open("/").sees("Overview")
	here.open("/sessions").click("End all other sessions")
	lost.open("/").at("/login")
	here.open("/").sees("Overview")
}
