package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// inspect checks a page in its current state, on a computer and on a phone.
func (p *page) inspect(name string) *page {
	p.t.Helper()
	p.shot(name + "-light").check()
	p.theme("dark").shot(name + "-dark").theme("light")
	p.phone().shot(name + "-phone").check()
	return p.desktop()
}

// A person is invited, chooses a password, and uses the dashboard.
func TestInvitationWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	owner := w.as(tenants.Owner).open("/members")
	const email = "new-editor@walk.example"
	owner.click("Invite member").inspect("members-invite")
	owner.fill("Email", "nonsense@").choose("Role", "Editor: rules, plans and subjects")
	owner.fill("Email", email).click("Send invitation")
	owner.at("/members").sees(email + " is invited.").inspect("members-invited")

	guest := w.visitor()
	guest.mail(email).sees("has invited you to work in " + w.tenant.Name).sees("an editor").click("Accept the invitation")
	guest.sees("Join " + w.tenant.Name).inspect("invitation")
	link := mustEval[string](guest, "location.pathname")
	guest.allow(422).fill("Choose a password", "password123").click("Save and join")
	guest.sees("Is one of the most common passwords").inspect("invitation-wrong")
	guest.fill("Choose a password", "an editor's own horse").click("Save and join")
	guest.at("/").sees("Welcome to " + w.tenant.Name).sees("editor")
	w.visitor().openFor(link, 404).sees("no longer valid").inspect("link-dead")

	owner.open("/members").within(email).sees("active")
}

// An invited person with a login joins with it. A withdrawn invitation has no effect.
func TestInvitationWithLoginWalk(t *testing.T) {
	t.Parallel()
	w, other := newTenant(t), newTenant(t)
	email := other.person(tenants.Viewer)
	owner := w.as(tenants.Owner).open("/members")
	owner.click("Invite member").fill("Email", email).click("Send invitation").sees(email + " is invited.")
	owner.click("Resend invitation to " + email).sees("New link sent to")
	guest := w.visitor()
	guest.mail("Join " + w.tenant.Name).click("Accept the invitation")
	guest.sees("Sign in and join").inspect("invitation-known")
	owner.click("Withdraw invitation of " + email).sees("withdrawn")
	guest.allow(404).fill("Your password", password).click("Sign in and join").sees("no longer valid")

	owner.click("Invite member").fill("Email", email).click("Send invitation").sees(email + " is invited.")
	known := other.signedIn(email, password)
	known.mail("Join " + w.tenant.Name).click("Accept the invitation")
	known.hasNot("Your password").click("Join").at("/").sees("Welcome to " + w.tenant.Name)
}

// A person who forgot the password sets a new one, and changes it again.
func TestForgottenPasswordWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	email := w.person(tenants.Owner)
	elsewhere := w.as(tenants.Owner).open("/members")
	p := w.visitor().open("/login").click("Forgot your password?").at("/forgot")
	p.inspect("forgot")
	p.fill("Email", email).click("Email me a link").sees("Check your email").inspect("forgot-asked")
	p.click("demo mailbox").sees("Demo mailbox").inspect("dev-mail")
	p.mail(email).click("Choose a new password")
	p.sees("Choose a new password").inspect("reset")
	p.fill("New password", "another horse battery").click("Save password and sign in").at("/").sees("Password changed")
	elsewhere.open("/members").sees("Sign in")

	p.click(email + " owner").click("Account").at("/account").sees(email).inspect("account")
	p.allow(422).fill("Current password", "wrong").fill("New password", "short").click("Change password")
	p.sees("Is not your current password").inspect("account-wrong")
	require.Empty(t, p.value("Current password"), "no password comes back")
	p.fill("Current password", "another horse battery").fill("New password", "yet another horse").click("Change password")
	p.at("/account").sees("Password changed")
	w.signedIn(email, "yet another horse").open("/").sees(w.tenant.Name)
}

// A person changes the email of their login: the new address has to be confirmed, and the old one
// gets a notice.
func TestEmailWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	old := w.person(tenants.Editor)
	email := "new-" + old
	p := w.as(tenants.Editor).open("/account").sees("You sign in with " + old).inspect("account")
	p.allow(422).fill("New email", email).fill("Password", "wrong").click("Change email").sees("Is not your current password")
	p.fill("New email", email).fill("Password", password).click("Change email").sees("We sent a link to " + email)
	mails := w.visitor()
	mails.mail("A new email for your login to Weir was requested").sees(old)
	mails.mail("Confirm your new email for Weir").sees(email).click("Confirm the new email")
	mails.sees("You sign in with the new email from then on.").inspect("email-confirm")
	mails.click("Change email").at("/login?next=%2Faccount")
	p.open("/account").sees("You sign in with " + email)
	mails.fill("Email", email).fill("Password", password).click("Sign in").at("/account").sees("Email changed.")
	mails.mail("The email of your login to Weir was changed").sees("This address can no longer sign in.")
}

// A member of two tenants leaves one of them, and continues in the other.
func TestLeaveWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	var other *world
	t.Run("Other", func(t *testing.T) { other = newTenant(t) }) // with another name
	email := w.person(tenants.Viewer)
	_, err := other.store.CreateMember(t.Context(), other.actor, email, password, tenants.Viewer)
	require.NoError(t, err)
	p := w.signedIn(email, password).open("/account").click("Leave " + w.tenant.Name).sees("To come back, you need an invitation.").check()
	p.click("Leave tenant").at("/account").sees("You left " + w.tenant.Name + ".").hasNot("Leave " + w.tenant.Name)
	p.open("/").sees(other.tenant.Name)
}

// The role of a pending invitation changes before the person joins.
func TestRoleOfInvitation(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	email := "joins-later@" + w.tenant.Slug + ".example"
	p := w.as(tenants.Owner).open("/members").click("Invite member").fill("Email", email).click("Send invitation").sees(email + " is invited.")
	row := p.within(email)
	row.click("Change role").choose("Role of "+email, "Editor: rules, plans and subjects").check()
	row.click("Save role")
	p.sees("Role of " + email + " changed to editor.").within(email).sees("editor")
	w.visitor().mail("Join " + w.tenant.Name).click("Accept the invitation").sees("an editor")
}

// A newcomer creates a tenant.
func TestSignUpWalk(t *testing.T) {
	t.Parallel()
	w := demo(t)
	const email = "newcomer@walk.example"
	p := w.visitor().open("/login").click("Sign up").at("/signup")
	p.inspect("signup")
	p.fill("Email", email).click("Email me a link").sees("Check your email")
	p.mail(email).click("Complete sign-up")
	p.sees("Email confirmed").inspect("signup-link")
	p.fill("Tenant name", "Newcomers & Sons").fill("Choose a password", "a newcomer's horse").click("Sign up")
	p.sees("You own this tenant").sees("Newcomers & Sons").sees("owner")
}
