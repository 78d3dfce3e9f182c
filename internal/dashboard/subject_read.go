package dashboard

import (
	"context"
	"errors"
	"slices"
	"strings"

	"weir/internal/tenants"
)

// lookFor finds out whether an unregistered subject without usage was ever seen, and otherwise
// which similar one may be meant.
func (d *dashboard) lookFor(ctx context.Context, v *visit, view *subjectView) error {
	if view.Registered || slices.ContainsFunc(view.Limits, func(l limitView) bool { return l.Used() > 0 && !l.Unlimited && !l.Uncounted }) {
		return nil
	}
	seen, err := d.seenSubjects(ctx, v.actor())
	if err != nil {
		return err
	}
	if view.Unseen = !slices.ContainsFunc(seen, func(s seenSubject) bool { return s.Name == view.Subject }); view.Unseen {
		view.Meant = similar(seen, view.Subject)
	}
	return nil
}

// mostNextPlans is the maximum number of scheduled plan changes on the page of a subject.
const mostNextPlans = 10

// readSubject reads the stored subject into its view.
func (d *dashboard) readSubject(ctx context.Context, v *visit, view *subjectView) error {
	registered, err := d.Store.SubjectByName(ctx, v.actor(), view.Subject)
	switch {
	case err == nil:
		view.Registered, view.OwnPlan, view.Version = true, registered.Plan, registered.Version
		view.CycleAnchor, view.NextPlanAt = registered.CycleAnchor, registered.NextPlanAt
		view.BillingRef, view.Labels, view.LabelLines = registered.BillingRef, labelTexts(registered.Labels), labelLines(registered.Labels)
		for _, o := range registered.Overrides {
			view.Overrides = append(view.Overrides, overrideViewOf(&o, v))
		}
	case !errors.Is(err, tenants.ErrNotFound):
		return err
	}
	if view.Next, err = d.Store.ScheduledPlansOf(ctx, v.actor(), view.Subject, mostNextPlans); err != nil {
		return err
	}
	if view.Grace, err = d.Store.GracePeriodsOf(ctx, v.actor(), view.Subject); err != nil {
		return err
	}
	if view.Credits, err = d.readCredits(ctx, v, view.Subject); err != nil {
		return err
	}
	if view.Plans, err = d.planOptions(ctx, v, "Default plan"); err != nil {
		return err
	}
	view.Denied, view.Watching, view.AllDenied = d.recentDenials(ctx, v.actor().TenantID(), view.Subject, mostSubjectDenied, view.plans)
	entries, _, err := d.Store.Audit(ctx, v.actor(), tenants.AuditFilter{Kind: "subject", Target: view.Subject}, tenants.Page{Limit: mostSubjectAudit, Fields: sentenceFields})
	names := d.ruleNames(ctx, v.actor().TenantID())
	if len(entries) > 0 {
		view.Freed = entries[0].At
	}
	if busy := d.turns.do(ctx, v.actor().TenantID(), func() { view.tell(entries, names) }); busy != nil {
		return busy
	}
	return err
}

// tell adds entries about the subject in words.
func (view *subjectView) tell(entries []tenants.AuditEntry, names ruleNames) {
	for i := range entries {
		e := &entries[i]
		what := subjectVerb(e, changesOf(e), names, view.plans)
		if what == "" {
			what = auditVerb(e)
			if what == "registered" || what == "changed" { // the name does not follow here
				what += " this subject"
			}
		}
		view.Trail = append(view.Trail, trailLine{At: moment{e.At}, Who: e.ActorName, What: strings.TrimSuffix(strings.TrimSuffix(what, " for"), " of"), Reason: e.Reason})
	}
}

// readDenied reads what the badge of the page needs: the latest denials, and when somebody changed
// the subject since.
func (d *dashboard) readDenied(ctx context.Context, v *visit, view *subjectView) error {
	view.Denied, view.Watching, _ = d.recentDenials(ctx, v.actor().TenantID(), view.Subject, 1, view.plans)
	if len(view.Denied) == 0 || v.now.Sub(view.Denied[0].last) >= limitedFor {
		return nil
	}
	entries, _, err := d.Store.Audit(ctx, v.actor(), tenants.AuditFilter{Kind: "subject", Target: view.Subject}, tenants.Page{Limit: 1})
	if len(entries) > 0 {
		view.Freed = entries[0].At
	}
	return err
}

// mostSubjectDenied is how many recent denials a subject's page shows.
const mostSubjectDenied = 50

// mostSubjectAudit is how many rows of the trail a subject's page shows.
const mostSubjectAudit = 20

// labelLines returns the labels in the form for editing: one per line.
func labelLines(labels map[string]string) string { return strings.Join(labelTexts(labels), "\n") }
