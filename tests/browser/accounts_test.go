package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// looked looks at a page as it is now, on a computer and on a phone.
func (p *page) looked(name string) *page {
	p.t.Helper()
	p.shot(name + "-light").check()
	p.theme("dark").shot(name + "-dark").theme("light")
	p.phone().shot(name + "-phone").check()
	return p.desktop()
}

// Somebody is invited, chooses a password, and works there.
func TestInvitationWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	owner := w.as(tenants.Owner).open("/members")
	const email = "new-editor@walk.example"
	owner.click("Invite member").looked("members-invite")
	owner.fill("Email", "nonsense@").choose("Role", "Editor: rules, plans and subjects")
	owner.fill("Email", email).click("Send invitation")
	owner.at("/members").sees(email + " is invited.").looked("members-invited")

	guest := w.nobody().open("/dev/mail")
	guest.within(email).sees("has invited you to work in " + w.tenant.Name).sees("an editor").click("Accept the invitation")
	guest.sees("Join " + w.tenant.Name).looked("invitation")
	link := mustEval[string](guest, "location.pathname")
	guest.allow(422).fill("Choose a password", "password123").click("Save and join")
	guest.sees("Is one of the most common passwords").looked("invitation-wrong")
	guest.fill("Choose a password", "an editor's own horse").click("Save and join")
	guest.at("/").sees("Welcome to " + w.tenant.Name).sees("editor")
	w.nobody().openFor(link, 404).sees("no longer valid").looked("link-dead")

	owner.open("/members").within(email).sees("active")
}

// An invited person with a login joins with it. A withdrawn invitation has no effect.
func TestInvitationOfSomebodyKnownWalk(t *testing.T) {
	t.Parallel()
	w, other := newTenant(t), newTenant(t)
	email := other.person(tenants.Viewer)
	owner := w.as(tenants.Owner).open("/members")
	owner.click("Invite member").fill("Email", email).click("Send invitation").sees(email + " is invited.")
	owner.click("Resend invitation to " + email).sees("New link sent to")
	guest := w.nobody().open("/dev/mail")
	guest.within("Join " + w.tenant.Name).click("Accept the invitation")
	guest.sees("Sign in and join").looked("invitation-known")
	owner.click("Withdraw invitation of " + email).sees("withdrawn")
	guest.allow(404).fill("Your password", password).click("Sign in and join").sees("no longer valid")

	owner.click("Invite member").fill("Email", email).click("Send invitation").sees(email + " is invited.")
	known := other.signedIn(email, password).open("/dev/mail")
	known.within("Join " + w.tenant.Name).click("Accept the invitation")
	known.hasNot("Your password").click("Join").at("/").sees("Welcome to " + w.tenant.Name)
}

// A person who forgot the password sets a new one, and changes it again.
func TestForgottenPasswordWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	email := w.person(tenants.Owner)
	elsewhere := w.as(tenants.Owner).open("/members")
	p := w.nobody().open("/login").click("Forgot your password?").at("/forgot")
	p.looked("forgot")
	p.fill("Email", email).click("Email me a link").sees("Check your email").looked("forgot-asked")
	p.click("demo mailbox").sees("Demo mailbox").looked("dev-mail")
	p.within(email).click("Choose a new password")
	p.sees("Choose a new password").looked("reset")
	p.fill("New password", "another horse battery").click("Save password and sign in").at("/").sees("Password changed")
	elsewhere.open("/members").sees("Sign in")

	p.click(email + " owner").click("Account").at("/account").sees(email).looked("account")
	p.allow(422).fill("Current password", "wrong").fill("New password", "short").click("Change password")
	p.sees("Is not your current password").looked("account-wrong")
	require.Empty(t, p.value("Current password"), "no password comes back")
	p.fill("Current password", "another horse battery").fill("New password", "yet another horse").click("Change password")
	p.at("/account").sees("Password changed")
	w.signedIn(email, "yet another horse").open("/").sees(w.tenant.Name)
}

// A newcomer makes a tenant of their own.
func TestSignUpWalk(t *testing.T) {
	t.Parallel()
	w := demo(t)
	const email = "newcomer@walk.example"
	p := w.nobody().open("/login").click("Sign up").at("/signup")
	p.looked("signup")
	p.fill("Email", email).click("Email me a link").sees("Check your email")
	p.open("/dev/mail").within(email).click("Complete sign-up")
	p.sees("Email confirmed").looked("signup-link")
	p.fill("Tenant name", "Newcomers & Sons").fill("Choose a password", "a newcomer's horse").click("Sign up")
	p.sees("You own this tenant").sees("Newcomers & Sons").sees("owner")
}
