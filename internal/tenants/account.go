package tenants

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/places"
	"weir/internal/tenants/db"
)

// PasswordLinkLife is how long a password link is valid.
const PasswordLinkLife = time.Hour

const linkForPassword = "password"

// newToken returns a token for a link or a session, and the hash that is stored.
func newToken() (token string, hash []byte) {
	secret := make([]byte, sessionTokenBytes)
	_, _ = rand.Read(secret) // never fails: the runtime aborts instead
	return base64.RawURLEncoding.EncodeToString(secret), sessionHash(secret)
}

// tokenHash returns the hash of a token, and whether the token is well-formed.
func tokenHash(token string) ([]byte, bool) {
	secret, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(secret) != sessionTokenBytes {
		return nil, false
	}
	return sessionHash(secret), true
}

// person returns a person with all memberships.
func (s *Store) person(ctx context.Context, id uuid.UUID) (out Person, err error) {
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.PersonByID(ctx, id)
		if err != nil {
			return err
		}
		memberships, err := q.Memberships(ctx, id)
		out = Person{ID: row.ID, Email: row.Email, Memberships: membershipsOf(memberships)}
		return err
	})
	return out, err
}

// PersonWithLogin returns the person with this email, without memberships. Errors: ErrNotFound,
// also for a person who was only invited; ErrUnavailable.
func (s *Store) PersonWithLogin(ctx context.Context, email string) (out Person, err error) {
	email, ok := normalEmail(email)
	if !ok {
		return Person{}, ErrNotFound
	}
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.PersonByEmail(ctx, email)
		if err == nil && row.PasswordHash == nil {
			return ErrNotFound
		}
		out = Person{ID: row.ID, Email: row.Email}
		return err
	})
	return out, err
}

// NewPasswordLink creates a link with which a person sets a new password, and returns its token,
// which is not stored. Earlier links stay valid. Errors: ErrUnavailable.
func (s *Store) NewPasswordLink(ctx context.Context, p Person) (token string, err error) {
	token, hash := newToken()
	now := s.instant()
	return token, s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		err := q.InsertAccountLink(ctx, db.InsertAccountLinkParams{
			TokenHash: hash, Purpose: linkForPassword, Email: p.Email, PersonID: &p.ID, CreatedAt: now, ExpiresAt: now.Add(PasswordLinkLife),
		})
		if err != nil {
			return err
		}
		return s.personEvent(ctx, tx, p.ID, newEvent{kind: EventPasswordLink})
	})
}

// PasswordLink returns the person of a link. Errors: ErrNotFound if it is unknown, used or expired;
// ErrUnavailable.
func (s *Store) PasswordLink(ctx context.Context, token string) (email string, err error) {
	return s.accountLink(ctx, token, linkForPassword)
}

func (s *Store) accountLink(ctx context.Context, token, purpose string) (email string, err error) {
	hash, ok := tokenHash(token)
	if !ok {
		return "", ErrNotFound
	}
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.AccountLink(ctx, db.AccountLinkParams{TokenHash: hash, Purpose: purpose, Now: s.instant()})
		email = row.Email
		return err
	})
	return email, err
}

// UsePasswordLink sets a new password for the person of a link. All sessions and links of the
// person end. Errors: ErrNotFound as PasswordLink; *InvalidError of the field password;
// ErrUnavailable; that of ctx while too many passwords are being hashed.
func (s *Store) UsePasswordLink(ctx context.Context, token, password string) (Person, error) {
	email, err := s.PasswordLink(ctx, token)
	if err != nil {
		return Person{}, err
	}
	if err := invalidIf(checkPassword(password, email)); err != nil {
		return Person{}, err
	}
	encoded, err := s.hasher.hash(ctx, password)
	if err != nil {
		return Person{}, err
	}
	hash, _ := tokenHash(token) // the link was found by it
	var person uuid.UUID
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		link, err := q.TakeAccountLink(ctx, db.TakeAccountLinkParams{TokenHash: hash, Purpose: linkForPassword, Now: s.instant()})
		if err != nil {
			return err
		}
		person = *link.PersonID // a constraint makes sure that it is set
		if err := setPassword(ctx, q, person, encoded, s.instant()); err != nil {
			return err
		}
		return s.personEvent(ctx, tx, person, newEvent{kind: EventPasswordChanged, details: map[string]any{"how": "link"}})
	})
	if err != nil {
		return Person{}, err
	}
	return s.person(ctx, person)
}

// setPassword replaces a password and ends all sessions and links of the person, and the sign-ins
// of devices that the person has approved. No browser and no address is known any more.
func setPassword(ctx context.Context, q *db.Queries, person uuid.UUID, hash string, now time.Time) error {
	if err := q.UpdatePassword(ctx, db.UpdatePasswordParams{ID: person, PasswordHash: &hash}); err != nil {
		return err
	}
	if err := q.DeleteLinksOfPerson(ctx, &person); err != nil {
		return err
	}
	if err := q.DeleteDeviceLoginsOf(ctx, &person); err != nil {
		return err
	}
	if err := forgetClients(ctx, q, now, person, nil); err != nil {
		return err
	}
	return q.DeleteSessionsOf(ctx, person)
}

// ChangePassword changes the password of a person who has proved the current one. All sessions of
// the person end, and p has proved the new password. Errors: *InvalidError of the field password;
// ErrWrongPassword if it was changed since then; ErrUnavailable; that of ctx while too many
// passwords are being hashed.
func (s *Store) ChangePassword(ctx context.Context, p *Person, password string) error {
	if err := invalidIf(checkPassword(password, p.Email)); err != nil {
		return err
	}
	hash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return err
	}
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := p.stillProved(ctx, q); err != nil {
			return err
		}
		if err := setPassword(ctx, q, p.ID, hash, s.instant()); err != nil {
			return err
		}
		return s.personEvent(ctx, tx, p.ID, newEvent{kind: EventPasswordChanged, details: map[string]any{"how": "account"}})
	})
	if err == nil {
		p.proved = hash
	}
	return err
}

// IsBusy reports whether err means that too many passwords were being hashed at the same time.
func IsBusy(err error) bool {
	return errors.Is(err, places.ErrCrowded) || errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnavailable)
}
