package tenants

import (
	"cmp"
	"slices"
	"time"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// The comparison of lines with many labels takes as long as their decoding, so it has turns of the
// tenant, too. Other changes of the tenant wait for the transaction, so a turn is not waited for as
// long as elsewhere: a piece of the lines that has waited for lineWait is compared without one.
const (
	linePiece = 256 << 10 // bytes of labels and overrides, and lineCost for each line
	lineCost  = 256
	lineWait  = 100 * time.Millisecond
)

// pieceOf returns how many lines are compared in a turn, at least one.
func pieceOf(lines []SubjectLine) int {
	size := 0
	for i := range lines {
		if size += lineCost + len(lines[i].Labels) + lineCost*len(lines[i].Overrides); size > linePiece {
			return max(i, 1)
		}
	}
	return len(lines)
}

// compareLines compares lines with the registered subjects, and adds the differences to w.
func (m *subjectImport) compareLines(lines []SubjectLine, registered map[string]Subject, w *importWrites) {
	for i := range lines {
		l := &lines[i]
		if first := m.seen[l.Subject]; first != 0 {
			m.wrong.Add(l.Line, limit.FieldProblem("subject", limit.Wrong(limit.Duplicate.Fix, "is a duplicate of line %d", first)))
			continue
		}
		m.seen[l.Subject] = l.Line
		old, exists := registered[l.Subject]
		wrong := m.compare(l, old, exists, w)
		m.wrong.Add(l.Line, wrong...)
	}
}

// compare adds the differences between the line and the subject to w, and returns the line's
// errors.
func (m *subjectImport) compare(l *SubjectLine, old Subject, exists bool, w *importWrites) []limit.FieldError {
	wrong := l.Validate()
	if exists && m.mode.CreateOnly {
		wrong = append(wrong, limit.FieldProblem("subject", limit.Wrong("Remove the line, or import with mode=upsert.", "is already registered")))
	}
	if !exists {
		old = Subject{Subject: l.Subject}
	}
	now := l.over(old)
	plan := m.plans[now.Plan]
	switch {
	case now.Plan == "":
		if now.PlanVersion = 0; now.GivePlanVersion != 0 {
			wrong = append(wrong, limit.FieldProblem("plan_version", limit.Wrong("Send plan, too, or omit it.", "requires a plan")))
		}
	case plan == nil:
		wrong = append(wrong, limit.FieldProblem("plan", noSuchPlan))
	default:
		if p := plan.chooseVersion(&now, &old); p != nil {
			wrong = append(wrong, limit.FieldProblem("plan_version", p))
		}
	}
	if other := m.refs.taker(l.Subject, now.BillingRef, old.BillingRef); other != "" {
		wrong = append(wrong, limit.FieldProblem("billing_ref", refTaken(other)))
	}
	put, removed, more := m.compareOverrides(l, old)
	if wrong = append(wrong, more...); len(wrong) > 0 {
		return wrong
	}
	same := now.same(&old)
	ending := 0
	if exists && !now.sameLimits(&old) {
		ending = w.end(l, m.ending[l.Subject])
	}
	left := now.leaveMigration(&old)
	moved := now.followCycle(&old, m.now)
	switch {
	case !exists:
		m.counts.Created++
		w.created.add(now, plan)
		w.ids = append(w.ids, newID())
	case same && len(put)+len(removed) == 0:
		m.counts.Unchanged++
		return nil
	default:
		m.counts.Updated++
		w.changed.add(now, plan)
	}
	if left {
		w.left = append(w.left, now.Subject)
	}
	if moved {
		w.moved, w.movedTo = append(w.moved, now.Subject), append(w.movedTo, instantText(now.NextPlanAt))
	}
	row := importRow{old: old, now: now, exists: exists, overrides: len(put)+len(removed)+ending > 0}
	for _, o := range put {
		w.put(l.Subject, m.rules[o.Rule].ID, o)
		row.reason = cmp.Or(o.Reason, row.reason)
	}
	w.rows = append(w.rows, row)
	for _, rule := range removed {
		w.removedFrom, w.removedRules = append(w.removedFrom, l.Subject), append(w.removedRules, m.rules[rule].ID)
	}
	return nil
}

// end deletes the overrides that end with the plan of the line's subject, except for those that the
// line mentions, and returns how many.
func (w *importWrites) end(l *SubjectLine, ending []db.CustomersOverridesRow) (n int) {
	for _, o := range ending {
		if !slices.ContainsFunc(l.Overrides, func(given OverrideLine) bool { return given.Rule == o.Rule }) {
			w.removedFrom, w.removedRules = append(w.removedFrom, l.Subject), append(w.removedRules, o.RuleID)
			n++
		}
	}
	return n
}

// compareOverrides returns the overrides of a line that the subject does not have, and the rules
// whose overrides are deleted.
func (m *subjectImport) compareOverrides(l *SubjectLine, old Subject) (put []Override, removed []string, wrong []limit.FieldError) {
	for _, given := range l.Overrides {
		o, at := given.Override, "overrides."+given.Rule
		r, known := m.rules[o.Rule]
		if !known {
			wrong = append(wrong, limit.FieldProblem(at, noSuchRule))
			continue
		}
		o.StartsAt, o.ExpiresAt = stored(o.StartsAt), stored(o.ExpiresAt)
		before, has := old.override(o.Rule)
		switch {
		case given.Remove:
			if has {
				removed = append(removed, o.Rule)
			}
			continue
		case has && before.same(o): // an expired override may stay in a file
			continue
		}
		wrong = append(wrong, prefixed(at+".", append(o.Limit.Validate(&r.Rule), o.validate(m.now)...))...)
		put = append(put, o)
	}
	return put, removed, wrong
}
