package tenants

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// Subject is a registered subject.
type Subject struct {
	Subject string
	Plan    string // slug; "": the tenant's default plan
	// PlanVersion is the version of that plan, and 0 without a plan. It is not an input.
	// GivePlanVersion is the input: 0 keeps the version of the same plan, and takes the newest
	// version of another plan; NewestPlanVersion takes the newest version in both cases.
	PlanVersion, GivePlanVersion int
	State                        check.SubjectState
	Labels                       map[string]string // at most 32
	BillingRef                   string            // its name in the billing system, unique in the tenant; up to 256 bytes
	// CycleAnchor is where the windows of rules with the anchor "subject" begin for the subject, in
	// milliseconds; nil: calendar windows.
	CycleAnchor *time.Time
	Multiplier  int // of the limits of its plan, 1 to 10^6; as an input, 0 leaves it unchanged
	// NextPlan is the slug of the plan that the subject gets at NextPlanAt; "" and nil: none.
	// With NextPlanAtCycleEnd, NextPlanAt is the end of its cycle, and follows CycleAnchor.
	NextPlan           string
	NextPlanAt         *time.Time
	NextPlanAtCycleEnd bool
	migration          *uuid.UUID // the migration that scheduled the next plan
	Overrides          []Override // by rule; not an input: see PutOverride
	Version            int64      // changes of its overrides increase it, too
	CreatedAt          time.Time
	UpdatedAt          time.Time
}

const (
	MaxLabels     = 32
	maxLabelValue = 256 // bytes
	maxBillingRef = 256 // bytes
	maxMultiplier = subscription.MaxMultiplier
)

// TooManyLabels is the error of a subject with more than MaxLabels.
var TooManyLabels = limit.Wrong("Remove labels.", "may be at most %d", MaxLabels)

var labelKeyPattern = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,63}$`)

func (s *Subject) validate() error {
	var fields []limit.FieldError
	add := func(field string, p *limit.Problem) {
		fields = append(fields, limit.FieldProblem(field, p))
	}
	if problem := subjectProblem(s.Subject); problem != nil {
		add("subject", problem)
	}
	if len(s.BillingRef) > maxBillingRef || !plain(s.BillingRef) {
		add("billing_ref", plainUpTo(maxBillingRef))
	}
	if a := s.CycleAnchor; a != nil && (a.UnixMilli() < limit.MinAnchorMS || a.UnixMilli() > limit.MaxAnchorMS) {
		add("cycle_anchor", notAnyYear)
	}
	if s.Multiplier < 0 || s.Multiplier > maxMultiplier {
		add("multiplier", limit.MustBe("a whole number from 1 to %d", maxMultiplier))
	}
	switch at := s.NextPlanAt; {
	case s.NextPlan == "" && at != nil:
		add("next_plan", limit.Wrong("Send it, or omit next_plan_at.", "is required with next_plan_at"))
	case s.NextPlan != "" && at == nil:
		add("next_plan_at", limit.Wrong("Send it, or omit next_plan.", "is required with next_plan"))
	case at != nil && (at.Year() < 1 || at.Year() > maxYear):
		add("next_plan_at", notAnyYear)
	}
	if len(s.Labels) > MaxLabels {
		add("labels", TooManyLabels)
		return invalidIf(fields)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		if !labelKeyPattern.MatchString(key) {
			add("labels", limit.Wrong("Rename the label.", "may have keys of 1 to 63 of A-Z, a-z, 0-9, _ . / -, not %q", key))
		} else if value := s.Labels[key]; len(value) > maxLabelValue || !plain(value) {
			add("labels."+key, plainUpTo(maxLabelValue))
		}
	}
	return invalidIf(fields)
}

// plainUpTo is the problem of a text that is too long or has control characters.
func plainUpTo(most int) *limit.Problem {
	return limit.MustBe("at most %d bytes of UTF-8 without control characters", most)
}

// subjectProblem returns why a subject cannot be registered, or nil. Checks also count . and ..,
// but browsers and many libraries remove these from a path, even if they are encoded. They could
// not show or delete a subject with such a name.
func subjectProblem(subject string) *limit.Problem {
	if subject == "." || subject == ".." {
		return limit.Wrong("Use another name.", "must not be . or .., which a path cannot contain")
	}
	return limit.ValidName(subject)
}

func plain(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

// PutSubject registers a subject, or replaces it without its overrides; created reports which.
// Errors: *InvalidError (also for an unknown plan, or the reference of another subject),
// ErrPreconditionFailed.
func (s *Store) PutSubject(ctx context.Context, a Actor, in Subject, m Match) (out Subject, created bool, err error) {
	if err := in.validate(); err != nil {
		return Subject{}, false, err
	}
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := readSubject(ctx, c.Queries, c.tenant, in.Subject)
		switch {
		case errors.Is(err, ErrNotFound):
			if err := m.missing(); err != nil {
				return err
			}
			created = true
			out, err = c.createSubject(ctx, in)
			return err
		case err != nil:
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		out, err = c.replaceSubject(ctx, old, in)
		return err
	})
	return out, created && err == nil, err
}

// EditSubject calls edit to change a subject, without its overrides; an error of edit is returned
// unchanged and nothing changes. Errors: ErrNotFound, ErrPreconditionFailed, *InvalidError.
func (s *Store) EditSubject(ctx context.Context, a Actor, subject string, m Match, edit func(*Subject) error) (out Subject, err error) {
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := readSubject(ctx, c.Queries, c.tenant, subject)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		in := old
		if in.Labels = maps.Clone(old.Labels); in.Labels == nil {
			in.Labels = map[string]string{}
		}
		in.Overrides = slices.Clone(old.Overrides)
		if err := edit(&in); err != nil {
			return err
		}
		if in.Subject != old.Subject {
			return invalid("subject", isFixed("subject"))
		}
		if err := in.validate(); err != nil {
			return err
		}
		out, err = c.replaceSubject(ctx, old, in)
		return err
	})
	return out, err
}

// SubjectByName returns a registered subject with its overrides, including expired ones, or
// ErrNotFound.
func (s *Store) SubjectByName(ctx context.Context, a Actor, subject string) (out Subject, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = readSubject(ctx, q, a.tenant, subject)
		return err
	})
	return out, err
}

// DeleteSubject deletes a subject with its overrides: from then on it is an unregistered subject.
// Errors: ErrNotFound, ErrPreconditionFailed.
func (s *Store) DeleteSubject(ctx context.Context, a Actor, subject string, m Match) error {
	return s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := readSubject(ctx, c.Queries, c.tenant, subject)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		version, err := c.nextAtEnd(ctx, parts{subjects: true})
		if err != nil {
			return err
		}
		return c.removeSubject(ctx, subject, version)
	})
}

// removeSubject deletes a subject and leaves a tombstone, which notifies instances of the deletion.
func (c *change) removeSubject(ctx context.Context, subject string, version int64) error {
	err := c.InsertTombstone(ctx, db.InsertTombstoneParams{TenantID: c.tenant, Subject: subject, Version: version})
	if err != nil {
		return err
	}
	return c.DeleteSubject(ctx, db.DeleteSubjectParams{TenantID: c.tenant, Subject: subject})
}

func readSubject(ctx context.Context, q *db.Queries, tenant uuid.UUID, subject string) (Subject, error) {
	if limit.ValidName(subject) != nil {
		return Subject{}, ErrNotFound // Postgres cannot store NUL or invalid UTF-8
	}
	row, err := q.SubjectByName(ctx, db.SubjectByNameParams{TenantID: tenant, Subject: subject})
	if err != nil {
		return Subject{}, translate(err)
	}
	subjects, err := withOverrides(ctx, q, tenant, []db.SubjectByNameRow{row})
	if err != nil {
		return Subject{}, err
	}
	return subjects[0], nil
}

// subjectOf converts a row, without overrides.
func subjectOf(row db.SubjectByNameRow) (Subject, error) {
	state, err := check.ParseSubjectState(row.State)
	if err != nil {
		return Subject{}, fmt.Errorf("read a subject's state: %w", err)
	}
	s := Subject{
		Subject: row.Subject, State: state, Labels: row.Labels, BillingRef: row.BillingRef, CycleAnchor: inUTC(row.CycleAnchor), Multiplier: int(row.Multiplier),
		Version: row.Version, CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
	}
	if row.PlanSlug != nil {
		s.Plan, s.PlanVersion = *row.PlanSlug, int(row.PlanVersion)
	}
	if row.NextPlanSlug != nil {
		s.NextPlan, s.NextPlanAt, s.migration = *row.NextPlanSlug, inUTC(row.NextPlanAt), row.MigrationID
		s.NextPlanAtCycleEnd = row.NextPlanAtCycleEnd != nil
	}
	return s, nil
}

// planNamed returns the plan of a subject, like planHead.
func (c *change) planNamed(ctx context.Context, slug string) (Plan, error) {
	plan, err := planHead(ctx, c.Queries, c.tenant, slug)
	if errors.Is(err, ErrNotFound) {
		return Plan{}, invalid("plan", noPlan(slug))
	}
	return plan, err
}

// nextPlanID returns the id of a subject's next plan, or nil.
func (c *change) nextPlanID(ctx context.Context, s Subject) (*uuid.UUID, error) {
	if s.NextPlan == "" {
		return nil, nil
	}
	plan, err := planRow(ctx, c.Queries, c.tenant, s.NextPlan)
	if errors.Is(err, ErrNotFound) {
		return nil, invalid("next_plan", noPlan(s.NextPlan))
	}
	return &plan.ID, err
}

func (c *change) createSubject(ctx context.Context, in Subject) (Subject, error) {
	plan, err := c.choosePlan(ctx, &in, nil)
	if err != nil {
		return Subject{}, err
	}
	if err := c.checkBillingRef(ctx, in.Subject, in.BillingRef, ""); err != nil {
		return Subject{}, err
	}
	if in.NextPlanAt != nil {
		if err := notPast("next_plan_at", "To change the plan now, send plan instead of next_plan.", *in.NextPlanAt, c.now); err != nil {
			return Subject{}, err
		}
	}
	version, err := c.next(ctx, parts{subjects: true})
	if err != nil {
		return Subject{}, err
	}
	row, err := c.insertSubject(ctx, in, plan, version)
	if err != nil {
		return Subject{}, err
	}
	return Subject{
		Subject: row.Subject, Plan: in.Plan, PlanVersion: in.PlanVersion, NextPlan: in.NextPlan, NextPlanAt: inUTC(row.NextPlanAt), NextPlanAtCycleEnd: in.NextPlanAtCycleEnd, State: in.State,
		Labels: row.Labels, BillingRef: row.BillingRef, CycleAnchor: inUTC(row.CycleAnchor), Multiplier: int(row.Multiplier),
		Version: row.Version, CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
	}, nil
}

func (c *change) insertSubject(ctx context.Context, in Subject, plan *uuid.UUID, version int64) (db.Subject, error) {
	next, err := c.nextPlanID(ctx, in)
	if err != nil {
		return db.Subject{}, err
	}
	err = c.DeleteTombstone(ctx, db.DeleteTombstoneParams{TenantID: c.tenant, Subject: in.Subject})
	if err != nil {
		return db.Subject{}, err
	}
	return c.InsertSubject(ctx, db.InsertSubjectParams{
		TenantID: c.tenant, Subject: in.Subject, ID: newID(), PlanID: plan, PlanVersion: int32(in.PlanVersion), State: in.State.String(),
		Labels: labelsOf(in.Labels), BillingRef: in.BillingRef, CycleAnchor: anchorOf(in.CycleAnchor), Multiplier: int32(in.Multiplier),
		NextPlanID: next, NextPlanAt: stored(in.NextPlanAt), AtCycleEnd: in.NextPlanAtCycleEnd, Version: version,
	})
}

func (c *change) updateSubject(ctx context.Context, in Subject, plan *uuid.UUID, version int64) (db.Subject, error) {
	next, err := c.nextPlanID(ctx, in)
	if err != nil {
		return db.Subject{}, err
	}
	return c.UpdateSubject(ctx, db.UpdateSubjectParams{
		TenantID: c.tenant, Subject: in.Subject, PlanID: plan, PlanVersion: int32(in.PlanVersion), State: in.State.String(),
		Labels: labelsOf(in.Labels), BillingRef: in.BillingRef, CycleAnchor: anchorOf(in.CycleAnchor), Multiplier: int32(in.Multiplier),
		NextPlanID: next, NextPlanAt: stored(in.NextPlanAt), AtCycleEnd: in.NextPlanAtCycleEnd, MigrationID: in.migration, Version: version,
	})
}

// multiplier returns the multiplier; the default is 1.
func (s *Subject) multiplier() int { return max(s.Multiplier, 1) }

// replaceSubject writes in instead of old, if they differ.
func (c *change) replaceSubject(ctx context.Context, old, in Subject) (Subject, error) {
	plan, err := c.choosePlan(ctx, &in, &old)
	if err != nil {
		return Subject{}, err
	}
	in.NextPlanAtCycleEnd = in.NextPlanAtCycleEnd && in.NextPlanAt != nil
	if in.same(&old) {
		return old, nil
	}
	if err := c.checkBillingRef(ctx, in.Subject, in.BillingRef, old.BillingRef); err != nil {
		return Subject{}, err
	}
	kept := in.sameNext(&old) && !in.leaveMigration(&old)
	in.followCycle(&old, c.now)
	if !kept && in.NextPlanAt != nil {
		if err := notPast("next_plan_at", "To change the plan now, send plan instead of next_plan.", *in.NextPlanAt, c.now); err != nil {
			return Subject{}, err
		}
	}
	if in.migration = nil; kept {
		in.migration = old.migration
	}
	version, err := c.next(ctx, parts{subjects: true})
	if err != nil {
		return Subject{}, err
	}
	row, err := c.updateSubject(ctx, in, plan, version)
	if err != nil {
		return Subject{}, err
	}
	out := old
	if !in.sameLimits(&old) && slices.ContainsFunc(old.Overrides, Override.ofCustomer) {
		err := c.DeleteCustomersOverrides(ctx, db.DeleteCustomersOverridesParams{TenantID: c.tenant, Subjects: []string{in.Subject}})
		if err != nil {
			return Subject{}, err
		}
		out.Overrides = slices.DeleteFunc(slices.Clone(old.Overrides), Override.ofCustomer)
	}
	out.PlanVersion, out.migration = in.PlanVersion, in.migration
	out.Plan, out.State, out.Labels, out.BillingRef = in.Plan, in.State, row.Labels, row.BillingRef
	out.CycleAnchor, out.NextPlan, out.NextPlanAt = inUTC(row.CycleAnchor), in.NextPlan, inUTC(row.NextPlanAt)
	out.NextPlanAtCycleEnd = in.NextPlanAtCycleEnd
	out.Multiplier = int(row.Multiplier)
	out.Version, out.UpdatedAt = row.Version, row.UpdatedAt
	return out, nil
}

// sameLimits reports whether both get the same limits from their plans.
func (s *Subject) sameLimits(other *Subject) bool {
	return s.Plan == other.Plan && s.PlanVersion == other.PlanVersion && (s.Multiplier == 0 || s.multiplier() == other.multiplier())
}

// same reports whether both are equal, without their overrides.
func (s *Subject) same(other *Subject) bool {
	return s.sameLimits(other) && s.State == other.State && s.BillingRef == other.BillingRef &&
		sameInstant(anchorOf(s.CycleAnchor), anchorOf(other.CycleAnchor)) &&
		s.sameNext(other) && maps.Equal(s.Labels, other.Labels)
}

// sameNext reports whether both have the same scheduled plan change.
func (s *Subject) sameNext(other *Subject) bool {
	return s.NextPlan == other.NextPlan && sameInstant(stored(s.NextPlanAt), stored(other.NextPlanAt)) && s.NextPlanAtCycleEnd == other.NextPlanAtCycleEnd
}

// followCycle moves a plan change that was scheduled for the end of the cycle, if the cycle anchor
// changes and the plan change does not. It reports whether it did.
func (s *Subject) followCycle(old *Subject, now time.Time) bool {
	if !s.NextPlanAtCycleEnd || s.NextPlanAt == nil || !s.sameNext(old) || sameInstant(anchorOf(s.CycleAnchor), anchorOf(old.CycleAnchor)) {
		return false
	}
	at := CycleEnd(s.CycleAnchor, now)
	s.NextPlanAt = &at
	return true
}

// leaveMigration cancels the plan change that a migration scheduled, if the subject gets another
// plan before, so that no customer who canceled gets the plan again. It reports whether it did.
func (s *Subject) leaveMigration(old *Subject) bool {
	if old.migration == nil || s.Plan == old.Plan || !s.sameNext(old) {
		return false
	}
	s.NextPlan, s.NextPlanAt, s.NextPlanAtCycleEnd, s.migration = "", nil, false, nil
	return true
}

// anchorOf returns a cycle anchor in the form of the database: in UTC, in milliseconds.
func anchorOf(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC().Truncate(time.Millisecond)
	return &u
}

// labelsOf returns labels in the form of the database, never null.
func labelsOf(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}
