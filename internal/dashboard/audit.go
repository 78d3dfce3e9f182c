package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"weir/internal/tenants"
)

const (
	auditPage       = 50
	auditPageBytes  = 64 << 10 // of fields; with more, a page has fewer rows
	auditPageFields = 16 << 10 // of a row; with more, it has only their size
	// mostRowChanges is the maximum number of changes of a row, and mostPageChanges that of a page.
	// When a page has so many, each further row has fewRowChanges.
	mostRowChanges  = 40
	mostPageChanges = 500
	fewRowChanges   = 4
	// maxVerifying is the maximum number of audit trails that pages verify at the same time, on
	// at most half of the processors, but two in any case, one of each tenant. Further ones wait in
	// turn for verifyWait, so that three tenants with one after the other do not keep out a fourth
	// one.
	maxVerifying = 4
	minVerifying = 2
	verifyWait   = 2 * verifyTime
	// maxTenantVerifying is the maximum number of verifications of a tenant that run or wait, so
	// that few pages wait for one tenant.
	maxTenantVerifying = 3
	// verifiedTime is the time for the verification and the rest of the page after this wait: as
	// much as a page has that did not wait.
	verifiedTime = 10 * time.Second
	// verifyTime is the time after which a page stops reading a trail and offers to continue.
	verifyTime = 2 * time.Second
)

type auditView struct {
	Form              *form
	Rows              []auditLine
	Range             *rangeView
	Actors, Targets   []option // to choose from: people and API keys; rules and registered subjects
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
	Told                                       bool // What says the change of the subject in words
	Deleted                                    bool
	Action, By                                 string // By: what the actor did it with; "": directly
	name                                       string // of a rule or a plan; "": not known
	Restore                                    *undo  // undoes the change of a rule, or restores a deleted one; nil: none
}

// Machine, Clock and Day return the time of the row.
func (l *auditLine) Machine() string { return l.At.UTC().Format(time.RFC3339) }

// Clock is the time of day.
func (l *auditLine) Clock() string { return l.At.UTC().Format("15:04:05") }

// Day is the date.
func (l *auditLine) Day() string { return l.At.UTC().Format("2 Jan 2006") }

var auditActions = []option{
	{"", "Any"}, {"create", "Created"}, {"update", "Changed"}, {"delete", "Deleted"}, {"rotate", "Rotated"},
	{"revoke", "Revoked"}, {"reset", "Reset limits"}, {"import", "Imported"}, {"test", "Sent a test"}, {"replay", "Replayed"}, {"dismiss", "Dismissed"}, {"compare", "Requested a comparison"},
}

var auditKinds = []option{
	{"", "Any"}, {"rule", "A rule"}, {"route", "A route"}, {"plan", "A plan"}, {"subject", "A subject"}, {"key", "An API key"}, {"member", "A member"}, {"endpoint", "A billing endpoint"}, {"price", "The plan of a price"}, {"billing_event", "A billing event"}, {"migration", "A plan migration"}, {"portal", "The customer page"}, {"portal_link", "A customer link"}, {"limit_request", "A request of a customer"}, {"credits", "Credits"}, {"notification_endpoint", "A notification endpoint"}, {"tenant", "The tenant"}, {"security", "The security settings"},
}

// errVerifying: the trail of the tenant or the maximum number of trails is being verified.
var errVerifying = errors.New("too many audit trails are being verified at once")

// audit shows the trail, or returns it as a file.
func (d *dashboard) audit(w http.ResponseWriter, r *http.Request, v *visit) (err error) {
	f := &form{values: r.URL.Query()}
	filter := auditFilterOf(f, v.now)
	format := f.Get("format")
	if (format == "csv" || format == "jsonl") && !f.invalid() {
		return d.exportAudit(w, r, v, filter, format)
	}
	view := auditView{Form: f, First: auditAddress(f.values, "", "", ""), Range: listRange(f, trailPeriods, calendarRanges(v.now), func(values url.Values) string { return auditAddress(values, "", "", "") })}
	if f.Get("verify") != "" { // first, because it can wait, and what was read before would be old
		if err := d.verifyTrail(w, r, v, &view); err != nil {
			return err
		}
	}
	if view.Targets, err = d.auditTargets(r.Context(), v); err != nil {
		return err
	}
	if view.Actors, err = d.actorNames(r.Context(), v.actor()); err != nil {
		return err
	}
	status := http.StatusOK
	if !f.invalid() {
		if err := d.readAudit(r.Context(), v, &view, filter); err != nil {
			return err
		}
		view.CSV, view.JSON = auditAddress(f.values, "format", "csv", "after"), auditAddress(f.values, "format", "jsonl", "after")
		view.Verify = auditAddress(f.values, "verify", "1", "")
	}
	if v.frame.May.Edit {
		offerRestores(view.Rows, !view.Later && filter.Actor == "" && filter.Action == "" && filter.From == nil && filter.To == nil, trailPage(f))
	}
	if f.invalid() {
		status = http.StatusUnprocessableEntity
	}
	v.frame.Title = "Audit trail"
	return d.render(w, r, status, auditPageOf(v.frame, &view))
}

// readAudit reads the rows of a page.
func (d *dashboard) readAudit(ctx context.Context, v *visit, view *auditView, filter tenants.AuditFilter) error {
	after := view.Form.Get("after")
	rows, next, err := d.Store.Audit(ctx, v.actor(), filter, tenants.Page{Limit: auditPage, Bytes: auditPageBytes, Fields: auditPageFields, After: after})
	if err != nil && view.Form.refuse(err) == 0 {
		return err
	}
	names, plans := d.ruleNames(ctx, v.actor().TenantID()), d.planNames(ctx, v.actor())
	if err := d.turns.do(ctx, v.actor().TenantID(), func() { view.Rows = auditLines(rows, names, plans) }); err != nil {
		return err
	}
	if err := d.nameObjects(ctx, v.actor(), view.Rows); err != nil {
		return err
	}
	foldChanges(view.Rows)
	view.Later = after != ""
	if next != "" {
		view.Next = auditAddress(view.Form.values, "after", next, "")
	}
	return nil
}

// foldChanges bounds the changes that a page shows. The export has all of them.
func foldChanges(lines []auditLine) {
	shown := 0
	for i := range lines {
		most := mostRowChanges
		if shown >= mostPageChanges {
			most = fewRowChanges
		}
		l := &lines[i]
		if more := len(l.Changes) - most; more > 1 { // the line about one would be as long
			l.Changes = append(l.Changes[:most:most], fieldChange{Name: "Further fields", After: grouped(int64(more)) + "; the export has them"})
		}
		shown += len(l.Changes)
	}
}

// nameObjects adds the names of API keys and billing endpoints, whose targets are IDs.
func (d *dashboard) nameObjects(ctx context.Context, a tenants.Actor, lines []auditLine) error {
	has := func(kind string) bool {
		return slices.ContainsFunc(lines, func(l auditLine) bool { return l.Kind == kind })
	}
	names := map[string]string{}
	if has("key") {
		var err error
		if names, err = d.keyNames(ctx, a); err != nil {
			return err
		}
	}
	if has("endpoint") {
		endpoints, _, err := d.Store.BillingEndpoints(ctx, a, tenants.Page{Limit: mostNames})
		if err != nil {
			return err
		}
		for i := range endpoints {
			names[endpoints[i].ID.String()] = nameOr(endpoints[i].Name, endpoints[i].Provider)
		}
	}
	for i := range lines {
		if l := &lines[i]; l.name == "" && l.Called() == l.Target {
			l.name = names[l.Target]
		}
	}
	return nil
}

// trailPage returns the address of the page for a form that returns to it.
func trailPage(f *form) string {
	if after := f.Get("after"); after != "" {
		return auditAddress(f.values, "after", after, "")
	}
	return auditAddress(f.values, "", "", "")
}

// auditTargets returns names to choose the target from: of rules and of registered subjects.
func (d *dashboard) auditTargets(ctx context.Context, v *visit) ([]option, error) {
	names, _ := d.namesOf(ctx, v.actor().TenantID())
	subjects, _, err := d.Store.SubjectHeads(ctx, v.actor(), tenants.SubjectFilter{}, tenants.Page{Limit: maxTesterSubjects})
	for i := range subjects {
		names = append(names, subjectOption(&subjects[i]))
	}
	return names, err
}

// actorNames returns names to choose the actor from: the emails of members and the names of API
// keys.
func (d *dashboard) actorNames(ctx context.Context, a tenants.Actor) (names []option, err error) {
	members, _, err := d.Store.Members(ctx, a, tenants.Page{Limit: mostSuggested / 2})
	if err != nil {
		return nil, err
	}
	for i := range members {
		names = append(names, option{members[i].Email, ""})
	}
	keys, _, err := d.Store.Keys(ctx, a, tenants.Page{Limit: mostSuggested / 2})
	for i := range keys {
		if key := (option{keys[i].Name, ""}); !slices.Contains(names, key) {
			names = append(names, key)
		}
	}
	return names, err
}

// verifyTurn waits until a tenant may verify its trail. The caller must call leave once. Error:
// errVerifying.
func (d *dashboard) verifyTurn(ctx context.Context, tenant uuid.UUID) (leave func(), err error) {
	forget, ok := d.verifications.Take(tenant)
	if !ok {
		return nil, errVerifying
	}
	end, err := d.verifying.TakeWithin(ctx, tenant, d.verifyWait)
	if err != nil {
		forget()
		return nil, errVerifying
	}
	return func() { end(); forget() }, nil
}

// verifyTrail reads the trail, from where an earlier page stopped. It changes nothing, so it can be
// a GET; the number of concurrent verifications is limited.
func (d *dashboard) verifyTrail(w http.ResponseWriter, r *http.Request, v *visit, view *auditView) error {
	leave, err := d.verifyTurn(r.Context(), v.actor().TenantID())
	if err != nil {
		return err
	}
	defer leave()
	deadlineOf(w)(verifiedTime)
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

func auditFilterOf(f *form, now time.Time) tenants.AuditFilter {
	filter := tenants.AuditFilter{Actor: f.Get("actor"), Action: f.Get("action"), Kind: f.Get("kind"), Target: f.Get("target")}
	oneOf(f, "action", auditActions)
	oneOf(f, "kind", auditKinds)
	filter.From, filter.To = spanOf(f, trailPeriods).bounds(now)
	return filter
}

// auditAddress returns the address of the page with one parameter added and one removed.
func auditAddress(values url.Values, name, value, without string) string {
	out := url.Values{}
	for _, field := range []string{"actor", "action", "kind", "target", "period", "from", "to", "after"} {
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
	place, err := d.exports.Take(v.actor().TenantID())
	if err != nil {
		return err
	}
	defer place.Leave()
	if err := d.Store.RecordExport(r.Context(), v.actor(), "audit trail", format); err != nil {
		return err
	}
	read := func(p tenants.Page) ([]tenants.AuditEntry, string, error) {
		return d.Store.Audit(r.Context(), v.actor(), filter, p)
	}
	rows, next, err := read(tenants.ExportPage())
	if err != nil {
		return err
	}
	pace := place.Pace(w)
	h, write := w.Header(), tenants.NewAuditTable(pace).Write
	h.Set("Content-Type", "text/csv; charset=utf-8")
	if format == "jsonl" {
		h.Set("Content-Type", "application/jsonl")
		write = tenants.NewAuditLines(pace)
	}
	h.Set("Content-Disposition", `attachment; filename="audit.`+format+`"`)
	return d.endFile(tenants.SendPages(pace, deadlineOf(w), rows, next, write, read), "cannot finish an audit trail export")
}

func auditLines(entries []tenants.AuditEntry, names ruleNames, plans planNames) []auditLine {
	lines := make([]auditLine, len(entries))
	for i := range entries {
		e := &entries[i]
		lines[i] = auditLine{
			ID: "row-" + itoa(e.Sequence), Who: e.ActorName, WhoKind: e.ActorKind, What: auditVerb(e), Kind: e.Kind, Target: e.Target, Link: auditLink(e),
			At: e.At, Reason: e.Reason, From: e.Address, Request: e.RequestID, Sequence: itoa(e.Sequence), Changes: changesOf(e),
			Whole: e.Whole(), Deleted: e.Action == "delete", Action: e.Action,
		}
		switch e.Kind {
		case "rule":
			lines[i].name = names[e.Target]
		case "plan", "migration":
			lines[i].name = plans[e.Target]
		}
		nameFields(lines[i].Changes, names, plans)
		if verb := toldVerb(e, lines[i].Changes, names, plans); verb != "" {
			lines[i].What, lines[i].Told = verb, true
		}
		if n := slices.IndexFunc(lines[i].Changes, func(c fieldChange) bool { return c.Path == "migration" }); n >= 0 { // an ID
			lines[i].Changes = slices.Delete(lines[i].Changes, n, n+1)
			if !strings.Contains(e.ActorName, "migration") {
				lines[i].By = "a plan migration"
			}
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

// offerRestores offers to undo a change of a rule, or to restore a deleted one. newest says that
// the first row of each rule is the newest one, after which the rule has its present state. back is
// the address of the page, to which the action returns.
func offerRestores(lines []auditLine, newest bool, back string) {
	seen := map[string]bool{}
	for i := range lines {
		l := &lines[i]
		if l.Kind != "rule" {
			continue
		}
		first := newest && !seen[l.Target]
		seen[l.Target] = true
		switch {
		case l.Deleted && first:
			l.Restore = newUndo(ruleURL(l.Target)+"/restore", "deleted", "1")
		case l.Action == "update" && l.Link != "":
			l.Restore = newUndo(ruleURL(l.Target)+"/restore", "sequence", l.Sequence, "undo", "1", "back", back)
		}
	}
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
	case e.Kind == "portal_link", e.Kind == "limit_request", e.Kind == "credits":
		return subjectURL(e.Target)
	case e.Kind == "portal":
		return customerPageURL
	case e.Kind == "security":
		return securityURL
	case e.Kind == "notification_endpoint":
		return notificationsURL
	case e.Kind == "billing_event":
		return "/billing/events"
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

// RestoreName is the name of the button for screen readers.
func (l *auditLine) RestoreName() string {
	if l.Deleted {
		return "Restore deleted rule " + l.Named()
	}
	return "Undo this change of " + l.Named()
}

// Named returns the name of the object for its row: that of a rule or a plan, rather than the slug.
func (l *auditLine) Named() string { return firstOf(l.name, l.Called()) }

// Brief returns the changes for the line of the row: none if they are those of a whole object, or
// are in the sentence already.
func (l *auditLine) Brief() []fieldChange {
	const few = 2
	if l.Told || l.Whole {
		return nil
	}
	return l.Changes[:min(len(l.Changes), few)]
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}
