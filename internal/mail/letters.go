package mail

import (
	"fmt"
	htmltemplate "html/template"
	"strings"
	"text/template"
	"unicode"
)

// Letter is what is sent to one person: the same in plain text and in simple HTML.
type Letter struct {
	Kind    string // for logs: invitation, password, signup, notice
	To      string // an address without a name
	Subject string
	Before  []string // paragraphs before the link
	Link    Link
	After   []string // paragraphs after it
}

// Link is the one thing to follow in a letter.
type Link struct{ Text, URL string }

// Invitation asks somebody to join a tenant as what role says, such as "an editor". by is who
// invites, "" for nobody in particular.
func Invitation(to, tenant, by, role, link, lasts string) Letter {
	if by == "" {
		by = "Somebody who runs it"
	}
	return Letter{
		Kind: "invitation", To: to, Subject: fmt.Sprintf("Join %s on Weir", short(tenant)),
		Before: []string{fmt.Sprintf("%s has invited you to work in %s on Weir, as %s.", by, short(tenant), role)},
		Link:   Link{"Accept the invitation", link},
		After: []string{
			fmt.Sprintf("The link works once, for this address, for %s.", lasts),
			"If you do not know what this is about, do nothing: without the link nobody can join in your name.",
		},
	}
}

// NewPassword leads to where somebody who forgot the password chooses another.
func NewPassword(to, link, lasts string) Letter {
	return Letter{
		Kind: "password", To: to, Subject: "Choose a new password for Weir",
		Before: []string{"Somebody, most likely you, asked for a new password for your login to Weir."},
		Link:   Link{"Choose a new password", link},
		After: []string{
			fmt.Sprintf("The link works once, for %s. With the new password all your sessions end.", lasts),
			"If it was not you, do nothing: your password stays as it is.",
		},
	}
}

// PasswordChanged tells somebody that their password is another now.
func PasswordChanged(to, forgotten string) Letter {
	return Letter{
		Kind: "notice", To: to, Subject: "Your password for Weir was changed",
		Before: []string{"The password of your login to Weir was changed just now, and all other sessions were ended."},
		Link:   Link{"It was not me: choose a new password", forgotten},
		After:  []string{"If it was you, there is nothing to do."},
	}
}

// SignUp leads to where somebody ends their sign-up.
func SignUp(to, link, lasts string) Letter {
	return Letter{
		Kind: "signup", To: to, Subject: "Confirm your address to sign up for Weir",
		Before: []string{"Welcome to Weir. Follow the link to choose a password and a name for your tenant."},
		Link:   Link{"Complete sign-up", link},
		After: []string{
			fmt.Sprintf("The link works once, for %s.", lasts),
			"If you did not ask for this, do nothing: there is no login before the link was followed.",
		},
	}
}

// SignedUpAlready tells somebody who signs up that they have a login. What the page says is the
// same for everybody.
func SignedUpAlready(to, login string) Letter {
	return Letter{
		Kind: "signup", To: to, Subject: "You have a login to Weir already",
		Before: []string{"Somebody, most likely you, asked to sign up for Weir with this address. It has a login already: sign in with it."},
		Link:   Link{"Sign in", login},
		After:  []string{"If you forgot the password, the sign-in page helps. If it was not you, do nothing."},
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

// short bounds a name that somebody has chosen and somebody else reads.
func short(name string) string {
	const most = 80 // characters
	name = oneLine(name)
	if runes := []rune(name); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return name
}

// oneLine leaves out what could end a line of a header.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || c == '\u2028' || c == '\u2029' {
			return ' '
		}
		return c
	}, s)
}
