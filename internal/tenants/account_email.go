package tenants

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// EmailLinkLife is how long a link that changes an email is valid.
const EmailLinkLife = time.Hour

const linkForEmail = "email"

// EmailChange is a change of the email of a login.
type EmailChange struct {
	PersonID uuid.UUID
	Old, New string
}

// NewEmailLink creates a link with which a person changes the email of their login, and returns its
// token, which is not stored. To follow the link proves that the person reads mail at the new
// address. The previous link of the person becomes void. Errors: *InvalidError of the field email;
// ErrUnavailable; ErrWrongPassword as SignIn.
func (s *Store) NewEmailLink(ctx context.Context, p Person, email string) (token string, c EmailChange, err error) {
	normal, ok := normalEmail(email)
	switch {
	case !ok:
		return "", EmailChange{}, invalidIf([]limit.FieldError{emailError})
	case normal == p.Email:
		return "", EmailChange{}, invalid("email", limit.Wrong("Enter another address.", "is already your email"))
	}
	token, hash := newToken()
	now := s.instant()
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := p.stillProved(ctx, q); err != nil {
			return err
		}
		if err := q.DeleteLinksFor(ctx, db.DeleteLinksForParams{PersonID: &p.ID, Purpose: linkForEmail}); err != nil {
			return err
		}
		err := q.InsertAccountLink(ctx, db.InsertAccountLinkParams{
			TokenHash: hash, Purpose: linkForEmail, Email: normal, PersonID: &p.ID, CreatedAt: now, ExpiresAt: now.Add(EmailLinkLife),
		})
		if err != nil {
			return err
		}
		return s.personEvent(ctx, tx, p.ID, newEvent{kind: EventEmailLink, details: map[string]any{"email": normal}})
	})
	return token, EmailChange{PersonID: p.ID, Old: p.Email, New: normal}, err
}

// EmailLink returns the change that a link makes. Errors: ErrNotFound if the link is unknown, used
// or expired; ErrUnavailable.
func (s *Store) EmailLink(ctx context.Context, token string) (c EmailChange, err error) {
	hash, ok := tokenHash(token)
	if !ok {
		return EmailChange{}, ErrNotFound
	}
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.EmailLink(ctx, db.EmailLinkParams{TokenHash: hash, Now: s.instant()})
		c = EmailChange{PersonID: row.PersonID, Old: row.OldEmail, New: row.Email}
		return err
	})
	return c, err
}

// UseEmailLink changes the email of the person of a link. All links of the person and of the new
// address become void, so a link in the mailbox of the old address no longer sets a password.
// Sessions continue. Errors: ErrNotFound as EmailLink; *ConflictError with CodeMemberExists if
// another person has the address; ErrUnavailable.
func (s *Store) UseEmailLink(ctx context.Context, token string) (EmailChange, error) {
	c, err := s.EmailLink(ctx, token)
	if err != nil {
		return EmailChange{}, err
	}
	hash, _ := tokenHash(token) // the link was found by it
	return c, s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if _, err := q.TakeAccountLink(ctx, db.TakeAccountLinkParams{TokenHash: hash, Purpose: linkForEmail, Now: s.instant()}); err != nil {
			return err
		}
		changed, err := q.UpdateEmail(ctx, db.UpdateEmailParams{ID: c.PersonID, Email: c.New})
		if err != nil {
			return err
		}
		if changed == 0 {
			return &ConflictError{CodeMemberExists, "another login or invitation has this address: use another address"}
		}
		if err := q.DeleteLinksOfPerson(ctx, &c.PersonID); err != nil {
			return err
		}
		if err := q.DeleteLinksOfEmail(ctx, c.New); err != nil {
			return err
		}
		return s.personEvent(ctx, tx, c.PersonID, newEvent{kind: EventEmailChanged, details: map[string]any{"before": c.Old, "after": c.New}})
	})
}
