package dashboard

import (
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
}

// subjectsView is a search with its results.
type subjectsView struct {
	Prefix, Plan, State, Label string
	Plans                      []option
	Filtered                   bool // by more than the prefix
	Subjects                   []subjectRow
	Seen                       []seenSubject // not in Subjects
	Next, First                string
	Later                      bool
}

func (d *dashboard) subjects(w http.ResponseWriter, r *http.Request, v *visit) error {
	query := r.URL.Query()
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
	subjects, next, err := d.Store.Subjects(r.Context(), v.actor(), filter, tenants.Page{Limit: pageSize, After: query.Get("after")})
	if err != nil {
		return err
	}
	view.Filtered = view.Plan != "" || view.State != "" || view.Label != ""
	view.First = withCursor("/subjects", view.values(), "")
	if next != "" {
		view.Next = withCursor("/subjects", view.values(), next)
	}
	for _, s := range subjects {
		view.Subjects = append(view.Subjects, subjectRow{
			Subject: s.Subject, Plan: nameOfOption(view.Plans, s.Plan), State: s.State.String(), Labels: labelTexts(s.Labels), Overrides: len(s.Overrides),
		})
	}
	if view.Prefix != "" && !view.Filtered && !view.Later {
		if view.Seen, err = d.unlisted(r.Context(), v, &view); err != nil {
			return err
		}
	}
	v.frame.Title = "Subjects"
	return d.render(w, r, http.StatusOK, subjectsPage(v.frame, &view))
}

// unlisted returns the matching subjects that were seen but are not in the list of registered ones.
func (d *dashboard) unlisted(ctx context.Context, v *visit, view *subjectsView) ([]seenSubject, error) {
	seen, err := d.seenSubjects(ctx, v.actor())
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(matching(seen, view.Prefix), func(s seenSubject) bool {
		return slices.ContainsFunc(view.Subjects, func(row subjectRow) bool { return row.Subject == s.Name })
	})
	return found[:min(len(found), mostFound)], nil
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
		plans, next, err := d.Store.Plans(ctx, v.actor(), page)
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
