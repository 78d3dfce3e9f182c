package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// Credits are prepaid units that a subject was granted for a rule. Checks that do not fit in the
// window of the rule spend them, those that expire first before others.
type Credits struct {
	ID            uuid.UUID
	Subject, Rule string
	Units         int64
	// Spent is at most a second older than the decisions that spent them.
	Spent     int64
	ExpiresAt *time.Time // nil: never
	Reference string     // the giver's own name of it; ""; none
	Reason    string     // up to 500 characters
	CreatedBy string
	CreatedAt time.Time
	RevokedBy string
	RevokedAt *time.Time // what was left then is gone
}

// Balance returns the units that can be spent at an instant.
func (c *Credits) Balance(now time.Time) int64 {
	if c.RevokedAt != nil || c.ExpiresAt != nil && !now.Before(*c.ExpiresAt) {
		return 0
	}
	return c.Units - c.Spent
}

// NewCredits are the fields of a grant.
type NewCredits struct {
	Rule      string
	Units     int64
	ExpiresAt *time.Time // nil: never
	Reference string     // up to 256 bytes: the same one grants once
	Reason    string
}

const maxReference = 256 // bytes

// maxDailyGrants is how many grants a subject may get in 24 hours, for all rules: three times one a
// minute. Each is a row that is kept for CreditsKeptFor.
const maxDailyGrants = 5000

// CodeReferenceUsed is the code of a ConflictError: the reference granted other credits before.
const CodeReferenceUsed = "CREDIT_REFERENCE_USED"

func (n *NewCredits) validate(now time.Time) (fields []limit.FieldError) {
	add := func(field string, p *limit.Problem) { fields = append(fields, limit.FieldProblem(field, p)) }
	if n.Units < 1 || n.Units > limit.MaxFixedLimit {
		add("units", limit.MustBe("a whole number from 1 to %d", limit.MaxFixedLimit))
	}
	switch at := n.ExpiresAt; {
	case at == nil:
	case at.Year() > maxYear || at.Year() < 1:
		add("expires_at", notAnyYear)
	case !at.After(now):
		add("expires_at", limit.Wrong("Use a later time.", "must be in the future"))
	}
	if len(n.Reference) > maxReference || !plain(n.Reference) {
		add("reference", plainUpTo(maxReference))
	}
	checkText(&fields, "reason", n.Reason, 500)
	return fields
}

// GrantCredits grants a subject prepaid units for a rule. A subject that is not registered is
// registered. If the reference granted the same before, that grant is returned, and created is
// false. Errors: ErrForbidden; *InvalidError; *ConflictError with CodeReferenceUsed.
func (s *Store) GrantCredits(ctx context.Context, a Actor, subject string, n NewCredits) (out Credits, created bool, err error) {
	n.ExpiresAt = stored(n.ExpiresAt)
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) (err error) {
		out, created, err = c.grantCredits(ctx, subject, n)
		return err
	})
	return out, created && err == nil, err
}

func (c *change) grantCredits(ctx context.Context, subject string, n NewCredits) (out Credits, created bool, err error) {
	fields := n.validate(c.now)
	if n.Reference != "" && plain(n.Reference) {
		row, err := c.CreditsByReference(ctx, db.CreditsByReferenceParams{TenantID: c.tenant, Reference: n.Reference})
		switch {
		case errors.Is(err, pgx.ErrNoRows) || errors.Is(err, ErrNotFound):
		case err != nil:
			return Credits{}, false, err
		case row.Subject != subject || row.Rule != n.Rule || row.Units != n.Units || !sameInstant(row.ExpiresAt, n.ExpiresAt):
			return Credits{}, false, &ConflictError{CodeReferenceUsed, "this reference has granted other credits before; use one for each grant"}
		default:
			return creditsOf(db.CreditsRow(row)), false, nil
		}
	}
	r, err := c.rule(ctx, n.Rule)
	if errors.Is(err, ErrNotFound) {
		return Credits{}, false, invalid("rule", noSuchRule.With(fmt.Sprintf("%s: %q", noSuchRule.Message, n.Rule)))
	}
	if err != nil {
		return Credits{}, false, err
	}
	fields = append(fields, r.Rule.CheckCredits("rule")...)
	open, err := c.CountOpenCredits(ctx, db.CountOpenCreditsParams{TenantID: c.tenant, RuleID: r.ID, Subject: subject, Now: c.now, Most: limit.MaxGrants})
	if err != nil {
		return Credits{}, false, err
	}
	if open >= limit.MaxGrants {
		fields = append(fields, limit.FieldProblem("rule", limit.Wrong("Wait until one is spent or has expired, or revoke one.",
			"has %d grants of this subject already of which something is left", limit.MaxGrants)))
	}
	recent, err := c.CountNewCredits(ctx, db.CountNewCreditsParams{TenantID: c.tenant, Subject: subject, After: firstID(c.now.Add(-24 * time.Hour)), Most: maxDailyGrants})
	if err != nil {
		return Credits{}, false, err
	}
	if recent >= maxDailyGrants {
		fields = append(fields, limit.FieldProblem("subject", limit.Wrong("Grant more units at once, and less often.",
			"has had %d grants in the last 24 hours, which is the maximum", maxDailyGrants)))
	}
	_, err = readSubject(ctx, c.Queries, c.tenant, subject)
	registered := err == nil
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Credits{}, false, err
	}
	if problem := subjectProblem(subject); !registered && problem != nil {
		fields = append(fields, limit.FieldProblem("subject", problem))
	}
	if err := invalidIf(fields); err != nil {
		return Credits{}, false, err
	}
	if err := c.stampCredits(ctx, subject, registered); err != nil {
		return Credits{}, false, err
	}
	row, err := c.InsertCredits(ctx, db.InsertCreditsParams{
		TenantID: c.tenant, ID: newID(), Subject: subject, RuleID: r.ID, Units: n.Units, ExpiresAt: n.ExpiresAt,
		Reference: n.Reference, Reason: n.Reason, CreatedBy: c.actor.label(), CreatedAt: c.now,
	})
	if err != nil {
		return Credits{}, false, err
	}
	return creditsOf(withRule(row, n.Rule)), true, nil
}

// stampCredits makes servers load the grants of a subject, which is registered if it is not.
func (c *change) stampCredits(ctx context.Context, subject string, registered bool) error {
	var version int64
	var err error
	if registered {
		version, err = c.next(ctx, parts{subjects: true})
	} else {
		var owner Subject
		owner, err = c.createSubject(ctx, Subject{Subject: subject})
		version = owner.Version
	}
	if err != nil {
		return err
	}
	return c.StampCredits(ctx, db.StampCreditsParams{TenantID: c.tenant, Subject: subject, Version: version})
}

func withRule(g db.CreditGrant, rule string) db.CreditsRow {
	return db.CreditsRow{
		TenantID: g.TenantID, ID: g.ID, Subject: g.Subject, RuleID: g.RuleID, Units: g.Units, Spent: g.Spent, ExpiresAt: g.ExpiresAt,
		Reference: g.Reference, Reason: g.Reason, CreatedBy: g.CreatedBy, CreatedAt: g.CreatedAt, RevokedBy: g.RevokedBy,
		RevokedAt: g.RevokedAt, Opened: g.Opened, Rule: rule,
	}
}

func creditsOf(row db.CreditsRow) Credits {
	return Credits{
		ID: row.ID, Subject: row.Subject, Rule: row.Rule, Units: row.Units, Spent: row.Spent, ExpiresAt: row.ExpiresAt,
		Reference: row.Reference, Reason: row.Reason, CreatedBy: row.CreatedBy, CreatedAt: row.CreatedAt,
		RevokedBy: row.RevokedBy, RevokedAt: row.RevokedAt,
	}
}

// Credits lists the grants of a subject, newest first, also those of which nothing is left.
func (s *Store) Credits(ctx context.Context, a Actor, subject string, p Page) (out []Credits, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.Credits(ctx, db.CreditsParams{TenantID: a.tenant, Subject: subject, After: after, Most: p.most()})
		rows, next = cut(p, rows, func(r db.CreditsRow) uuid.UUID { return r.ID })
		out = make([]Credits, len(rows))
		for i, row := range rows {
			out[i] = creditsOf(row)
		}
		return err
	})
	return out, next, err
}

// CreditsByID returns one grant of a subject. Errors: ErrNotFound.
func (s *Store) CreditsByID(ctx context.Context, a Actor, subject string, id uuid.UUID) (out Credits, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.CreditsByID(ctx, db.CreditsByIDParams{TenantID: a.tenant, Subject: subject, ID: id})
		out = creditsOf(db.CreditsRow(row))
		return err
	})
	return out, err
}

// RevokeCredits takes back what is left of a grant. What servers spend until they know of it, for a
// second at most, stays spent. A grant that was revoked before stays as it is. Errors: ErrNotFound,
// ErrForbidden, ErrPreconditionFailed.
func (s *Store) RevokeCredits(ctx context.Context, a Actor, subject string, id uuid.UUID, m Match) error {
	return s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		row, err := c.CreditsByID(ctx, db.CreditsByIDParams{TenantID: c.tenant, Subject: subject, ID: id})
		if err != nil {
			return err
		}
		if err := m.check(); err != nil {
			return err
		}
		if row.RevokedAt != nil {
			return nil
		}
		if err := c.stampCredits(ctx, subject, true); err != nil {
			return err
		}
		return c.RevokeCredits(ctx, db.RevokeCreditsParams{TenantID: c.tenant, ID: id, RevokedBy: c.actor.label(), RevokedAt: &c.now})
	})
}

// losesCredits returns the field, and what is wrong with it, of a change of a rule with which
// checks could no longer spend credits that subjects have; "" and nil if there is none.
func (c *change) losesCredits(ctx context.Context, old Rule, r *limit.Rule) (field string, p *limit.Problem, err error) {
	field = r.NoCredits()
	if field == "" || !old.Rule.SpendsCredits() {
		return "", nil, nil
	}
	held, err := c.creditsHeld(ctx, old.ID)
	if err != nil || held == "" {
		return "", nil, err
	}
	return field, limit.Wrong("Keep the value, or revoke these credits first.",
		"cannot change in this way: %s for the rule, and checks could not spend them", held), nil
}

// creditsHeld says how many subjects have credits for a rule that can still be spent; "" if none
// has.
func (c *change) creditsHeld(ctx context.Context, rule uuid.UUID) (string, error) {
	n, err := c.CountSubjectsWithCredits(ctx, db.CountSubjectsWithCreditsParams{TenantID: c.tenant, RuleID: rule, Now: c.now, Most: MostCounted + 1})
	switch {
	case err != nil || n == 0:
		return "", err
	case n == 1:
		return "1 subject has credits", nil
	case n > MostCounted:
		return fmt.Sprintf("more than %d subjects have credits", MostCounted), nil
	}
	return fmt.Sprintf("%d subjects have credits", n), nil
}
