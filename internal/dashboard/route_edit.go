package dashboard

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants"
)

// The lists of a route are texts in its form, with one entry per line:
//
//	subject:    header:X-User
//	resources:  POST /orders -> orders:create cost=5
//	attributes: country = header:X-Country

// routeEditView is the page on which a route is created or changed.
type routeEditView struct {
	Form    *form
	Slug    string // of the changed route; "" for a new one
	Name    string
	Version int64
	Stray   []limit.FieldError

	Resources []option // to choose from
}

// New reports whether the form creates a route.
func (v *routeEditView) New() bool { return v.Slug == "" }

// Action returns the address of the form.
func (v *routeEditView) Action() string {
	if v.New() {
		return "/routes"
	}
	return "/routes/" + v.Slug + "/edit"
}

// Back returns the page for a cancelled form.
func (v *routeEditView) Back() string {
	if v.New() {
		return "/routes"
	}
	return routeURL(v.Slug)
}

func templateText(t *route.Template) string {
	text := t.Match
	if t.Resource != "" {
		text += " -> " + t.Resource
	}
	if t.Cost != nil {
		text += " cost=" + itoa(*t.Cost)
	}
	return text
}

func attributeLines(r *route.Route) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Attributes)) {
		lines = append(lines, name+" = "+r.Attributes[name])
	}
	return lines
}

// routeValues returns the values of a route's form.
func routeValues(r *route.Route) url.Values {
	templates := make([]string, len(r.Resources))
	for i := range r.Resources {
		templates[i] = templateText(&r.Resources[i])
	}
	return url.Values{
		"slug": {r.Slug}, "name": {r.Name}, "description": {r.Description}, "subject": {strings.Join(r.Subject, "\n")},
		"hash": {string(r.Hash)}, "no_subject": {string(r.NoSubject)}, "resources": {strings.Join(templates, "\n")},
		"default_resource": {r.DefaultResource}, "cost": {itoa(r.Cost)}, "attributes": {strings.Join(attributeLines(r), "\n")},
		"denied_status": {strconv.Itoa(r.DeniedStatus)}, "fail": {string(r.Fail)},
	}
}

// lineBlanks are the blanks between the parts of a line.
const lineBlanks = "\t\f\r "

// splitTemplate reads a line of a template: MATCH, MATCH -> RESOURCE, and either of them with
// cost=COST at its end. The arrow may also be one character, because some fonts show -> as →, and
// it is copied in this form. The line has no spaces around it. It is read once from left to right:
// a regular expression took 12 ms for a line of 60 KiB.
func splitTemplate(line string) (match, resource, cost string) {
	match = line
	for i := 0; i < len(line); i++ {
		arrow := ""
		for _, a := range []string{"->", "→"} {
			if strings.HasPrefix(line[i:], a) {
				arrow = a
			}
		}
		end := i + len(arrow)
		if arrow == "" || i == 0 || end == len(line) || !isLineBlank(line[i-1]) || !isLineBlank(line[end]) {
			continue
		}
		match = strings.TrimRight(line[:i], lineBlanks)
		resource, cost = cutCost(strings.TrimLeft(line[end:], lineBlanks))
		return match, resource, cost
	}
	match, cost = cutCost(line)
	return match, "", cost
}

func isLineBlank(c byte) bool { return strings.IndexByte(lineBlanks, c) >= 0 }

// cutCost cuts cost=COST from the end of a text.
func cutCost(text string) (before, cost string) {
	i := strings.LastIndexAny(text, lineBlanks)
	if i < 0 {
		return text, ""
	}
	cost, found := strings.CutPrefix(text[i+1:], "cost=")
	if !found || cost == "" {
		return text, ""
	}
	return strings.TrimRight(text[:i], lineBlanks), cost
}

// routeOf reads the route of a form. A line that is unchanged keeps its meaning, even if its text
// could be parsed in another way.
func routeOf(f *form, slug string, now *route.Route) route.Route {
	r := route.New(slug)
	r.Name = nameOr(f.Get("name"), slug)
	r.Description = f.Get("description")
	r.Hash, r.NoSubject, r.Fail = route.Hash(f.Get("hash")), route.NoSubject(f.Get("no_subject")), route.Fail(f.Get("fail"))
	r.DefaultResource = nameOr(f.Get("default_resource"), r.DefaultResource)
	if f.Get("cost") != "" {
		r.Cost = f.integer("cost")
	}
	r.DeniedStatus, _ = strconv.Atoi(f.Get("denied_status")) // 0 is invalid, too
	for _, line := range f.lines("subject", route.MaxSources) {
		r.Subject = append(r.Subject, line.Text)
	}
	r.Resources = f.templates(now)
	r.Attributes = f.attributeSources()
	return r
}

func (f *form) templates(now *route.Route) (out []route.Template) {
	shown := map[string]route.Template{}
	for _, t := range now.Resources {
		shown[strings.TrimSpace(templateText(&t))] = t
	}
	for _, line := range f.lines("resources", route.MaxTemplates) {
		if t, ok := shown[line.Text]; ok {
			out = append(out, t)
			continue
		}
		match, resource, costText := splitTemplate(line.Text)
		t := route.Template{Match: match, Resource: resource}
		if costText != "" {
			cost, err := strconv.ParseInt(digitsOf(costText), 10, 64)
			if err != nil {
				f.wrong("resources", line.problem(limit.Wrong("Correct the cost.", "must have a whole number as its cost, such as cost=5")))
			}
			t.Cost = &cost
		}
		out = append(out, t)
	}
	return out
}

func (f *form) attributeSources() map[string]string {
	sources := map[string]string{}
	for _, line := range f.lines("attributes", limit.MaxAttributes) {
		name, source, found := strings.Cut(line.Text, "=")
		name = strings.TrimSpace(name)
		_, duplicate := sources[name]
		switch {
		case !found:
			f.wrong("attributes", line.problem(limit.MustBe("NAME = SOURCE, such as country = header:X-Country")))
		case duplicate:
			f.wrong("attributes", line.problem(limit.Duplicate.With("is a duplicate: "+shortened(name)+" has a source already")))
		default:
			sources[name] = strings.TrimSpace(source)
		}
	}
	return sources
}

// wrongRoute adds errors of a route at the inputs of its form: those of an entry name its line.
func (f *form) wrongRoute(errs []limit.FieldError) {
	found, lines := map[string]*listProblems{}, map[string][]formLine{}
	for _, e := range errs {
		list, entry, nested := strings.Cut(e.Field, ".")
		if found[list] == nil {
			found[list] = &listProblems{}
		}
		if nested && lines[list] == nil {
			lines[list] = f.lines(list, route.MaxTemplates) // of the longest list
		}
		found[list].add(func() limit.Problem {
			if !nested {
				return e.Problem
			}
			return *e.With(strings.TrimSpace(wrongEntry(list, entry, lines[list]) + " " + e.Message))
		})
	}
	for list, problems := range found {
		f.wrong(list, problems.joined())
	}
}

// wrongEntry begins the message about an entry of a list of a route, by the rest of its field.
func wrongEntry(list, entry string, lines []formLine) string {
	if list == "attributes" {
		return shortened(entry)
	}
	index, part, _ := strings.Cut(entry, ".")
	n, err := strconv.Atoi(index)
	if err != nil || n < 0 || n >= len(lines) {
		return ""
	}
	return lines[n].where() + map[string]string{"resource": " has a resource that", "cost": " has a cost that"}[part]
}

// refuseRoute is refuse, with the errors of a route at the inputs of its form.
func (f *form) refuseRoute(err error) int {
	refused := form{values: f.values}
	status := refused.refuse(err)
	f.problem = refused.problem
	var errs []limit.FieldError
	for field, p := range refused.errors {
		errs = append(errs, limit.FieldProblem(field, p))
	}
	f.wrongRoute(errs)
	return status
}

// newRoutePage starts with the defaults of a route. The query can set fields.
func (d *dashboard) newRoutePage(w http.ResponseWriter, r *http.Request, v *visit) error {
	if !v.actor().May(tenants.MayEdit) {
		return tenants.ErrForbidden
	}
	draft := route.New("")
	f := &form{values: routeValues(&draft)}
	for name, values := range r.URL.Query() {
		if f.values.Has(name) && len(values) > 0 {
			f.values.Set(name, values[0])
		}
	}
	return d.showRouteForm(w, r, v, &routeEditView{Form: f}, http.StatusOK)
}

func (d *dashboard) editRoutePage(w http.ResponseWriter, r *http.Request, v *visit) error {
	if !v.actor().May(tenants.MayEdit) {
		return tenants.ErrForbidden
	}
	stored, err := d.Store.RouteBySlug(r.Context(), v.actor(), chi.URLParam(r, "slug"))
	if err != nil {
		return err
	}
	view := routeEditView{Form: &form{values: routeValues(&stored.Route)}, Slug: stored.Slug, Name: nameOr(stored.Name, stored.Slug), Version: stored.Version}
	return d.showRouteForm(w, r, v, &view, http.StatusOK)
}

func (d *dashboard) showRouteForm(w http.ResponseWriter, r *http.Request, v *visit, view *routeEditView, status int) error {
	v.frame.Title = "New route"
	if !view.New() {
		v.frame.Title = "Edit " + view.Name
	}
	shown := make([]string, 0, len(view.Form.values))
	for name := range routeValues(&route.Route{}) {
		if name != "slug" || view.New() {
			shown = append(shown, name)
		}
	}
	view.Stray = view.Form.stray(shown...)
	_, view.Resources = d.namesOf(r.Context(), v.actor().TenantID())
	return d.render(w, r, status, routeEditPage(v.frame, view))
}

func (d *dashboard) createRoute(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	draft := routeOf(f, f.Get("slug"), &route.Route{})
	f.wrongRoute(draft.Validate())
	status := http.StatusUnprocessableEntity
	if !f.invalid() {
		made, err := d.Store.CreateRoute(r.Context(), v.actor(), draft)
		if err == nil {
			return d.done(w, r, routeURL(made.Slug), "Route “"+nameOr(made.Name, made.Slug)+"” created. Test a request below, then point your gateway at /v1/authorize/"+made.Slug+".")
		}
		if status = f.refuseRoute(err); status == 0 {
			return err
		}
	}
	return d.showRouteForm(w, r, v, &routeEditView{Form: f}, status)
}

func (d *dashboard) editRoute(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := chi.URLParam(r, "slug")
	now, err := d.Store.RouteBySlug(r.Context(), v.actor(), slug)
	if err != nil {
		return err
	}
	view := routeEditView{Form: f, Slug: slug, Name: nameOr(now.Name, slug), Version: f.version(now.Version)}
	changed := routeOf(f, slug, &now.Route)
	f.wrongRoute(changed.Validate())
	status := http.StatusUnprocessableEntity
	if !f.invalid() {
		made, err := d.Store.EditRoute(r.Context(), v.actor(), slug, f.match(), func(r *route.Route) error {
			*r = changed
			return nil
		})
		if err == nil {
			return d.done(w, r, routeURL(slug), "Route “"+nameOr(made.Name, slug)+"” saved. It applies on every instance.")
		}
		if status = f.refuseRoute(err); status == 0 {
			return err
		}
		if status == http.StatusPreconditionFailed {
			view.Version = now.Version // saving again replaces the other change
		}
	}
	return d.showRouteForm(w, r, v, &view, status)
}
