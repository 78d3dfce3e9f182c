package tenants

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// Rule is a stored rule.
type Rule struct {
	limit.Rule
	ID        uuid.UUID
	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
}

// RuleFilter selects the rules that meet all of its conditions.
type RuleFilter struct {
	Resource  string          // the pattern, exactly; "": any
	Algorithm limit.Algorithm // 0: any
	Mode      *limit.Mode     // nil: any
	Prefix    string          // what the slug or the name begins with; "": any
}

// CreateRule creates a rule. Errors: *InvalidError; *ConflictError with CodeSlugTaken.
func (s *Store) CreateRule(ctx context.Context, a Actor, r limit.Rule) (Rule, error) {
	if err := invalidIf(r.Validate()); err != nil {
		return Rule{}, err
	}
	var out Rule
	err := s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		switch _, err := c.rule(ctx, r.Slug); {
		case err == nil:
			conflict := uniqueConflicts["rules_tenant_id_slug_key"]
			return &conflict
		case !errors.Is(err, ErrNotFound):
			return err
		}
		var err error
		out, err = c.createRule(ctx, r)
		return err
	})
	return out, err
}

// PutRule creates a rule or replaces the one with its slug; created reports which. Errors:
// *InvalidError, ErrPreconditionFailed.
func (s *Store) PutRule(ctx context.Context, a Actor, r limit.Rule, m Match) (out Rule, created bool, err error) {
	if err := invalidIf(r.Validate()); err != nil {
		return Rule{}, false, err
	}
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := c.rule(ctx, r.Slug)
		switch {
		case errors.Is(err, ErrNotFound):
			if err := m.missing(); err != nil {
				return err
			}
			created = true
			out, err = c.createRule(ctx, r)
			return err
		case err != nil:
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		out, err = c.replaceRule(ctx, old, r)
		return err
	})
	return out, created && err == nil, err
}

// EditRule calls edit to change the rule; an error of edit is returned unchanged and nothing
// changes. Errors: ErrNotFound, ErrPreconditionFailed, *InvalidError (also for another slug).
func (s *Store) EditRule(ctx context.Context, a Actor, slug string, m Match, edit func(*limit.Rule) error) (out Rule, err error) {
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := c.rule(ctx, slug)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		r := old.Rule
		r.By = append([]string{}, old.By...)
		if err := edit(&r); err != nil {
			return err
		}
		if r.Slug != old.Slug {
			return invalid("slug", isFixed("rule"))
		}
		out, err = c.replaceRule(ctx, old, r)
		return err
	})
	return out, err
}

// RuleBySlug returns a rule, or ErrNotFound.
func (s *Store) RuleBySlug(ctx context.Context, a Actor, slug string) (out Rule, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = readRule(ctx, q, a.tenant, slug)
		return err
	})
	return out, err
}

// Rules lists rules, newest first, and returns where the next page begins, "" at the end.
func (s *Store) Rules(ctx context.Context, a Actor, f RuleFilter, p Page) (out []Rule, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	var mode string
	if f.Mode != nil {
		mode = f.Mode.String()
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		found, err := q.ListRules(ctx, db.ListRulesParams{
			TenantID: a.tenant, After: after, Resource: f.Resource, Algorithm: f.Algorithm.String(), Mode: mode,
			Prefix: f.Prefix, Most: p.most(),
		})
		if err != nil {
			return err
		}
		found, next = cut(p, found, func(r db.Rule) uuid.UUID { return r.ID })
		out = make([]Rule, len(found))
		for i, row := range found {
			if out[i], err = ruleOf(row); err != nil {
				return err
			}
		}
		return nil
	})
	return out, next, err
}

// DeleteRule removes a rule with its limits in plans and its overrides. Errors: ErrNotFound,
// ErrPreconditionFailed, *ConflictError while a price grants credits for it, or subjects have some.
func (s *Store) DeleteRule(ctx context.Context, a Actor, slug string, m Match) error {
	return s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := c.rule(ctx, slug)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		sold, err := c.RuleHasBilling(ctx, db.RuleHasBillingParams{TenantID: c.tenant, RuleID: &old.ID})
		if err != nil {
			return err
		}
		if sold {
			return &ConflictError{CodeConflict, "a price grants credits for this rule: change or delete its mapping first"}
		}
		held, err := c.creditsHeld(ctx, old.ID)
		if err != nil {
			return err
		}
		if held != "" {
			return &ConflictError{CodeConflict, held + " for this rule that are neither spent nor expired: revoke them first, or switch the rule off"}
		}
		overridden, err := c.RuleHasOverrides(ctx, db.RuleHasOverridesParams{TenantID: c.tenant, RuleID: old.ID})
		if err != nil {
			return err
		}
		version, err := c.nextAtEnd(ctx, parts{policy: true, subjects: overridden})
		if err != nil {
			return err
		}
		return c.removeRule(ctx, old.ID, version)
	})
}

// removeRule deletes a rule. This also changes the plans and subjects that have a limit for it.
func (c *change) removeRule(ctx context.Context, id uuid.UUID, version int64) error {
	err := c.StampPlansOfRule(ctx, db.StampPlansOfRuleParams{TenantID: c.tenant, RuleID: id, Version: version})
	if err != nil {
		return err
	}
	err = c.StampSubjectsOfRule(ctx, db.StampSubjectsOfRuleParams{TenantID: c.tenant, RuleID: id, Version: version})
	if err != nil {
		return err
	}
	return c.DeleteRule(ctx, db.DeleteRuleParams{TenantID: c.tenant, ID: id})
}

func (c *change) rule(ctx context.Context, slug string) (Rule, error) {
	return readRule(ctx, c.Queries, c.tenant, slug)
}

func readRule(ctx context.Context, q *db.Queries, tenant uuid.UUID, slug string) (Rule, error) {
	if !limit.ValidSlug(slug) {
		return Rule{}, ErrNotFound // Postgres cannot store NUL
	}
	row, err := q.RuleBySlug(ctx, db.RuleBySlugParams{TenantID: tenant, Slug: slug})
	if err != nil {
		return Rule{}, translate(err)
	}
	return ruleOf(row)
}

func (c *change) createRule(ctx context.Context, r limit.Rule) (Rule, error) {
	if err := c.checkMatching(ctx, nil, r); err != nil {
		return Rule{}, err
	}
	if err := c.checkWindow(ctx, nil, r); err != nil {
		return Rule{}, err
	}
	version, err := c.next(ctx, parts{policy: true})
	if err != nil {
		return Rule{}, err
	}
	row, err := c.insertRule(ctx, newID(), r, version)
	if err != nil {
		return Rule{}, err
	}
	return ruleOf(row)
}

func (c *change) insertRule(ctx context.Context, id uuid.UUID, r limit.Rule, version int64) (db.Rule, error) {
	return c.InsertRule(ctx, db.InsertRuleParams(ruleParams(c.tenant, id, r, version)))
}

// replaceRule writes r instead of old, if they differ.
func (c *change) replaceRule(ctx context.Context, old Rule, r limit.Rule) (Rule, error) {
	if err := invalidIf(r.Validate()); err != nil {
		return Rule{}, err
	}
	before, after := ruleParams(c.tenant, old.ID, old.Rule, 0), ruleParams(c.tenant, old.ID, r, 0)
	if reflect.DeepEqual(before, after) {
		return old, nil
	}
	if err := c.checkNumbersOf(ctx, old, r); err != nil {
		return Rule{}, err
	}
	switch field, problem, err := c.losesCredits(ctx, old, &r); {
	case err != nil:
		return Rule{}, err
	case problem != nil:
		return Rule{}, invalid(field, problem)
	}
	if r.Resource != old.Resource || r.Mode != limit.Off && old.Mode == limit.Off {
		if err := c.checkMatching(ctx, &old, r); err != nil {
			return Rule{}, err
		}
	}
	if err := c.checkWindow(ctx, &old, r); err != nil {
		return Rule{}, err
	}
	version, err := c.next(ctx, parts{policy: true})
	if err != nil {
		return Rule{}, err
	}
	after.Version = version
	row, err := c.UpdateRule(ctx, after)
	if err != nil {
		return Rule{}, err
	}
	return ruleOf(row)
}

// checkMatching refuses a new (old nil) or changed rule with which the tenant would have too many
// rules, in total or for one check.
func (c *change) checkMatching(ctx context.Context, old *Rule, r limit.Rule) error {
	id := uuid.Nil
	if old != nil {
		id = old.ID
	}
	others, err := c.RulePatterns(ctx, db.RulePatternsParams{TenantID: c.tenant, But: id})
	if err != nil {
		return err
	}
	if len(others) >= limit.MaxRules {
		return invalid("slug", limit.Wrong("Delete a rule that is no longer needed.", "would be one rule too many: a tenant may have %d", limit.MaxRules))
	}
	rules := make([]limit.Rule, 0, len(others)+1)
	for _, o := range others {
		mode, err := limit.ParseMode(o.Mode)
		if err != nil {
			return fmt.Errorf("read a rule's mode: %w", err)
		}
		rules = append(rules, limit.Rule{Resource: o.Resource, Mode: mode})
	}
	if most, pattern := limit.MaxMatching(append(rules, r)); most > limit.MaxMatchingRules {
		return invalid("resource", tooManyMatch(most, pattern))
	}
	return c.checkTierRules(ctx, rules, old, r)
}

// checkNumbersOf refuses a change of a rule that would make a plan's limit or an override invalid,
// because their ranges depend on algorithm and window.
func (c *change) checkNumbersOf(ctx context.Context, old Rule, r limit.Rule) error {
	field := refitted(&old.Rule, &r)
	if field == "" {
		return nil
	}
	var fields []limit.FieldError
	const enough = 20 // the others are reported once these are fixed
	test := func(l limit.Limit, whose string) (more bool) {
		for _, problem := range l.Validate(&r) {
			fields = append(fields, limit.FieldProblem(field, misfit(whose, problem)))
		}
		return len(fields) < enough
	}
	limits, err := c.RulePlanLimits(ctx, db.RulePlanLimitsParams{TenantID: c.tenant, RuleID: old.ID})
	if err != nil {
		return err
	}
	for _, l := range limits {
		whose := "plan " + l.Slug
		if l.Number > 0 {
			whose += fmt.Sprintf(" (version %d)", l.Number)
		}
		test(planLimitOf(l.LimitUnits, l.BurstUnits, l.Unlimited, l.WarnAt, l.Overage, l.Metering), whose)
	}
	err = c.overrideNumbers(ctx, old.ID, []string{}, func(l limit.Limit, subject string, subjects int64) (more bool) {
		whose := "subject " + subject
		if subjects > 1 {
			whose += fmt.Sprintf(" (and %d others)", subjects-1)
		}
		return test(l, whose)
	})
	if err != nil {
		return err
	}
	return invalidIf(fields[:min(len(fields), enough)])
}

// overrideNumbersSQL are the different limits among the rule's overrides that have not expired,
// except for some subjects, with one subject that has each.
const overrideNumbersSQL = `SELECT limit_units, burst_units, unlimited, min(subject)::text, count(*)
FROM overrides
WHERE tenant_id = $1 AND rule_id = $2 AND (expires_at IS NULL OR expires_at > $3) AND subject <> ALL($4::text[])
GROUP BY limit_units, burst_units, unlimited`

// overrideNumbers calls each for the different limits among the overrides of a rule, with a subject
// that has it and how many have it, until each returns false. There can be as many limits as
// overrides, so they are not kept.
func (c *change) overrideNumbers(ctx context.Context, rule uuid.UUID, but []string, each func(l limit.Limit, subject string, subjects int64) (more bool)) error {
	rows, err := c.tx.Query(ctx, overrideNumbersSQL, c.tenant, rule, c.now, but)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var units, burst *int64
		var unlimited bool
		var subject string
		var subjects int64
		if err := rows.Scan(&units, &burst, &unlimited, &subject, &subjects); err != nil {
			return err
		}
		if !each(limitOf(units, burst, unlimited), subject, subjects) {
			return nil
		}
	}
	return rows.Err()
}

// refitted returns the changed field of a rule on which the ranges of its plans' limits depend, or
// "".
func refitted(old, r *limit.Rule) string {
	switch {
	case r.Algorithm != old.Algorithm:
		return "algorithm"
	case r.Window != old.Window:
		return "window"
	case r.Penalty.MS != 0 && old.Penalty.MS == 0:
		return "penalty"
	case r.Consistency != old.Consistency:
		return "consistency"
	}
	return ""
}

// tooManyMatch is the problem of a resource that too many rules match.
func tooManyMatch(most int, pattern string) *limit.Problem {
	return limit.Wrong("Delete a rule, turn one off, or narrow the resource that it matches.",
		"would let %d rules match one check (of resource %s); at most %d may", most, pattern, limit.MaxMatchingRules)
}

// misfit is the problem of a rule that a limit of a plan or a subject does not fit.
func misfit(whose string, problem limit.FieldError) *limit.Problem {
	return limit.Wrong("Change that limit first: "+problem.Fix, "does not fit the limit of %s: %s %s", whose, problem.Field, problem.Message)
}

func ruleParams(tenant, id uuid.UUID, r limit.Rule, version int64) db.UpdateRuleParams {
	return db.UpdateRuleParams{
		TenantID: tenant, ID: id, Slug: r.Slug, Name: r.Name, Description: r.Description, Resource: r.Resource,
		Algorithm: r.Algorithm.String(), LimitUnits: r.Limit, WindowText: r.Window.Written(), WindowMs: orNull(r.Window.MS),
		BurstUnits: orNull(r.Burst), PrecisionText: r.Precision.Written(), PrecisionMs: orNull(r.Precision.MS),
		ByValues: append([]string{}, r.By...), Mode: r.Mode.String(), OnUnavailable: r.OnUnavailable.String(), OnMissingAttribute: textOf(&r, "on_missing_attribute"),
		PenaltyText: r.Penalty.Written(), PenaltyMs: orNull(r.Penalty.MS), Consistency: r.Consistency.String(),
		LeaseText: r.Lease.Written(), LeaseMs: orNull(r.Lease.MS),
		Zone: textOf(&r, "zone"), Anchor: textOf(&r, "anchor"), WarnAt: r.WarnAt.Value(), Overage: overageName(r.Overage),
		Metering: r.Metering.String(), MeterEvent: r.MeterEvent, Version: version,
	}
}

// textOf returns the value of a field of a rule, or nil if it is not set.
func textOf(r *limit.Rule, field string) *string {
	if text, set := limit.FieldNamed(field).Get(r).(string); set {
		return &text
	}
	return nil
}

func ruleOf(row db.Rule) (Rule, error) {
	r := Rule{
		Rule: limit.Rule{
			Slug: row.Slug, Name: row.Name, Description: row.Description, Resource: row.Resource,
			Limit: row.LimitUnits, Burst: orZero(row.BurstUnits), By: row.ByValues,
			Window:     limit.Window{Duration: durationOf(row.WindowText, row.WindowMs)},
			Precision:  durationOf(row.PrecisionText, row.PrecisionMs),
			Penalty:    durationOf(row.PenaltyText, row.PenaltyMs),
			WarnAt:     limit.PortionOrNone(row.WarnAt),
			Overage:    overageOf(row.Overage),
			MeterEvent: row.MeterEvent,
		},
		ID: row.ID, Version: row.Version, CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
	}
	if row.Zone != nil && *row.Zone != "UTC" {
		r.Zone = *row.Zone
	}
	var errs [8]error
	r.Algorithm, errs[0] = limit.ParseAlgorithm(row.Algorithm)
	r.Mode, errs[1] = limit.ParseMode(row.Mode)
	r.OnUnavailable, errs[2] = limit.ParseOnUnavailable(row.OnUnavailable)
	if row.OnMissingAttribute != nil {
		r.OnMissingAttribute, errs[7] = limit.ParseOnMissingAttribute(*row.OnMissingAttribute)
	}
	r.Consistency, errs[4] = limit.ParseConsistency(row.Consistency)
	if r.Consistency == limit.Leased { // a server that does not know the lease may have made it strict
		r.Lease = durationOf(row.LeaseText, row.LeaseMs)
	}
	r.Metering, errs[6] = limit.ParseMetering(row.Metering)
	if row.Anchor != nil {
		r.Anchor, errs[5] = limit.ParseAnchor(*row.Anchor)
	}
	if row.WindowMs == nil {
		r.Window.Calendar, errs[3] = limit.ParseCalendar(row.WindowText)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return Rule{}, fmt.Errorf("read rule %s: %w", row.Slug, err)
	}
	return r, nil
}
