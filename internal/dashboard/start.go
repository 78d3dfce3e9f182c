package dashboard

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"weir/internal/limit"
	"weir/internal/recent"
	"weir/internal/tenants"
)

// startView is the page for the first check of a new tenant.
type startView struct {
	Configured tenants.Configured
	Sent       *form
	Secret     string // of the key that was just made; "" before
	Curl       string // a command that works unchanged
	Wait       waitView
}

// waitView waits for the first check, or shows it.
type waitView struct {
	Since   time.Time
	Arrived bool
	Said    string // the decision, in words
	Subject string
	// Remaining and Quota are those of the rule that decided; Quota is 0 if there was none.
	Remaining, Quota int64
}

// Used returns the usage in thousandths of the limit. One unit of a large limit is visible.
func (w waitView) Used() int64 { return max(10, 1000*(w.Quota-w.Remaining)/w.Quota) }

// stepState says how far a step is.
type stepState string

const (
	stepDone  stepState = "done"
	stepNow   stepState = "now"
	stepLater stepState = "later"
)

// Path returns the address to poll.
func (w waitView) Path() string { return "/start/wait?since=" + itoa(w.Since.UnixMilli()) }

// startUnits are the units for the window of the first rule.
var startUnits = []option{{"s", "seconds"}, {"m", "minutes"}, {"h", "hours"}, {"d", "days"}}

// start is not for the operator's tenant, in which no check can run. Its rules are the quotas of
// the others.
func (d *dashboard) start(w http.ResponseWriter, r *http.Request, v *visit) error {
	if v.actor().TenantID() == d.Platform {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return nil
	}
	return d.showStart(w, r, v, http.StatusOK, &startView{Sent: &form{}})
}

func (d *dashboard) showStart(w http.ResponseWriter, r *http.Request, v *visit, status int, view *startView) (err error) {
	if view.Configured, err = d.Store.Configured(r.Context(), v.actor()); err != nil {
		return err
	}
	v.frame.Title = "First check"
	return d.render(w, r, status, startPage(v.frame, view))
}

// makeStart creates a plan, a rule and a key, or only a key if there are rules already, and shows
// the command for a check. The page waits for the first check to arrive.
func (d *dashboard) makeStart(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	if v.actor().TenantID() == d.Platform {
		return tenants.ErrForbidden
	}
	view := &startView{Sent: f, Wait: waitView{Since: v.now}}
	document := startDocument(f)
	if f.invalid() {
		return d.showStart(w, r, v, http.StatusUnprocessableEntity, view)
	}
	_, err := d.Store.ApplyDocument(r.Context(), v.actor(), document, tenants.Apply{})
	if status := f.refuse(err); status != 0 {
		return d.showStart(w, r, v, status, view)
	}
	if err != nil {
		return err
	}
	made, key, err := d.Store.CreateKey(r.Context(), v.actor(), tenants.NewAPIKey{Name: "first application", Scopes: []tenants.Scope{tenants.ScopeCheck}})
	if status := f.refuse(err); status != 0 {
		if p := f.errors["name"]; p != nil { // the form has a name for the rule, but none for the key
			f.problem = "No key created: it " + p.Message + ". " + p.Fix
		}
		return d.showStart(w, r, v, status, view)
	}
	if err != nil {
		return err
	}
	d.follow(r.Context(), v)
	view.Secret = key.Secret()
	view.Curl = "curl " + shellWord(d.checkURL(r)) + " \\\n  -H 'Authorization: Bearer " + view.Secret +
		"' -H 'Content-Type: application/json' -d '{\"subject\":\"user_42\"}'"
	view.Wait.Since = made.CreatedAt.Truncate(time.Millisecond)
	showsSecret(w)
	return d.showStart(w, r, v, http.StatusOK, view)
}

// startDocument returns the first plan and the first rule; if the tenant has rules, they are kept.
func startDocument(f *form) (out tenants.Document) {
	if f.Get("only") == "key" {
		return out
	}
	rule := limit.Rule{
		Slug: "api-requests", Name: f.Get("name"), Resource: "*", Algorithm: limit.SlidingWindowCounter,
		Limit: f.integer("limit"), Window: limit.Window{Duration: durationOf(f, "window")}, By: []string{"subject"},
	}
	if f.invalid() {
		return out
	}
	for _, problem := range rule.Validate() {
		f.add(problem)
	}
	out.Rules = []limit.Rule{rule}
	out.Plans = []tenants.Plan{{Slug: "free", Name: "Free", Default: true}}
	return out
}

// checkURL returns the address for checks: at the service's public address, or at the address that
// the browser used.
func (d *dashboard) checkURL(r *http.Request) string {
	link := d.Mail.Link("/v1/check")
	switch {
	case !strings.HasPrefix(link, "/"):
		return link
	case r.TLS == nil:
		return "http://" + r.Host + link
	}
	return "https://" + r.Host + link
}

// waitForCheck reports whether a check has arrived since then, on any instance. With fragment it
// returns the part of the page that polls.
func (d *dashboard) waitForCheck(w http.ResponseWriter, r *http.Request, v *visit) error {
	query := r.URL.Query()
	ms, err := strconv.ParseInt(query.Get("since"), 10, 64)
	if err != nil {
		return invalidField("since", limit.MustBe("a time in milliseconds"))
	}
	wait := waitView{Since: time.UnixMilli(ms)}
	log := d.Recent.List(r.Context(), v.actor().TenantID(), recent.Query{Since: wait.Since, Most: 1})
	if len(log.Decisions) > 0 {
		first := log.Decisions[0]
		wait.Arrived, wait.Subject, wait.Said = true, first.Subject, arrivalWords(&first, d.ruleNames(r.Context(), v.actor().TenantID()))
		if first.Rule != "" {
			wait.Remaining, wait.Quota = first.Remaining, first.Quota
		}
	}
	if query.Has("fragment") {
		return d.render(w, r, http.StatusOK, answerStep(wait))
	}
	v.frame.Title = "First check"
	return d.render(w, r, http.StatusOK, waitPage(v.frame, wait))
}

func arrivalWords(first *recent.Decision, names ruleNames) string {
	said := first.Subject + " sent a check for “" + first.Resource + "”. It was "
	if !first.Allowed {
		return said + "denied by " + nameOr(names.Of(first.Rule), "its state") + "."
	}
	said += "allowed"
	if first.Rule != "" {
		said += ": " + grouped(first.Remaining) + " of " + grouped(first.Quota) + " remain under " + names.Of(first.Rule)
	}
	return said + "."
}

// startDone returns the next steps.
func startDone(subject string) []nextStep {
	return []nextStep{
		{"user", "Open " + subject, "See each limit live", subjectURL(subject)},
		{"layers", "Set plan limits", "One table for all plans and rules", "/plans"},
		{"flask-conical", "Test a check", "Uses no units", "/tester?" + url.Values{"subject": {subject}}.Encode()},
		{"user-plus", "Invite member", "Support can only reset and boost limits", "/members?open=invite-member"},
	}
}

type nextStep struct{ Icon, Title, Note, Path string }
