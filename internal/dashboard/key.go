package dashboard

import (
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// keyView is one key with its actions.
type keyView struct {
	keyRow
	Version     int64
	OwnName     string // as it was given, "" for none
	ExpiresText string // in the form of a browser's field
	Successor   string // the path of the key that replaces it
	Revocable   bool
	Addresses   string // one per line
	Resources   string

	sentForms
}

// Has reports whether the key has a scope, for the checkboxes of a form.
func (k *keyView) Has(scope tenants.Scope) string {
	for _, s := range k.Scopes {
		if s == string(scope) {
			return "on"
		}
	}
	return ""
}

// secretView is a new key. Its secret is shown only on this page.
type secretView struct {
	Name, Secret, Path string
	Checks             bool // it has the scope check
	Note               string
	Invited            *newLink // the owner of a new tenant; nil if nobody was invited
}

// scopeChoices describe each scope.
var scopeChoices = []struct {
	Scope tenants.Scope
	Text  string
}{
	{tenants.ScopeCheck, "check: send checks. All that an application needs."},
	{tenants.ScopeRead, "read: read the configuration and usage."},
	{tenants.ScopeWrite, "write: change rules, plans, subjects and settings."},
	{tenants.ScopeManage, "manage: change API keys, members, billing and notifications."},
}

// overlaps are how long a replaced key can continue to work.
var overlaps = []option{{"0s", "no time: it stops immediately"}, {"1h", "1 hour"}, {"1d", "1 day"}, {"7d", "7 days"}, {"30d", "30 days"}}

func (d *dashboard) key(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showKey(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showKey(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	id, err := keyID(r)
	if err != nil {
		return err
	}
	key, err := d.Store.KeyByID(r.Context(), v.actor(), id)
	if err != nil {
		return err
	}
	view := keyView{keyRow: keyRowOf(&key, v.now), Version: key.Version, OwnName: key.Name, Revocable: key.RevokedAt == nil, sentForms: sentForms{f}}
	view.Addresses, view.Resources = strings.Join(key.Bounds.Addresses, "\n"), strings.Join(key.Bounds.Resources, "\n")
	if key.ExpiresAt != nil {
		view.ExpiresText = key.ExpiresAt.UTC().Format("2006-01-02T15:04")
	}
	if key.RotatedTo != nil {
		view.Successor = "/keys/" + key.RotatedTo.String()
	}
	v.frame.Title = view.Name
	return d.render(w, r, status, keyPage(v.frame, &view))
}

func keyID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil {
		return id, tenants.ErrNotFound
	}
	return id, nil
}

// bounds reads the networks and resources of a key's form, one per line. Networks may also be
// separated by commas or spaces, which resources such as "GET /orders" can contain.
func (f *form) bounds() (b tenants.KeyBounds) {
	b.Addresses = f.words("addresses", tenants.MaxKeyBounds, func(c rune) bool { return c == ',' || unicode.IsSpace(c) })
	for _, line := range f.lines("resources", tenants.MaxKeyBounds) {
		b.Resources = append(b.Resources, line.Text)
	}
	return b
}

// foldBounds shows an error of one line of a list at the list.
func (f *form) foldBounds() {
	for name, problem := range f.errors {
		if list, _, isLine := strings.Cut(name, "."); isLine && (list == "addresses" || list == "resources") {
			delete(f.errors, name)
			f.wrong(list, problem)
		}
	}
}

// scopes reads the checkboxes of a key's form.
func (f *form) scopes() (out []tenants.Scope) {
	for _, scope := range tenants.AllScopes {
		if f.Checked(string(scope), false) {
			out = append(out, scope)
		}
	}
	return out
}

func (d *dashboard) createKey(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	n := tenants.NewAPIKey{Name: f.Get("name"), Scopes: f.scopes(), ExpiresAt: f.instant("expires_at"), Bounds: f.bounds()}
	if f.invalid() {
		return d.showKeys(w, r, v, http.StatusUnprocessableEntity, f)
	}
	made, key, err := d.Store.CreateKey(r.Context(), v.actor(), n)
	if status := f.refuse(err); status != 0 {
		f.foldBounds()
		return d.showKeys(w, r, v, status, f)
	}
	if err != nil {
		return err
	}
	return d.showSecret(w, r, v, &made, key, "")
}

// showSecret answers with the new key itself, because a redirect would have to store it.
func (d *dashboard) showSecret(w http.ResponseWriter, r *http.Request, v *visit, made *tenants.APIKey, key tenants.Key, note string) error {
	row := keyRowOf(made, v.now)
	view := secretView{Name: row.Name, Secret: key.Secret(), Path: row.Path(), Note: note}
	for _, scope := range made.Scopes {
		view.Checks = view.Checks || scope == tenants.ScopeCheck
	}
	v.frame.Title = "New key"
	showsSecret(w)
	return d.render(w, r, http.StatusOK, secretPage(v.frame, &view))
}

// actOnKey executes a form of a key's page.
func (d *dashboard) actOnKey(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	id, err := keyID(r)
	if err != nil {
		return err
	}
	said := "Saved."
	switch f.Get("do") {
	case "edit":
		name, scopes, expires, bounds := f.Get("name"), f.scopes(), f.instant("expires_at"), f.bounds()
		if f.invalid() {
			break
		}
		_, err = d.Store.EditKey(r.Context(), v.actor(), id, f.match(), func(k *tenants.APIKey) error {
			k.Name, k.Scopes, k.Bounds = name, scopes, bounds
			if !sameMinute(k.ExpiresAt, expires) {
				k.ExpiresAt = expires
			}
			return nil
		})
	case "rotate":
		overlap, bad := limit.ParseDuration(f.Get("overlap"))
		if bad != nil && f.Get("overlap") != "0s" {
			f.wrong("overlap", oneOfTheList)
			break
		}
		var made tenants.APIKey
		var key tenants.Key
		made, key, err = d.Store.RotateKey(r.Context(), v.actor(), id, time.Duration(overlap.MS)*time.Millisecond)
		if err == nil {
			note := "The old key no longer works."
			if overlap.MS > 0 {
				note = "The old key keeps working for " + exactly(overlap.MS, true) + "."
			}
			return d.showSecret(w, r, v, &made, key, note)
		}
	case "revoke":
		err, said = d.Store.RevokeKey(r.Context(), v.actor(), id, tenants.Match{}), "Key revoked. All instances reject it within a second."
	default:
		return errForm
	}
	status, err := f.outcome(err)
	f.foldBounds()
	if err != nil {
		return err
	}
	if status != 0 {
		return d.showKey(w, r, v, status, f)
	}
	return d.done(w, r, "/keys/"+id.String(), said)
}

// sameMinute reports whether two times are equal in the form of a browser's field, which has no
// seconds: an unchanged form must not change an expiry.
func sameMinute(a, b *time.Time) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UTC().Truncate(time.Minute).Equal(b.UTC().Truncate(time.Minute))
}
