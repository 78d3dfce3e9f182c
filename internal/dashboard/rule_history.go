package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// The history of a rule is its rows in the audit trail. A row holds the fields that a change made
// differ, so what the rule was after each change comes from what it is now, going back row by row.

const (
	historyPage = 50
	// mostHistory bounds how many changes one request goes back over.
	mostHistory = 2_000
)

type historyView struct {
	Slug, Name string
	Version    int64 // of the rule now
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
	Now           bool   // that is what it is now
	Restorable    bool
	fieldsOfAfter map[string]json.RawMessage
}

// difference is one field that a change made another, in words; "none" for what is not set.
type difference struct{ Field, Before, After string }

// fieldNames are the fields of a rule in a trail, in the order in which they are shown.
var fieldNames = []struct{ field, name string }{
	{"slug", "Slug"}, {"name", "Name"}, {"description", "Description"}, {"resource", "Resources"}, {"algorithm", "Algorithm"}, {"limit", "Limit"},
	{"window", "Window"}, {"burst", "Burst"}, {"precision", "Precision"}, {"by", "Counted per"}, {"penalty", "Penalty"}, {"mode", "Mode"},
	{"on_unavailable", "If Redis is unavailable"}, {"consistency", "Consistency"},
}

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
			return invalidField("after", "is not in this list")
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

// eachChange goes back over the changes of a rule, the newest first, until each returns false.
func (d *dashboard) eachChange(ctx context.Context, v *visit, now *limit.Rule, each func(*ruleChange) bool) error {
	var state map[string]json.RawMessage // the rule after the change at hand; nil: not known
	filter, page := tenants.AuditFilter{Kind: "rule", Target: now.Slug}, tenants.Page{Limit: 200}
	for seen := 0; seen < mostHistory; {
		entries, next, err := d.Store.Audit(ctx, v.actor(), filter, page)
		if err != nil {
			return err
		}
		for i := range entries {
			first := seen == 0
			seen++
			change, before := changeOf(&entries[i], state, first, now)
			if !each(&change) {
				return nil
			}
			state = before
		}
		if next == "" {
			return nil
		}
		page.After = next
	}
	return nil
}

// changeOf reads a row of the trail, and returns what the rule was before it. after is what it was
// after it, nil where a deletion follows or nothing does.
func changeOf(e *tenants.AuditEntry, after map[string]json.RawMessage, newest bool, now *limit.Rule) (c ruleChange, before map[string]json.RawMessage) {
	c = ruleChange{Sequence: e.Sequence, At: moment{e.At}, Who: whoOf(e), Action: e.Action, Reason: e.Reason, Now: newest}
	var was, is map[string]json.RawMessage
	_ = json.Unmarshal(e.Before, &was) // null, or an object that the trail's author wrote
	_ = json.Unmarshal(e.After, &is)
	switch {
	case e.Action == "delete":
		return c, was
	case e.Action == "create":
		after = is
	case newest && after == nil:
		after = ruleFields(now)
	}
	c.fieldsOfAfter = after
	if rule, err := ruleFromFields(after); err == nil {
		c.Sentence, c.Restorable = ruleSentence(&rule), !newest
	}
	if e.Action == "create" {
		return c, nil
	}
	for _, f := range fieldNames {
		if _, differs := is[f.field]; differs {
			c.Differences = append(c.Differences, difference{f.name, fieldText(was[f.field]), fieldText(is[f.field])})
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

// whoOf names who did something.
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

// ruleFields writes a rule as the trail does: what is not set is left out.
func ruleFields(r *limit.Rule) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	set := func(name string, value any, isSet bool) {
		if isSet {
			fields[name], _ = json.Marshal(value) // texts and numbers
		}
	}
	text := func(name, value string) { set(name, value, value != "") }
	text("slug", r.Slug)
	text("name", r.Name)
	text("description", r.Description)
	text("resource", r.Resource)
	text("algorithm", r.Algorithm.String())
	set("limit", r.Limit, true)
	text("window", r.Window.Text)
	set("burst", r.Burst, r.Burst != 0)
	text("precision", r.Precision.Text)
	set("by", append([]string{}, r.By...), true)
	text("penalty", r.Penalty.Text)
	text("mode", r.Mode.String())
	text("on_unavailable", r.OnUnavailable.String())
	text("consistency", r.Consistency.String())
	return fields
}

// ruleFromFields reads a rule as the trail writes it.
func ruleFromFields(fields map[string]json.RawMessage) (r limit.Rule, err error) {
	if fields == nil {
		return r, errors.New("the rule is unknown")
	}
	var raw struct {
		Slug, Name, Description, Resource, Algorithm, Window, Precision, Penalty, Mode, Consistency string
		Limit, Burst                                                                                int64
		By                                                                                          []string
		OnUnavailable                                                                               string `json:"on_unavailable"`
	}
	encoded, err := json.Marshal(fields)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(encoded, &raw); err != nil {
		return r, err
	}
	r = limit.Rule{Slug: raw.Slug, Name: raw.Name, Description: raw.Description, Resource: raw.Resource, Limit: raw.Limit, Burst: raw.Burst, By: raw.By}
	var errs [7]error
	r.Algorithm, errs[0] = limit.ParseAlgorithm(raw.Algorithm)
	r.Mode, errs[1] = limit.ParseMode(raw.Mode)
	r.OnUnavailable, errs[2] = limit.ParseOnUnavailable(raw.OnUnavailable)
	r.Window, errs[3] = limit.ParseWindow(raw.Window)
	if raw.Precision != "" {
		r.Precision, errs[4] = limit.ParseDuration(raw.Precision)
	}
	if raw.Consistency != "" { // what was written down before rules could be leased has none
		r.Consistency, errs[6] = limit.ParseConsistency(raw.Consistency)
	}
	if raw.Penalty != "" {
		r.Penalty, errs[5] = limit.ParseDuration(raw.Penalty)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return r, fmt.Errorf("read a rule from the audit trail: %w", err)
	}
	return r, nil
}

// restoreRule makes the rule again what it was after one of its changes.
func (d *dashboard) restoreRule(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := chi.URLParam(r, "slug")
	now, err := d.Store.RuleBySlug(r.Context(), v.actor(), slug)
	if err != nil {
		return err
	}
	sequence, err := strconv.ParseInt(f.Get("sequence"), 10, 64)
	if err != nil {
		return errForm
	}
	var wanted *ruleChange
	err = d.eachChange(r.Context(), v, &now.Rule, func(c *ruleChange) bool {
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
	if err != nil {
		return tenants.ErrNotFound
	}
	_, err = d.Store.EditRule(r.Context(), v.actor(), slug, f.match(), func(r *limit.Rule) error {
		*r = was
		r.Slug = slug
		return nil
	})
	if err == nil {
		return d.done(w, r, ruleURL(slug), "Rule restored to its state of "+wanted.At.Human()+".")
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
		f.problem += "It cannot be restored: " + e.Field + " " + e.Message + ". "
	}
	return d.showHistory(w, r, v, f, status)
}

// Title says in a word what the change did.
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
