package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/mail"
	"weir/internal/tenants"
)

// roleWords describe what the person joins as.
var roleWords = map[tenants.Role]string{
	tenants.Owner: "an owner", tenants.Admin: "an admin", tenants.Editor: "an editor", tenants.Support: "support", tenants.Viewer: "a viewer",
}

// SendInvitation sends the mail with the link of an invitation, and records the result. It does not
// wait. If mail is off, it only records that.
func SendInvitation(store *tenants.Store, post *mail.Post, log *slog.Logger, i tenants.Invitation) {
	letter := mail.Invitation(i.Email, i.Tenant, i.By, roleWords[i.Role], post.Link(invitationPath(i)), inWords(tenants.InvitationLife))
	post.Send(mail.ByTenant(i.TenantID.String()), letter, func(err error) {
		state := tenants.MailSent
		switch {
		case errors.Is(err, mail.ErrOff):
			state = tenants.MailOff
		case err != nil:
			state = tenants.MailFailed
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := store.RecordInvitation(ctx, i, state); err != nil {
			log.Error("cannot record the delivery state of an invitation", "state", state, "error", err)
		}
	})
}

// UnsentLink returns the link of an invitation if it is not sent by mail, otherwise "".
func UnsentLink(post *mail.Post, i tenants.Invitation) string {
	if post.On() {
		return ""
	}
	return post.Link(invitationPath(i))
}

func invitationPath(i tenants.Invitation) string { return "/invitation/" + i.Token }

// invitationView is the page for accepting an invitation.
type invitationView struct {
	Form                       form
	Tenant, Role, Email, Until string
	HasLogin                   bool
	You                        bool   // the invited person is signed in
	Other                      string // who is signed in, and is not invited; "": nobody
	Action                     string
}

func (d *dashboard) invitationPage(w http.ResponseWriter, r *http.Request) error {
	i, err := d.Store.InvitationByToken(r.Context(), chi.URLParam(r, "token"))
	if errors.Is(err, tenants.ErrNotFound) {
		return d.deadInvitation(w, r)
	}
	if err != nil {
		return err
	}
	return d.renderInvitation(w, r, http.StatusOK, i, form{})
}

func (d *dashboard) deadInvitation(w http.ResponseWriter, r *http.Request) error {
	return d.deadLink(w, r, "An invitation is single-use and valid for "+inWords(tenants.InvitationLife)+". Ask the person who invited you to send a new one.", "/login", "Sign in")
}

func (d *dashboard) renderInvitation(w http.ResponseWriter, r *http.Request, status int, i tenants.Invitation, f form) error {
	view := invitationView{
		Form: f, Tenant: i.Tenant, Role: roleWords[i.Role], Email: i.Email, HasLogin: i.HasLogin, Until: moment{i.ExpiresAt}.Human(), Action: r.URL.Path,
	}
	session, err := d.session(r)
	switch {
	case err == nil && session.PersonID == i.PersonID:
		view.You = true
	case err == nil:
		view.Other = session.Email
	case !errors.Is(err, tenants.ErrNoSession):
		return err
	}
	return d.render(w, r, status, invitationPage(&view))
}

// accept makes an invited person a member: a person who is signed in, who enters the password of
// the invited login, or who sets a password because there is no login yet. No other person can join
// with the link.
func (d *dashboard) accept(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	token, f := chi.URLParam(r, "token"), form{values: r.PostForm}
	i, err := d.Store.InvitationByToken(r.Context(), token)
	if errors.Is(err, tenants.ErrNotFound) {
		return d.deadInvitation(w, r)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), loginWait)
	defer cancel()
	session, err := d.session(r)
	if err != nil && !errors.Is(err, tenants.ErrNoSession) {
		return err
	}
	var person tenants.Person
	joined := false // with the session that the browser has
	switch {
	case err == nil && session.PersonID == i.PersonID:
		joined = true
		person, err = d.Store.Join(ctx, token, tenants.Person{ID: session.PersonID})
	case i.HasLogin:
		var wait time.Duration
		person, wait, err = d.prove(ctx, r, i.Email, f.values.Get("password"))
		if wait > 0 {
			return d.renderInvitation(w, r, tooMany(w, &f, wait), i, f)
		}
		if errors.Is(err, tenants.ErrWrongPassword) {
			f.wrong("password", limit.Wrong("Enter the password with which you sign in.", "is not the password of this login"))
			return d.renderInvitation(w, r, http.StatusUnprocessableEntity, i, f)
		}
		if err == nil {
			person, err = d.Store.Join(ctx, token, person)
		}
	default:
		person, err = d.Store.JoinNew(ctx, token, f.values.Get("password"))
	}
	if errors.Is(err, tenants.ErrNotFound) {
		return d.deadInvitation(w, r)
	}
	if status := f.refuse(err); status != 0 {
		return d.renderInvitation(w, r, status, i, f)
	}
	if err != nil {
		return busyOr(err)
	}
	if joined { // nobody has proved anything: a new session would count as a fresh sign-in
		err = d.Store.ChooseTenant(r.Context(), session, i.TenantID)
	} else {
		err = d.signIn(w, r, person, i.TenantID, "invitation")
	}
	if err != nil {
		return err
	}
	return d.done(w, r, "/", "Welcome to "+i.Tenant+".")
}
