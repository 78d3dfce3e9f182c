package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// searchView has a search and its results. The palette shows the same results as a list.
type searchView struct {
	Query string
	Found []foundItem
}

// foundItem is a page or an action.
type foundItem struct {
	Kind, Title, Note string
	Path              string // "": it sends Form instead
	Form              string // the id of a form of the frame
	Value             string // of the form's button; "": it has only one
}

// Icon returns the icon of a result.
func (f *foundItem) Icon() string {
	switch f.Kind {
	case "Subject":
		return "user"
	case "Rule":
		return "gauge"
	case "Plan":
		return "layers"
	case "Route":
		return "route"
	case "Page":
		for _, group := range append(slices.Clip(navigation), operating) {
			for _, item := range group.Items {
				if item.Path == f.Path {
					return item.Icon
				}
			}
		}
	}
	return cmp.Or(actionIcons[strings.ToLower(firstWord(f.Title))], "chevron-right")
}

// mostFound is how many of each kind a search shows.
const mostFound = 8

// search finds subjects, rules, plans, routes and pages by a part of their names, and actions by
// their names: "reset user_42" opens that form. With fragment=options it returns the list of the
// palette.
func (d *dashboard) search(w http.ResponseWriter, r *http.Request, v *visit) error {
	view := searchView{Query: strings.TrimSpace(r.URL.Query().Get("q"))}
	if len(view.Query) > limit.MaxNameBytes {
		return invalidField("q", limit.MustBe("at most %d bytes", limit.MaxNameBytes))
	}
	find := []func(context.Context, *visit, string) ([]foundItem, error){
		findPages, d.findObjectActions, d.findActions, d.findOverrides, findCommands, d.findRulesWithActions, d.findSubjects, d.findPlans, d.findRoutes, d.findMembers, d.findKeys, d.findTenants,
	}
	if strings.Contains(view.Query, "@") { // an email of a member could be a subject, too
		find = slices.Insert(find, 0, d.findMembers)
	}
	for _, of := range find {
		found, err := of(r.Context(), v, view.Query)
		if err != nil {
			return err
		}
		for i := range found {
			if !slices.Contains(view.Found, found[i]) {
				view.Found = append(view.Found, found[i])
			}
		}
	}
	if r.URL.Query().Get("fragment") == "options" {
		if view.Query != "" && holds(view.Query, "Keyboard shortcuts", "Help") { // needs the script of the palette
			view.Found = append(view.Found, foundItem{Kind: "Action", Title: "Keyboard shortcuts", Form: "keys"})
		}
		return d.render(w, r, http.StatusOK, foundOptions(&view))
	}
	v.frame.Title = "Search"
	return d.render(w, r, http.StatusOK, searchPage(v.frame, &view))
}

// holds reports whether one of the texts contains the query, ignoring case.
func holds(query string, texts ...string) bool {
	for _, text := range texts {
		if strings.Contains(strings.ToLower(text), strings.ToLower(query)) {
			return true
		}
	}
	return false
}

func findPages(_ context.Context, v *visit, query string) (out []foundItem, _ error) {
	for _, group := range v.frame.Navigation {
		for _, item := range group.Items {
			if holds(query, item.Name) {
				out = append(out, foundItem{Kind: "Page", Title: item.Name, Path: item.Path})
			}
		}
	}
	return out, nil
}

// subjectCommands are the actions of the palette by their first word, with the form that each
// opens and the right that it needs.
var subjectCommands = []struct {
	word, title, form string
	right             tenants.Right
}{
	{"reset", "Reset limits of", "reset", tenants.MayReset}, {"free", "Reset limits of", "reset", tenants.MayReset},
	{"boost", "Boost limit of", "boost", tenants.MayBoost}, {"override", "Set override for", "override", tenants.MayEdit},
	{"plan", "Change plan of", "plan", tenants.MayEdit}, {"block", "Block", "blocked", tenants.MayEdit},
	{"unblock", "Unblock", "active", tenants.MayEdit}, {"exempt", "Exempt", "exempt", tenants.MayEdit},
	{"grant", "Grant credits to", doGrant, tenants.MayEdit},
	{"details", "Edit details of", "details", tenants.MayEdit}, {"link", "Copy customer link for", doLink, tenants.MayBoost},
	{"delete", "Delete registration of", "delete", tenants.MayEdit},
}

// spelled returns "WORD SUBJECT" for other ways to say it, such as "change plan acme-corp" and
// "move acme-corp to pro", and the plan that the query names after "to"; "" for none.
func spelled(query string) (said, plan string) {
	lower := strings.ToLower(query)
	for _, p := range []struct{ said, word string }{
		{"change plan of ", "plan"}, {"change plan ", "plan"}, {"move ", "plan"}, {"reset limits of ", "reset"}, {"reset limits ", "reset"},
		{"boost limit of ", "boost"}, {"boost limit ", "boost"}, {"set override for ", "override"}, {"set override ", "override"}, {"edit details of ", "details"},
	} {
		if strings.HasPrefix(lower, p.said) && len(lower) == len(query) {
			query = p.word + " " + query[len(p.said):]
			break
		}
	}
	if word, _, _ := strings.Cut(query, " "); strings.EqualFold(word, "plan") {
		if i := strings.LastIndex(query, " to "); i > len("plan") {
			return query[:i], strings.TrimSpace(query[i+len(" to "):])
		}
		query = strings.TrimSuffix(query, " to") // the name of the plan follows
	}
	return query, ""
}

// plansLike returns the plans that a text names: the one with this slug or name, or else those that
// contain it.
func (d *dashboard) plansLike(ctx context.Context, v *visit, text string) (out []option, err error) {
	if text == "" {
		return nil, nil
	}
	plans, err := d.planOptions(ctx, v, "")
	for _, p := range plans {
		switch {
		case p.Value == "":
		case strings.EqualFold(p.Value, text) || strings.EqualFold(p.Name, text):
			return []option{p}, err
		case len(out) < mostFound && holds(text, p.Value, p.Name):
			out = append(out, p)
		}
	}
	return out, err
}

// findActions reads "WORD SUBJECT", such as "boost user_42", and "move SUBJECT to PLAN".
func (d *dashboard) findActions(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	said, plan := spelled(query)
	word, subject, ok := strings.Cut(said, " ")
	if subject = strings.TrimSpace(subject); !ok || limit.ValidName(subject) != nil {
		return nil, nil
	}
	for _, c := range subjectCommands {
		if !strings.EqualFold(word, c.word) || !v.actor().May(c.right) {
			continue
		}
		found, err := d.subjectsLike(ctx, v, subject)
		if err != nil {
			return nil, err
		}
		plans, err := d.plansLike(ctx, v, plan)
		if err != nil {
			return nil, err
		}
		for _, s := range found {
			item := foundItem{Kind: "Action", Title: c.title + " " + s.Title, Note: s.Note, Path: s.Path + "?open=" + c.form}
			if len(plans) == 0 {
				out = append(out, item)
			}
			for _, p := range plans {
				to := item
				to.Title, to.Path = item.Title+" to "+p.Name, item.Path+"&plan="+url.QueryEscape(p.Value)
				out = append(out, to)
			}
		}
	}
	return out, nil
}

// subjectsLike returns subjects that match the text: registered ones that start with it, seen ones
// that contain it, and the text itself, because a subject needs no registration. An exact match
// comes first, a text without checks comes last.
func (d *dashboard) subjectsLike(ctx context.Context, v *visit, text string) (out []foundItem, err error) {
	seen, err := d.seenSubjects(ctx, v.actor())
	if err != nil {
		return nil, err
	}
	registered, _, err := d.Store.SubjectHeads(ctx, v.actor(), tenants.SubjectFilter{Prefix: text}, tenants.Page{Limit: mostFound - 1})
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	add := func(name, note string) {
		if !known[name] {
			known[name] = true
			out = append(out, foundItem{Kind: "Subject", Title: name, Note: note, Path: subjectURL(name)})
		}
	}
	exact := false
	found := matching(seen, text)
	for _, s := range found {
		if s.Name == text {
			add(text, s.Note())
			exact = true
		}
	}
	for _, s := range registered {
		if s.Subject == text {
			add(text, "")
			exact = true
		}
	}
	for _, s := range registered {
		add(s.Subject, noteOf(seen, s.Subject))
	}
	for _, s := range found[:min(len(found), mostFound)] {
		add(s.Name, s.Note())
	}
	if !exact {
		if s := similar(seen, text); s != nil {
			add(s.Name, "did you mean this?")
		}
		add(text, unseenNote)
	}
	return out, nil
}

func noteOf(seen []seenSubject, name string) string {
	for i := range seen {
		if seen[i].Name == name {
			return seen[i].Note()
		}
	}
	return ""
}

// findSubjects lists also what can be done with the subject, if its name is typed exactly.
func (d *dashboard) findSubjects(ctx context.Context, v *visit, query string) ([]foundItem, error) {
	if query == "" || limit.ValidName(query) != nil {
		return nil, nil
	}
	out, err := d.subjectsLike(ctx, v, query)
	if err != nil || len(out) == 0 || out[0].Title != query || out[0].Note == unseenNote {
		return out, err
	}
	return append(out, subjectActionsOf(v, &out[0])...), nil
}

// unseenNote is the note of a subject of which nothing is known.
const unseenNote = "no checks seen"

// subjectActionsOf lists the actions on a subject.
func subjectActionsOf(v *visit, subject *foundItem) (out []foundItem) {
	listed := map[string]bool{} // some have two words
	for _, c := range subjectCommands {
		if v.actor().May(c.right) && !listed[c.form] {
			listed[c.form] = true
			out = append(out, foundItem{Kind: "Action", Title: c.title + " " + subject.Title, Path: subject.Path + "?open=" + c.form})
		}
	}
	return out
}

func (d *dashboard) findRules(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	if query == "" {
		return nil, nil
	}
	policy, err := d.Policies.Get(ctx, v.actor().TenantID())
	if err != nil {
		return nil, err
	}
	for r := range policy.EachRule() {
		if len(out) < mostFound && holds(query, r.Slug, r.Name) {
			out = append(out, foundItem{Kind: "Rule", Title: nameOr(r.Name, r.Slug), Note: limitText(r, limit.Limit{Limit: r.Limit, Burst: r.Burst}), Path: "/rules/" + r.Slug})
		}
	}
	return out, nil
}

// findRulesWithActions lists also what can be done with the rule, if it is the only one.
func (d *dashboard) findRulesWithActions(ctx context.Context, v *visit, query string) ([]foundItem, error) {
	out, err := d.findRules(ctx, v, query)
	if len(out) == 1 {
		out = append(out, ruleActions(v, &out[0])...)
	}
	return out, err
}

func (d *dashboard) findPlans(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	if query == "" {
		return nil, nil
	}
	plans, err := d.planOptions(ctx, v, "")
	for _, p := range plans {
		if p.Value != "" && len(out) < mostFound && holds(query, p.Value, p.Name) {
			out = append(out, foundItem{Kind: "Plan", Title: p.Name, Path: "/plans#" + p.Value})
		}
	}
	return out, err
}

func (d *dashboard) findRoutes(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	if query == "" {
		return nil, nil
	}
	routes, err := d.Store.RouteHeads(ctx, v.actor())
	for i := range routes {
		r := &routes[i]
		if len(out) < mostFound && holds(query, r.Slug, r.Name) {
			out = append(out, foundItem{Kind: "Route", Title: nameOr(r.Name, r.Slug), Note: strings.Join(r.Subject, ", "), Path: routeURL(r.Slug)})
		}
	}
	return out, err
}
