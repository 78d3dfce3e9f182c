package dashboard

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"weir/internal/tenants"
	"weir/internal/throttle"
)

const (
	maxForm = 4 << 10 // bytes; forms are shorter
	// maxNext is the maximum length of the page to which a sign-in leads, in bytes. It is read and
	// shown without an account.
	maxNext = 2 << 10
	// loginWait is how long a sign-in waits for its password to be hashed.
	loginWait = 2 * time.Second
)

// How a session begins with a new password, for the security event.
const (
	byNewPassword  = "new password"
	byPasswordLink = "password link"
)

// loginView is what the sign-in page shows.
type loginView struct {
	Email, Next, Problem string
	Signup               bool // sign-up is enabled
}

func (d *dashboard) loginPage(w http.ResponseWriter, r *http.Request) error {
	next := destination(r.URL.Query().Get("next"))
	if _, err := d.session(r); err == nil {
		http.Redirect(w, r, next, http.StatusSeeOther)
		return nil
	}
	return d.renderLogin(w, r, http.StatusOK, loginView{Next: next})
}

// login verifies a password and starts a session. The session is always new: an earlier token
// becomes invalid.
func (d *dashboard) login(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	view := loginView{Email: r.PostForm.Get("email"), Next: destination(r.PostForm.Get("next"))}
	ctx, cancel := context.WithTimeout(r.Context(), loginWait)
	defer cancel()
	person, wait, err := d.prove(ctx, r, view.Email, r.PostForm.Get("password"))
	switch {
	case wait > 0:
		var f form
		status := tooMany(w, &f, wait)
		view.Problem = f.Problem()
		return d.renderLogin(w, r, status, view)
	case errors.Is(err, tenants.ErrWrongPassword):
		view.Problem = "Wrong email or password."
		return d.renderLogin(w, r, http.StatusUnauthorized, view)
	case err != nil:
		return err
	}
	if err := d.signIn(w, r, person, uuid.Nil, "password"); err != nil {
		return err
	}
	http.Redirect(w, r, view.Next, http.StatusSeeOther)
	return nil
}

func (d *dashboard) renderLogin(w http.ResponseWriter, r *http.Request, status int, view loginView) error {
	view.Signup = d.Signup != SignupClosed
	return d.render(w, r, status, signInPage(view))
}

// prove verifies a password, within the limits for failures. It returns the person, or how long to
// wait, or an error such as ErrWrongPassword.
func (d *dashboard) prove(ctx context.Context, r *http.Request, email, password string) (tenants.Person, time.Duration, error) {
	try, wait, err := d.beginSignIn(ctx, r, email)
	if try == nil {
		d.recordBlocked(r, email)
		return tenants.Person{}, wait, err
	}
	person, err := d.Store.VerifyPassword(ctx, email, password)
	switch {
	case errors.Is(err, tenants.ErrWrongPassword):
		// It was counted when it began.
		d.recordFailed(r, email)
	case err != nil:
		try.Undecided(ctx)
		err = busyOr(err)
	default:
		// A person who does it too often uses up attempts, each of which takes a processor.
		var proved *throttle.Attempt
		if proved, wait = d.limits.proved.Begin(ctx, person.ID.String()); proved != nil {
			try.Succeeded(ctx)
		}
	}
	return person, wait, err
}

// recordOfEmail records a security event after the answer, so that the time of the answer does not
// reveal whether the email has a login.
func (d *dashboard) recordOfEmail(r *http.Request, email string, kind tenants.EventKind) {
	d.errand(r, "record a security event", func(ctx context.Context) error { return d.Store.RecordOfEmail(ctx, email, kind) })
}

// recordBlocked records that the limit for failed sign-ins was reached, once in its period.
func (d *dashboard) recordBlocked(r *http.Request, email string) {
	if d.limits.mayRecordBlocked(r, email) {
		d.recordOfEmail(r, email, tenants.EventSignInBlocked)
	}
}

// recordFailed records a failed sign-in, unless there were very many of the account.
func (d *dashboard) recordFailed(r *http.Request, email string) {
	if try, _ := d.limits.failed.Begin(r.Context(), accountKey(email)); try != nil {
		d.recordOfEmail(r, email, tenants.EventSignInFailed)
	}
}

// tooMany adds the wait to the form, and returns the status for it.
func tooMany(w http.ResponseWriter, f *form, wait time.Duration) int {
	w.Header().Set("Retry-After", itoa(int64(math.Ceil(wait.Seconds()))))
	f.problem = "Too many attempts. Try again in " + inWords(wait) + "."
	return http.StatusTooManyRequests
}

// signIn starts a new session for an authenticated person, in a tenant (the nil UUID: any). The
// browser's previous session ends.
func (d *dashboard) signIn(w http.ResponseWriter, r *http.Request, person tenants.Person, tenant uuid.UUID, how string) error {
	if old, err := d.session(r); err == nil {
		if err := d.Store.EndSession(r.Context(), old, old.ID); err != nil && !errors.Is(err, tenants.ErrNotFound) {
			return err
		}
	}
	isNew, err := d.rememberDevice(w, r, person.Email, how == byNewPassword || how == byPasswordLink)
	if err != nil {
		return err
	}
	token, err := d.Store.SignIn(r.Context(), person, tenants.SignIn{
		Address: addressOf(r.RemoteAddr), UserAgent: r.UserAgent(), NewDevice: isNew, How: how,
	})
	if err != nil {
		return err
	}
	if tenant != uuid.Nil {
		session, err := d.Store.Session(r.Context(), token)
		if err != nil {
			return err
		}
		if err := d.Store.ChooseTenant(r.Context(), session, tenant); err != nil {
			return err
		}
	}
	setSessionCookie(w, token)
	return nil
}

func (d *dashboard) logout(w http.ResponseWriter, r *http.Request, v *visit) error {
	if err := d.Store.EndSession(r.Context(), v.session, v.session.ID); err != nil && !errors.Is(err, tenants.ErrNotFound) {
		return err
	}
	setSessionCookie(w, "")
	http.Redirect(w, r, "/login", http.StatusSeeOther)
	return nil
}

// chooseTenant makes another tenant the current one.
func (d *dashboard) chooseTenant(w http.ResponseWriter, r *http.Request, v *visit) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	id, err := uuid.Parse(r.PostForm.Get("tenant"))
	if err != nil {
		return tenants.ErrNotFound
	}
	if err := d.maySwitch(r.Context(), v); err != nil {
		return err
	}
	if err := d.Store.ChooseTenant(r.Context(), v.session, id); err != nil {
		return err
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
	return nil
}

func readForm(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return errForm
	}
	return nil
}

// destination returns where a sign-in leads: to next, or to "/" if that is no page of the dashboard
// or is too long.
func destination(next string) string {
	if len(next) > maxNext {
		return "/"
	}
	return localPath(next)
}

// localPath returns next if it is the path of a page of the dashboard, and otherwise "/", so that a
// link to the sign-in page cannot redirect elsewhere.
func localPath(next string) string {
	u, err := url.Parse(next)
	switch {
	case err != nil, u.Scheme != "", u.Host != "", u.User != nil, u.Opaque != "",
		!strings.HasPrefix(next, "/"), strings.HasPrefix(next, "//"), strings.ContainsAny(next, "\\"),
		strings.ContainsFunc(next, func(c rune) bool { return c < ' ' || c == 0x7f }),
		!Serves(u.Path), u.Path == "/login", u.Path == "/logout":
		return "/"
	}
	return next
}
