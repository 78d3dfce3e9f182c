package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// Override is the limit of one subject for one rule.
type Override struct {
	Rule      string // slug
	Limit     limit.Limit
	Reason    string // up to 500 characters
	CreatedBy string // who wrote it last; not an input
	StartsAt  *time.Time
	ExpiresAt *time.Time // in the future when written; nil: never
	Version   int64
	CreatedAt time.Time // when it was last written
}

func (o *Override) validate(now time.Time) (fields []limit.FieldError) {
	checkText(&fields, "reason", o.Reason, 500)
	for field, t := range map[string]*time.Time{"starts_at": o.StartsAt, "expires_at": o.ExpiresAt} {
		if t != nil && (t.Year() > maxYear || t.Year() < 1) {
			fields = append(fields, limit.FieldProblem(field, notAnyYear))
		}
	}
	if o.ExpiresAt == nil {
		return fields
	}
	if !o.ExpiresAt.After(now) {
		fields = append(fields, limit.FieldProblem("expires_at", limit.Wrong("Use a later time.", "must be in the future")))
	}
	if o.StartsAt != nil && !o.ExpiresAt.After(*o.StartsAt) {
		fields = append(fields, limit.FieldProblem("expires_at", limit.Wrong("Use a later end, or an earlier start.", "must be after starts_at")))
	}
	return fields
}

// MaxBoost is how far in the future an override with MayBoost alone may expire.
const MaxBoost = 30 * 24 * time.Hour

// validateBoost returns the errors of an override by an actor who may create only temporary ones.
func (o *Override) validateBoost(now time.Time) (fields []limit.FieldError) {
	if o.Limit.Unlimited {
		fields = append(fields, limit.FieldProblem("unlimited", limit.Wrong("Send a limit, or ask an editor.", "requires the role editor: with the role support, an override has a limit")))
	}
	if o.ExpiresAt == nil || o.ExpiresAt.Sub(now) > MaxBoost {
		fields = append(fields, limit.FieldProblem("expires_at", limit.Wrong("Use an earlier time, or ask an editor.", "must be within 30 days: with the role support, an override is temporary")))
	}
	return fields
}

// ofCustomer reports whether the customer got the override by a request that was approved
// automatically. It is a part more than the limit was at that time, so it ends when the subject
// gets another plan, another version of it, or another multiplier: no customer keeps the raised
// limit of a plan that they no longer pay for.
func (o Override) ofCustomer() bool { return strings.HasPrefix(o.CreatedBy, customerLabel) }

func overrideOf(o db.OverridesOfRow) Override {
	return Override{
		Rule: o.Rule, Limit: limitOf(o.LimitUnits, o.BurstUnits, o.Unlimited), Reason: o.Reason, CreatedBy: o.CreatedBy,
		StartsAt: o.StartsAt, ExpiresAt: o.ExpiresAt, Version: o.Version, CreatedAt: o.CreatedAt,
	}
}

// Override returns the override of a subject for a rule, even if it has expired, or ErrNotFound.
func (s *Store) Override(ctx context.Context, a Actor, subject, rule string) (out Override, err error) {
	if limit.ValidName(subject) != nil || !limit.ValidSlug(rule) {
		return Override{}, ErrNotFound // Postgres cannot store NUL or invalid UTF-8
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.OverrideOf(ctx, db.OverrideOfParams{TenantID: a.tenant, Subject: subject, Rule: rule})
		out = overrideOf(db.OverridesOfRow(row))
		return err
	})
	return out, err
}

// mayTouch reports whether the actor may replace or delete this override. An actor who may create
// only temporary overrides must not change a permanent one.
func (c *change) mayTouch(o Override) bool { return c.actor.May(MayEdit) || o.ExpiresAt != nil }

// PutOverride sets the limit of a subject for the rule o.Rule, or replaces it; created reports
// which. A subject that is not registered is registered. m is compared with the versions of the
// override and the subject. Errors: ErrNotFound (rule), ErrForbidden, ErrPreconditionFailed,
// *InvalidError.
func (s *Store) PutOverride(ctx context.Context, a Actor, subject string, o Override, m Match) (out Override, created bool, err error) {
	o.StartsAt, o.ExpiresAt = stored(o.StartsAt), stored(o.ExpiresAt)
	err = s.change(ctx, a, MayBoost, func(ctx context.Context, c *change) (err error) {
		out, created, err = c.putOverride(ctx, subject, o, m)
		return err
	})
	return out, created && err == nil, err
}

func (c *change) putOverride(ctx context.Context, subject string, o Override, m Match) (out Override, created bool, err error) {
	r, err := c.rule(ctx, o.Rule)
	if err != nil {
		return Override{}, false, err
	}
	owner, err := readSubject(ctx, c.Queries, c.tenant, subject)
	registered := err == nil
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Override{}, false, err
	}
	old, exists := owner.override(o.Rule)
	if err := matchOverride(m, owner, old, registered, exists); err != nil {
		return Override{}, false, err
	}
	if exists && !c.mayTouch(old) {
		return Override{}, false, ErrForbidden
	}
	fields := append(o.Limit.Validate(&r.Rule), o.validate(c.now)...)
	if problem := subjectProblem(subject); !registered && problem != nil {
		fields = append(fields, limit.FieldProblem("subject", problem))
	}
	if !c.actor.May(MayEdit) {
		fields = append(fields, o.validateBoost(c.now)...)
	}
	if err := invalidIf(fields); err != nil {
		return Override{}, false, err
	}
	if exists && old.same(o) {
		return old, false, nil
	}
	owner.Subject = subject
	out, err = c.writeOverride(ctx, owner, registered, o, r)
	return out, !exists && err == nil, err
}

func matchOverride(m Match, owner Subject, old Override, registered, exists bool) error {
	switch {
	case exists:
		return m.check(old.Version, owner.Version)
	case m.Any || !registered:
		return m.missing()
	}
	return m.check(owner.Version)
}

func (c *change) writeOverride(ctx context.Context, owner Subject, registered bool, o Override, r Rule) (Override, error) {
	subject := owner.Subject
	replaced, err := c.replacedLimit(ctx, owner, r)
	if err != nil {
		return Override{}, err
	}
	var version int64
	if registered {
		if version, err = c.next(ctx, parts{subjects: true}); err != nil {
			return Override{}, err
		}
		err = c.StampSubject(ctx, db.StampSubjectParams{TenantID: c.tenant, Subject: subject, Version: version})
	} else {
		in := Subject{Subject: subject}
		if err := in.validate(); err != nil {
			return Override{}, err
		}
		var made Subject
		made, err = c.createSubject(ctx, in)
		version = made.Version
	}
	if err != nil {
		return Override{}, err
	}
	if err := c.noteReplaced(ctx, subject, o.Rule, replaced); err != nil {
		return Override{}, err
	}
	row, err := c.upsertOverride(ctx, subject, r.ID, o, version)
	if err != nil {
		return Override{}, err
	}
	o.CreatedBy, o.Version, o.CreatedAt = row.CreatedBy, row.Version, row.CreatedAt
	return o, nil
}

// replacedLimit returns the limit that the first override of the subject for a rule replaces. It is
// 0 if the subject has an override, whose limit the trail has anyway, or is unlimited.
func (c *change) replacedLimit(ctx context.Context, owner Subject, r Rule) (int64, error) {
	if _, exists := owner.override(r.Slug); exists {
		return 0, nil
	}
	return c.limitOfPlan(ctx, owner, r)
}

// limitOfPlan returns the limit of the subject for a rule without an override: that of its plan
// with its multiplier, or the rule's own. It is 0 if the subject is unlimited.
func (c *change) limitOfPlan(ctx context.Context, owner Subject, r Rule) (int64, error) {
	plans, err := c.PolicyPlans(ctx, c.tenant)
	if err != nil {
		return 0, err
	}
	plan, version := owner.Plan, int32(0) // the newest version
	for i := range plans {
		switch p := &plans[i]; {
		case plan == "" && p.IsDefault:
			plan = p.Slug
		case p.Slug == owner.Plan && int32(owner.PlanVersion) < p.NewestVersion:
			version = int32(owner.PlanVersion)
		}
	}
	limits, err := c.RulePlanLimits(ctx, db.RulePlanLimitsParams{TenantID: c.tenant, RuleID: r.ID})
	if err != nil {
		return 0, err
	}
	for i := range limits {
		if l := &limits[i]; l.Slug == plan && l.Number == version {
			n := limitOf(l.LimitUnits, l.BurstUnits, l.Unlimited)
			if n.Unlimited || n.Limit == 0 {
				return 0, nil
			}
			return n.Limit * r.Algorithm.Factor(n.Limit, n.Burst, int64(owner.multiplier())), nil
		}
	}
	return r.Limit, nil
}

// noteReplaced adds to the trail the limit that the first override for a rule replaces.
func (c *change) noteReplaced(ctx context.Context, subject, rule string, replaced int64) error {
	if replaced == 0 || c.trail == nil {
		return nil
	}
	t, err := c.touch(ctx, auditSubject, subject, false)
	if err != nil {
		return err
	}
	text, err := json.Marshal(map[string]int64{rule: replaced})
	t.beside = auditFields{"replaced_limits": text}
	return err
}

func (c *change) upsertOverride(ctx context.Context, subject string, rule uuid.UUID, o Override, version int64) (db.Override, error) {
	return c.UpsertOverride(ctx, db.UpsertOverrideParams{
		TenantID: c.tenant, Subject: subject, RuleID: rule, LimitUnits: orNull(o.Limit.Limit),
		BurstUnits: orNull(o.Limit.Burst), Unlimited: o.Limit.Unlimited, Reason: o.Reason, CreatedBy: c.actor.label(),
		StartsAt: o.StartsAt, ExpiresAt: o.ExpiresAt, Version: version,
	})
}

// DeleteOverride deletes a subject's limit for a rule. Errors: ErrNotFound (subject, rule or
// override), ErrPreconditionFailed.
func (s *Store) DeleteOverride(ctx context.Context, a Actor, subject, rule string, m Match) error {
	return s.change(ctx, a, MayBoost, func(ctx context.Context, c *change) error {
		owner, err := readSubject(ctx, c.Queries, c.tenant, subject)
		if err != nil {
			return err
		}
		old, exists := owner.override(rule)
		if !exists {
			return ErrNotFound
		}
		if !c.mayTouch(old) {
			return ErrForbidden
		}
		if err := m.check(old.Version, owner.Version); err != nil {
			return err
		}
		r, err := c.rule(ctx, rule)
		if err != nil {
			return err
		}
		version, err := c.next(ctx, parts{subjects: true})
		if err != nil {
			return err
		}
		err = c.StampSubject(ctx, db.StampSubjectParams{TenantID: c.tenant, Subject: subject, Version: version})
		if err != nil {
			return err
		}
		return c.DeleteOverride(ctx, db.DeleteOverrideParams{TenantID: c.tenant, Subject: subject, RuleID: r.ID})
	})
}

func (s *Subject) override(rule string) (Override, bool) {
	for _, o := range s.Overrides {
		if o.Rule == rule {
			return o, true
		}
	}
	return Override{}, false
}

// same reports whether writing o would change nothing.
func (old Override) same(o Override) bool {
	return old.Limit == o.Limit && old.Reason == o.Reason &&
		sameInstant(old.StartsAt, o.StartsAt) && sameInstant(old.ExpiresAt, o.ExpiresAt)
}
