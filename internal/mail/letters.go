package mail

import (
	"fmt"
	htmltemplate "html/template"
	"strings"
	"text/template"
	"time"
	"unicode"
)

// Letter is a mail to one person: the same content in plain text and in simple HTML.
type Letter struct {
	Kind    string // for logs: invitation, password, email, signup, notice
	To      string // an address without a name
	Subject string
	Before  []string // paragraphs before the link
	Link    Link
	After   []string // paragraphs after it
}

// Link is the link of a letter.
type Link struct{ Text, URL string }

// Invitation invites a person to join a tenant with a role, such as "an editor". by is the person
// who invites, or "" if a program does.
func Invitation(to, tenant, by, role, link, lasts string) Letter {
	invited := "You are invited"
	if by != "" {
		invited = by + " has invited you"
	}
	return Letter{
		Kind: "invitation", To: to, Subject: fmt.Sprintf("Join %s on Weir", short(tenant)),
		Before: []string{fmt.Sprintf("%s to work in %s on Weir, as %s.", invited, short(tenant), role)},
		Link:   Link{"Accept the invitation", link},
		After: []string{
			fmt.Sprintf("The link is single-use, for this address, and valid for %s.", lasts),
			"If you do not expect this invitation, ignore this mail. Nobody can join in your name without the link.",
		},
	}
}

// NewPassword has a link with which a person who forgot the password sets a new one.
func NewPassword(to, link, lasts string) Letter {
	return Letter{
		Kind: "password", To: to, Subject: "Choose a new password for Weir",
		Before: []string{"A new password was requested for your login to Weir, most likely by you."},
		Link:   Link{"Choose a new password", link},
		After: []string{
			fmt.Sprintf("The link is single-use and valid for %s. A new password ends all your sessions.", lasts),
			"If you did not request it, ignore this mail. Your password does not change.",
		},
	}
}

// PasswordChanged notifies a person that their password was changed.
func PasswordChanged(to, forgotten string) Letter {
	return Letter{
		Kind: "notice", To: to, Subject: "Your password for Weir was changed",
		Before: []string{"The password of your login to Weir was changed, and all other sessions were ended."},
		Link:   Link{"This was not me: choose a new password", forgotten},
		After:  []string{"If this was you, no action is required."},
	}
}

// NewEmail has a link with which a person proves that the new email of their login is theirs.
func NewEmail(to, old, link, lasts string) Letter {
	return Letter{
		Kind: "email", To: to, Subject: "Confirm your new email for Weir",
		Before: []string{fmt.Sprintf("The email of the login %s to Weir is about to change to this address.", old)},
		Link:   Link{"Confirm the new email", link},
		After: []string{
			fmt.Sprintf("The link is single-use and valid for %s.", lasts),
			"If you did not request this, ignore this mail. Nothing changes without the link.",
		},
	}
}

// EmailRequested tells a person at their present address that another one is about to replace it.
func EmailRequested(to, email, account string) Letter {
	return Letter{
		Kind: "notice", To: to, Subject: "A new email for your login to Weir was requested",
		Before: []string{fmt.Sprintf("The email of your login is about to change to %s. It changes as soon as the link that we sent to that address is opened.", email)},
		Link:   Link{"This was not me: change my password", account},
		After:  []string{"A new password voids the link. If this was you, no action is required."},
	}
}

// EmailChanged tells a person at their previous address that their login has another one.
func EmailChanged(to, email, login string) Letter {
	return Letter{
		Kind: "notice", To: to, Subject: "The email of your login to Weir was changed",
		Before: []string{fmt.Sprintf("The email of your login is now %s. This address can no longer sign in.", email)},
		Link:   Link{"Sign in", login},
		After:  []string{"If this was you, no action is required. If it was not, ask an owner of your tenant to remove the member with that email."},
	}
}

// SignUp has a link with which a person completes their sign-up.
func SignUp(to, link, lasts string) Letter {
	return Letter{
		Kind: "signup", To: to, Subject: "Confirm your address to sign up for Weir",
		Before: []string{"Welcome to Weir. Follow the link to choose a password and a name for your tenant."},
		Link:   Link{"Complete sign-up", link},
		After: []string{
			fmt.Sprintf("The link is single-use and valid for %s.", lasts),
			"If you did not request this, ignore this mail. A login is created only after the link is used.",
		},
	}
}

// SignedUpAlready notifies a person who signs up that they have a login. The page shows the same
// text in both cases.
func SignedUpAlready(to, login string) Letter {
	return Letter{
		Kind: "signup", To: to, Subject: "You already have a login to Weir",
		Before: []string{"A sign-up for Weir was requested with this address, most likely by you. The address already has a login. Use it to sign in."},
		Link:   Link{"Sign in", login},
		After:  []string{"If you forgot the password, reset it on the sign-in page. If this was not you, ignore this mail."},
	}
}

// LimitRequest tells somebody who runs a tenant that a customer asks for a higher limit.
func LimitRequest(to, tenant, subject, wanted, note, link string) Letter {
	before := []string{fmt.Sprintf("The customer %s of %s asks for a higher limit: %s.", short(subject), short(tenant), wanted)}
	if note != "" {
		before = append(before, "They write: "+oneLine(note))
	}
	return Letter{
		Kind: "notice", To: to, Subject: fmt.Sprintf("A customer of %s asks for a higher limit", short(tenant)),
		Before: before,
		Link:   Link{"Approve or refuse the request", link},
		After:  []string{"Owners and admins of the tenant receive this mail."},
	}
}

// QuotaNotice tells somebody who runs a tenant that it has used a share of a quota.
func QuotaNotice(to, tenant, quota string, percent int, used, limit int64, resets time.Time, link string) Letter {
	after := "At the limit, checks are refused until the quota resets, unless your tier lets them pass."
	if percent >= 100 {
		after = "Checks over the quota are refused until it resets, unless your tier lets them pass."
	}
	return Letter{
		Kind: "notice", To: to, Subject: fmt.Sprintf("%s has used %d %% of a quota", short(tenant), percent),
		Before: []string{fmt.Sprintf("The tenant %s has used %d of %d checks of the quota %s. It resets on %s.",
			short(tenant), used, limit, short(quota), resets.UTC().Format("2 January 2006, 15:04 UTC"))},
		Link:  Link{"Show the usage", link},
		After: []string{after, "Owners and admins of the tenant receive this mail once for each share and period."},
	}
}

// BillingNotice tells somebody who runs a tenant that events of a billing endpoint were not
// applied.
func BillingNotice(to, tenant, endpoint string, parked, failed int64, link string) Letter {
	return Letter{
		Kind: "notice", To: to, Subject: fmt.Sprintf("%s: billing events were not applied", short(tenant)),
		Before: []string{fmt.Sprintf("Events of the billing endpoint %s of the tenant %s: %d parked, %d failed. Until they are applied, their customers keep the plan that they had.",
			short(endpoint), short(tenant), parked, failed)},
		Link: Link{"Show the billing events", link},
		After: []string{
			"The page says for each event what is missing. Map the price, make the customer known or remove the cause, or dismiss the event.",
			"Owners and admins of the tenant receive this mail at most once a day while there are such events.",
		},
	}
}

// TierNotice tells somebody who runs a tenant that it has more than its tier includes.
func TierNotice(to, tenant, tier string, over []string, link string) Letter {
	return Letter{
		Kind: "notice", To: to, Subject: fmt.Sprintf("%s has more than its tier includes", short(tenant)),
		Before: []string{fmt.Sprintf("The tier %s includes less than the tenant %s has: %s.", short(tier), short(tenant), strings.Join(over, "; "))},
		Link:   Link{"Show the usage", link},
		After: []string{
			"What exists stays and works as before. Nothing more can be added until it fits, or until the operator of the service gives the tenant a higher tier.",
			"Owners and admins of the tenant receive this mail once.",
		},
	}
}

var (
	textBody = template.Must(template.New("").Parse(`{{range .Before}}{{.}}

{{end}}{{.Link.Text}}:
{{.Link.URL}}

{{range .After}}{{.}}

{{end}}-- 
Weir
`))
	htmlBody = htmltemplate.Must(htmltemplate.New("").Parse(`<!DOCTYPE html>
<html lang="en"><body style="font-family: sans-serif; line-height: 1.5; max-width: 36em">
{{range .Before}}<p>{{.}}</p>
{{end}}<p><a href="{{.Link.URL}}">{{.Link.Text}}</a></p>
<p>Or open this address: {{.Link.URL}}</p>
{{range .After}}<p>{{.}}</p>
{{end}}<p>Weir</p>
</body></html>
`))
)

func (l *Letter) bodies() (text, html string, err error) {
	var t, h strings.Builder
	if err := textBody.Execute(&t, l); err != nil {
		return "", "", err
	}
	err = htmlBody.Execute(&h, l)
	return t.String(), h.String(), err
}

// short truncates a name that one person chooses and another one reads.
func short(name string) string {
	const most = 80 // characters
	name = oneLine(name)
	if runes := []rune(name); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return name
}

// oneLine removes line breaks, which could end a header field.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case unicode.IsControl(c) || c == '\u2028' || c == '\u2029':
			return ' '
		case unicode.Is(unicode.Bidi_Control, c): // it would turn the text around it
			return -1
		}
		return c
	}, s)
}
