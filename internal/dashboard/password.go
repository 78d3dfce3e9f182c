package dashboard

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/mail"
	"weir/internal/tenants"
)

// askedView is the page after somebody has asked for a mail. It says the same to everybody.
type askedView struct {
	Title, Email, Text string
	Back               string // the page to ask again on
	Box                bool   // mails are at /dev/mail
}

// forgotView is the page on which somebody says that they forgot their password.
type forgotView struct {
	Form   form
	MailOn bool
}

func (d *dashboard) forgotPage(w http.ResponseWriter, r *http.Request) error {
	return d.render(w, r, http.StatusOK, forgotPage(&forgotView{MailOn: d.Mail.On()}))
}

// forgot has a link mailed to whoever has a login with that address. Whether there is one shows
// neither in the answer nor in how long it takes: the mail is made after it.
func (d *dashboard) forgot(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	view := forgotView{Form: form{values: r.PostForm}, MailOn: d.Mail.On()}
	if !view.MailOn {
		return d.render(w, r, http.StatusNotFound, forgotPage(&view))
	}
	email := view.Form.Get("email")
	if wait := d.asked.take(email, addressOf(r.RemoteAddr)); wait > 0 {
		return d.render(w, r, tooMany(w, &view.Form, wait), forgotPage(&view))
	}
	person, err := d.Store.PersonWithLogin(r.Context(), email)
	if err != nil && !errors.Is(err, tenants.ErrNotFound) {
		return err
	}
	if err == nil {
		d.errand(r, "create a password link", func(ctx context.Context) error {
			token, err := d.Store.NewPasswordLink(ctx, person)
			if err != nil {
				return err
			}
			d.Mail.Send(mail.NewPassword(person.Email, d.Mail.Link("/reset/"+token), inWords(tenants.PasswordLinkLife)), nil)
			return nil
		})
	}
	return d.render(w, r, http.StatusOK, askedPage(&askedView{
		Title: "Check your email", Email: email, Back: "/forgot", Box: d.Mail.Box() != nil,
		Text: "If this email has a login, we sent a link to it. The link is single-use and valid for " + inWords(tenants.PasswordLinkLife) + ".",
	}))
}

// errand does something after the answer. A few at once are enough; where more are asked for, they
// wait.
func (d *dashboard) errand(r *http.Request, what string, do func(ctx context.Context) error) {
	const longest = 10 * time.Second
	id := requestOf(r.Context()).id
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), longest)
	go func() {
		defer cancel()
		d.errands <- struct{}{}
		defer func() { <-d.errands }()
		if err := do(ctx); err != nil {
			d.Logger.Error("work after a response failed", "request_id", id, "what", what, "error", err)
		}
	}()
}

// linkView is a page behind a link out of a mail.
type linkView struct {
	Form   form
	Email  string
	Action string
}

func (d *dashboard) resetPage(w http.ResponseWriter, r *http.Request) error {
	email, err := d.Store.PasswordLink(r.Context(), chi.URLParam(r, "token"))
	if errors.Is(err, tenants.ErrNotFound) {
		return d.deadLink(w, r, "A password link is single-use and valid for one hour.", "/forgot", "Request a new link")
	}
	if err != nil {
		return err
	}
	return d.render(w, r, http.StatusOK, resetPage(&linkView{Email: email, Action: r.URL.Path}))
}

// reset gives whoever has followed the link a new password, and signs them in.
func (d *dashboard) reset(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	token, f := chi.URLParam(r, "token"), form{values: r.PostForm}
	ctx, cancel := context.WithTimeout(r.Context(), loginWait)
	defer cancel()
	person, err := d.Store.UsePasswordLink(ctx, token, f.values.Get("password"))
	if errors.Is(err, tenants.ErrNotFound) {
		return d.deadLink(w, r, "A password link is single-use and valid for one hour.", "/forgot", "Request a new link")
	}
	if status := f.refuse(err); status != 0 {
		email, err := d.Store.PasswordLink(r.Context(), token)
		if err != nil {
			return err
		}
		return d.render(w, r, status, resetPage(&linkView{Form: f, Email: email, Action: r.URL.Path}))
	}
	if err != nil {
		return busyOr(err)
	}
	d.passwordChanged(r, person)
	if err := d.signIn(w, r, person, uuid.Nil); err != nil {
		return err
	}
	return d.done(w, r, "/", "Password changed. All other sessions ended.")
}

// passwordChanged writes it down, and tells the person by mail: should it not have been them,
// nobody else would.
func (d *dashboard) passwordChanged(r *http.Request, p tenants.Person) {
	d.Logger.Info("a password was changed", "request_id", requestOf(r.Context()).id, "person_id", p.ID)
	if d.Mail.On() {
		d.Mail.Send(mail.PasswordChanged(p.Email, d.Mail.Link("/forgot")), nil)
	}
}

// busyOr tells that somebody did not get their turn to have a password hashed from other errors.
func busyOr(err error) error {
	if tenants.IsBusy(err) {
		return errBusy
	}
	return err
}

// deadLink says that a link works no more, and where to get another. Why it does not is the same
// for all: whoever guesses learns nothing.
func (d *dashboard) deadLink(w http.ResponseWriter, r *http.Request, text, path, name string) error {
	return d.render(w, r, http.StatusNotFound, deadLinkPage(text, path, name))
}

// accountView is what people see of their own login.
type accountView struct {
	Form    form
	Email   string
	Tenants []accountTenant
}

type accountTenant struct{ Name, Role string }

func (d *dashboard) account(w http.ResponseWriter, r *http.Request, v *visit) error {
	v.frame.Said = said(w, r)
	return d.renderAccount(w, r, v, http.StatusOK, form{})
}

func (d *dashboard) renderAccount(w http.ResponseWriter, r *http.Request, v *visit, status int, f form) error {
	view := accountView{Form: f, Email: v.session.Email}
	for i := range v.session.Memberships {
		m := &v.session.Memberships[i]
		view.Tenants = append(view.Tenants, accountTenant{tenantName(m), string(m.Role)})
	}
	v.frame.Title = "Account"
	return d.render(w, r, status, accountPage(v.frame, &view))
}

// changePassword gives somebody who shows their password another one.
func (d *dashboard) changePassword(w http.ResponseWriter, r *http.Request, v *visit) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	f := form{values: r.PostForm}
	ctx, cancel := context.WithTimeout(r.Context(), 2*loginWait) // two passwords are hashed
	defer cancel()
	person, wait, err := d.prove(ctx, v.session.Email, f.values.Get("current"), addressOf(r.RemoteAddr))
	switch {
	case wait > 0:
		return d.renderAccount(w, r, v, tooMany(w, &f, wait), f)
	case errors.Is(err, tenants.ErrWrongPassword):
		f.wrong("current", "is not your current password")
		return d.renderAccount(w, r, v, http.StatusUnprocessableEntity, f)
	case err != nil:
		return err
	}
	err = d.Store.ChangePassword(ctx, person, f.values.Get("password"))
	if status := f.refuse(err); status != 0 {
		return d.renderAccount(w, r, v, status, f)
	}
	if err != nil {
		return busyOr(err)
	}
	d.passwordChanged(r, person)
	tenant := uuid.Nil
	if v.session.Current != nil {
		tenant = v.session.Current.TenantID
	}
	if err := d.signIn(w, r, person, tenant); err != nil {
		return err
	}
	return d.done(w, r, "/account", "Password changed. All other sessions ended.")
}
