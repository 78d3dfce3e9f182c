package tenants

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
)

// importRow is a subject that an import registers or changes, for the trail.
type importRow struct {
	old, now  Subject // without their overrides
	exists    bool    // old does
	overrides bool    // some overrides change
	reason    string  // of an override
}

// write writes a batch, and a row of the trail for each subject that it registers or changes. The
// trail of 200 000 subjects is too large to keep in memory until the end of the import, so it is
// written batch by batch, and the import's own row last.
//
// The import already knows the fields of a subject, except for its overrides. Reading them again,
// before and after, would take longer than writing them.
func (m *subjectImport) write(ctx context.Context, w *importWrites) error {
	if len(w.rows) == 0 {
		return nil
	}
	t := newTrail(m.trail.queries, m.tenant)
	for i := range w.rows {
		if r := &w.rows[i]; r.overrides {
			t.record(auditSubject, r.now.Subject, !r.exists)
		}
	}
	if err := t.readBefore(ctx, t.touched...); err != nil {
		return err
	}
	if err := w.run(ctx, m.change); err != nil {
		return err
	}
	names := make([]string, len(t.touched))
	for i, o := range t.touched {
		names[i] = o.id
	}
	after, err := auditObjects(ctx, t.queries, t.tenant, auditSubject, names)
	if err != nil {
		return err
	}
	rows := make([]auditRow, len(w.rows))
	for i := range w.rows {
		r := &w.rows[i]
		o, now := &touched{}, auditObject{r.now.Subject, r.now.auditFields()}
		switch {
		case r.overrides:
			o, now = t.index[auditName{auditSubject, r.now.Subject}], after[r.now.Subject]
		case r.exists:
			o.before = r.old.auditFields()
		}
		o.kind, o.reason = auditSubject, r.reason
		if rows[i], err = o.row(now); err != nil {
			return err
		}
	}
	return appendAudit(ctx, m.Queries, m.tenant, m.actor, m.now, m.auditDay, rows)
}

// auditFields returns what the query AuditSubjects returns for a subject without overrides.
func (s *Subject) auditFields() auditFields {
	fields := auditFields{"subject": quoted(s.Subject), "state": quoted(s.State.String())}
	if s.Plan != "" {
		fields["plan"] = quoted(s.Plan)
	}
	if s.PlanVersion > 1 {
		fields["plan_version"] = json.RawMessage(strconv.Itoa(s.PlanVersion))
	}
	if s.multiplier() > 1 {
		fields["multiplier"] = json.RawMessage(strconv.Itoa(s.Multiplier))
	}
	if s.migration != nil {
		fields["migration"] = quoted(s.migration.String())
	}
	if s.BillingRef != "" {
		fields["billing_ref"] = quoted(s.BillingRef)
	}
	if s.NextPlan != "" {
		fields["next_plan"] = quoted(s.NextPlan)
		fields["next_plan_at"] = quoted(stored(s.NextPlanAt).Format("2006-01-02T15:04:05.999999-07:00"))
		if s.NextPlanAtCycleEnd {
			fields["next_plan_at_cycle_end"] = json.RawMessage("true")
		}
	}
	if s.CycleAnchor != nil { // as Postgres writes an instant in JSON
		fields["cycle_anchor"] = quoted(anchorOf(s.CycleAnchor).Format("2006-01-02T15:04:05.999-07:00"))
	}
	if len(s.Labels) > 0 {
		fields["labels"] = json.RawMessage(PackLabels(s.Labels))
	}
	return fields
}

func quoted(text string) json.RawMessage {
	encoded, err := json.Marshal(text)
	if err != nil {
		panic(fmt.Sprintf("tenants: a text cannot be written as JSON: %v", err))
	}
	return encoded
}
