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

// askedView is the page after a mail was requested. It is the same for everybody.
type askedView struct {
	Title, Email, Text string
	Back               string // the page for another request
	Box                bool   // mails are shown at /dev/mail
}

// forgotView is the page for a forgotten password.
type forgotView struct {
	Form   form
	MailOn bool
}

func (d *dashboard) forgotPage(w http.ResponseWriter, r *http.Request) error {
	return d.render(w, r, http.StatusOK, forgotPage(&forgotView{MailOn: d.Mail.On()}))
}

// forgot mails a link to the person with a login for that address. Neither the answer nor its time
// reveals whether there is a login, or whether a mail was sent a moment ago: both are looked up
// after the answer.
func (d *dashboard) forgot(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	view := forgotView{Form: form{values: r.PostForm}, MailOn: d.Mail.On()}
	if !view.MailOn {
		return d.render(w, r, http.StatusNotFound, forgotPage(&view))
	}
	email := view.Form.Get("email")
	if wait := d.mayAsk(r); wait > 0 {
		return d.render(w, r, tooMany(w, &view.Form, wait), forgotPage(&view))
	}
	if err := d.Store.Ping(r.Context()); err != nil { // otherwise the answer would promise a mail
		return err
	}
	d.errand(r, "create a password link", func(ctx context.Context) error {
		person, err := d.Store.PersonWithLogin(ctx, email)
		if errors.Is(err, tenants.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		may, known, err := d.mayMail(ctx, r, email, d.limits.mailed, d.limits.mailedOwn)
		if !may {
			return err
		}
		token, err := d.Store.NewPasswordLink(ctx, person)
		if err != nil {
			return err
		}
		from := mail.ByForgetful(siteOf(r))
		if known { // unknown clients who request many links do not delay this one
			from = byPerson(email)
		}
		d.Mail.Send(from, mail.NewPassword(person.Email, d.Mail.Link("/reset/"+token), inWords(tenants.PasswordLinkLife)), nil)
		return nil
	})
	return d.render(w, r, http.StatusOK, askedPage(&askedView{
		Title: "Check your email", Email: email, Back: "/forgot", Box: d.Mail.Box() != nil,
		Text: "If this email has a login, we sent a link to it, unless we sent one within the last " + inWords(tenants.PasswordLinkLife) + ". The link is single-use and valid for " + inWords(tenants.PasswordLinkLife) + ".",
	}))
}

// errand runs a function after the answer. A few run concurrently; further ones wait, and sites
// take turns.
func (d *dashboard) errand(r *http.Request, what string, do func(ctx context.Context) error) {
	const longest = 10 * time.Second
	id, site := requestOf(r.Context()).id, siteOf(r)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), longest)
	d.after.Go(func() {
		defer cancel()
		leave, err := d.errands.Take(ctx, site)
		if err == nil {
			defer leave()
			err = do(ctx)
		}
		if err != nil {
			d.Logger.Error("work after a response failed", "request_id", id, "what", what, "error", err)
		}
	})
}

// linkView is the page of a link in a mail.
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

// reset sets a new password for the person of the link, and signs them in.
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
	if err := d.signIn(w, r, person, uuid.Nil, byPasswordLink); err != nil {
		return err
	}
	return d.done(w, r, "/", "Password changed. All other sessions ended.")
}

// passwordChanged logs the change, and notifies the person by mail, in case another person made it.
func (d *dashboard) passwordChanged(r *http.Request, p tenants.Person) {
	d.Logger.Info("a password was changed", "request_id", requestOf(r.Context()).id, "person_id", p.ID)
	if d.Mail.On() {
		d.Mail.Send(byPerson(p.Email), mail.PasswordChanged(p.Email, d.Mail.Link("/forgot")), nil)
	}
}

// busyOr converts the error of a busy password hashing to an answer; other errors are unchanged.
func busyOr(err error) error {
	if tenants.IsBusy(err) {
		return errBusy
	}
	return err
}

// deadLink says that a link is void, and where to get another. The reason is not shown, so a guess
// reveals nothing.
func (d *dashboard) deadLink(w http.ResponseWriter, r *http.Request, text, path, name string) error {
	return d.render(w, r, http.StatusNotFound, deadLinkPage(text, path, name))
}
