package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// The history of a rule consists of its rows in the audit trail. A row has the fields that a change
// modified, so the state after each change is computed from the current state, going back row by
// row.

const (
	historyPage = 50
	// mostHistory is the maximum number of changes that one request goes back.
	mostHistory = 2_000
)

type historyView struct {
	Slug, Name string
	Version    int64 // of the current rule
	Form       *form
	Changes    []ruleChange
	Next       string
	Later      bool
}

// ruleChange is one change of a rule.
type ruleChange struct {
	Sequence      int64
	At            moment
	Who, Action   string
	Reason        string
	Differences   []difference
	Sentence      string // the rule as the change left it; "": it was deleted, or cannot be read
	Now           bool   // this is the current state
	Restorable    bool
	fieldsOfAfter map[string]json.RawMessage
	was           map[string]json.RawMessage // the changed fields before
}

// difference is one changed field in words; "none" for a value that is not set.
type difference struct{ Field, Before, After string }

func (d *dashboard) ruleHistory(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showHistory(w, r, v, &form{}, http.StatusOK)
}

func (d *dashboard) showHistory(w http.ResponseWriter, r *http.Request, v *visit, f *form, status int) error {
	slug := chi.URLParam(r, "slug")
	rule, err := d.Store.RuleBySlug(r.Context(), v.actor(), slug)
	if err != nil {
		return err
	}
	view := historyView{Slug: slug, Name: nameOr(rule.Name, slug), Version: rule.Version, Form: f}
	before := r.URL.Query().Get("after")
	view.Later = before != ""
	from := int64(0)
	if view.Later {
		if from, err = strconv.ParseInt(before, 10, 64); err != nil {
			return invalidField("after", limit.Wrong("Start at the first page.", "is not in this list"))
		}
	}
	more := false
	err = d.eachChange(r.Context(), v, &rule.Rule, func(c *ruleChange) bool {
		if from != 0 && c.Sequence >= from {
			return true
		}
		if more = len(view.Changes) == historyPage; more {
			return false
		}
		view.Changes = append(view.Changes, *c)
		return true
	})
	if err != nil {
		return err
	}
	if more {
		view.Next = "/rules/" + slug + "/history?after=" + itoa(view.Changes[historyPage-1].Sequence)
	}
	v.frame.Title = "History of " + view.Name
	return d.render(w, r, status, historyPageOf(v.frame, &view))
}

// eachChange goes back over the changes of a rule, newest first, until each returns false. each
// must only compute. Errors include errBusy.
func (d *dashboard) eachChange(ctx context.Context, v *visit, now *limit.Rule, each func(*ruleChange) bool) error {
	var state map[string]json.RawMessage // the rule after the current change; nil: unknown
	filter, page := tenants.AuditFilter{Kind: "rule", Target: now.Slug}, tenants.Page{Limit: 200}
	for seen := 0; seen < mostHistory; {
		entries, next, err := d.Store.Audit(ctx, v.actor(), filter, page)
		if err != nil {
			return err
		}
		more := next != ""
		err = d.turns.do(ctx, v.actor().TenantID(), func() {
			for i := range entries {
				first := seen == 0
				seen++
				change, before := changeOf(&entries[i], state, first, now)
				if !each(&change) {
					more = false
					return
				}
				state = before
			}
		})
		if err != nil || !more {
			return err
		}
		page.After = next
	}
	return nil
}

// changeOf parses a row of the trail, and returns the rule before it. after is the rule after it,
// nil if it was deleted next or is unknown.
func changeOf(e *tenants.AuditEntry, after map[string]json.RawMessage, newest bool, now *limit.Rule) (c ruleChange, before map[string]json.RawMessage) {
	c = ruleChange{Sequence: e.Sequence, At: moment{e.At}, Who: whoOf(e), Action: e.Action, Reason: e.Reason, Now: newest}
	var was, is map[string]json.RawMessage
	_ = json.Unmarshal(e.Before, &was) // null, or an object that this package wrote
	_ = json.Unmarshal(e.After, &is)
	switch {
	case e.HasDigests(): // what changed is unknown
		return c, nil
	case e.Action == "delete":
		return c, was
	case e.Action == "create":
		after = is
	case newest && after == nil:
		after = ruleFields(now)
	}
	c.fieldsOfAfter = after
	var algorithm limit.Algorithm
	if rule, err := ruleFromFields(after); err == nil {
		c.Sentence, c.Restorable, algorithm = ruleSentence(&rule), !newest, rule.Algorithm
	}
	if e.Action == "create" {
		return c, nil
	}
	c.was = map[string]json.RawMessage{}
	for i := range limit.Fields {
		f := &limit.Fields[i]
		if _, differs := is[f.Name]; differs {
			c.was[f.Name] = was[f.Name]
			label := f.Label
			if f.Name == "burst" {
				label = burstLabel(algorithm)
			}
			c.Differences = append(c.Differences, difference{label, fieldText(was[f.Name]), fieldText(is[f.Name])})
		}
	}
	before = map[string]json.RawMessage{}
	for name, value := range after {
		before[name] = value
	}
	for name, value := range was {
		before[name] = value
	}
	return c, before
}

// whoOf returns the name of the actor.
func whoOf(e *tenants.AuditEntry) string {
	switch {
	case e.ActorKind == "key" && e.ActorName != "":
		return "API key " + e.ActorName
	case e.ActorName != "":
		return e.ActorName
	case e.ActorID != nil:
		return e.ActorKind + " " + e.ActorID.String()
	}
	return "the " + e.ActorKind
}

// fieldText is the value of a field for people.
func fieldText(value json.RawMessage) string {
	var text string
	var number int64
	var list []string
	switch {
	case len(value) == 0 || string(value) == "null":
		return "none"
	case json.Unmarshal(value, &number) == nil:
		return grouped(number)
	case json.Unmarshal(value, &text) == nil:
		return text
	case json.Unmarshal(value, &list) == nil && len(list) == 0:
		return "nothing"
	case json.Unmarshal(value, &list) == nil:
		return strings.Join(list, ", ")
	}
	return string(value)
}

// undone returns the rule with the fields as they were before one change, and all others as they
// are now.
func (c *ruleChange) undone(now *limit.Rule) (limit.Rule, error) {
	fields := ruleFields(now)
	for name, value := range c.was {
		fields[name] = value
	}
	return ruleFromFields(fields)
}

// Undone says which fields an undo of the change sets to which values.
func (c *ruleChange) Undone() string {
	parts := make([]string, len(c.Differences))
	for i, d := range c.Differences {
		parts[i] = d.Field + " " + d.After + " to " + d.Before
	}
	return strings.Join(parts, ", ")
}

// restoreRule restores the rule to the state after one of its changes or, with the field "undo",
// undoes only that change.
func (d *dashboard) restoreRule(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := chi.URLParam(r, "slug")
	if f.Get("deleted") != "" {
		return d.restoreDeleted(w, r, v, f, slug)
	}
	now, err := d.Store.RuleBySlug(r.Context(), v.actor(), slug)
	if err != nil {
		return err
	}
	sequence, err := strconv.ParseInt(f.Get("sequence"), 10, 64)
	if err != nil {
		return errForm
	}
	var wanted *ruleChange
	latest := int64(0)
	err = d.eachChange(r.Context(), v, &now.Rule, func(c *ruleChange) bool {
		latest = max(latest, c.Sequence)
		if c.Sequence == sequence {
			wanted = c
		}
		return wanted == nil
	})
	if err != nil {
		return err
	}
	if wanted == nil {
		return tenants.ErrNotFound
	}
	was, err := ruleFromFields(wanted.fieldsOfAfter)
	said := "Rule restored to its state of " + spoken(wanted.At.At, "minute") + "."
	if f.Get("undo") != "" {
		was, err = wanted.undone(&now.Rule)
		said = "Change of rule “" + nameOr(now.Name, slug) + "” undone: " + wanted.Undone() + "."
	}
	if err != nil || f.Get("undo") != "" && len(wanted.was) == 0 {
		return tenants.ErrNotFound
	}
	made, err := d.Store.EditRule(r.Context(), v.actor(), slug, f.match(), func(r *limit.Rule) error {
		*r = was
		r.Slug = slug
		return nil
	})
	if err == nil {
		to, fields := ruleURL(slug), []string{"sequence", itoa(latest), "version", itoa(made.Version)}
		if back := f.Get("back"); back != "" && localPath(back) == back {
			to, fields = back, append(fields, "back", back)
		}
		return d.doneWith(w, r, to, said, newUndo(ruleURL(slug)+"/restore", fields...))
	}
	if errors.Is(err, tenants.ErrPreconditionFailed) {
		f.problem = "Nothing restored. Somebody else changed this rule after you opened the page. Review their change, then try again."
		return d.showHistory(w, r, v, f, http.StatusPreconditionFailed)
	}
	status := f.refuse(err)
	if status == 0 {
		return err
	}
	for _, e := range f.stray() {
		f.problem += "It cannot be restored: " + e.Field + " " + e.Message + ". " + e.FormFix() + " "
	}
	return d.showHistory(w, r, v, f, status)
}

// restoreDeleted creates a deleted rule again, from the last row of the trail about it. The limits
// of plans and subjects that were deleted with it are not restored.
func (d *dashboard) restoreDeleted(w http.ResponseWriter, r *http.Request, v *visit, f *form, slug string) error {
	entries, _, err := d.Store.Audit(r.Context(), v.actor(), tenants.AuditFilter{Kind: "rule", Target: slug}, tenants.Page{Limit: 1})
	if err != nil {
		return err
	}
	if len(entries) == 0 || entries[0].Action != "delete" {
		return d.done(w, r, "/rules", "Nothing restored: the rule “"+slug+"” is not deleted.")
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(entries[0].Before, &fields) // an object that this package wrote
	was, err := ruleFromFields(fields)
	if err != nil {
		return tenants.ErrNotFound
	}
	was.Slug = slug
	_, err = d.Store.CreateRule(r.Context(), v.actor(), was)
	if status := f.refuse(err); status != 0 {
		said := "The rule “" + slug + "” cannot be restored. " + f.problem
		for _, e := range f.stray() {
			said += sentence(e.Field+" "+e.Message) + " " + e.FormFix()
		}
		return d.done(w, r, "/rules", said)
	}
	if err != nil {
		return err
	}
	return d.done(w, r, ruleURL(slug), "Rule “"+nameOr(was.Name, slug)+"” restored.")
}

// Title returns the change in one word.
func (c *ruleChange) Title() string {
	switch c.Action {
	case "create":
		return "Created"
	case "delete":
		return "Deleted"
	case "update":
		return "Changed"
	}
	return c.Action
}
