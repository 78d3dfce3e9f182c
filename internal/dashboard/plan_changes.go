package dashboard

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// Changes of a subject's plan: now, at a time or at the end of the subject's cycle. The page of the
// subject and the list of what is to come on the page Plans cancel them.

// The choices of the form of when the plan changes.
const (
	changeNow      = "now"
	changeCycleEnd = "cycle_end"
	changeAt       = "at"
)

// cancelReason is the reason in the audit trail of a change that was cancelled with a button.
const cancelReason = "The scheduled change was cancelled"

// planChangeTimes are the choices of the form.
func planChangeTimes() []option {
	return []option{{changeNow, "Now"}, {changeCycleEnd, "At the end of the subject's cycle"}, {changeAt, "At a time"}}
}

// undoSchedule are the fields of the form that schedules a change again.
func undoSchedule(before *tenants.Subject) []string {
	fields := []string{"do", "plan", "plan", before.NextPlan, "reason", undoReason}
	if before.NextPlanAtCycleEnd {
		return append(fields, "when", changeCycleEnd)
	}
	return append(fields, "when", changeAt, "next_plan_at", before.NextPlanAt.UTC().Format(time.RFC3339Nano))
}

// changeTime reads when a form changes the plan; cycleEnd: at the end of the cycle; nil and false:
// now.
func (s *subjectChange) changeTime() (at *time.Time, cycleEnd bool) {
	at = s.instant("next_plan_at")
	switch when := s.Get("when"); {
	case when == changeCycleEnd:
		return nil, true
	case when == changeAt && s.Get("next_plan_at") == "":
		s.wrong("next_plan_at", limit.Wrong("Enter a time, or choose another moment.", "is required for a change at a time"))
	case when == changeNow && s.Get("next_plan_at") != "":
		s.wrong("when", limit.Wrong("Choose “At a time”, or clear the time.", "must be “At a time” if there is a time"))
	}
	return at, false
}

func (d *dashboard) planSubject(ctx context.Context, s *subjectChange) (string, error) {
	plan := s.Get("plan")
	at, cycleEnd := s.changeTime()
	later := at != nil || cycleEnd
	if later && plan == "" {
		s.wrong("plan", limit.Wrong("Choose a plan, or clear the time.", "must be a plan for a change at a later time"))
	}
	if s.invalid() {
		return "", nil
	}
	var before tenants.Subject
	err := d.editSubject(ctx, s, tenants.Match{}, func(in *tenants.Subject) error {
		before = *in
		switch {
		case later:
			if cycleEnd {
				end := tenants.CycleEnd(in.CycleAnchor, s.visit.now)
				at = &end
			}
			in.NextPlan, in.NextPlanAt, in.NextPlanAtCycleEnd = plan, at, cycleEnd
		default:
			in.Plan, in.NextPlan, in.NextPlanAt = plan, "", nil
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	plans := d.planNames(ctx, s.visit.actor())
	name := nameOr(plans.Of(plan), "the default plan")
	scheduled := before.NextPlanAt != nil
	switch {
	case later:
		s.undo = nil
		if scheduled {
			s.undo = undoSchedule(&before)
		}
		return "Plan of " + s.subject + " changes to " + name + " at " + spoken(*at, "minute") + ".", nil
	case before.Plan == plan && scheduled:
		s.undo = undoSchedule(&before)
		return "The change of " + s.subject + " to " + plans.Of(before.NextPlan) + " is cancelled. The plan stays " + name + ".", nil
	case before.Plan == plan:
		return s.subject + " has " + planWords(name) + " already. Nothing changed.", nil
	case scheduled:
		return "Plan of " + s.subject + " changed to " + name + ". The scheduled change to " + plans.Of(before.NextPlan) + " is cancelled.", nil
	}
	s.undo = []string{"do", "plan", "plan", before.Plan, "reason", undoReason}
	return "Plan of " + s.subject + " changed to " + name + ".", nil
}

// planWords returns the name of a plan in a sentence.
func planWords(name string) string {
	if strings.HasPrefix(name, "the ") {
		return name
	}
	return "the plan " + name
}

// cancelPlan cancels the scheduled change of a subject, if there still is one.
func (d *dashboard) cancelPlan(ctx context.Context, s *subjectChange) (string, error) {
	var before tenants.Subject
	_, err := d.Store.EditSubject(ctx, s.visit.actor(), s.subject, tenants.Match{}, func(in *tenants.Subject) error {
		before = *in
		in.NextPlan, in.NextPlanAt = "", nil
		return nil
	})
	if err != nil {
		return "", err
	}
	if before.NextPlanAt == nil {
		return "No change of the plan of " + s.subject + " is scheduled any more.", nil
	}
	s.undo = undoSchedule(&before)
	return "The change of " + s.subject + " to " + d.planNames(ctx, s.visit.actor()).Of(before.NextPlan) + " is cancelled.", nil
}

// cancelPlanChange cancels a change in the list of those to come.
func (d *dashboard) cancelPlanChange(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	change := &subjectChange{form: f, visit: v, subject: f.Get("subject")}
	said, err := d.cancelPlan(tenants.WithReason(r.Context(), cancelReason), change)
	if err != nil {
		return err
	}
	if change.undo == nil {
		return d.done(w, r, "/plans", said)
	}
	return d.doneWith(w, r, "/plans", said, newUndo(subjectURL(change.subject), change.undo...))
}

// planEventPath returns the address of a billing event that changes a plan later; "" for none.
func planEventPath(event uuid.UUID) string {
	if event == uuid.Nil {
		return ""
	}
	return billingEventsPath + "?pick=" + event.String()
}

// overView is what a subject would be over if its plan changed now.
type overView struct {
	Plan    string
	Over    []string
	Unknown bool
}

// foreseeSubject compares the counters of a subject with the limits of a plan, as a part of
// its page.
func (d *dashboard) foreseeSubject(w http.ResponseWriter, r *http.Request, v *visit, subject string) error {
	view := overView{}
	plan, names := r.URL.Query().Get("plan"), d.planNames(r.Context(), v.actor())
	if names[plan] != "" {
		policy, err := d.Policies.Get(r.Context(), v.actor().TenantID())
		if err != nil {
			return err
		}
		foreseen, err := d.foreseeOne(r.Context(), policy, v.actor().TenantID(), plan, subject)
		if err != nil {
			return err
		}
		view.Plan = names.Of(plan)
		view.Over, view.Unknown = overWords(foreseen, d.ruleNames(r.Context(), v.actor().TenantID()))
	}
	return d.render(w, r, http.StatusOK, planOver(view))
}

// foreseeOne compares the counters of one subject. With 1000 rules it reads 2000 of them, so it has
// a place among previews.
func (d *dashboard) foreseeOne(ctx context.Context, policy *check.Policy, tenant uuid.UUID, plan, subject string) (check.Foresight, error) {
	end, err := d.Checker.BeginPreview(ctx, tenant)
	if err != nil {
		return check.Foresight{}, err
	}
	defer end()
	return d.Checker.Foresee(ctx, policy, check.PlanChange{Plan: plan}, []string{subject}), nil
}

// overWords says which limits a subject would be over.
func overWords(f check.Foresight, rules ruleNames) (over []string, unknown bool) {
	for _, o := range f.Over {
		over = append(over, rules.Of(o.Rule)+": "+grouped(o.Used)+" used, "+grouped(o.Limit)+" → "+grouped(o.NewLimit))
	}
	return over, f.Degraded
}
