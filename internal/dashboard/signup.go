package dashboard

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/mail"
	"weir/internal/tenants"
)

// Signup says who may create a tenant.
type Signup string

// The values of Signup.
const (
	SignupOpen   Signup = "open"   // everybody
	SignupInvite Signup = "invite" // people with a link from the operator
	SignupClosed Signup = "closed" // nobody
)

// Signups lists the values of Signup.
var Signups = []Signup{SignupOpen, SignupInvite, SignupClosed}

// signupView is the sign-up page.
type signupView struct {
	Form   form
	Open   bool   // open to everybody
	Email  string // proved by a link; "": not yet
	Whole  bool   // all inputs on one page, because no mail can be sent
	Action string
}

func (d *dashboard) signupPage(w http.ResponseWriter, r *http.Request) error {
	if d.Signup == SignupClosed {
		return tenants.ErrNotFound
	}
	return d.renderSignup(w, r, http.StatusOK, &signupView{})
}

func (d *dashboard) renderSignup(w http.ResponseWriter, r *http.Request, status int, v *signupView) error {
	v.Open, v.Whole, v.Action = d.Signup == SignupOpen, !d.Mail.On() || v.Email != "", r.URL.Path
	return d.render(w, r, status, signupPage(v))
}

// signup mails a link for the next step. If mail is off, it creates the tenant immediately.
func (d *dashboard) signup(w http.ResponseWriter, r *http.Request) error {
	if d.Signup != SignupOpen {
		return tenants.ErrNotFound
	}
	if err := readForm(w, r); err != nil {
		return err
	}
	view := signupView{Form: form{values: r.PostForm}}
	email := view.Form.Get("email")
	if d.Mail.On() {
		return d.mailSignup(w, r, &view, email)
	}
	if wait := d.limits.asked.Take(r.Context(), accountKey(email), networksOf(r).Names()); wait > 0 {
		return d.renderSignup(w, r, tooMany(w, &view.Form, wait), &view)
	}
	ctx, cancel := context.WithTimeout(r.Context(), loginWait)
	defer cancel()
	person, err := d.Store.SignUpUnproved(ctx, email, newSignup(&view.Form))
	return d.signedUp(w, r, &view, person, err)
}

// mailSignup gives everybody the same answer. A person who has a login already is told so by mail.
func (d *dashboard) mailSignup(w http.ResponseWriter, r *http.Request, view *signupView, email string) error {
	if !tenants.ValidEmail(email) {
		view.Form.wrong("email", limit.MustBe("an email such as name@example.com"))
		return d.renderSignup(w, r, http.StatusUnprocessableEntity, view)
	}
	if wait := d.mayAsk(r); wait > 0 {
		return d.renderSignup(w, r, tooMany(w, &view.Form, wait), view)
	}
	if err := d.Store.Ping(r.Context()); err != nil { // otherwise the answer would promise a mail
		return err
	}
	d.errand(r, "create a sign-up link", func(ctx context.Context) error {
		person, err := d.Store.PersonWithLogin(ctx, email)
		if err != nil && !errors.Is(err, tenants.ErrNotFound) {
			return err
		}
		known := err == nil
		if may, _, err := d.mayMail(ctx, r, email, d.limits.signupMails, d.limits.ownSignups); !may {
			return err
		}
		from := mail.BySignUp(siteOf(r))
		if known {
			d.Mail.Send(from, mail.SignedUpAlready(person.Email, d.Mail.Link("/login")), nil)
			return nil
		}
		token, err := d.Store.NewSignupLink(ctx, email, tenants.SignupLinkLife)
		if err != nil {
			return err
		}
		d.Mail.Send(from, mail.SignUp(email, d.Mail.Link("/signup/"+token), inWords(tenants.SignupLinkLife)), nil)
		return nil
	})
	return d.render(w, r, http.StatusOK, askedPage(&askedView{
		Title: "Check your email", Email: email, Back: "/signup", Box: d.Mail.Box() != nil,
		Text: "We sent you a link to continue. The link is single-use and valid for " + inWords(tenants.SignupLinkLife) + ".",
	}))
}

func newSignup(f *form) tenants.NewSignup {
	return tenants.NewSignup{Tenant: f.Get("tenant"), Password: f.values.Get("password")}
}

func (d *dashboard) signupLinkPage(w http.ResponseWriter, r *http.Request) error {
	if d.Signup == SignupClosed {
		return tenants.ErrNotFound
	}
	email, err := d.Store.SignupLink(r.Context(), chi.URLParam(r, "token"))
	if errors.Is(err, tenants.ErrNotFound) {
		return d.deadSignup(w, r)
	}
	if err != nil {
		return err
	}
	return d.renderSignup(w, r, http.StatusOK, &signupView{Email: email})
}

func (d *dashboard) deadSignup(w http.ResponseWriter, r *http.Request) error {
	return d.deadLink(w, r, "A sign-up link is single-use and valid for a short time.", "/signup", "Sign up")
}

// endSignup creates the tenant of the person of a link.
func (d *dashboard) endSignup(w http.ResponseWriter, r *http.Request) error {
	if d.Signup == SignupClosed {
		return tenants.ErrNotFound
	}
	if err := readForm(w, r); err != nil {
		return err
	}
	token, view := chi.URLParam(r, "token"), signupView{Form: form{values: r.PostForm}}
	email, err := d.Store.SignupLink(r.Context(), token)
	if errors.Is(err, tenants.ErrNotFound) {
		return d.deadSignup(w, r)
	}
	if err != nil {
		return err
	}
	view.Email = email
	ctx, cancel := context.WithTimeout(r.Context(), loginWait)
	defer cancel()
	person, err := d.Store.SignUp(ctx, token, newSignup(&view.Form))
	if errors.Is(err, tenants.ErrNotFound) {
		return d.deadSignup(w, r)
	}
	return d.signedUp(w, r, &view, person, err)
}

// signedUp ends a sign-up: it shows the page again, or the new tenant.
func (d *dashboard) signedUp(w http.ResponseWriter, r *http.Request, view *signupView, person tenants.Person, err error) error {
	if status := view.Form.refuse(err); status != 0 {
		return d.renderSignup(w, r, status, view)
	}
	if err != nil {
		return busyOr(err)
	}
	tenant := uuid.Nil
	for _, m := range person.Memberships {
		if m.State == tenants.MemberActive { // so far there is only one
			tenant = m.TenantID
		}
	}
	if err := d.signIn(w, r, person, tenant, "sign-up"); err != nil {
		return err
	}
	return d.done(w, r, "/", "Welcome to Weir. You own this tenant.")
}
