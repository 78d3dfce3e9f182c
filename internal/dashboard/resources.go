package dashboard

import (
	"net/http"
	"strings"
	"time"

	"github.com/a-h/templ"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// suggestResources returns the attributes of an input for a resource: the server suggests what the
// tenant's rules name and what was checked. Without scripts the browser suggests those of a list.
func suggestResources(list string) templ.Attributes {
	return templ.Attributes{"autocomplete": "off", "spellcheck": "false", "maxlength": "256", "list": list, "data-options": "/tester/resources"}
}

// knownBack is how far back checks make a resource known.
const knownBack = 7 * 24 * time.Hour

// knownResources answers suggestions of resources as the user types: those that contain the text,
// whatever its case.
func (d *dashboard) knownResources(w http.ResponseWriter, r *http.Request, v *visit) error {
	_, options := d.namesOf(r.Context(), v.actor().TenantID())
	known := map[string]bool{}
	for _, o := range options {
		known[o.Value] = true
	}
	// By day, because each resource has a row in each period. Without an answer, those that rules
	// name are suggested.
	report, _ := d.Store.Usage(r.Context(), v.actor(), tenants.UsageQuery{Grain: usage.Day, From: v.now.Add(-knownBack), To: v.now, ByResource: true})
	for i := range report.Items {
		if name := report.Items[i].Resource; name != "" && !known[name] {
			known[name] = true
			options = append(options, option{name, ""})
		}
	}
	wanted, found := strings.ToLower(r.URL.Query().Get("q")), []option(nil)
	for _, o := range options {
		if strings.Contains(strings.ToLower(o.Value), wanted) && len(found) < mostSuggested {
			found = append(found, o)
		}
	}
	return d.render(w, r, http.StatusOK, suggestions(found))
}
