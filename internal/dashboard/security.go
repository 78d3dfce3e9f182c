package dashboard

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"weir/internal/limit"
	"weir/internal/tenants"
)

const (
	securityURL = "/settings/security"
	eventPage   = 50
)

type securityView struct {
	Form        *form // the filters
	Range       *rangeView
	Actors      []option // to choose from
	Sent        *form    // the settings
	Settings    tenants.SecuritySettings
	Events      []securityRow
	First, Next string
	Later       bool
	CSV, JSON   string
}

type securityRow struct {
	At                     moment
	What, Tone, Who, Whose string
	Target, Link           string
	From, Details          string
}

// eventWords describe the kinds of events.
var eventWords = map[tenants.EventKind]string{
	tenants.EventSignIn: "Signed in", tenants.EventSignInFailed: "Sign-in failed", tenants.EventSignInBlocked: "Sign-in blocked",
	tenants.EventNewDevice: "New browser", tenants.EventSessionEnded: "Session ended", tenants.EventPasswordLink: "Password link sent",
	tenants.EventPasswordChanged: "Password changed", tenants.EventConfirmed: "Password confirmed",
	tenants.EventEmailLink: "Email link sent", tenants.EventEmailChanged: "Email changed",
	tenants.EventMemberAdded: "Member added", tenants.EventMemberChanged: "Member changed", tenants.EventMemberRemoved: "Member removed",
	tenants.EventKeyCreated: "API key created", tenants.EventKeyChanged: "API key changed", tenants.EventKeyRotated: "API key rotated",
	tenants.EventKeyRevoked: "API key revoked", tenants.EventDeviceApproved: "Terminal sign-in approved", tenants.EventDeviceDenied: "Terminal sign-in denied", tenants.EventSettings: "Security settings changed", tenants.EventExported: "Data exported",
}

// keptFor returns a number of days, such as "365d", in words.
func keptFor(text string) string {
	if days, err := strconv.ParseInt(strings.TrimSuffix(text, "d"), 10, 64); err == nil {
		return plural(days, "day", "days")
	}
	return text
}

func eventOptions() []option {
	options := []option{{"", "Any"}}
	for _, kind := range tenants.EventKinds {
		options = append(options, option{string(kind), eventWords[kind]})
	}
	return options
}

func (d *dashboard) security(w http.ResponseWriter, r *http.Request, v *visit) error {
	f := &form{values: r.URL.Query()}
	filter := tenants.EventFilter{Kind: tenants.EventKind(f.Get("kind")), Actor: f.Get("actor"), Address: f.Get("address")}
	oneOf(f, "kind", eventOptions())
	filter.From, filter.To = spanOf(f, trailPeriods).bounds(v.now)
	if format := f.Get("format"); (format == "csv" || format == "jsonl") && !f.invalid() {
		return d.exportEvents(w, r, v, filter, format)
	}
	return d.showSecurity(w, r, v, http.StatusOK, f, filter, &form{})
}

func (d *dashboard) showSecurity(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form, filter tenants.EventFilter, sent *form) error {
	settings, err := d.Store.SecuritySettings(r.Context(), v.actor())
	if err != nil {
		return err
	}
	view := securityView{Form: f, Sent: sent, Settings: settings, First: eventAddress(f.values, "", "", "")}
	view.Range = listRange(f, trailPeriods, calendarRanges(v.now), func(values url.Values) string { return eventAddress(values, "", "", "") })
	if view.Actors, err = d.actorNames(r.Context(), v.actor()); err != nil {
		return err
	}
	if !f.invalid() {
		events, next, err := d.Store.SecurityEvents(r.Context(), v.actor(), filter, tenants.Page{Limit: eventPage, After: f.Get("after")})
		if err != nil && f.refuse(err) == 0 {
			return err
		}
		keys, err := d.keyNames(r.Context(), v.actor())
		if err != nil {
			return err
		}
		for i := range events {
			row := securityRowOf(&events[i])
			if name := keys[row.Target]; row.Link != "" && name != "" {
				row.Target = name
			}
			view.Events = append(view.Events, row)
		}
		view.Later = f.Get("after") != ""
		if next != "" {
			view.Next = eventAddress(f.values, "after", next, "")
		}
		view.CSV, view.JSON = eventAddress(f.values, "format", "csv", "after"), eventAddress(f.values, "format", "jsonl", "after")
	}
	if f.invalid() {
		status = http.StatusUnprocessableEntity
	}
	v.frame.Title = "Security"
	return d.render(w, r, status, securityPage(v.frame, &view))
}

func securityRowOf(e *tenants.SecurityEvent) securityRow {
	row := securityRow{
		At: moment{e.At}, What: eventWords[e.Kind], Tone: "plain", Who: firstOf(e.ActorName, e.ActorKind), Whose: e.ActorKind, Target: e.Target, From: e.Address,
	}
	switch e.Kind {
	case tenants.EventSignInFailed, tenants.EventNewDevice:
		row.Tone = "warn"
	case tenants.EventSignInBlocked:
		row.Tone = "bad"
	}
	if e.UserAgent != "" {
		row.From += ", " + deviceName(e.UserAgent)
	}
	if e.ActorKind == "member" && row.Target == row.Who {
		row.Target = ""
	}
	var details struct {
		How, Format   string
		Before, After struct{ Role, Name string }
	}
	if json.Unmarshal(e.Details, &details) != nil { // of another version of Weir
		return row
	}
	switch {
	case details.Before.Role != "" && details.After.Role != "":
		row.Details = details.Before.Role + " to " + details.After.Role
	case details.How != "" && e.Kind != tenants.EventNewDevice: // the sign-in beside it says how
		row.Details = "by " + details.How
	case details.Format != "":
		row.Details = "as " + details.Format
	default:
		row.Details = firstOf(details.After.Name, details.After.Role, details.Before.Name, details.Before.Role)
	}
	switch e.Kind {
	case tenants.EventKeyCreated, tenants.EventKeyChanged, tenants.EventKeyRotated, tenants.EventKeyRevoked:
		row.Link = "/keys/" + url.PathEscape(e.Target)
		row.Target, row.Details = firstOf(row.Details, e.Target), ""
	}
	return row
}

// keyNames returns the names of API keys by their ids.
func (d *dashboard) keyNames(ctx context.Context, a tenants.Actor) (map[string]string, error) {
	keys, _, err := d.Store.Keys(ctx, a, tenants.Page{Limit: mostSuggested})
	names := map[string]string{}
	for i := range keys {
		names[keys[i].ID.String()] = keys[i].Name
	}
	return names, err
}

// eventAddress returns the address of the page with one parameter added and one removed.
func eventAddress(values url.Values, name, value, without string) string {
	out := url.Values{}
	for _, field := range []string{"kind", "actor", "address", "period", "from", "to", "after"} {
		if text := values.Get(field); text != "" && field != without && (field != "after" || name != "") {
			out.Set(field, text)
		}
	}
	if name != "" {
		out.Set(name, value)
	}
	return withCursor(securityURL, out, "")
}

func (d *dashboard) changeSecurity(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	most, err := strconv.Atoi(digitsOf(f.Get("max_sessions")))
	if err != nil {
		f.wrong("max_sessions", limit.MustBe("a whole number, such as 10"))
	}
	if !f.invalid() {
		_, err = d.Store.EditSecuritySettings(r.Context(), v.actor(), f.match(), func(s *tenants.SecuritySettings) error {
			s.SessionIdle.Text, s.SessionLife.Text, s.MaxSessions = f.Get("session_idle"), f.Get("session_life"), most
			s.ConfirmAfter.Text, s.EventRetention.Text = f.Get("confirm_after"), f.Get("event_retention")
			return nil
		})
		if status := f.refuse(err); status == 0 && err != nil {
			return err
		}
	}
	if f.invalid() {
		return d.showSecurity(w, r, v, http.StatusUnprocessableEntity, &form{values: url.Values{}}, tenants.EventFilter{}, f)
	}
	return d.done(w, r, securityURL, "Saved.")
}

// exportEvents streams all matching events. It reads the first ones before it sends anything, so
// that it can report errors of the request.
func (d *dashboard) exportEvents(w http.ResponseWriter, r *http.Request, v *visit, filter tenants.EventFilter, format string) error {
	place, err := d.exports.Take(v.actor().TenantID())
	if err != nil {
		return err
	}
	defer place.Leave()
	if err := d.Store.RecordExport(r.Context(), v.actor(), "security events", format); err != nil {
		return err
	}
	read := func(p tenants.Page) ([]tenants.SecurityEvent, string, error) {
		return d.Store.SecurityEvents(r.Context(), v.actor(), filter, p)
	}
	events, next, err := read(tenants.ExportPage())
	if err != nil {
		return err
	}
	pace := place.Pace(w)
	h, write := w.Header(), tenants.NewEventTable(pace)
	h.Set("Content-Type", "text/csv; charset=utf-8")
	if format == "jsonl" {
		h.Set("Content-Type", "application/jsonl")
		write = tenants.NewEventLines(pace)
	}
	h.Set("Content-Disposition", `attachment; filename="security-events.`+format+`"`)
	return d.endFile(tenants.SendPages(pace, deadlineOf(w), events, next, write, read), "cannot finish an export of security events")
}
