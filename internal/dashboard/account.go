package dashboard

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/mail"
	"weir/internal/tenants"
)

// accountView shows people their own login. Its forms differ in their field "do".
type accountView struct {
	sentForms
	Email   string
	MailOn  bool
	Tenants []accountTenant
}

type accountTenant struct {
	ID, Name, Role string
	Current        bool
}

// The forms of the page.
const (
	doPassword = "password"
	doEmail    = "email"
	doLeave    = "leave"
)

func (d *dashboard) account(w http.ResponseWriter, r *http.Request, v *visit) error {
	v.frame.Said, _ = said(w, r) // nothing on this page can be undone
	return d.renderAccount(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) renderAccount(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	view := accountView{sentForms: sentForms{f}, Email: v.session.Email, MailOn: d.Mail.On()}
	for i := range v.session.Memberships {
		m := &v.session.Memberships[i]
		view.Tenants = append(view.Tenants, accountTenant{m.TenantID.String(), tenantName(m), string(m.Role), m.TenantID == v.session.Current.TenantID}) // memberships have a current one
	}
	v.frame.Title = "Account"
	return d.render(w, r, status, accountPage(v.frame, &view))
}

// provedAccount returns the person of a form of the account page that has the current password. If
// the password is refused, it shows the page again and returns no person.
func (d *dashboard) provedAccount(ctx context.Context, w http.ResponseWriter, r *http.Request, v *visit, f *form) (*tenants.Person, error) {
	person, wait, err := d.prove(ctx, r, v.session.Email, f.values.Get("current"))
	switch {
	case wait > 0:
		return nil, d.renderAccount(w, r, v, tooMany(w, f, wait), f)
	case errors.Is(err, tenants.ErrWrongPassword):
		f.wrong("current", limit.Wrong("Enter the password with which you sign in.", "is not your current password"))
		return nil, d.renderAccount(w, r, v, http.StatusUnprocessableEntity, f)
	case err != nil:
		return nil, err
	}
	return &person, nil
}

// changePassword sets another password for a person who enters the current one.
func (d *dashboard) changePassword(w http.ResponseWriter, r *http.Request, v *visit) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	f := form{values: r.PostForm}
	f.values.Set("do", doPassword)
	ctx, cancel := context.WithTimeout(r.Context(), 2*loginWait) // two passwords are hashed
	defer cancel()
	person, err := d.provedAccount(ctx, w, r, v, &f)
	if person == nil {
		return err
	}
	change, wait := d.limits.newPasswords.Begin(ctx, person.ID.String())
	if change == nil {
		return d.renderAccount(w, r, v, tooMany(w, &f, wait), &f)
	}
	err = d.Store.ChangePassword(ctx, person, f.values.Get("password"))
	if err != nil { // nothing was changed, or that is not known
		change.Undecided(ctx)
	}
	if status := f.refuse(err); status != 0 {
		return d.renderAccount(w, r, v, status, &f)
	}
	if err != nil {
		return busyOr(err)
	}
	d.passwordChanged(r, *person)
	tenant := uuid.Nil
	if v.session.Current != nil {
		tenant = v.session.Current.TenantID
	}
	if err := d.signIn(w, r, *person, tenant, byNewPassword); err != nil {
		return err
	}
	return d.done(w, r, "/account", "Password changed. All other sessions ended.")
}

// requestEmail mails a link to the new address of a person who enters the password, and a notice to
// the present one. The answer does not say whether somebody else has the address: only a person who
// follows the link learns that.
func (d *dashboard) requestEmail(w http.ResponseWriter, r *http.Request, v *visit) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	if !d.Mail.On() {
		return tenants.ErrNotFound
	}
	f := form{values: r.PostForm}
	f.values.Set("do", doEmail)
	ctx, cancel := context.WithTimeout(r.Context(), loginWait)
	defer cancel()
	person, err := d.provedAccount(ctx, w, r, v, &f)
	if person == nil {
		return err
	}
	if !tenants.ValidEmail(f.Get("email")) {
		f.wrong("email", limit.MustBe("an address such as name@example.com"))
		return d.renderAccount(w, r, v, http.StatusUnprocessableEntity, &f)
	}
	if wait := d.mayMailNewEmail(r, person.ID, f.Get("email")); wait > 0 {
		return d.renderAccount(w, r, v, tooMany(w, &f, wait), &f)
	}
	token, change, err := d.Store.NewEmailLink(ctx, *person, f.Get("email"))
	if status := f.refuse(err); status != 0 {
		return d.renderAccount(w, r, v, status, &f)
	}
	if err != nil {
		return err
	}
	d.Mail.Send(byPerson(change.Old), mail.NewEmail(change.New, change.Old, d.Mail.Link("/email/"+token), inWords(tenants.EmailLinkLife)), nil)
	d.Mail.Send(byPerson(change.Old), mail.EmailRequested(change.Old, change.New, d.Mail.Link("/account")), nil)
	return d.done(w, r, "/account", "We sent a link to "+change.New+". Your email changes when you open it.")
}

// mayMailNewEmail counts a link of a person to a new address, or returns how long to wait.
func (d *dashboard) mayMailNewEmail(r *http.Request, person uuid.UUID, email string) time.Duration {
	if wait := d.mayAsk(r); wait > 0 {
		return wait
	}
	_, wait := d.limits.emailMails.Begin(r.Context(), accountKey(email), person.String())
	return wait
}

// deadEmailLink says that a link to a new address is void.
func (d *dashboard) deadEmailLink(w http.ResponseWriter, r *http.Request) error {
	return d.deadLink(w, r, "A link that changes an email is single-use and valid for "+inWords(tenants.EmailLinkLife)+".", "/account", "Request a new link")
}

// emailView is the page of a link to a new address.
type emailView struct {
	Form             form
	Old, New, Action string
}

// emailPage shows what a link changes. A GET changes nothing, because mail programs open links.
func (d *dashboard) emailPage(w http.ResponseWriter, r *http.Request) error {
	change, err := d.Store.EmailLink(r.Context(), chi.URLParam(r, "token"))
	if errors.Is(err, tenants.ErrNotFound) {
		return d.deadEmailLink(w, r)
	}
	if err != nil {
		return err
	}
	return d.render(w, r, http.StatusOK, emailPage(&emailView{Old: change.Old, New: change.New, Action: r.URL.Path}))
}

// changeEmail changes the email of the person of the link, and notifies the previous address.
func (d *dashboard) changeEmail(w http.ResponseWriter, r *http.Request) error {
	token := chi.URLParam(r, "token")
	change, err := d.Store.UseEmailLink(r.Context(), token)
	if errors.Is(err, tenants.ErrNotFound) {
		return d.deadEmailLink(w, r)
	}
	view := emailView{Old: change.Old, New: change.New, Action: r.URL.Path}
	if status := view.Form.refuse(err); status != 0 {
		return d.render(w, r, status, emailPage(&view))
	}
	if err != nil {
		return err
	}
	d.Logger.Info("an email was changed", "request_id", requestOf(r.Context()).id, "person_id", change.PersonID)
	d.Mail.Send(byPerson(change.Old), mail.EmailChanged(change.Old, change.New, d.Mail.Link("/login")), nil)
	return d.done(w, r, "/account", "Email changed. You sign in with "+change.New+" from now on.")
}

// leave ends the person's own membership of one of their tenants.
func (d *dashboard) leave(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	id, err := uuid.Parse(f.Get("leave"))
	if err != nil {
		return tenants.ErrNotFound
	}
	in, joined := v.session.In(id)
	if !joined {
		return tenants.ErrNotFound
	}
	err = d.Store.Leave(r.Context(), in.Actor())
	if status := f.refuse(err); status != 0 {
		return d.renderAccount(w, r, v, status, f)
	}
	if err != nil {
		return err
	}
	return d.done(w, r, "/account", "You left "+tenantName(in.Current)+".")
}
