package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"time"

	"weir/internal/tenants"
)

const (
	auditPage       = 50
	auditExportRows = 1000 // in memory at once
	// maxVerifying is the maximum number of audit trails that pages verify at the same time.
	maxVerifying = 2
	// verifyTime is the time after which a page stops reading a trail and offers to continue.
	verifyTime = 2 * time.Second
)

type auditView struct {
	Form              *form
	Rows              []auditLine
	First, Next       string
	Later             bool
	CSV, JSON, Verify string
	Verified          *tenants.AuditReport // nil: not requested
	Continue          string               // where the verification continues; "" if it reached the end
}

// auditLine is one row of the trail in words.
type auditLine struct {
	ID, Who, WhoKind, What, Kind, Target, Link string
	At                                         time.Time
	Reason                                     string
	From                                       string // address and program; "": no request
	Request                                    string
	Sequence                                   string
	Changes                                    []fieldChange
	Whole                                      bool // of a created or deleted object
}

// Machine, Clock and Day return the time of the row.
func (l *auditLine) Machine() string { return l.At.UTC().Format(time.RFC3339) }

// Clock is the time of day.
func (l *auditLine) Clock() string { return l.At.UTC().Format("15:04:05") }

// Day is the date.
func (l *auditLine) Day() string { return l.At.UTC().Format("2 Jan 2006") }

var auditActions = []option{
	{"", "Any"}, {"create", "Created"}, {"update", "Changed"}, {"delete", "Deleted"}, {"rotate", "Rotated"},
	{"revoke", "Revoked"}, {"reset", "Reset limits"}, {"import", "Imported"},
}

var auditKinds = []option{
	{"", "Any"}, {"rule", "A rule"}, {"route", "A route"}, {"plan", "A plan"}, {"subject", "A subject"}, {"key", "An API key"}, {"member", "A member"}, {"endpoint", "A billing endpoint"}, {"price", "The plan of a price"}, {"migration", "A plan migration"}, {"portal", "The customer page"}, {"portal_link", "A customer link"}, {"limit_request", "A request of a customer"}, {"tenant", "The tenant"},
}

// errVerifying: the maximum number of trails is being verified.
var errVerifying = errors.New("too many audit trails are being verified at once")

// audit shows the trail, or returns it as a file.
func (d *dashboard) audit(w http.ResponseWriter, r *http.Request, v *visit) error {
	f := &form{values: r.URL.Query()}
	filter := auditFilterOf(f)
	format := f.Get("format")
	if (format == "csv" || format == "jsonl") && !f.invalid() {
		return d.exportAudit(w, r, v, filter, format)
	}
	view := auditView{Form: f, First: auditAddress(f.values, "", "", "")}
	status := http.StatusOK
	if !f.invalid() {
		rows, next, err := d.Store.Audit(r.Context(), v.actor(), filter, tenants.Page{Limit: auditPage, After: f.Get("after")})
		if err != nil && f.refuse(err) == 0 {
			return err
		}
		view.Rows, view.Later = auditLines(rows, d.ruleNames(r.Context(), v.actor().TenantID())), f.Get("after") != ""
		if next != "" {
			view.Next = auditAddress(f.values, "after", next, "")
		}
		view.CSV, view.JSON = auditAddress(f.values, "format", "csv", "after"), auditAddress(f.values, "format", "jsonl", "after")
		view.Verify = auditAddress(f.values, "verify", "1", "")
	}
	if f.Get("verify") != "" {
		if err := d.verifyTrail(r, v, &view); err != nil {
			return err
		}
	}
	if f.invalid() {
		status = http.StatusUnprocessableEntity
	}
	v.frame.Title = "Audit"
	return d.render(w, r, status, auditPageOf(v.frame, &view))
}

// verifyTrail reads the trail, from where an earlier page stopped. It changes nothing, so it can be
// a GET; the number of concurrent verifications is limited.
func (d *dashboard) verifyTrail(r *http.Request, v *visit, view *auditView) error {
	select {
	case d.verifying <- struct{}{}:
		defer func() { <-d.verifying }()
	default:
		return errVerifying
	}
	what := tenants.AuditVerification{Within: verifyTime}
	if mark, err := tenants.ParseAuditMark(view.Form.Get("verified")); err == nil { // otherwise from the beginning
		what.After = &mark
	}
	report, err := d.Store.VerifyAudit(r.Context(), v.actor(), what)
	if err != nil {
		return err
	}
	view.Verified = &report
	if !report.Complete {
		view.Continue = auditAddress(view.Form.values, "verify", "1", "") + "&verified=" + url.QueryEscape(report.Head.String())
	}
	return nil
}

// ReadFrom returns which rows were verified.
func (v *auditView) ReadFrom() string {
	r := v.Verified
	switch {
	case r.From.Sequence > r.Removed.Sequence:
		return "starting with row " + itoa(r.From.Sequence+1) + "; earlier rows were verified before"
	case r.Removed.Sequence > 0:
		return "starting with row " + itoa(r.Removed.Sequence+1) + ", the oldest that is kept: the operator sets how long rows are kept"
	}
	return "starting with the first"
}

func auditFilterOf(f *form) tenants.AuditFilter {
	filter := tenants.AuditFilter{Actor: f.Get("actor"), Action: f.Get("action"), Kind: f.Get("kind"), Target: f.Get("target")}
	oneOf(f, "action", auditActions)
	oneOf(f, "kind", auditKinds)
	for _, bound := range []struct {
		name string
		to   **time.Time
	}{{"from", &filter.From}, {"to", &filter.To}} {
		if t := instantOf(f, bound.name); !t.IsZero() {
			*bound.to = &t
		}
	}
	return filter
}

// auditAddress returns the address of the page with one parameter added and one removed.
func auditAddress(values url.Values, name, value, without string) string {
	out := url.Values{}
	for _, field := range []string{"actor", "action", "kind", "target", "from", "to", "after"} {
		if text := values.Get(field); text != "" && field != without && (field != "after" || name != "") {
			out.Set(field, text)
		}
	}
	if name != "" {
		out.Set(name, value)
	}
	return withCursor("/audit", out, "")
}

// exportAudit streams all matching rows. It reads the first ones before it sends anything, so that
// it can report errors of the request.
func (d *dashboard) exportAudit(w http.ResponseWriter, r *http.Request, v *visit, filter tenants.AuditFilter, format string) error {
	read := func(after string) ([]tenants.AuditEntry, string, error) {
		return d.Store.Audit(r.Context(), v.actor(), filter, tenants.Page{Limit: auditExportRows, After: after})
	}
	rows, next, err := read("")
	if err != nil {
		return err
	}
	h, write := w.Header(), tenants.NewAuditTable(w).Write
	h.Set("Content-Type", "text/csv; charset=utf-8")
	if format == "jsonl" {
		h.Set("Content-Type", "application/jsonl")
		write = tenants.NewAuditLines(w)
	}
	h.Set("Content-Disposition", `attachment; filename="audit.`+format+`"`)
	deadline := http.NewResponseController(w)
	for {
		_ = deadline.SetWriteDeadline(time.Now().Add(liveWrite)) // if it cannot be set, there is no deadline
		if err := write(rows); err != nil {
			return nil // the browser has disconnected
		}
		if next == "" {
			return nil
		}
		if rows, next, err = read(next); err != nil {
			d.Logger.Error("cannot finish an audit trail export", "error", err)
			panic(http.ErrAbortHandler) // otherwise the browser would treat a part as the complete file
		}
	}
}

func auditLines(entries []tenants.AuditEntry, names ruleNames) []auditLine {
	lines := make([]auditLine, len(entries))
	for i := range entries {
		e := &entries[i]
		lines[i] = auditLine{
			ID: "row-" + itoa(e.Sequence), Who: e.ActorName, WhoKind: e.ActorKind, What: auditVerb(e), Kind: e.Kind, Target: e.Target, Link: auditLink(e),
			At: e.At, Reason: e.Reason, From: e.Address, Request: e.RequestID, Sequence: itoa(e.Sequence), Changes: fieldChanges(e.Before, e.After),
			Whole: e.Before == nil || e.After == nil,
		}
		if verb := subjectVerb(e, lines[i].Changes, names); verb != "" {
			lines[i].What = verb
		}
		if e.UserAgent != "" {
			lines[i].From += ", " + deviceName(e.UserAgent)
		}
		if lines[i].Who == "" {
			lines[i].Who = e.ActorKind
		}
	}
	return lines
}

func auditVerb(e *tenants.AuditEntry) string {
	object := map[string]string{
		"rule": "the rule", "route": "the route", "plan": "the plan", "subject": "the subject", "key": "the API key", "member": "the member", "tenant": "the tenant",
		"endpoint": "the billing endpoint", "price": "the plan of the price", "migration": "the migration of plan",
		"portal": "the settings of the", "portal_link": "the customer link of", "limit_request": "the request of",
	}[e.Kind]
	switch e.Action {
	case "create":
		return "created " + object
	case "update":
		return "changed " + object
	case "delete":
		return "deleted " + object
	case "publish":
		return "published a version of " + object
	case "rotate":
		return "rotated " + object
	case "revoke":
		return "revoked " + object
	case "reset":
		return "reset limits of"
	case "import":
		return "imported subjects"
	}
	return e.Action + " " + object
}

// auditLink returns the page of the changed object, if it still exists.
func auditLink(e *tenants.AuditEntry) string {
	switch {
	case e.Target == "" || e.Action == "delete" && e.Kind != "subject" || e.Action == "import":
		return ""
	case e.Kind == "rule":
		return "/rules/" + url.PathEscape(e.Target)
	case e.Kind == "route":
		return routeURL(e.Target)
	case e.Kind == "subject":
		return subjectURL(e.Target)
	case e.Kind == "portal_link", e.Kind == "limit_request":
		return subjectURL(e.Target)
	case e.Kind == "portal":
		return customerPageURL
	case e.Kind == "migration":
		return planVersionsURL(e.Target)
	case e.Kind == "plan":
		return "/plans"
	case e.Kind == "key":
		return "/keys"
	case e.Kind == "member":
		return "/members"
	}
	return ""
}

// Called returns the name of the object for people: that of a key is in its changes, if anywhere.
func (l *auditLine) Called() string {
	if l.Kind == "key" {
		for _, c := range l.Changes {
			if c.Path == "name" {
				return firstOf(c.After, c.Before)
			}
		}
	}
	return l.Target
}

// Folded reports whether the fields are those of a whole object, which is long and rarely needed.
func (l *auditLine) Folded() bool {
	const few = 2
	return l.Whole && len(l.Changes) > few
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}
