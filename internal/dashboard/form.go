package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// maxWriteForm is the maximum size of a form of a signed-in person, in bytes.
const maxWriteForm = 64 << 10

// form has the values of a sent form and its errors. The zero value is an empty form.
type form struct {
	values  url.Values
	problem string                    // of the form as a whole; "" for none
	errors  map[string]*limit.Problem // by field
	files   map[string][]byte         // uploaded files, by field
	made    *customerView             // what the form created, if it must be shown at once
}

// Get returns the value of a field, without spaces around it.
func (f *form) Get(name string) string { return strings.TrimSpace(f.values.Get(name)) }

// Or returns the value of a field, or other if the form was not sent.
func (f *form) Or(name, other string) string {
	if f.values == nil {
		return other
	}
	return f.values.Get(name)
}

// Checked reports whether a checkbox is checked. If the form was not sent, it returns other.
func (f *form) Checked(name string, other bool) bool {
	if f.values == nil {
		return other
	}
	return f.values.Get(name) != ""
}

// Error returns the error of a field, or "".
func (f *form) Error(name string) string {
	if p := f.errors[name]; p != nil {
		return p.Message
	}
	return ""
}

// Fix returns how to fix the error of a field, as a sentence. It returns "" without an error, or
// if the fix only repeats the error.
func (f *form) Fix(name string) string {
	if p := f.errors[name]; p != nil {
		return p.FormFix()
	}
	return ""
}

// Problem returns the error of the form as a whole, or "".
func (f *form) Problem() string { return f.problem }

// Problems of several forms.
var (
	isRequired   = limit.Wrong("Enter a value.", "is required")
	oneOfTheList = limit.MustBe("one of the listed options")
)

// wrong adds the error of a field. The first error of a field is kept.
func (f *form) wrong(name string, p *limit.Problem) {
	if f.errors == nil {
		f.errors = map[string]*limit.Problem{}
	}
	if f.errors[name] == nil {
		f.errors[name] = p
	}
}

// add adds the error of a field.
func (f *form) add(e limit.FieldError) {
	f.wrong(e.Field, &e.Problem)
}

// invalid reports whether the form has errors.
func (f *form) invalid() bool { return len(f.errors) > 0 || f.problem != "" }

// integer returns the integer in a field, and adds an error if it is not one. Spaces and separators
// between digits are allowed.
func (f *form) integer(name string) int64 {
	n, err := strconv.ParseInt(digitsOf(f.Get(name)), 10, 64)
	if err != nil {
		f.wrong(name, wholeNumber)
	}
	return n
}

// share returns the share in a field, or nil for an empty field, and adds an error if it is not a
// number. 80 % means 0.8.
func (f *form) share(name string) *float64 {
	text, isPercent := strings.CutSuffix(f.Get(name), "%")
	if text = strings.TrimSpace(text); text == "" && !isPercent {
		return nil
	}
	value, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", "."), 64)
	if err != nil {
		f.wrong(name, limit.MustBe("a number from 0 to 1, such as 0.8"))
		return nil
	}
	if isPercent {
		value /= 100
	}
	return &value
}

// actionTone returns the class of the button of an action: red if it deletes or denies.
func actionTone(do string) string {
	switch do {
	case "blocked", "delete", "suspend":
		return "danger"
	}
	return "quiet"
}

var thousands = strings.NewReplacer(" ", "", "\u00a0", "", "\u202f", "", "_", "", ",", "")

// digitsOf removes the separators between thousands.
func digitsOf(text string) string { return thousands.Replace(text) }

// reason returns the reason of a change, and adds an error if it is missing or invalid.
func (f *form) reason() string {
	reason := f.Get("reason")
	if problem := tenants.ValidText(reason, maxReason); reason == "" {
		f.wrong("reason", isRequired)
	} else if problem != nil {
		f.wrong("reason", problem)
	}
	return reason
}

// maxReason is the maximum number of characters of a reason.
const maxReason = 500

// match returns the condition that the object has not changed since the form was created, if the
// form has the version.
func (f *form) match() tenants.Match {
	version, err := strconv.ParseInt(f.Get("version"), 10, 64)
	if err != nil {
		return tenants.Match{}
	}
	return tenants.Match{Versions: []int64{version}}
}

// refuse adds the errors of a write to the form. It returns the status for showing the form again,
// and 0 if the error is not about the input.
func (f *form) refuse(err error) int {
	var invalid *tenants.InvalidError
	var conflict *tenants.ConflictError
	switch {
	case errors.As(err, &invalid):
		for _, field := range invalid.Fields {
			f.add(field)
		}
		if p := f.errors["limits"]; p != nil { // no form has such a field: the page says it above the form
			f.problem = "Nothing saved. This " + p.Message + ". " + p.Fix
		}
		return http.StatusUnprocessableEntity
	case errors.As(err, &conflict):
		f.problem = sentence(conflict.Detail)
		return http.StatusConflict
	case errors.Is(err, tenants.ErrPreconditionFailed):
		f.problem = "Nothing saved. Somebody else changed this after you opened it. The form below holds your values: reload the page to see the current ones, or save again to replace them."
		return http.StatusPreconditionFailed
	}
	return 0
}

// outcome says how the action of a form ended: a status means that the page shows the form again
// with its errors, and an error that the request failed. Otherwise it was done.
func (f *form) outcome(err error) (status int, failed error) {
	switch status = f.refuse(err); {
	case status != 0:
		return status, nil
	case err != nil:
		return 0, err
	case f.invalid():
		return http.StatusUnprocessableEntity, nil
	}
	return 0, nil
}

// stray returns the messages about fields that the page does not show, so that none is lost.
func (f *form) stray(shown ...string) (out []limit.FieldError) {
	for name, p := range f.errors {
		known := false
		for _, s := range shown {
			known = known || s == name
		}
		if !known {
			out = append(out, limit.FieldProblem(name, p))
		}
	}
	return out
}

// sentence converts a message to a sentence. An identifier at its start keeps its case.
func sentence(message string) string {
	if message == "" {
		return ""
	}
	if first, _, _ := strings.Cut(message, " "); strings.Contains(first, "_") {
		return message + "."
	}
	return strings.ToUpper(message[:1]) + message[1:] + "."
}

// sentForms are the forms of a page with several forms, which differ in their field "do".
type sentForms struct {
	form *form // the form that was sent, otherwise empty
}

// Sent returns the form of one of the actions, with its input if it is the one that was sent.
func (s sentForms) Sent(action string) *form {
	if s.form.Get("do") == action {
		return s.form
	}
	return &form{}
}

// SentFor returns the form of an action that the page has several times, distinguished by one more
// field.
func (s sentForms) SentFor(action, name, value string) *form {
	if sent := s.Sent(action); sent.Get(name) == value {
		return sent
	}
	return &form{}
}

type formHandler func(w http.ResponseWriter, r *http.Request, v *visit, f *form) error

// write makes a handler of a function that changes the tenant. The handler refuses users without
// the right, and so does the store. A form that was created for another tenant, in another tab, is
// refused, because it would change the wrong one.
func (d *dashboard) write(right tenants.Right, handle formHandler) http.HandlerFunc {
	return d.sent(right, func(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
		if err := d.Store.AdmitWrite(r.Context(), v.actor(), writeKind(r, f)); err != nil {
			return err
		}
		if err := handle(w, r, v, f); err != nil {
			return err
		}
		d.follow(r.Context(), v)
		return nil
	})
}

// endingForms are the forms that end access, with their actions; "": the form has no others.
var endingForms = map[string][]string{
	"/keys/{id}": {"revoke", "rotate"}, "/members/{id}": {"remove"}, "/members/{id}/withdraw": {""},
	"/subjects/*": {"revoke-link"},
}

// writeKind returns by which rate a form is admitted.
func writeKind(r *http.Request, f *form) tenants.WriteKind {
	do := f.Get("do")
	switch {
	case slices.Contains(endingForms[patternOf(r)], do):
		return tenants.EndWrite
	case do == actReset:
		return tenants.ResetWrite
	}
	return tenants.OrdinaryWrite
}

// sent is write for a form that changes nothing yet, such as a preview of a change.
func (d *dashboard) sent(right tenants.Right, handle formHandler) http.HandlerFunc {
	return d.page(func(w http.ResponseWriter, r *http.Request, v *visit) error {
		if !v.actor().May(right) {
			return tenants.ErrForbidden
		}
		f, err := parseForm(w, r)
		if err != nil {
			return err
		}
		if f.Get("tenant") != v.session.Current.TenantID.String() {
			return errOtherTenant
		}
		d.slugsOfNames(r.Context(), v, f)
		return handle(w, r, v, f)
	})
}

// follow waits until this instance applies what was just written, so that the next page shows it.
// The answer is sent when the handler has returned.
func (d *dashboard) follow(ctx context.Context, v *visit) { d.followTenant(ctx, v.actor().TenantID()) }

// followTenant is follow for a write to any tenant.
func (d *dashboard) followTenant(ctx context.Context, tenant limit.TenantID) {
	if d.Follow != nil {
		d.Follow(ctx, tenant)
	}
}

// invalidField returns the error of one field of an address or a form.
func invalidField(field string, p *limit.Problem) error {
	return &tenants.InvalidError{Fields: []limit.FieldError{limit.FieldProblem(field, p)}}
}
