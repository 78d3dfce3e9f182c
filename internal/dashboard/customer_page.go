package dashboard

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// The pages on which members set up the customer page, and decide about what customers request.

const (
	customerPageURL = "/settings/customer-page"
	requestsURL     = "/requests"
)

// customerPageView has the settings of the customer page.
type customerPageView struct {
	Portal     tenants.Portal
	TenantName string
	Plans      []option
	Adjusted   bool   // the accent is changed for links
	Logo       string // path; "": none
	Sent       *form
}

// Origins returns the origins, one per line.
func (v *customerPageView) Origins() string { return strings.Join(v.Portal.FrameOrigins, "\n") }

// fewPlans is how many plans the page offers to choose at least, if there are so many.
const fewPlans = 8

// Offered returns the chosen plans, followed by "" for further ones: a tenant with few plans has a
// place for each, and one with many has two more than it chose.
func (v *customerPageView) Offered() []string {
	chosen := v.Portal.OfferedPlans
	if v.Sent.values != nil {
		chosen = v.Sent.all("offered_plans")
	}
	places := min(max(fewPlans, len(chosen)+2), len(v.Plans), tenants.MaxOfferedPlans)
	return append(slices.Clone(chosen), make([]string, max(places-len(chosen), 0))...)
}

// Accent returns the colour for the input, which needs one.
func (v *customerPageView) Accent() string { return nameOr(v.Portal.Accent, weirAccent) }

// weirAccent is the brand colour of app.css.
const weirAccent = "#0b6e75"

var autoLengths = []option{{"1h", "1 hour"}, {"4h", "4 hours"}, {"1d", "1 day"}, {"7d", "7 days"}, {"30d", "30 days"}}
var autoEvery = []option{{"1d", "1 day"}, {"7d", "7 days"}, {"30d", "30 days"}, {"90d", "90 days"}, {"365d", "365 days"}}

// withValue returns the options, and the value if it is not one of them.
func withValue(options []option, value string) []option {
	if slices.ContainsFunc(options, func(o option) bool { return o.Value == value }) {
		return options
	}
	return append(slices.Clone(options), option{value, value})
}

func (d *dashboard) customerPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showCustomerPage(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showCustomerPage(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	settings, err := d.Store.Portal(r.Context(), v.actor())
	if err != nil {
		return err
	}
	view := customerPageView{Portal: settings, TenantName: v.session.Current.Name, Sent: f}
	if settings.Logo != nil {
		view.Logo = customerPageURL + "/logo?v=" + tenants.LogoHash(settings.Logo)[:16]
	}
	if settings.Accent != "" {
		view.Adjusted = paletteOf(settings.Accent).Adjusted()
	}
	if view.Plans, err = d.planChoices(r, v); err != nil {
		return err
	}
	v.frame.Title = "Customer page"
	return d.render(w, r, status, customerPageSettings(v.frame, &view))
}

// customerLogo shows members the logo that is stored.
func (d *dashboard) customerLogo(w http.ResponseWriter, r *http.Request, v *visit) error {
	settings, err := d.Store.Portal(r.Context(), v.actor())
	if err != nil {
		return err
	}
	if settings.Logo == nil {
		return tenants.ErrNotFound
	}
	leave, ok := d.keepUnread(r, len(settings.Logo))
	if !ok {
		return errUnread
	}
	defer leave()
	return writeLogo(w, settings.Logo)
}

func (d *dashboard) changeCustomerPage(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	percent := f.integer("auto_approve_percent")
	if f.invalid() {
		return d.showCustomerPage(w, r, v, http.StatusUnprocessableEntity, f)
	}
	_, err := d.Store.EditPortal(r.Context(), v.actor(), f.match(), func(p *tenants.Portal) error {
		p.Brand, p.Accent = f.Get("brand"), ""
		if f.Checked("own_accent", false) {
			p.Accent = f.Get("accent")
		}
		if logo := f.files["logo"]; len(logo) > 0 {
			p.Logo = logo
		} else if f.Checked("remove_logo", false) {
			p.Logo = nil
		}
		p.FrameOrigins, p.OfferedPlans = f.words("frame_origins", tenants.MaxFrameOrigins, unicode.IsSpace), f.all("offered_plans")
		p.Requests, p.AutoPercent = f.Checked("requests", false), int(min(percent, tenants.MaxAutoPercent+1))
		p.AutoFor.Text, p.AutoEvery.Text = f.Get("auto_approve_for"), f.Get("auto_approve_every")
		return nil
	})
	if status := f.refuse(err); status != 0 {
		f.gather("frame_origins", "line")
		f.gather("offered_plans", "plan")
		return d.showCustomerPage(w, r, v, status, f)
	}
	if err != nil {
		return err
	}
	return d.done(w, r, customerPageURL, "Saved.")
}

// all returns the values of a field that a form has several times, without empty ones.
func (f *form) all(name string) []string {
	return slices.DeleteFunc(slices.Clone(f.values[name]), func(value string) bool { return value == "" })
}

// gather moves the first error of an entry of a list to the list's field. The entries are counted
// from 1, as lines for example.
func (f *form) gather(list, entry string) {
	for _, name := range slices.Sorted(maps.Keys(f.errors)) {
		problem := f.errors[name]
		index, isEntry := strings.CutPrefix(name, list+".")
		if isEntry {
			delete(f.errors, name)
			number, _ := strconv.Atoi(index)
			f.wrong(list, problem.With(entry+" "+strconv.Itoa(number+1)+" "+problem.Message))
		}
	}
}

// requestsView lists what customers request.
type requestsView struct {
	All  bool
	Rows []requestRow
	Next string // address of the next page; "": there is none
	sentForms
}

type requestRow struct {
	tenants.LimitRequest
	Name string // of the rule
	At   moment
	// Until is the end of the override, and Settled when it was decided.
	Until, Settled *moment
}

// Change returns the change that the customer asks for.
func (r *requestRow) Change() string { return grouped(r.Had) + " to " + grouped(r.Asked) }

func (d *dashboard) requests(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showRequests(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showRequests(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	query := r.URL.Query()
	view := requestsView{All: query.Get("show") == "all", sentForms: sentForms{f}}
	filter := tenants.LimitRequestFilter{State: tenants.RequestOpen}
	if view.All {
		filter.State = ""
	}
	list, next, err := d.Store.LimitRequests(r.Context(), v.actor(), filter, tenants.Page{Limit: 100, After: query.Get("after")})
	if err != nil {
		return err
	}
	if next != "" {
		query.Del("fragment")
		view.Next = withCursor(requestsURL, query, next)
	}
	names := d.ruleNames(r.Context(), v.actor().TenantID())
	for _, q := range list {
		view.Rows = append(view.Rows, requestRow{LimitRequest: q, Name: nameOr(names[q.Rule], q.Rule), At: moment{q.CreatedAt}, Until: momentOf(q.GrantedUntil), Settled: momentOf(q.SettledAt)})
	}
	v.frame.Title = "Requests"
	return d.render(w, r, status, requestsPage(v.frame, &view))
}

// settleRequest approves or refuses a request.
func (d *dashboard) settleRequest(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil {
		return tenants.ErrNotFound
	}
	var q tenants.LimitRequest
	said := ""
	switch f.Get("do") {
	case "approve":
		in := tenants.Approval{Limit: new(f.integer("limit")), Answer: f.Get("answer")}
		length, problem := limit.ParseDuration(f.Get("for"))
		if problem != nil {
			f.wrong("for", oneOfTheList)
		}
		in.For = time.Duration(min(length.MS, 2*tenants.MaxBoost.Milliseconds())) * time.Millisecond
		if f.invalid() {
			return d.showRequests(w, r, v, http.StatusUnprocessableEntity, f)
		}
		q, err = d.Store.ApproveLimitRequest(r.Context(), v.actor(), id, in)
		said = "Approved: " + grouped(q.Granted) + " for " + q.Subject + "."
	case "refuse":
		q, err = d.Store.RefuseLimitRequest(r.Context(), v.actor(), id, f.Get("answer"))
		said = "Refused the request of " + q.Subject + "."
	default:
		return errForm
	}
	if status := f.refuse(err); status != 0 {
		return d.showRequests(w, r, v, status, f)
	}
	if err != nil {
		return err
	}
	d.opened.forget(v.actor().TenantID())
	return d.done(w, r, requestsURL, said)
}

// linkLives are the times in which a customer link can be followed.
var linkLives = []option{{"1h", "1 hour"}, {"1d", "1 day"}, {"7d", "7 days"}, {"30d", "30 days"}}

// linkRow is a customer link on the page of its subject.
type linkRow struct {
	ID, By, State string
	Created, Ends moment
	Used          *moment
}

// customerView is the part of a subject's page about the customer page.
type customerView struct {
	Links    []linkRow
	Requests []requestRow // open ones
	URL      string       // of a link that was just created; "": none
	URLEnds  moment
	Once     bool
}

const mostCustomerLinks = 20

func (d *dashboard) readCustomer(r *http.Request, v *visit, subject string) (out customerView, err error) {
	links, _, err := d.Store.PortalLinks(r.Context(), v.actor(), subject, tenants.Page{Limit: mostCustomerLinks})
	if err != nil {
		return out, err
	}
	for _, l := range links {
		row := linkRow{ID: l.ID.String(), By: l.CreatedBy, State: "not used yet", Created: moment{l.CreatedAt}, Ends: moment{l.ExpiresAt}, Used: momentOf(l.UsedAt)}
		if l.UsedAt != nil {
			row.State = "used"
		}
		if !l.SingleUse {
			row.State += ", any number of times"
		}
		out.Links = append(out.Links, row)
	}
	requests, _, err := d.Store.LimitRequests(r.Context(), v.actor(), tenants.LimitRequestFilter{State: tenants.RequestOpen, Subject: subject}, tenants.Page{Limit: 20})
	names := d.ruleNames(r.Context(), v.actor().TenantID())
	for _, q := range requests {
		out.Requests = append(out.Requests, requestRow{LimitRequest: q, Name: nameOr(names[q.Rule], q.Rule), At: moment{q.CreatedAt}})
	}
	return out, err
}

// createLink creates a customer link and shows it, once.
func (d *dashboard) createLink(w http.ResponseWriter, r *http.Request, v *visit, f *form, subject string) error {
	length, problem := limit.ParseDuration(f.Get("expires_in"))
	if problem != nil {
		f.wrong("expires_in", oneOfTheList)
	}
	if f.invalid() {
		return d.showSubject(w, r, v, subject, http.StatusUnprocessableEntity, f)
	}
	link, token, err := d.Store.CreatePortalLink(r.Context(), v.actor(), tenants.NewPortalLink{
		Subject: subject, Life: time.Duration(min(length.MS, 2*tenants.MaxLinkLife.Milliseconds())) * time.Millisecond, SingleUse: !f.Checked("reusable", false),
	})
	if status := f.refuse(err); status != 0 {
		return d.showSubject(w, r, v, subject, status, f)
	}
	if err != nil {
		return err
	}
	showsSecret(w)
	f.made = &customerView{URL: d.baseURL(r) + tenants.PortalLinkPath(token), URLEnds: moment{link.ExpiresAt}, Once: link.SingleUse}
	return d.showSubject(w, r, v, subject, http.StatusOK, f)
}

// baseURL is the beginning of addresses for others: the public address of the installation, or the
// one that the browser used.
func (d *dashboard) baseURL(r *http.Request) string {
	switch {
	case d.PublicURL != "":
		return strings.TrimSuffix(d.PublicURL, "/")
	case r.TLS != nil:
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// revokeLink revokes a customer link.
func (d *dashboard) revokeLink(w http.ResponseWriter, r *http.Request, v *visit, f *form, subject string) error {
	id, err := uuid.Parse(f.Get("link"))
	if err != nil {
		return tenants.ErrNotFound
	}
	if err := d.Store.DeletePortalLink(r.Context(), v.actor(), subject, id, tenants.Match{}); err != nil {
		return err
	}
	return d.done(w, r, subjectURL(subject), "Link revoked. Pages that it opened have ended.")
}

// ticked returns the initial value of a checkbox.
func ticked(on bool) string {
	if on {
		return "on"
	}
	return ""
}
