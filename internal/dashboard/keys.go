package dashboard

import (
	"net/http"
	"net/url"
	"time"

	"weir/internal/tenants"
)

type keyRow struct {
	ID                                  string
	Name, Last4, CreatedBy, State, Tone string
	Scopes                              []string
	Created                             moment
	Used, Expires                       *moment // nil: never
	Working                             bool    // neither revoked, nor expired, nor replaced
}

// Path returns the key's page.
func (k keyRow) Path() string { return "/keys/" + k.ID }

type keysView struct {
	Keys  []keyRow
	Next  string
	Later bool
	Sent  *form
}

func (d *dashboard) keys(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showKeys(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showKeys(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	after := r.URL.Query().Get("after")
	keys, next, err := d.Store.Keys(r.Context(), v.actor(), tenants.Page{Limit: pageSize, After: after})
	if err != nil {
		return err
	}
	view := keysView{Later: after != "", Sent: f}
	if next != "" {
		view.Next = withCursor("/keys", url.Values{}, next)
	}
	for i := range keys {
		view.Keys = append(view.Keys, keyRowOf(&keys[i], v.now))
	}
	v.frame.Title = "API keys"
	return d.render(w, r, status, keysPage(v.frame, &view))
}

func keyRowOf(k *tenants.APIKey, now time.Time) keyRow {
	row := keyRow{
		ID: k.ID.String(), Name: nameOr(k.Name, "unnamed"), Last4: k.Last4, CreatedBy: k.CreatedBy, State: "active", Tone: "good",
		Created: moment{k.CreatedAt}, Used: momentOf(k.LastUsedAt), Expires: momentOf(k.ExpiresAt),
	}
	for _, scope := range k.Scopes {
		row.Scopes = append(row.Scopes, string(scope))
	}
	switch {
	case k.RevokedAt != nil && !k.RevokedAt.After(now):
		row.State, row.Tone = "revoked", "bad"
	case k.ExpiresAt != nil && !k.ExpiresAt.After(now):
		row.State, row.Tone = "expired", "bad"
	case k.RotatedTo != nil:
		row.State, row.Tone = "replaced", "warn"
	default:
		row.Working = true
	}
	return row
}

func momentOf(t *time.Time) *moment {
	if t == nil {
		return nil
	}
	return &moment{*t}
}
