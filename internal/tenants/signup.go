package tenants

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// How long a link works by which somebody ends a sign-up.
const (
	SignupLinkLife = 24 * time.Hour     // that people ask for themselves
	SignupGiftLife = 7 * 24 * time.Hour // that the operator gives out
)

const linkForSignup = "signup"

// NewSignup is what somebody chooses who signs up.
type NewSignup struct {
	Tenant   string // its name
	Password string
}

// NewSignupLink makes a link by which whoever reads mail at this address may make a tenant, and
// returns its token, which is kept nowhere. Errors: *InvalidError of the field email;
// *ConflictError where the address has a login; ErrUnavailable.
func (s *Store) NewSignupLink(ctx context.Context, email string, life time.Duration) (token string, err error) {
	email, err = signupEmail(email)
	if err != nil {
		return "", err
	}
	token, hash := newToken()
	now := s.instant()
	return token, s.asSystem(ctx, operationTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.PersonByEmail(ctx, email)
		switch {
		case err == nil && row.PasswordHash != nil:
			return errHasLogin()
		case err != nil && !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		return q.InsertAccountLink(ctx, db.InsertAccountLinkParams{
			TokenHash: hash, Purpose: linkForSignup, Email: email, CreatedAt: now, ExpiresAt: now.Add(life),
		})
	})
}

func signupEmail(email string) (string, error) {
	normal, ok := normalEmail(email)
	if !ok {
		return "", invalidIf([]limit.FieldError{emailError})
	}
	return normal, nil
}

// SignupLink returns who signs up with a link. Errors: ErrNotFound where it is unknown, used or
// too old; ErrUnavailable.
func (s *Store) SignupLink(ctx context.Context, token string) (email string, err error) {
	return s.accountLink(ctx, token, linkForSignup)
}

// SignUp makes the person of a link a login, and a tenant with them as its owner. All of the
// address's links are used up. Errors: ErrNotFound as SignupLink; *InvalidError of the fields
// tenant and password; *ConflictError with CodeMemberExists where the address has a login
// meanwhile; ErrUnavailable; that of ctx while too many passwords are hashed.
func (s *Store) SignUp(ctx context.Context, token string, n NewSignup) (Person, error) {
	email, err := s.SignupLink(ctx, token)
	if err != nil {
		return Person{}, err
	}
	hash, _ := tokenHash(token) // it was found by it
	return s.signUp(ctx, email, n, func(ctx context.Context, q *db.Queries) error {
		_, err := q.TakeAccountLink(ctx, db.TakeAccountLinkParams{TokenHash: hash, Purpose: linkForSignup, Now: s.instant()})
		if err != nil {
			return err
		}
		return q.DeleteLinksOfEmail(ctx, email)
	})
}

// SignUpUnproved is SignUp for an address that nobody has proved to be theirs: where no mail can be
// sent. Somebody who was only invited is refused, too: the address may be another's. Errors: those
// of SignUp, and of the field email.
func (s *Store) SignUpUnproved(ctx context.Context, email string, n NewSignup) (Person, error) {
	email, err := signupEmail(email)
	if err != nil {
		return Person{}, err
	}
	return s.signUp(ctx, email, n, func(ctx context.Context, q *db.Queries) error {
		_, err := q.PersonByEmail(ctx, email)
		if err == nil {
			return &ConflictError{CodeMemberExists, "this address is known already: sign in, or follow the link of your invitation"}
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
}

// signUp makes login, tenant and membership in one transaction, if prove lets it.
func (s *Store) signUp(ctx context.Context, email string, n NewSignup, prove func(context.Context, *db.Queries) error) (Person, error) {
	var fields []limit.FieldError
	n.Tenant = strings.TrimSpace(n.Tenant)
	checkText(&fields, "tenant", n.Tenant, 200)
	if n.Tenant == "" {
		fields = append(fields, limit.FieldProblem("tenant", limit.Wrong("Type a name.", "must not be empty")))
	}
	if err := invalidIf(append(fields, checkPassword(n.Password, email)...)); err != nil {
		return Person{}, err
	}
	password, err := s.cost.hash(ctx, n.Password)
	if err != nil {
		return Person{}, err
	}
	var person uuid.UUID
	err = s.asSystem(ctx, operationTimeout, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := prove(ctx, q); err != nil {
			return err
		}
		person, err = personSigningUp(ctx, q, email, password)
		if err != nil {
			return err
		}
		slug, err := freeSlug(ctx, q, n.Tenant)
		if err != nil {
			return err
		}
		self := Actor{kind: MemberActor, id: newID(), name: email}
		c, row, err := s.insertTenant(ctx, tx, q, self, NewTenant{Slug: slug, Name: n.Tenant})
		if err != nil {
			return err
		}
		c.actor.tenant = row.ID
		return c.endOperator(ctx, func() error {
			_, err := c.UpsertMember(ctx, db.UpsertMemberParams{
				TenantID: row.ID, PersonID: person, ID: self.id, Role: string(Owner), JoinedAt: &c.now, Version: row.Version,
			})
			return err
		})
	})
	if err != nil {
		return Person{}, err
	}
	return s.person(ctx, person)
}

// personSigningUp makes a person with this login, or gives it to one who was invited somewhere.
func personSigningUp(ctx context.Context, q *db.Queries, email, hash string) (uuid.UUID, error) {
	id, created, err := holdPerson(ctx, q, email, &hash)
	if err != nil || created {
		return id, err
	}
	set, err := q.SetFirstPassword(ctx, db.SetFirstPasswordParams{ID: id, PasswordHash: &hash})
	if err == nil && set != 1 {
		err = errHasLogin()
	}
	return id, err
}

// freeSlug makes a slug of a tenant's name that no tenant has.
func freeSlug(ctx context.Context, q *db.Queries, name string) (string, error) {
	slug := slugOf(name)
	if slug != PlatformSlug && uuid.Validate(slug) != nil {
		_, err := q.TenantBySlug(ctx, slug)
		if errors.Is(err, pgx.ErrNoRows) {
			return slug, nil
		}
		if err != nil {
			return "", err
		}
	}
	return slug + "-" + strings.ToLower(rand.Text()[:6]), nil // should even that be taken, it is a conflict
}

// slugOf makes a slug of a name: its letters and digits, with a dash for whatever is between.
func slugOf(name string) string {
	const most = 40 // of the 63 characters, so that something can be added
	var b strings.Builder
	dash := false
	for _, c := range strings.ToLower(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			if dash && b.Len() > 0 {
				b.WriteByte('-')
			}
			dash = false
			b.WriteRune(c)
		default:
			dash = true
		}
		if b.Len() >= most {
			break
		}
	}
	if b.Len() == 0 {
		return "tenant"
	}
	return b.String()
}
