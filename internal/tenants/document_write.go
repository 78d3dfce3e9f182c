package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// writeRevision writes the changes of a document, all statements in one round trip. Everything was
// validated before. The change gets its number at the end, into numbered.
func (c *change) writeRevision(ctx context.Context, r *revision, numbered *int64) error {
	touched, err := c.partsOf(ctx, r)
	if err != nil {
		return err
	}
	version, err := c.nextAtEnd(ctx, touched)
	if err != nil {
		return err
	}
	c.taken = numbered
	queue := &queue{tx: c.tx}
	direct := c.Queries
	c.Queries, c.trail.queued = db.New(queue), true
	err = c.queueRevision(ctx, r, version)
	c.Queries, c.trail.queued = direct, false
	if err != nil {
		return err
	}
	if err := c.trail.readBefore(ctx, c.trail.touched...); err != nil {
		return err
	}
	return c.tx.SendBatch(ctx, &queue.batch).Close()
}

// partsOf returns which parts of the tenant instances have to load again.
func (c *change) partsOf(ctx context.Context, r *revision) (p parts, err error) {
	for _, made := range r.changes {
		switch made.Kind {
		case "tenant", "endpoint", "price", "portal":
			p.itself = true
		case "rule", "route", "plan", "plan_limit", "plan_version":
			p.policy = true
		case "subject", "override":
			p.subjects = true
		}
	}
	if p.subjects || len(r.goneRules) == 0 {
		return p, nil
	}
	ids := make([]uuid.UUID, len(r.goneRules))
	for i, rule := range r.goneRules {
		ids[i] = rule.ID
	}
	p.subjects, err = c.DocumentRulesOverridden(ctx, db.DocumentRulesOverriddenParams{TenantID: c.tenant, RuleIds: ids})
	return p, err
}

// queueRevision writes first what others refer to, then what refers to it, and deletes in the
// reverse order.
func (c *change) queueRevision(ctx context.Context, r *revision, version int64) error {
	var errs []error
	did := func(_ any, err error) { errs = append(errs, err) }
	do := func(err error) { errs = append(errs, err) }
	if *r.TenantName != r.before.tenant.Name {
		did(c.UpdateTenantName(ctx, db.UpdateTenantNameParams{ID: c.tenant, Name: *r.TenantName}))
	}
	for _, rule := range r.newRules {
		did(c.insertRule(ctx, rule.ID, rule.Rule, version))
	}
	for _, rule := range r.editedRules {
		did(c.UpdateRule(ctx, ruleParams(c.tenant, rule.ID, rule.Rule, version)))
	}
	for _, o := range r.newRoutes {
		did(c.insertRoute(ctx, o.ID, o.Route, version))
	}
	for _, o := range r.editedRoutes {
		did(c.UpdateRoute(ctx, routeParams(c.tenant, o.ID, o.Route, version)))
	}
	for _, o := range r.goneRoutes {
		do(c.DeleteRoute(ctx, db.DeleteRouteParams{TenantID: c.tenant, ID: o.ID}))
	}
	do(c.queuePlans(ctx, r, version))
	do(c.queueBilling(ctx, r, version))
	if r.newPortal != nil {
		did(c.writePortal(ctx, *r.newPortal, version))
	}
	do(c.queueNewSubjects(ctx, r, version))
	for _, s := range r.subjects {
		if s.old == nil {
			continue
		}
		do(c.queueSubject(ctx, r, s, version))
	}
	for _, s := range r.gone {
		do(c.removeSubject(ctx, s.Subject, version))
	}
	for _, old := range r.before.plans {
		if r.plans[old.Slug] == nil {
			do(c.DeletePlan(ctx, db.DeletePlanParams{TenantID: c.tenant, ID: old.ID}))
		}
	}
	for _, rule := range r.goneRules {
		do(c.removeRule(ctx, rule.ID, version))
	}
	return errors.Join(errs...)
}

func (c *change) queuePlans(ctx context.Context, r *revision, version int64) error {
	if r.goneDefault {
		if err := c.ClearDefaultPlan(ctx, db.ClearDefaultPlanParams{TenantID: c.tenant, Version: version}); err != nil {
			return err
		}
	}
	for i := range r.Plans {
		now := r.plans[r.Plans[i].Slug]
		before := Plan{ID: now.ID}
		var err error
		switch {
		case now.old == nil:
			_, err = c.insertPlan(ctx, now.ID, now.Plan, version)
		case now.edited || now.relimits:
			before = *now.old
			if now.NewestVersion > before.NewestVersion {
				if err := c.publish(ctx, &before, now.NewestVersion, version); err != nil {
					return err
				}
			}
			_, err = c.updatePlan(ctx, now.ID, now.Plan, version)
		default:
			continue
		}
		if err != nil {
			return err
		}
		after := now.Limits
		rules := r.rules
		if len(r.goneRules) > 0 { // their limits are deleted with them
			before.Limits = withoutRules(before.Limits, r.goneRules)
		}
		if err := c.writeLimits(ctx, before, after, rules, version); err != nil {
			return err
		}
		if err := c.putOlder(ctx, now.ID, now.kept, r.Plans[i].Older, rules); err != nil {
			return err
		}
	}
	return nil
}

func withoutRules(limits map[string]limit.Limit, gone []Rule) map[string]limit.Limit {
	out := make(map[string]limit.Limit, len(limits))
	for slug, lim := range limits {
		if !slices.ContainsFunc(gone, func(r Rule) bool { return r.Slug == slug }) {
			out[slug] = lim
		}
	}
	return out
}

// queueNewSubjects registers subjects with their overrides in few statements: there may be
// thousands, and a statement costs more than its row.
func (c *change) queueNewSubjects(ctx context.Context, r *revision, version int64) error {
	subjects := db.InsertSubjectsParams{TenantID: c.tenant, Version: version}
	overrides := db.InsertOverridesParams{TenantID: c.tenant, CreatedBy: c.actor.label(), Version: version}
	for _, s := range r.subjects {
		if s.old != nil {
			continue
		}
		labels, err := json.Marshal(labelsOf(s.Labels))
		if err != nil {
			return err
		}
		plan := uuid.Nil
		if s.Plan != "" {
			plan = r.plans[s.Plan].ID
		}
		subjects.Subjects, subjects.Ids = append(subjects.Subjects, s.Subject.Subject), append(subjects.Ids, newID())
		subjects.PlanVersions = append(subjects.PlanVersions, max(int32(s.PlanVersion), 1)) // a number of the database
		subjects.PlanIds, subjects.States = append(subjects.PlanIds, plan), append(subjects.States, s.State.String())
		subjects.Labels, subjects.BillingRefs = append(subjects.Labels, string(labels)), append(subjects.BillingRefs, s.BillingRef)
		subjects.CycleAnchors = append(subjects.CycleAnchors, timeText(anchorOf(s.CycleAnchor)))
		subjects.Multipliers = append(subjects.Multipliers, int32(s.multiplier()))
		for _, o := range s.put {
			overrides.Subjects = append(overrides.Subjects, s.Subject.Subject)
			overrides.RuleIds = append(overrides.RuleIds, r.rules[o.Rule].ID)
			overrides.Limits, overrides.Bursts = append(overrides.Limits, o.Limit.Limit), append(overrides.Bursts, o.Limit.Burst)
			overrides.Unlimited, overrides.Reasons = append(overrides.Unlimited, o.Limit.Unlimited), append(overrides.Reasons, o.Reason)
			overrides.StartsAt, overrides.ExpiresAt = append(overrides.StartsAt, timeText(o.StartsAt)), append(overrides.ExpiresAt, timeText(o.ExpiresAt))
		}
	}
	if len(subjects.Subjects) == 0 {
		return nil
	}
	err := c.DeleteTombstones(ctx, db.DeleteTombstonesParams{TenantID: c.tenant, Subjects: subjects.Subjects})
	if err != nil {
		return err
	}
	if err := c.InsertSubjects(ctx, subjects); err != nil || len(overrides.Subjects) == 0 {
		return err
	}
	return c.InsertOverrides(ctx, overrides)
}

// timeText returns the time, or "" for nil.
func timeText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

func (c *change) queueSubject(ctx context.Context, r *revision, s *revisedSubject, version int64) error {
	var plan *uuid.UUID
	if s.Plan != "" {
		plan = &r.plans[s.Plan].ID
	}
	var err error
	switch {
	case s.edited:
		_, err = c.updateSubject(ctx, s.Subject, plan, version)
	case len(s.put)+len(s.drop) > 0:
		err = c.StampSubject(ctx, db.StampSubjectParams{TenantID: c.tenant, Subject: s.Subject.Subject, Version: version})
	}
	if err != nil {
		return err
	}
	for _, o := range s.put {
		if _, err := c.upsertOverride(ctx, s.Subject.Subject, r.rules[o.Rule].ID, o, version); err != nil {
			return err
		}
	}
	for _, rule := range s.drop {
		err := c.DeleteOverride(ctx, db.DeleteOverrideParams{TenantID: c.tenant, Subject: s.Subject.Subject, RuleID: r.rules[rule].ID})
		if err != nil {
			return err
		}
	}
	return nil
}

// queue collects the statements that write instead of running them, so that functions that write
// one row can write thousands in one round trip. The results of such statements are not known.
// Statements that read are run immediately, and see the state before.
type queue struct {
	tx    pgx.Tx
	batch pgx.Batch
}

func (q *queue) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	q.batch.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

func (q *queue) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	_, body, _ := strings.Cut(sql, "\n") // after the line with the statement's name
	if strings.HasPrefix(body, "SELECT") {
		return q.tx.QueryRow(ctx, sql, args...)
	}
	q.batch.Queue(sql, args...)
	return unknownRow{}
}

func (q *queue) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return q.tx.Query(ctx, sql, args...) // only reads return rows: the writes here return one or none
}

func (q *queue) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	return q.tx.SendBatch(ctx, batch)
}

// unknownRow leaves the destinations of Scan unchanged.
type unknownRow struct{}

func (unknownRow) Scan(...any) error { return nil }
