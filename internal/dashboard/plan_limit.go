package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// A cell of the matrix is changed in two steps: the limit, then its impact and the confirmation.
// Each step is a page; for a script it is a piece of the matrix.

type limitForm struct {
	Form                         *form
	Path, Plan, PlanName         string
	Rule, RuleName, RuleSentence string
	Algorithm                    limit.Algorithm
	Version                      int64  // of the plan
	Now                          string // the limit that applies now
	Own                          bool   // it is the plan's own
	Default                      string // the rule's own limit
	Overage                      bool   // the rule's algorithm can count an excess
	RuleWarns                    string // the share at which the rule itself warns, ""
}

// Kinds returns the possible contents of a cell.
func (v *limitForm) Kinds() []option {
	return []option{{"number", "Limit"}, {"unlimited", "Unlimited"}, {"default", "Limit of the rule: " + v.Default}}
}

// BurstLabel returns the label of the burst.
func (v *limitForm) BurstLabel() string { return burstLabel(v.Algorithm) }

// limitInputs are the inputs of a cell's form.
var limitInputs = []string{"kind", "limit", "burst", "warn_at", "overage", "metering"}

// Overages returns the choices for the overage of a plan's limit; none if the rule can have none.
func (v *limitForm) Overages() []option {
	if !v.Overage {
		return nil
	}
	return append([]option{{"", labelOf("overage") + ": as the rule says"}}, prefixed(labelOf("overage")+": ", choicesOf("overage"))...)
}

// More reports whether one of the rarely needed fields is in use.
func (v *limitForm) More() bool {
	for _, name := range []string{"warn_at", "overage", "metering"} {
		if v.Form.Or(name, "") != "" || v.Form.Error(name) != "" {
			return true
		}
	}
	return false
}

// Meterings returns the choices for the metering of a plan's limit.
func (v *limitForm) Meterings() []option {
	return append([]option{{"", labelOf("metering") + ": as the rule says"}}, prefixed(labelOf("metering")+": ", choicesOf("metering"))...)
}

func prefixed(prefix string, options []option) []option {
	for i := range options {
		options[i].Name = prefix + strings.ToLower(options[i].Name)
	}
	return options
}

// WarnHint explains the share of a warning, with that of the rule.
func (v *limitForm) WarnHint() string {
	if v.RuleWarns != "" {
		return "Optional. A share of the limit, such as 0.8. The rule’s own is " + v.RuleWarns + "."
	}
	return limit.FieldNamed("warn_at").Hint
}

// cell is the plan and the rule of a request.
type cell struct {
	plan tenants.Plan
	rule tenants.Rule
}

func (d *dashboard) cellOf(r *http.Request, v *visit) (c cell, err error) {
	if c.plan, err = d.Store.PlanBySlug(r.Context(), v.actor(), chi.URLParam(r, "plan")); err != nil {
		return c, err
	}
	c.rule, err = d.Store.RuleBySlug(r.Context(), v.actor(), chi.URLParam(r, "rule"))
	return c, err
}

// number returns the limit that applies now, and whether it is the plan's own.
func (c *cell) number() (limit.Limit, bool) {
	lim, own := c.plan.Limits[c.rule.Slug]
	if !own {
		lim = ownLimit(&c.rule.Rule)
	}
	return lim, own
}

func (c *cell) view(f *form) *limitForm {
	lim, own := c.number()
	warns := ""
	if c.rule.WarnAt != 0 {
		warns = c.rule.WarnAt.Percent()
	}
	return &limitForm{
		RuleWarns: warns, Overage: limit.FieldNamed("overage").Applies(&c.rule.Rule),
		Form: f, Path: limitURL(c.plan.Slug, c.rule.Slug), Plan: c.plan.Slug, PlanName: nameOr(c.plan.Name, c.plan.Slug),
		Rule: c.rule.Slug, RuleName: nameOr(c.rule.Name, c.rule.Slug), RuleSentence: ruleSentence(&c.rule.Rule),
		Algorithm: c.rule.Algorithm, Version: f.version(c.plan.Version), Now: limitText(&c.rule.Rule, lim), Own: own,
		Default: limitText(&c.rule.Rule, ownLimit(&c.rule.Rule)),
	}
}

// asked reads the limit of a form; nil is the rule's own. Errors are added to the form.
func (c *cell) asked(f *form) *limit.Limit {
	var lim limit.Limit
	switch f.Get("kind") {
	case "default":
		return nil
	case "unlimited":
		lim.Unlimited = true
	case "number":
		lim.Limit = f.integer("limit")
		if c.rule.Algorithm.Bucket() && f.Get("burst") != "" {
			if lim.Burst = f.integer("burst"); lim.Burst < 1 {
				f.wrong("burst", limit.MustBe("a whole number from 1 to %s", grouped(limit.MaxLimit)))
			}
		}
		if name := f.Get("overage"); name != "" {
			lim.Overage = choice(f, "overage", limit.ParseOverage)
		}
		if share := f.share("warn_at"); share != nil {
			var err error
			if lim.WarnAt, err = limit.PortionOf(*share); err != nil {
				f.wrong("warn_at", limit.ProblemOf(err))
			}
		}
	default:
		f.wrong("kind", limit.MustBe("one of the choices"))
	}
	if f.Get("metering") != "" {
		lim.Metering = choice(f, "metering", limit.ParsePlanMetering)
	}
	for _, e := range lim.Validate(&c.rule.Rule) {
		f.add(e)
	}
	return &lim
}

func (c *cell) textOf(to *limit.Limit) string {
	if to == nil {
		return limitText(&c.rule.Rule, ownLimit(&c.rule.Rule))
	}
	return limitText(&c.rule.Rule, *to)
}

func (d *dashboard) limitPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	if !v.actor().May(tenants.MayEdit) {
		return tenants.ErrForbidden
	}
	c, err := d.cellOf(r, v)
	if err != nil {
		return err
	}
	lim, own := c.number()
	f := &form{values: url.Values{"kind": {"number"}, "limit": {numberOrNone(lim.Limit)}, "burst": {numberOrNone(lim.Burst)}}}
	if own && lim.WarnAt != 0 { // otherwise the rule's applies, which the plan need not repeat
		f.values.Set("warn_at", plainText(*lim.WarnAt.Value()))
	}
	if own {
		f.values.Set("overage", lim.Overage.String())
		f.values.Set("metering", lim.Metering.String())
	}
	switch {
	case lim.Unlimited:
		f.values.Set("kind", "unlimited")
	case !own && !isFragment(r): // a cell that is opened in the matrix will get its own limit
		f.values.Set("kind", "default")
	}
	if isFragment(r) {
		return d.render(w, r, http.StatusOK, limitCell(v.frame, c.view(f)))
	}
	return d.showLimit(w, r, v, &c, f, http.StatusOK)
}

func (d *dashboard) showLimit(w http.ResponseWriter, r *http.Request, v *visit, c *cell, f *form, status int) error {
	view := c.view(f)
	if status == http.StatusPreconditionFailed {
		view.Version = c.plan.Version
	}
	if isFragment(r) {
		return d.render(w, r, status, limitProblem(f))
	}
	v.frame.Title = view.PlanName + ": " + view.RuleName
	return d.render(w, r, status, limitPage(v.frame, view))
}

// previewLimit shows the impact of a limit, with a button to save it.
func (d *dashboard) previewLimit(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	c, err := d.cellOf(r, v)
	if err != nil {
		return err
	}
	to := c.asked(f)
	if f.invalid() {
		return d.showLimit(w, r, v, &c, f, http.StatusUnprocessableEntity)
	}
	impact, err := d.impactOf(r.Context(), v, &c, to)
	if err != nil {
		return err
	}
	if isFragment(r) {
		return d.render(w, r, http.StatusOK, impactPanel(v.frame, c.view(f), impact))
	}
	v.frame.Title = "Preview"
	return d.render(w, r, http.StatusOK, impactPage(v.frame, c.view(f), impact))
}

func (d *dashboard) saveLimit(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	c, err := d.cellOf(r, v)
	if err != nil {
		return err
	}
	to := c.asked(f)
	if f.invalid() {
		return d.showLimit(w, r, v, &c, f, http.StatusUnprocessableEntity)
	}
	if to != nil {
		_, _, err = d.Store.PutPlanLimit(r.Context(), v.actor(), c.plan.Slug, c.rule.Slug, *to, f.match())
	} else if _, own := c.number(); own {
		err = d.Store.DeletePlanLimit(r.Context(), v.actor(), c.plan.Slug, c.rule.Slug, f.match())
	}
	switch status := f.refuse(err); {
	case err == nil:
		name := nameOr(c.plan.Name, c.plan.Slug)
		return d.done(w, r, "/plans", nameOr(c.rule.Name, c.rule.Slug)+" in plan "+name+" set to "+c.textOf(to)+".")
	case errors.Is(err, tenants.ErrPreconditionFailed):
		f.problem = "Somebody else changed this plan after you opened it. The form holds your limit: save it again to replace theirs."
		return d.showLimit(w, r, v, &c, f, status)
	case status != 0:
		return d.showLimit(w, r, v, &c, f, status)
	}
	return err
}
