package dashboard

import (
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// editorView is the page for creating or changing a rule.
type editorView struct {
	Form    *form
	Slug    string // of the rule that is changed; "": a new one
	Name    string
	Version int64
	Stray   []limit.FieldError
	Effect  *effectView // nil: there was no preview

	Resources []option // that other rules name
}

// New reports whether the form creates a rule.
func (v *editorView) New() bool { return v.Slug == "" }

// Action returns the address of the form.
func (v *editorView) Action() string {
	if v.New() {
		return "/rules"
	}
	return "/rules/" + v.Slug + "/edit"
}

// Back returns the page for a cancelled form.
func (v *editorView) Back() string {
	if v.New() {
		return "/rules"
	}
	return ruleURL(v.Slug)
}

// units returns the usual units and the one that is in use.
func (v *editorView) units(name string, usual ...option) []option {
	if v.Form.values.Get(name) == "ms" {
		return append([]option{shortUnits[0]}, usual...)
	}
	return usual
}

// draftRule returns the default of a new rule: in shadow mode, so that its effect can be seen
// before it denies anything.
func draftRule() limit.Rule {
	window, _ := limit.ParseWindow("1m")
	return limit.Rule{
		Resource: "*", Algorithm: limit.SlidingWindowCounter, Limit: 100, Window: window, By: []string{"subject"},
		Mode: limit.Shadow,
	}
}

// newRulePage starts with a draft that is complete except for its slug. The query can set fields,
// so that other pages can link here with a proposal.
func (d *dashboard) newRulePage(w http.ResponseWriter, r *http.Request, v *visit) error {
	if !v.actor().May(tenants.MayEdit) {
		return tenants.ErrForbidden
	}
	draft := draftRule()
	f := &form{values: url.Values{}}
	for name, value := range ruleValues(&draft) {
		f.values.Set(name, value)
	}
	for name, values := range r.URL.Query() {
		if f.values.Has(name) && len(values) > 0 {
			f.values.Set(name, values[0])
		}
	}
	return d.showEditor(w, r, v, &editorView{Form: f}, http.StatusOK)
}

func (d *dashboard) editRulePage(w http.ResponseWriter, r *http.Request, v *visit) error {
	if !v.actor().May(tenants.MayEdit) {
		return tenants.ErrForbidden
	}
	rule, err := d.Store.RuleBySlug(r.Context(), v.actor(), chi.URLParam(r, "slug"))
	if err != nil {
		return err
	}
	f := &form{values: url.Values{}}
	for name, value := range ruleValues(&rule.Rule) {
		f.values.Set(name, value)
	}
	view := editorView{Form: f, Slug: rule.Slug, Name: nameOr(rule.Name, rule.Slug), Version: rule.Version}
	return d.showEditor(w, r, v, &view, http.StatusOK)
}

func (d *dashboard) showEditor(w http.ResponseWriter, r *http.Request, v *visit, view *editorView, status int) error {
	v.frame.Title = "New rule"
	if !view.New() {
		v.frame.Title = "Edit " + view.Name
	}
	_, view.Resources = d.namesOf(r.Context(), v.actor().TenantID())
	view.Stray = view.Form.stray(formFields()...)
	if view.Effect == nil {
		tried := form{values: view.Form.values} // no errors are shown before the first preview
		effect, err := d.effectOf(r, v, view.Slug, &tried)
		if err != nil {
			return err
		}
		if view.Effect = effect; !view.Form.invalid() {
			effect.Wrong = nil
		}
	}
	return d.render(w, r, status, editorPage(v.frame, view))
}

func (d *dashboard) createRule(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	rule := ruleOf(f, limit.Rule{})
	f.validate(&rule)
	status := http.StatusUnprocessableEntity
	if !f.invalid() {
		made, err := d.Store.CreateRule(r.Context(), v.actor(), rule)
		if err == nil {
			return d.done(w, r, ruleURL(made.Slug), "Rule “"+nameOr(made.Name, made.Slug)+"” created. "+firstWords(made.Mode))
		}
		if status = f.refuseRule(err); status == 0 {
			return err
		}
	}
	return d.showEditor(w, r, v, &editorView{Form: f}, status)
}

func firstWords(mode limit.Mode) string {
	switch mode {
	case limit.Shadow:
		return "It is in shadow: review what it would deny before you enforce it."
	case limit.Off:
		return "It is off until you enforce it."
	case limit.Enforce:
	}
	return "It is enforced."
}

func (d *dashboard) editRule(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := chi.URLParam(r, "slug")
	now, err := d.Store.RuleBySlug(r.Context(), v.actor(), slug)
	if err != nil {
		return err
	}
	view := editorView{Form: f, Slug: slug, Name: nameOr(now.Name, slug), Version: f.version(now.Version)}
	rule := ruleOf(f, now.Rule)
	f.validate(&rule)
	status := http.StatusUnprocessableEntity
	if !f.invalid() {
		made, err := d.Store.EditRule(r.Context(), v.actor(), slug, f.match(), func(r *limit.Rule) error {
			*r = rule
			return nil
		})
		if err == nil {
			return d.done(w, r, ruleURL(slug), "Rule “"+nameOr(made.Name, slug)+"” saved. It applies on every instance.")
		}
		if status = f.refuseRule(err); status == 0 {
			return err
		}
		if status == http.StatusPreconditionFailed {
			view.Version = now.Version // saving again replaces the other change
		}
	}
	return d.showEditor(w, r, v, &view, status)
}

// version returns the version of the form, or else the current one.
func (f *form) version(now int64) int64 {
	if m := f.match(); len(m.Versions) > 0 {
		return m.Versions[0]
	}
	return now
}

// refuseRule is refuse, with the errors of a rule at the inputs of its form.
func (f *form) refuseRule(err error) int {
	refused := form{values: f.values}
	status := refused.refuse(err)
	f.problem = refused.problem
	for field, p := range refused.errors {
		f.wrongOf(limit.FieldProblem(field, p))
	}
	return status
}

// previewRule shows the effect of a draft: to a script as a piece of the page, otherwise as the
// page of the editor.
func (d *dashboard) previewRule(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := f.Get("rule")
	effect, err := d.effectOf(r, v, slug, f)
	if err != nil {
		return err
	}
	if isFragment(r) {
		return d.render(w, r, http.StatusOK, effectPanel(effect))
	}
	view := editorView{Form: f, Slug: slug, Effect: effect}
	if slug != "" {
		rule, err := d.Store.RuleBySlug(r.Context(), v.actor(), slug)
		if err != nil {
			return err
		}
		view.Name, view.Version = nameOr(rule.Name, slug), f.version(rule.Version)
	}
	status := http.StatusOK
	if f.invalid() {
		status = http.StatusUnprocessableEntity
	}
	return d.showEditor(w, r, v, &view, status)
}

// isFragment reports whether a script requests a piece of a page.
func isFragment(r *http.Request) bool {
	return r.Header.Get("HX-Request") == "true" && r.Header.Get("HX-Boosted") == ""
}
