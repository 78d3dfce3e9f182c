package tenants

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir/internal/limit"
)

// Registered subjects and their overrides in a document.

func (c *change) reviseSubjects(ctx context.Context, r *revision) error {
	if slices.ContainsFunc(r.Subjects, func(in Subject) bool { return limit.ValidName(in.Subject) != nil }) {
		r.Subjects = nil // they have errors already, and Postgres could not store them
	}
	if r.Subjects == nil {
		return nil
	}
	var names []string // nil: all
	if !r.prune {
		names = make([]string, len(r.Subjects))
		for i := range r.Subjects {
			names[i] = r.Subjects[i].Subject
		}
	}
	stored, err := readSubjects(ctx, c.Queries, c.tenant, names)
	if errors.Is(err, errLargeSubjects) {
		r.wrong("subjects", limit.Wrong("Apply a part of them at a time, without prune.", "cannot be compared: the stored ones have "+largeSubjects))
		return nil
	} else if err != nil {
		return err
	}
	if len(stored) > MaxDocumentSubjects {
		r.wrong("subjects", limit.Wrong("Apply the document without prune, or delete subjects one by one.", "cannot be pruned: the tenant has more than %d", MaxDocumentSubjects))
		return nil
	}
	old := make(map[string]*Subject, len(stored))
	for i := range stored {
		old[stored[i].Subject] = &stored[i]
	}
	for i := range r.Subjects {
		in := &r.Subjects[i]
		c.reviseSubject(r, i, old[in.Subject])
		delete(old, in.Subject)
	}
	if r.prune {
		for _, name := range slices.Sorted(maps.Keys(old)) {
			r.gone = append(r.gone, *old[name])
			r.remove("subject", name, ", with its overrides", subjectFields(old[name], true))
		}
	}
	return nil
}

// reviseSubject computes the changes of a subject; old is nil if it is not registered.
func (c *change) reviseSubject(r *revision, i int, old *Subject) {
	at := fmt.Sprintf("subjects.%d.", i)
	now := &revisedSubject{Subject: r.Subjects[i], old: old}
	r.subjects = append(r.subjects, now)
	if now.Plan != "" && (r.plans[now.Plan] == nil) {
		r.wrong(at+"plan", noSuchPlan)
	} else if now.Plan != "" {
		if p := r.plans[now.Plan].chooseVersion(&now.Subject, old); p != nil {
			r.wrong(at+"plan_version", p)
		}
	}
	if old != nil {
		now.migration = old.migration
		now.NextPlan, now.NextPlanAt, now.NextPlanAtCycleEnd = old.NextPlan, old.NextPlanAt, old.NextPlanAtCycleEnd // not part of a document
		now.leaveMigration(old)
		now.followCycle(old, c.now)
		now.edited = r.update("subject", now.Subject.Subject, subjectFields(old, false), subjectFields(&now.Subject, false))
	}
	slices.SortFunc(now.Overrides, func(a, b Override) int { return cmp.Compare(a.Rule, b.Rule) })
	named := map[string]bool{}
	for _, o := range now.Overrides {
		named[o.Rule] = true
		c.reviseOverride(r, now, at+"overrides."+o.Rule, o)
	}
	if old == nil {
		r.create("subject", now.Subject.Subject, "", subjectFields(&now.Subject, true))
		return
	}
	for _, o := range old.Overrides {
		_, stays := r.rules[o.Rule]
		pruned := r.prune && now.Overrides != nil && !o.over(c.now)
		ends := o.ofCustomer() && !now.sameLimits(old)
		if stays && !named[o.Rule] && (pruned || ends) {
			now.drop = append(now.drop, o.Rule)
			r.remove("override", now.Subject.Subject+"/"+o.Rule, "", overrideFields(o))
		}
	}
}

func (c *change) reviseOverride(r *revision, now *revisedSubject, at string, o Override) {
	rule, exists := r.rules[o.Rule]
	if !exists {
		r.wrong(at, noSuchRule)
		return
	}
	o.StartsAt, o.ExpiresAt = stored(o.StartsAt), stored(o.ExpiresAt)
	var before Override
	had := false
	if now.old != nil {
		before, had = now.old.override(o.Rule)
	}
	same := had && before.same(o)
	if _, renumbered := r.renumbered[o.Rule]; !same || renumbered {
		r.problems = append(r.problems, prefixed(at+".", o.Limit.Validate(&rule.Rule))...)
	}
	if same { // an expired override may be in a document if the tenant has exactly this one
		return
	}
	r.problems = append(r.problems, prefixed(at+".", o.validate(c.now))...)
	now.put = append(now.put, o)
	switch {
	case now.old == nil: // part of the created subject
	case !had:
		r.create("override", now.Subject.Subject+"/"+o.Rule, "", overrideFields(o))
	default:
		r.update("override", now.Subject.Subject+"/"+o.Rule, overrideFields(before), overrideFields(o))
	}
}

// enoughProblems is from how many problems of a document on no more overrides are compared: there
// can be a million.
const enoughProblems = 100

// checkKeptOverrides refuses a change of a rule that would make an override invalid that is not in
// the document.
func (c *change) checkKeptOverrides(ctx context.Context, r *revision) error {
	for _, slug := range slices.Sorted(maps.Keys(r.renumbered)) {
		but := []string{}
		for _, s := range r.gone {
			but = append(but, s.Subject)
		}
		for _, s := range r.subjects {
			if _, given := s.override(slug); given || slices.Contains(s.drop, slug) {
				but = append(but, s.Subject.Subject)
			}
		}
		rule := r.rules[slug]
		err := c.overrideNumbers(ctx, rule.ID, but, func(l limit.Limit, subject string, _ int64) (more bool) {
			r.misfit(slug, "subject "+subject, l.Validate(&rule.Rule))
			return len(r.problems) < enoughProblems
		})
		if err != nil {
			return err
		}
	}
	return nil
}
