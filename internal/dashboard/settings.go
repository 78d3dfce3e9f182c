package dashboard

import (
	"net/http"

	"weir/internal/tenants"
)

// settingsView is the tenant itself.
type settingsView struct {
	Slug, ID, Name string
	Version        int64
	Created        moment
	Sent           *form
}

func (d *dashboard) settings(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showSettings(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showSettings(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	tenant, err := d.Store.Tenant(r.Context(), v.actor())
	if err != nil {
		return err
	}
	v.frame.Title = "Settings"
	return d.render(w, r, status, settingsPage(v.frame, &settingsView{
		Slug: tenant.Slug, ID: tenant.ID.String(), Name: tenant.Name, Version: tenant.Version, Created: moment{tenant.CreatedAt}, Sent: f,
	}))
}

func (d *dashboard) changeSettings(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	_, err := d.Store.EditTenant(r.Context(), v.actor(), f.match(), func(t *tenants.Tenant) error {
		t.Name = f.Get("name")
		return nil
	})
	if status := f.refuse(err); status != 0 {
		return d.showSettings(w, r, v, status, f)
	}
	if err != nil {
		return err
	}
	return d.done(w, r, "/settings", "Saved.")
}

// exportConfig and importConfig are commands that export and import the configuration.
const exportConfig = `curl "$WEIR_URL/v1/config?format=yaml" \
  -H "Authorization: Bearer $WEIR_KEY" -o weir.yaml`

func importConfig(query string) string {
	return `curl -X PUT "$WEIR_URL/v1/config` + query + `" \
  -H "Authorization: Bearer $WEIR_KEY" -H 'Content-Type: application/yaml' \
  --data-binary @weir.yaml`
}
