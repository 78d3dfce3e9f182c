package dashboard

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"time"

	"weir/internal/tenants"
)

// After an action, the next page says what was done, and offers to undo it if one form can do that.
// Both travel in a cookie, once. The form is an ordinary one: its handler checks the rights.

// undo is a form that undoes an action.
type undo struct {
	Path   string      `json:"path"`
	Fields []sentField `json:"fields"`
}

// undoReason is the reason in the audit trail.
const undoReason = "Undo"

// newUndo returns the form with these fields: names and values in turn.
func newUndo(path string, pairs ...string) *undo {
	u := &undo{Path: path}
	for i := 0; i+1 < len(pairs); i += 2 {
		u.Fields = append(u.Fields, sentField{pairs[i], pairs[i+1]})
	}
	return u
}

// flashCookie carries the message about what was done to the next page, once.
const flashCookie = "__Host-weir-said"

// maxFlash is the maximum length of the cookie's value; browsers accept about 4 000 bytes in all.
const maxFlash = 3500

// message is the content of the cookie.
type message struct {
	Said string `json:"said"`
	Undo *undo  `json:"undo,omitempty"`
}

func flash(value string, seconds int) *http.Cookie {
	return &http.Cookie{Name: flashCookie, Value: value, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: seconds}
}

// done ends a write: it redirects to a page that shows what was done.
func (d *dashboard) done(w http.ResponseWriter, r *http.Request, to, said string) error {
	return d.doneWith(w, r, to, said, nil)
}

// doneWith is done for an action that a form undoes; nil: none does.
func (d *dashboard) doneWith(w http.ResponseWriter, r *http.Request, to, said string, u *undo) error {
	text, err := json.Marshal(message{said, u})
	if err != nil {
		return err
	}
	value := base64.RawURLEncoding.EncodeToString(text)
	if len(value) > maxFlash { // without the form, the message fits
		text, _ = json.Marshal(message{Said: said})
		value = base64.RawURLEncoding.EncodeToString(text)
	}
	http.SetCookie(w, flash(value, 60))
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

// said returns the message of the request and how to undo the action, and deletes it in the
// browser. A part of a page that updates itself at that moment leaves it to the page.
func said(w http.ResponseWriter, r *http.Request) (string, *undo) {
	cookie, err := r.Cookie(flashCookie)
	if err != nil || r.Method != http.MethodGet || r.URL.Query().Has("fragment") { // a part of a page shows no message
		return "", nil
	}
	http.SetCookie(w, flash("", -1))
	var m message
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil || len(text) > maxFlash || json.Unmarshal(text, &m) != nil {
		return "", nil
	}
	if m.Undo != nil && localPath(m.Undo.Path) != m.Undo.Path {
		m.Undo = nil
	}
	return m.Said, m.Undo
}

// overrideFields are the fields of a form that sets an override again.
func overrideFields(o *tenants.Override) []string {
	fields := []string{"do", "override", "rule", o.Rule, "reason", undoReason}
	if o.Limit.Unlimited {
		fields = append(fields, "unlimited", "on")
	} else {
		fields = append(fields, "limit", itoa(o.Limit.Limit))
	}
	if o.Limit.Burst > 0 {
		fields = append(fields, "burst", itoa(o.Limit.Burst))
	}
	for name, at := range map[string]*time.Time{"starts_at": o.StartsAt, "expires_at": o.ExpiresAt} {
		if at != nil {
			fields = append(fields, name, at.UTC().Format("2006-01-02T15:04:05.999"))
		}
	}
	return fields
}
