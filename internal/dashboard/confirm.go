package dashboard

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// confirmField is the field with the password of a form that must be confirmed.
const confirmField = "confirm_password"

// confirmView is the page that asks for the password before a change.
type confirmView struct {
	Form   *form
	Email  string
	Action string
	Fields []sentField // of the form that waits
	After  string      // how long a password counts
}

type sentField struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// proved is write for changes of keys, members, billing, notifications and the security settings:
// the person must have entered the password a short time ago. Otherwise a page asks for it, and
// sends the form again with it. A browser that somebody left open, or a session that was stolen, is
// not enough.
func (d *dashboard) proved(right tenants.Right, handle formHandler) http.HandlerFunc {
	return d.write(right, d.confirmed(handle))
}

// confirmed is the part of proved after the checks of write.
func (d *dashboard) confirmed(handle formHandler) formHandler {
	return func(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
		if d.Now().Before(v.session.ConfirmUntil()) {
			return handle(w, r, v, f)
		}
		if !f.values.Has(confirmField) {
			return d.askPassword(w, r, v, f, http.StatusForbidden)
		}
		_, wait, err := d.prove(r.Context(), r, v.session.Email, f.values.Get(confirmField))
		switch {
		case wait > 0:
			return d.askPassword(w, r, v, f, tooMany(w, f, wait))
		case errors.Is(err, tenants.ErrWrongPassword):
			f.wrong(confirmField, limit.Wrong("Enter the password with which you sign in.", "is not your password"))
			return d.askPassword(w, r, v, f, http.StatusForbidden)
		case err != nil:
			return err
		}
		if err := d.Store.Confirm(r.Context(), v.session); errors.Is(err, tenants.ErrNoSession) {
			http.Redirect(w, r, loginURL(r), http.StatusSeeOther)
			return nil
		} else if err != nil {
			return err
		}
		f.values.Del(confirmField)
		return handle(w, r, v, f)
	}
}

// askPassword answers a form with a page that asks for the password. Nothing was changed.
func (d *dashboard) askPassword(w http.ResponseWriter, r *http.Request, v *visit, f *form, status int) error {
	view := confirmView{Form: f, Email: v.session.Email, Action: r.URL.RequestURI(), After: inWords(v.session.ConfirmUntil().Sub(v.session.ProvedAt))}
	for name, values := range f.values {
		if name == confirmField {
			continue
		}
		for _, value := range values {
			view.Fields = append(view.Fields, sentField{name, value})
		}
	}
	slices.SortStableFunc(view.Fields, func(a, b sentField) int { return strings.Compare(a.Name, b.Name) })
	v.frame.Title = "Confirm your password"
	showsSecret(w) // a form may have one
	return d.render(w, r, status, confirmPage(v.frame, &view))
}
