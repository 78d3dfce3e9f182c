package dashboard

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// notificationsURL is the page of notification endpoints.
const notificationsURL = "/settings/notifications"

// notifiedRow is a notification endpoint.
type notifiedRow struct {
	ID, URL, Host, Description string
	Masked                     string // the URL, which may contain a secret
	Types                      string
	State, Tone                string
}

// Path returns the endpoint's page.
func (e notifiedRow) Path() string { return notificationsURL + "/" + e.ID }

func notifiedRowOf(e *tenants.NotificationEndpoint) notifiedRow {
	row := notifiedRow{
		ID: e.ID.String(), URL: e.URL, Masked: tenants.MaskedURL(e.URL), Host: tenants.NotificationHost(e.URL), Description: e.Description, Types: strings.Join(e.Types, ", "),
		State: "enabled", Tone: "good",
	}
	if len(e.Types) == 0 {
		row.Types = "all"
	}
	if !e.Enabled {
		row.State, row.Tone = "disabled", "warn"
	}
	return row
}

type notificationsView struct {
	Endpoints []notifiedRow
	Encrypts  bool
	Sent      *form
}

func (d *dashboard) notificationsPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showNotifications(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showNotifications(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	list, _, err := d.Store.NotificationEndpoints(r.Context(), v.actor(), tenants.Page{})
	if err != nil {
		return err
	}
	view := notificationsView{Encrypts: d.Store.CanSeal(), Sent: f}
	for i := range list {
		view.Endpoints = append(view.Endpoints, notifiedRowOf(&list[i]))
	}
	v.frame.Title = "Notifications"
	return d.render(w, r, status, notificationsPage(v.frame, &view))
}

// notificationTypes reads the checkboxes of a form.
func (f *form) notificationTypes() (out []string) {
	for _, t := range tenants.NotificationTypes {
		if f.Checked(t.Type, false) {
			out = append(out, t.Type)
		}
	}
	return out
}

func (d *dashboard) createNotified(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	e, secret, err := d.Store.CreateNotificationEndpoint(r.Context(), v.actor(), tenants.NotificationEndpoint{
		URL: strings.TrimSpace(f.Get("url")), Description: f.Get("description"), Types: f.notificationTypes(), Enabled: true,
	})
	if status := f.refuse(err); status != 0 {
		return d.showNotifications(w, r, v, status, f)
	}
	if err != nil {
		return err
	}
	return d.showSigningSecret(w, r, v, &e, secret, "")
}

// signingSecretView is a new signing secret, which is shown only on this page.
type signingSecretView struct {
	notifiedRow
	Secret, Note string
}

// showSigningSecret answers with the secret itself, because a redirect would have to store it.
func (d *dashboard) showSigningSecret(w http.ResponseWriter, r *http.Request, v *visit, e *tenants.NotificationEndpoint, secret, note string) error {
	v.frame.Title = "Signing secret"
	showsSecret(w)
	return d.render(w, r, http.StatusOK, signingSecretPage(v.frame, &signingSecretView{notifiedRowOf(e), secret, note}))
}

// deliveryRow is a delivery in the list of an endpoint.
type deliveryRow struct {
	ID, WebhookID, Type, State, Tone, Why, Answer string
	Status, Attempts                              int64
	Created                                       moment
	Next                                          *moment
}

var deliveryTones = map[string]string{tenants.DeliveryDelivered: "good", tenants.DeliveryParked: "bad"}

func deliveryRowOf(d *tenants.NotificationDelivery) deliveryRow {
	return deliveryRow{
		ID: d.ID.String(), WebhookID: d.WebhookID, Type: d.Type, State: d.State, Tone: deliveryTones[d.State], Why: d.Why, Answer: d.Answer,
		Status: int64(d.Status), Attempts: int64(d.Attempts), Created: moment{d.CreatedAt}, Next: momentOf(d.DueAt),
	}
}

// notifiedView is an endpoint with its deliveries.
type notifiedView struct {
	notifiedRow
	Enabled       bool
	DisabledWhy   string
	Secret        string // its last characters
	PreviousUntil *moment
	Dropped       int64
	DroppedAt     *moment
	Version       int64
	types         []string

	Deliveries []deliveryRow
	Filter     string // state
	First      string
	Next       string
	Later      bool

	sentForms
}

// Has reports whether the endpoint has selected a type, for the checkboxes of a form.
func (v *notifiedView) Has(kind string) string { return ticked(slices.Contains(v.types, kind)) }

// deliveryStates returns the states as options.
func deliveryStates() []option {
	options := []option{{"", "Any state"}}
	for _, state := range tenants.DeliveryStates {
		options = append(options, option{state, state})
	}
	return options
}

func (d *dashboard) notifiedPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showNotified(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showNotified(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	id, err := keyID(r)
	if err != nil {
		return err
	}
	e, err := d.Store.NotificationEndpoint(r.Context(), v.actor(), id)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	view := notifiedView{
		notifiedRow: notifiedRowOf(&e), Enabled: e.Enabled, DisabledWhy: e.DisabledWhy, Secret: "…" + e.SecretHint, Dropped: e.Dropped,
		DroppedAt: momentOf(e.DroppedAt), Version: e.Version, types: e.Types, Filter: query.Get("state"), Later: query.Get("after") != "",
		sentForms: sentForms{f},
	}
	if e.PreviousUntil != nil && e.PreviousUntil.After(v.now) {
		view.PreviousUntil = momentOf(e.PreviousUntil)
	}
	if view.Filter != "" && !slices.Contains(tenants.DeliveryStates, view.Filter) {
		return invalidField("state", oneOfTheList)
	}
	list, next, err := d.Store.NotificationDeliveries(r.Context(), v.actor(), tenants.DeliveryFilter{Endpoint: &id, State: view.Filter},
		tenants.Page{Limit: pageSize, After: query.Get("after")})
	if err != nil {
		return err
	}
	for i := range list {
		view.Deliveries = append(view.Deliveries, deliveryRowOf(&list[i]))
	}
	filter := map[string][]string{}
	if view.First = view.Path(); view.Filter != "" {
		filter["state"] = []string{view.Filter}
		view.First += "?state=" + view.Filter
	}
	if next != "" {
		view.Next = withCursor(view.Path(), filter, next)
	}
	v.frame.Title = view.Host
	return d.render(w, r, status, notifiedPage(v.frame, &view))
}

// actOnNotified executes a form of an endpoint's page.
func (d *dashboard) actOnNotified(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	id, err := keyID(r)
	if err != nil {
		return err
	}
	path, said := notificationsURL+"/"+id.String(), "Saved."
	switch f.Get("do") {
	case "edit":
		_, err = d.Store.EditNotificationEndpoint(r.Context(), v.actor(), id, f.match(), func(e *tenants.NotificationEndpoint) error {
			e.URL, e.Description, e.Types, e.Enabled = strings.TrimSpace(f.Get("url")), f.Get("description"), f.notificationTypes(), f.Checked("enabled", false)
			return nil
		})
	case "rotate":
		overlap, bad := limit.ParseDuration(f.Get("overlap"))
		if bad != nil && f.Get("overlap") != "0s" {
			f.wrong("overlap", oneOfTheList)
			break
		}
		var e tenants.NotificationEndpoint
		var secret string
		if e, secret, err = d.Store.RotateNotificationSecret(r.Context(), v.actor(), id, time.Duration(overlap.MS)*time.Millisecond); err == nil {
			note := "The previous secret no longer signs."
			if overlap.MS > 0 {
				note = "The previous secret signs, too, for " + exactly(overlap.MS, true) + "."
			}
			return d.showSigningSecret(w, r, v, &e, secret, note)
		}
	case "test":
		_, err = d.Store.TestNotificationEndpoint(r.Context(), v.actor(), id)
		said = "Test queued. Its outcome appears below, usually within a second."
	case "replay":
		delivery, bad := uuid.Parse(f.Get("delivery"))
		if bad != nil {
			return errForm
		}
		_, err = d.Store.ReplayNotification(r.Context(), v.actor(), delivery)
		said = "Delivery queued again."
	case "delete":
		if err = d.Store.DeleteNotificationEndpoint(r.Context(), v.actor(), id, tenants.Match{}); err == nil {
			path, said = notificationsURL, "Endpoint deleted."
		}
	default:
		return errForm
	}
	status, err := f.outcome(err)
	if err != nil {
		return err
	}
	if status != 0 {
		return d.showNotified(w, r, v, status, f)
	}
	return d.done(w, r, path, said)
}
