package tenants

import (
	"context"
	"errors"

	"weir/internal/tenants/db"
)

// The writes of subjects, their overrides and their credits: see audit_writes.go.

// InsertSubject registers a subject.
func (c *change) InsertSubject(ctx context.Context, p db.InsertSubjectParams) (row db.Subject, err error) {
	if _, err = c.touch(ctx, auditSubject, p.Subject, true); err == nil {
		row, err = c.Queries.InsertSubject(ctx, p)
	}
	return row, err
}

// InsertSubjects registers subjects.
func (c *change) InsertSubjects(ctx context.Context, p db.InsertSubjectsParams) error {
	for _, subject := range p.Subjects {
		if _, err := c.touch(ctx, auditSubject, subject, true); err != nil {
			return err
		}
	}
	return c.Queries.InsertSubjects(ctx, p)
}

// UpdateSubject replaces a subject without its overrides.
func (c *change) UpdateSubject(ctx context.Context, p db.UpdateSubjectParams) (row db.Subject, err error) {
	if _, err = c.touch(ctx, auditSubject, p.Subject, false); err == nil {
		row, err = c.Queries.UpdateSubject(ctx, p)
	}
	return row, err
}

// DeleteSubject deletes a subject with its overrides.
func (c *change) DeleteSubject(ctx context.Context, p db.DeleteSubjectParams) error {
	if _, err := c.touch(ctx, auditSubject, p.Subject, false); err != nil {
		return err
	}
	return c.Queries.DeleteSubject(ctx, p)
}

// UpsertOverride sets the limit of a subject for a rule. Its reason is also that of the change.
func (c *change) UpsertOverride(ctx context.Context, p db.UpsertOverrideParams) (row db.Override, err error) {
	t, err := c.touch(ctx, auditSubject, p.Subject, false)
	if err != nil {
		return row, err
	}
	t.reason = p.Reason
	return c.Queries.UpsertOverride(ctx, p)
}

// InsertOverrides sets limits of subjects for rules.
func (c *change) InsertOverrides(ctx context.Context, p db.InsertOverridesParams) error {
	for _, subject := range p.Subjects {
		if _, err := c.touch(ctx, auditSubject, subject, false); err != nil {
			return err
		}
	}
	return c.Queries.InsertOverrides(ctx, p)
}

// DeleteOverride deletes a subject's limit for a rule.
func (c *change) DeleteOverride(ctx context.Context, p db.DeleteOverrideParams) error {
	if _, err := c.touch(ctx, auditSubject, p.Subject, false); err != nil {
		return err
	}
	return c.Queries.DeleteOverride(ctx, p)
}

// DeleteCustomersOverrides deletes what customers got by requests that were approved automatically.
func (c *change) DeleteCustomersOverrides(ctx context.Context, p db.DeleteCustomersOverridesParams) error {
	for _, subject := range p.Subjects {
		if _, err := c.touch(ctx, auditSubject, subject, false); err != nil {
			return err
		}
	}
	return c.Queries.DeleteCustomersOverrides(ctx, p)
}

// InsertCredits grants credits. Its reason is also that of the change.
func (c *change) InsertCredits(ctx context.Context, p db.InsertCreditsParams) (row db.CreditGrant, err error) {
	t, err := c.touch(ctx, auditCredits, p.ID.String(), true)
	if err != nil {
		return row, err
	}
	t.reason = p.Reason
	return c.Queries.InsertCredits(ctx, p)
}

// RevokeCredits takes back what is left of a grant.
func (c *change) RevokeCredits(ctx context.Context, p db.RevokeCreditsParams) error {
	t, err := c.touch(ctx, auditCredits, p.ID.String(), false)
	if err != nil {
		return err
	}
	t.action = "revoke"
	return c.Queries.RevokeCredits(ctx, p)
}

// StampCredits makes servers load the grants of a subject.
func (c *change) StampCredits(ctx context.Context, p db.StampCreditsParams) error {
	if _, err := c.touch(ctx, auditSubject, p.Subject, false); err != nil {
		return err
	}
	return c.Queries.StampCredits(ctx, p)
}

// errNoImport means that the writes of an import were used by another change, which does not write
// their trail.
var errNoImport = errors.New("an import is not in the audit trail")

// ImportNewSubjects registers subjects.
func (c *change) ImportNewSubjects(ctx context.Context, p db.ImportNewSubjectsParams) error {
	if c.trail.full == nil {
		return errNoImport
	}
	return c.Queries.ImportNewSubjects(ctx, p)
}

// ImportChangedSubjects replaces subjects without their overrides.
func (c *change) ImportChangedSubjects(ctx context.Context, p db.ImportChangedSubjectsParams) error {
	if c.trail.full == nil {
		return errNoImport
	}
	return c.Queries.ImportChangedSubjects(ctx, p)
}

// MoveNextPlans moves scheduled plan changes of subjects.
func (c *change) MoveNextPlans(ctx context.Context, p db.MoveNextPlansParams) error {
	if c.trail.full == nil {
		return errNoImport
	}
	return c.Queries.MoveNextPlans(ctx, p)
}

// cancelImported cancels the plan changes that migrations scheduled, of subjects that get another
// plan.
func (c *change) cancelImported(ctx context.Context, p db.CancelMigrationOfParams) error {
	if c.trail.full == nil {
		return errNoImport
	}
	return c.Queries.CancelMigrationOf(ctx, p)
}

// ImportOverrides sets limits of subjects for rules.
func (c *change) ImportOverrides(ctx context.Context, p db.ImportOverridesParams) error {
	if c.trail.full == nil {
		return errNoImport
	}
	return c.Queries.ImportOverrides(ctx, p)
}

// ImportRemovedOverrides deletes limits of subjects for rules.
func (c *change) ImportRemovedOverrides(ctx context.Context, p db.ImportRemovedOverridesParams) error {
	if c.trail.full == nil {
		return errNoImport
	}
	return c.Queries.ImportRemovedOverrides(ctx, p)
}
