package dashboard

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

type subjectRow struct {
	Subject, Plan, State string
	Labels               []string
	Overrides            int
	Unregistered         bool         // it was only seen
	Usage                *seenSubject // nil: not known
}

// subjectsView is a search with its results.
type subjectsView struct {
	Prefix, Plan, State, Label string
	Plans                      []option
	Filtered                   bool // by more than the prefix
	Subjects                   []subjectRow
	Next, First                string
	Later                      bool
}

func (d *dashboard) subjects(w http.ResponseWriter, r *http.Request, v *visit) error {
	query := r.URL.Query()
	d.slugsOfNames(r.Context(), v, &form{values: query})
	view := subjectsView{
		Prefix: query.Get("q"), Plan: query.Get("plan"), State: query.Get("state"), Label: query.Get("label"), Later: query.Get("after") != "",
	}
	filter, err := view.filter()
	if err != nil {
		return err
	}
	if view.Plans, err = d.planOptions(r.Context(), v, "Any plan"); err != nil {
		return err
	}
	view.Filtered = view.Plan != "" || view.State != "" || view.Label != ""
	filter.ByName = !view.Filtered
	after := query.Get("after")
	subjects, next, err := d.Store.SubjectHeads(r.Context(), v.actor(), filter, tenants.Page{Limit: pageSize, After: after})
	if err != nil {
		return err
	}
	for i := range subjects {
		view.Subjects = append(view.Subjects, subjectRowOf(&subjects[i], view.Plans))
	}
	if next, err = d.addSeen(r.Context(), v, &view, after, next); err != nil {
		return err
	}
	if err := d.countOverrides(r.Context(), v, view.Subjects); err != nil {
		return err
	}
	view.First = withCursor("/subjects", view.values(), "")
	if next != "" {
		view.Next = withCursor("/subjects", view.values(), next)
	}
	v.frame.Title = "Subjects"
	return d.render(w, r, http.StatusOK, subjectsPage(v.frame, &view))
}

// addSeen adds what is known of the usage of each subject and, without a filter that only
// registered ones have, the subjects that were only seen. Then the list is in the order of names,
// and a page has those after the name in after. It returns where the next page begins; "" for the
// end.
func (d *dashboard) addSeen(ctx context.Context, v *visit, view *subjectsView, after, next string) (string, error) {
	seen, err := d.seenSubjects(ctx, v.actor())
	if err != nil {
		return "", err
	}
	rows := map[string]int{}
	for i := range view.Subjects {
		rows[view.Subjects[i].Subject] = i
	}
	var only, others []subjectRow
	for _, s := range matching(seen, view.Prefix) {
		row := subjectRow{Subject: s.Name, State: "active", Unregistered: true, Usage: &s}
		if i, listed := rows[s.Name]; listed {
			view.Subjects[i].Usage = &s
		} else if view.Filtered {
			continue
		} else if !strings.HasPrefix(s.Name, view.Prefix) {
			others = append(others, row)
		} else if s.Name > after && (next == "" || s.Name < next) {
			only = append(only, row)
		}
	}
	if view.Filtered {
		return next, nil
	}
	byName := func(a, b subjectRow) int { return cmp.Compare(a.Subject, b.Subject) }
	view.Subjects = append(view.Subjects, only...)
	slices.SortFunc(view.Subjects, byName)
	if len(view.Subjects) > pageSize {
		view.Subjects = view.Subjects[:pageSize]
		next = view.Subjects[pageSize-1].Subject
	}
	if !view.Later {
		if others, err = d.withRegistered(ctx, v, view, others[:min(len(others), mostFound)]); err != nil {
			return "", err
		}
		view.Subjects = append(view.Subjects, others...)
		slices.SortFunc(view.Subjects, byName)
	}
	return next, nil
}

// withRegistered completes the rows of the subjects that are registered: a search by a prefix does
// not find them if their names contain the text elsewhere.
func (d *dashboard) withRegistered(ctx context.Context, v *visit, view *subjectsView, rows []subjectRow) ([]subjectRow, error) {
	at := map[string]int{}
	for i := range rows {
		at[rows[i].Subject] = i
	}
	registered, err := d.Store.SubjectHeadsByName(ctx, v.actor(), slices.Collect(maps.Keys(at)))
	for i := range registered {
		row := &rows[at[registered[i].Subject]]
		seen := row.Usage
		*row = subjectRowOf(&registered[i], view.Plans)
		row.Usage = seen
	}
	return rows, err
}

// countOverrides completes the rows of registered subjects with the numbers of their overrides,
// which can be very many.
func (d *dashboard) countOverrides(ctx context.Context, v *visit, rows []subjectRow) error {
	var registered []string
	for i := range rows {
		if !rows[i].Unregistered {
			registered = append(registered, rows[i].Subject)
		}
	}
	counts, err := d.Store.OverrideCounts(ctx, v.actor(), registered)
	for i := range rows {
		rows[i].Overrides = counts[rows[i].Subject]
	}
	return err
}

// subjectRowOf returns the row of a registered subject, without the number of its overrides.
func subjectRowOf(s *tenants.Subject, plans []option) subjectRow {
	return subjectRow{Subject: s.Subject, Plan: nameOfOption(plans, s.Plan), State: s.State.String(), Labels: labelTexts(s.Labels)}
}

// filter returns the filter for the store.
func (view *subjectsView) filter() (f tenants.SubjectFilter, err error) {
	f = tenants.SubjectFilter{Prefix: view.Prefix, Plan: view.Plan}
	if view.State != "" {
		state, err := check.ParseSubjectState(view.State)
		if err != nil {
			return f, invalidField("state", limit.ProblemOf(err))
		}
		f.State = &state
	}
	key, value, hasValue := strings.Cut(view.Label, ":")
	f.LabelKey = strings.TrimSpace(key)
	if hasValue {
		value = strings.TrimSpace(value)
		f.LabelValue = &value
	}
	return f, nil
}

// values returns the search in the form of an address.
func (view *subjectsView) values() url.Values {
	values := url.Values{}
	for name, value := range map[string]string{"q": view.Prefix, "plan": view.Plan, "state": view.State, "label": view.Label} {
		if value != "" {
			values.Set(name, value)
		}
	}
	return values
}

// nameOfOption returns the name of a value; "" for none.
func nameOfOption(options []option, value string) string {
	for _, o := range options {
		if o.Value == value && value != "" {
			return o.Name
		}
	}
	return value
}

// planOptions returns the tenant's plans as options, after an empty one.
func (d *dashboard) planOptions(ctx context.Context, v *visit, none string) ([]option, error) {
	options := []option{{"", none}}
	for page := (tenants.Page{Limit: 1000}); ; {
		plans, next, err := d.Store.PlanHeads(ctx, v.actor(), page)
		if err != nil {
			return nil, err
		}
		for _, p := range plans {
			options = append(options, option{p.Slug, nameOr(p.Name, p.Slug)})
		}
		if page.After = next; next == "" {
			return options, nil
		}
	}
}

func labelTexts(labels map[string]string) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, key+": "+labels[key])
	}
	return out
}
