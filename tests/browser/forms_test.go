package browser

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// slugMarkup is how the field of a slug shows its message, without the text.
const slugMarkup = `(input => { const message = document.getElementById("f-slug-error"); return [
	input.ariaInvalid, input.getAttribute("aria-describedby"), message.tagName, message.className, String(message.parentElement === input.closest(".field") && !message.nextElementSibling)
	] })(document.getElementById("f-slug"))`

// A form with an invalid field is not sent: the message is below the field, in our words, and the
// field has the focus.
func TestInlineErrors(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Owner).open("/plans/new")
	p.click("Create plan").sees("Enter the slug, for example pro.").inspect("form-invalid")
	require.Equal(t, "f-slug", mustEval[string](p, `document.activeElement.id`))
	ours := mustEval[[]string](p, slugMarkup)
	require.Equal(t, []string{"true", "f-slug-hint f-slug-error", "P", "wrong", "true"}, ours)
	p.fill("Slug", "Not a slug").seesNot("Enter the slug").sees("Must be 1 to 63 of a-z, 0-9 and -.")
	require.Equal(t, ours, mustEval[[]string](p, slugMarkup))
	_, err := w.store.CreatePlan(t.Context(), w.actor, tenants.Plan{Slug: "taken", Name: "Taken"})
	require.NoError(t, err)
	p.fill("Slug", "taken").seesNot("Must be 1 to 63") // while it is being corrected
	require.False(t, mustEval[bool](p, `document.getElementById("f-slug").hasAttribute("aria-invalid")`))
	p.allow(409).click("Create plan").sees("There is a plan with this slug already.").inspect("form-refused")
	p.fill("Slug", "pro").press(kb.Enter).sees("created").at("/plans")
}

// A message appears when somebody leaves the field, and not while they type. Drawers and the
// sign-in page have the same messages.
func TestInlineErrorsOnLeaving(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Owner).open("/members").click("Invite member")
	p.fill("Email", "nonsense@").settle()
	require.False(t, mustEval[bool](p, `document.querySelector(".wrong") !== null`), "while they type")
	p.press(kb.Tab).sees("Must be an email such as name@example.com.").check()
	p.fill("Email", "ann@example.com").seesNot("Must be an email").check()
	// The message that appears when the field is left does not move the button away from the click.
	p.fill("Email", "nonsense@").click("Send invitation").sees("Must be an email")
	require.Equal(t, "email", mustEval[string](p, `document.activeElement.name`))

	p.open("/subjects/eve").click("Block").press(kb.Enter).sees("Enter a reason for the audit trail.").check()
	require.Equal(t, "reason", mustEval[string](p, `document.activeElement.name`))
	p.press("spam").seesNot("Enter a reason").press(kb.Enter).sees("eve is blocked.")

	p = w.visitor().open("/login").click("Sign in").sees("Enter your email, for example name@example.com.").sees("Enter your password.").inspect("signin-invalid")
	require.Equal(t, "email", mustEval[string](p, `document.activeElement.name`))
	p.fill("Email", w.person(tenants.Owner)).fill("Password", password).click("Sign in").at("/")
}

// The time of a change of a plan can be entered for a change at a time only, and one that was
// entered before does not get lost silently.
func TestTimeOfAPlanChange(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Owner).open("/subjects/eve").click("Change plan")
	p.sees("When").seesNot("Time (UTC)").choose("When", "At a time").sees("Time (UTC)").check()
	p.choose("When", "Now").seesNot("Time (UTC)")
}

// The slug of a plan, a tenant or a route follows its name until somebody changes it.
func TestSlugFollowsTheName(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Owner)
	slug := func() string { return mustEval[string](p, `document.querySelector("[name=slug]").value`) }
	for _, path := range []string{"/plans/new", "/routes/new"} {
		p.open(path).fill("Name", "Gold, for teams!")
		require.Equal(t, "gold-for-teams", slug(), path)
		p.fill("Slug", "gold").fill("Name", "Gold for all")
		require.Equal(t, "gold", slug(), path)
		p.fill("Slug", "").fill("Name", "Silver")
		require.Equal(t, "silver", slug(), path)
	}
	p.open("/plans/new").click("Create plan").sees("Enter the slug").fill("Name", "Silver").seesNot("Enter the slug")
	p.click("Create plan").sees("Silver").at("/plans")
}
