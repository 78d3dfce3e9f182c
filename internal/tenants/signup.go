package tenants

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// How long a sign-up link is valid.
const (
	SignupLinkLife = 24 * time.Hour     // requested on the sign-up page
	SignupGiftLife = 7 * 24 * time.Hour // created by the operator
)

const linkForSignup = "signup"

// NewSignup has the inputs of a person who signs up.
type NewSignup struct {
	Tenant   string // its name
	Password string
}

// NewSignupLink creates a link with which the person who reads mail at this address can create a
// tenant, and returns its token, which is not stored. Errors: *InvalidError of the field email;
// *ConflictError if the address has a login; ErrUnavailable.
func (s *Store) NewSignupLink(ctx context.Context, email string, life time.Duration) (token string, err error) {
	email, err = signupEmail(email)
	if err != nil {
		return "", err
	}
	token, hash := newToken()
	now := s.instant()
	return token, s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
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

// SignupLink returns the email of a link. Errors: ErrNotFound if it is unknown, used or expired;
// ErrUnavailable.
func (s *Store) SignupLink(ctx context.Context, token string) (email string, err error) {
	return s.accountLink(ctx, token, linkForSignup)
}

// SignUp creates a login for the person of a link, and a tenant with the person as its owner. All
// links of the address become void. Errors: ErrNotFound as SignupLink; *InvalidError of the fields
// tenant and password; *ConflictError with CodeMemberExists if the address got a login in the
// meantime; ErrUnavailable; that of ctx while too many passwords are being hashed.
func (s *Store) SignUp(ctx context.Context, token string, n NewSignup) (Person, error) {
	email, err := s.SignupLink(ctx, token)
	if err != nil {
		return Person{}, err
	}
	hash, _ := tokenHash(token) // the link was found by it
	return s.signUp(ctx, email, n, func(ctx context.Context, q *db.Queries) error {
		_, err := q.TakeAccountLink(ctx, db.TakeAccountLinkParams{TokenHash: hash, Purpose: linkForSignup, Now: s.instant()})
		if err != nil {
			return err
		}
		return q.DeleteLinksOfEmail(ctx, email)
	})
}

// SignUpUnproved is SignUp for an unverified address, when no mail can be sent. It also refuses a
// person who was only invited, because the address may be another person's. Errors: those of
// SignUp, and of the field email.
func (s *Store) SignUpUnproved(ctx context.Context, email string, n NewSignup) (Person, error) {
	email, err := signupEmail(email)
	if err != nil {
		return Person{}, err
	}
	return s.signUp(ctx, email, n, func(ctx context.Context, q *db.Queries) error {
		_, err := q.PersonByEmail(ctx, email)
		if err == nil {
			return &ConflictError{CodeMemberExists, "this address is already registered: sign in, or follow the link of your invitation"}
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
}

// signUp creates login, tenant and membership in one transaction, if prove allows it.
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
	password, err := s.hasher.hash(ctx, n.Password)
	if err != nil {
		return Person{}, err
	}
	var person uuid.UUID
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		// Locked before the person, as by an invitation to it.
		platform, err := s.lockTiers(ctx, tx, q)
		if err != nil {
			return err
		}
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
		if err := s.giveTier(ctx, platform, slug); err != nil {
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

// lockTiers locks the operator's tenant, and returns the change of it that gives a tenant the tier
// of sign-ups. If sign-ups have the default tier, it returns nil.
func (s *Store) lockTiers(ctx context.Context, tx pgx.Tx, q *db.Queries) (*change, error) {
	if s.signupTier == "" {
		return nil, nil
	}
	row, err := q.TenantBySlug(ctx, PlatformSlug)
	if err != nil {
		return nil, err
	}
	if _, err := q.LockTenant(ctx, row.ID); err != nil {
		return nil, err
	}
	c := s.newChange(q, tx, AsSystem(row.ID, "sign-up"), row.ID, s.instant())
	c.chain = true
	return c, nil
}

// giveTier gives the tier of sign-ups to a slug, in the transaction that creates its tenant: the
// tenant never has another one, and a sign-up that fails leaves nothing.
func (s *Store) giveTier(ctx context.Context, platform *change, slug string) error {
	if platform == nil {
		return nil
	}
	err := platform.asOwn(ctx, func() error {
		_, err := platform.createSubject(ctx, Subject{Subject: slug, Plan: s.signupTier})
		return err
	})
	if wrong := (*InvalidError)(nil); errors.As(err, &wrong) { // it is not about what the person has sent
		return fmt.Errorf("WEIR_SIGNUP_TIER %q: %s", s.signupTier, wrong)
	}
	return err
}

// asOwn runs fn as weir_app in the tenant of a change, with its trail, for a transaction of all
// tenants.
func (c *change) asOwn(ctx context.Context, fn func() error) error {
	if _, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleApp); err != nil {
		return err
	}
	if err := c.SetTenant(ctx, c.tenant.String()); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	rows, err := c.trail.rows(ctx)
	if err != nil {
		return err
	}
	if err := appendAudit(ctx, c.Queries, c.tenant, c.actor, c.now, c.auditDay, rows); err != nil {
		return err
	}
	_, err = c.tx.Exec(ctx, "SET LOCAL ROLE "+roleSystem)
	return err
}

// personSigningUp creates a person with this login, or adds it to an invited person.
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

// freeSlug returns a slug for a tenant's name that the operator has not prepared and no tenant ever
// had: in the operator's tenant, the tier, the overrides and the counters of a tenant belong to its
// slug, and outlive it. Only the operator can use such a slug again.
func freeSlug(ctx context.Context, q *db.Queries, name string) (string, error) {
	slug := slugOf(name)
	if slug != PlatformSlug && uuid.Validate(slug) != nil {
		used, err := q.SlugWasUsed(ctx, db.SlugWasUsedParams{Slug: slug, Platform: PlatformSlug})
		if err != nil {
			return "", err
		}
		if !used {
			return slug, nil
		}
	}
	return slug + "-" + strings.ToLower(rand.Text()[:6]), nil // if that is used too, there is a conflict
}

// slugOf converts a name to a slug: its letters and digits, with a dash for everything in between.
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
