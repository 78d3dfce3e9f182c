package dashboard

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// planView is the page for creating or changing a plan.
type planView struct {
	Form    *form
	Slug    string // "" for a new plan
	Name    string
	Version int64
	Default bool
	Reach   string
	Copies  []option // plans whose limits a new one can start with
	Stray   []limit.FieldError
}

// Action returns the address of the form.
func (v *planView) Action() string {
	if v.Slug == "" {
		return "/plans"
	}
	return "/plans/" + v.Slug + "/edit"
}

func (d *dashboard) newPlanPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	if !v.actor().May(tenants.MayEdit) {
		return tenants.ErrForbidden
	}
	return d.showPlan(w, r, v, &planView{Form: &form{}}, http.StatusOK)
}

func (d *dashboard) editPlanPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	if !v.actor().May(tenants.MayEdit) {
		return tenants.ErrForbidden
	}
	plan, err := d.Store.PlanBySlug(r.Context(), v.actor(), chi.URLParam(r, "plan"))
	if err != nil {
		return err
	}
	f := &form{values: url.Values{"name": {plan.Name}, "description": {plan.Description}, "on_change": {plan.OnChange}, "fail": {plan.Fail}}}
	fillBounds(f.values, plan.Bounds)
	return d.showPlan(w, r, v, &planView{Form: f, Slug: plan.Slug, Version: plan.Version}, http.StatusOK)
}

func (d *dashboard) showPlan(w http.ResponseWriter, r *http.Request, v *visit, view *planView, status int) error {
	v.frame.Title = "New plan"
	if view.Slug != "" {
		plan, err := d.Store.PlanBySlug(r.Context(), v.actor(), view.Slug)
		if err != nil {
			return err
		}
		reach, err := d.Store.PlanReach(r.Context(), v.actor(), view.Slug, "")
		if err != nil {
			return err
		}
		view.Name, view.Default, view.Reach = nameOr(plan.Name, plan.Slug), plan.Default, reachText(reach, &plan)
		v.frame.Title = "Edit " + view.Name
	} else {
		plans, _, err := d.Store.PlanHeads(r.Context(), v.actor(), tenants.Page{Limit: maxPlanColumns})
		if err != nil {
			return err
		}
		view.Copies = []option{{"", "The rules"}}
		for _, p := range plans {
			view.Copies = append(view.Copies, option{p.Slug, "Plan " + nameOr(p.Name, p.Slug)})
		}
	}
	view.Stray = view.Form.stray(append(boundFields(), "slug", "name", "description", "on_change", "fail", "like")...)
	return d.render(w, r, status, planPage(v.frame, view))
}

// failOptions are the possible answers to checks of a tenant over its quota.
func failOptions() []option {
	return []option{{tenants.FailClosed, "Deny them: 429 TENANT_QUOTA_EXCEEDED"}, {tenants.FailOpen, "Allow them"}}
}

// onChangeOptions are the values of on_change as options.
func onChangeOptions() []option {
	return []option{
		{tenants.OnChangeCarry, "Keep the usage"}, {tenants.OnChangeReset, "Reset the usage"}, {tenants.OnChangeScale, "Keep the used share of each limit, rounded up"},
	}
}

// reachText describes the number of subjects with the limits of a plan, which are those of its
// newest version.
func reachText(reach tenants.PlanReach, plan *tenants.Plan) string {
	it := " it"
	if plan.NewestVersion > 1 {
		it = " its newest version"
	}
	if plan.Default {
		it += ", and so does every subject that is not registered."
		return countText(reach.Subjects, "registered subject uses"+it, "registered subjects use"+it)
	}
	return countText(reach.Subjects, "subject uses"+it+".", "subjects use"+it+".")
}

func (d *dashboard) createPlan(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	plan := tenants.Plan{Slug: f.Get("slug"), Name: f.Get("name"), Description: f.Get("description"), OnChange: f.Get("on_change"), Fail: f.Get("fail")}
	plan.Bounds = readBounds(f, tenants.Bounds{})
	if f.invalid() {
		return d.showPlan(w, r, v, &planView{Form: f}, http.StatusUnprocessableEntity)
	}
	if like := f.Get("like"); like != "" {
		model, err := d.Store.PlanBySlug(r.Context(), v.actor(), like)
		if errors.Is(err, tenants.ErrNotFound) {
			f.wrong("like", oneOfTheList)
			return d.showPlan(w, r, v, &planView{Form: f}, http.StatusUnprocessableEntity)
		}
		if err != nil {
			return err
		}
		plan.Limits = maps.Clone(model.Limits)
	}
	made, err := d.Store.CreatePlan(r.Context(), v.actor(), plan)
	if err == nil {
		said := "Plan “" + nameOr(made.Name, made.Slug) + "” created. Set its limits."
		if made.Default {
			said = "Plan “" + nameOr(made.Name, made.Slug) + "” created. It is the default for every subject without a plan."
		}
		return d.done(w, r, "/plans", said)
	}
	status := f.refuse(err)
	if status == 0 {
		return err
	}
	return d.showPlan(w, r, v, &planView{Form: f}, status)
}

func (d *dashboard) editPlan(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := chi.URLParam(r, "plan")
	now, err := d.Store.PlanBySlug(r.Context(), v.actor(), slug)
	if err != nil {
		return err
	}
	bounds := readBounds(f, now.Bounds)
	if f.invalid() {
		return d.showPlan(w, r, v, &planView{Form: f, Slug: now.Slug, Version: f.version(now.Version)}, http.StatusUnprocessableEntity)
	}
	made, err := d.Store.EditPlan(r.Context(), v.actor(), slug, f.match(), func(p *tenants.Plan) error {
		p.Bounds = bounds
		p.Name, p.Description = f.Get("name"), strings.ReplaceAll(f.Get("description"), "\r\n", "\n")
		p.OnChange = nameOr(f.Get("on_change"), p.OnChange)
		p.Fail = nameOr(f.Get("fail"), p.Fail)
		return nil
	})
	if err == nil {
		return d.done(w, r, "/plans", "Plan “"+nameOr(made.Name, slug)+"” saved.")
	}
	return d.refusedPlan(w, r, v, f, &now, err)
}

// refusedPlan shows a plan's page again, with the errors of its form.
func (d *dashboard) refusedPlan(w http.ResponseWriter, r *http.Request, v *visit, f *form, now *tenants.Plan, err error) error {
	status := f.refuse(err)
	if status == 0 {
		return err
	}
	view := planView{Form: f, Slug: now.Slug, Version: f.version(now.Version)}
	if status == http.StatusPreconditionFailed {
		view.Version = now.Version
	}
	if !f.values.Has("name") { // it was another form of the page
		f.values.Set("name", now.Name)
		f.values.Set("description", now.Description)
	}
	return d.showPlan(w, r, v, &view, status)
}

// makeDefault makes the plan the default.
func (d *dashboard) makeDefault(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	return d.changePlan(w, r, v, f, func(now *tenants.Plan) (string, error) {
		_, err := d.Store.EditPlan(r.Context(), v.actor(), now.Slug, f.match(), func(p *tenants.Plan) error {
			p.Default = true
			return nil
		})
		return "Plan “" + nameOr(now.Name, now.Slug) + "” is now the default.", err
	})
}

func (d *dashboard) deletePlan(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	return d.changePlan(w, r, v, f, func(now *tenants.Plan) (string, error) {
		return "Plan “" + nameOr(now.Name, now.Slug) + "” deleted.", d.Store.DeletePlan(r.Context(), v.actor(), now.Slug, f.match())
	})
}

func (d *dashboard) changePlan(w http.ResponseWriter, r *http.Request, v *visit, f *form, change func(now *tenants.Plan) (string, error)) error {
	now, err := d.Store.PlanBySlug(r.Context(), v.actor(), chi.URLParam(r, "plan"))
	if err != nil {
		return err
	}
	said, err := change(&now)
	if err != nil {
		return d.refusedPlan(w, r, v, f, &now, err)
	}
	return d.done(w, r, "/plans", said)
}
