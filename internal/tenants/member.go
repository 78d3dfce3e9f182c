package tenants

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/mail"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/crypto/argon2"

	"weir/internal/check"
	"weir/internal/tenants/db"
)

// Role is what a member may do in a tenant.
type Role string

// The roles.
const (
	Owner   Role = "owner"
	Admin   Role = "admin"
	Editor  Role = "editor"  // rules, plans, subjects
	Support Role = "support" // may reset a subject and grant a temporary override
	Viewer  Role = "viewer"
)

// Roles lists the roles, the mightiest first.
var Roles = []Role{Owner, Admin, Editor, Support, Viewer}

// Member is a person in a tenant.
type Member struct {
	PersonID uuid.UUID
	Email    string
	Role     Role
}

// Person is somebody who can log in.
type Person struct {
	ID          uuid.UUID
	Email       string
	Memberships []Membership // by slug
}

// Membership is a tenant that a person is a member of.
type Membership struct {
	TenantID   uuid.UUID
	Slug, Name string
	Role       Role
}

// ErrWrongPassword: there is no such login, or its password is another.
var ErrWrongPassword = errors.New("wrong email or password")

const (
	minPassword = 8    // characters
	maxPassword = 1024 // bytes; longer ones are refused before any hashing
	maxEmail    = 254  // bytes
)

// CreateMember makes the person with this email a member of the actor's tenant, or gives a member
// that role. A person who has no login yet gets one with the password; one who has keeps their
// own, unless it is the server itself (SystemActor) that acts. Errors: *InvalidError, ErrUnavailable.
func (s *Store) CreateMember(ctx context.Context, a Actor, email, password string, role Role) (Member, error) {
	var fields []check.FieldError
	email, ok := normalEmail(email)
	if !ok {
		fields = append(fields, check.FieldError{Field: "email", Message: "must be an address such as name@example.com"})
	}
	if utf8.RuneCountInString(password) < minPassword || len(password) > maxPassword {
		fields = append(fields, check.FieldError{
			Field: "password", Message: fmt.Sprintf("must be at least %d characters and at most %d bytes long", minPassword, maxPassword),
		})
	}
	if !slices.Contains(Roles, role) {
		fields = append(fields, check.FieldError{Field: "role", Message: "must be one of owner, admin, editor, support, viewer"})
	}
	if err := invalidIf(fields); err != nil {
		return Member{}, err
	}
	person, err := s.ensurePerson(ctx, email, password, a.kind == SystemActor)
	if err != nil {
		return Member{}, err
	}
	err = s.inTenant(ctx, a, func(ctx context.Context, q *db.Queries) error {
		return q.UpsertMember(ctx, db.UpsertMemberParams{TenantID: a.tenant, PersonID: person, Role: string(role)})
	})
	if err != nil {
		return Member{}, err
	}
	return Member{PersonID: person, Email: email, Role: role}, nil
}

// ensurePerson returns the id of the person with this email and makes the login where there is
// none; reset gives an existing one the password.
func (s *Store) ensurePerson(ctx context.Context, email, password string, reset bool) (id uuid.UUID, err error) {
	hash, err := hashPassword(ctx, password)
	if err != nil {
		return uuid.Nil, err
	}
	err = s.asSystem(ctx, operationTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		created, err := q.InsertPerson(ctx, db.InsertPersonParams{ID: newID(), Email: email, PasswordHash: hash})
		if err != nil {
			return err
		}
		row, err := q.PersonByEmail(ctx, email)
		if err != nil {
			return err
		}
		id = row.ID
		if created == 0 && reset {
			return q.UpdatePassword(ctx, db.UpdatePasswordParams{ID: id, PasswordHash: hash})
		}
		return nil
	})
	return id, err
}

// VerifyPassword returns the person who logs in. It takes as long for an unknown email as for a
// wrong password. Errors: ErrWrongPassword, ErrUnavailable.
func (s *Store) VerifyPassword(ctx context.Context, email, password string) (Person, error) {
	if len(password) > maxPassword {
		return Person{}, ErrWrongPassword
	}
	var row db.PersonByEmailRow
	var memberships []db.MembershipsRow
	if email, ok := normalEmail(email); ok {
		err := s.asSystem(ctx, operationTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
			if row, err = q.PersonByEmail(ctx, email); err != nil {
				return err
			}
			memberships, err = q.Memberships(ctx, row.ID)
			return err
		})
		if err != nil && !errors.Is(err, ErrNotFound) {
			return Person{}, err
		}
	}
	hash := dummyHash
	if row.ID != uuid.Nil {
		hash = row.PasswordHash
	}
	right, err := passwordMatches(ctx, hash, password)
	if err != nil {
		return Person{}, err
	}
	if !right || row.ID == uuid.Nil {
		return Person{}, ErrWrongPassword
	}
	person := Person{ID: row.ID, Email: row.Email}
	for _, m := range memberships {
		person.Memberships = append(person.Memberships, Membership{TenantID: m.TenantID, Slug: m.Slug, Name: m.Name, Role: Role(m.Role)})
	}
	return person, nil
}

// normalEmail returns the address in the form in which it is stored and compared.
func normalEmail(email string) (string, bool) {
	if len(email) > maxEmail { // before parsing, whose cost grows faster than the length
		return "", false
	}
	address, err := mail.ParseAddress(email)
	if err != nil || address.Name != "" || address.Address != email || !plain(email) {
		return "", false
	}
	return strings.ToLower(email), true
}

// Argon2id as OWASP advises at the least: 19 MiB, two passes, one lane.
const (
	argonMemory = 19 * 1024 // KiB
	argonPasses = 2
	argonLanes  = 1
	argonKey    = 32 // bytes
	argonSalt   = 16 // bytes
)

// hashing bounds how many passwords are hashed at once, and with that the memory it takes.
var hashing = make(chan struct{}, runtime.NumCPU())

// dummyHash is of no password: what an unknown person's password is compared with. It has the
// cost of a real one.
var dummyHash = encodeHash(make([]byte, argonSalt), make([]byte, argonKey))

func argon(ctx context.Context, password string, salt []byte) ([]byte, error) {
	select {
	case hashing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-hashing }()
	return argon2.IDKey([]byte(password), salt, argonPasses, argonMemory, argonLanes, argonKey), nil
}

func hashPassword(ctx context.Context, password string) (string, error) {
	salt := make([]byte, argonSalt)
	_, _ = rand.Read(salt) // never fails: the runtime aborts instead
	key, err := argon(ctx, password, salt)
	if err != nil {
		return "", err
	}
	return encodeHash(salt, key), nil
}

func encodeHash(salt, key []byte) string {
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, argonMemory, argonPasses, argonLanes,
		base64.RawStdEncoding.EncodeToString(salt), base64.RawStdEncoding.EncodeToString(key))
}

// passwordMatches compares with a stored hash. There is one set of parameters so far; a hash
// with others is an error, not a wrong password.
func passwordMatches(ctx context.Context, stored, password string) (bool, error) {
	fields := strings.Split(stored, "$")
	parameters := encodeHash(nil, nil) // ends in two empty fields
	if len(fields) != 6 || !strings.HasPrefix(parameters, strings.Join(fields[:4], "$")+"$") {
		return false, errors.New("a stored password has unknown parameters")
	}
	salt, err1 := base64.RawStdEncoding.DecodeString(fields[4])
	want, err2 := base64.RawStdEncoding.DecodeString(fields[5])
	if err := errors.Join(err1, err2); err != nil {
		return false, fmt.Errorf("read a stored password: %w", err)
	}
	got, err := argon(ctx, password, salt)
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(got, want) == 1, nil
}
