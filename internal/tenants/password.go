package tenants

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"golang.org/x/crypto/argon2"

	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/places"
	"weir/internal/tenants/db"
)

// ErrWrongPassword: the login does not exist, or its password is another.
var ErrWrongPassword = errors.New("wrong email or password")

// The limits of a password.
const (
	MinPassword = 10   // characters
	MaxPassword = 1024 // bytes; longer ones are refused before hashing, and none is truncated
)

// breachedList has passwords that attackers try first, one per line, in lower case: the most
// frequent ones of published breaches that are long enough.
//
//go:embed breached.txt
var breachedList string

var breached = sync.OnceValue(func() map[string]bool {
	list := map[string]bool{}
	for line := range strings.Lines(breachedList) {
		list[strings.TrimSuffix(line, "\n")] = true
	}
	return list
})

// checkPassword returns what is wrong with a new password. Kinds of characters do not matter,
// because people meet such requirements in predictable ways.
func checkPassword(password, email string) []limit.FieldError {
	wrong := func(p *limit.Problem) []limit.FieldError {
		return []limit.FieldError{limit.FieldProblem("password", p)}
	}
	name, _, _ := strings.Cut(email, "@")
	lower := strings.ToLower(password)
	switch {
	case len(password) > MaxPassword:
		return wrong(limit.MustBe("at most %d bytes long", MaxPassword))
	case strings.Contains(password, "\x00") || !utf8.ValidString(password):
		return wrong(limit.MustBe("text without NUL"))
	case strings.TrimSpace(password) == "":
		return wrong(limit.Wrong("Type a password.", "must not be empty or blank"))
	case utf8.RuneCountInString(password) < MinPassword:
		return wrong(limit.MustBe("at least %d characters long", MinPassword))
	case breached()[lower] || strings.Count(lower, lower[:1]) == len(lower):
		return wrong(limit.Wrong("Use a password that is harder to guess.", "is one of the most common passwords"))
	case lower == email || lower == name:
		return wrong(limit.Wrong("Use another password.", "must not be the email address"))
	}
	return nil
}

// VerifyPassword returns the person who logs in. It takes as long for an unknown email as for a
// wrong password. Errors: ErrWrongPassword, ErrUnavailable.
func (s *Store) VerifyPassword(ctx context.Context, email, password string) (Person, error) {
	if len(password) > MaxPassword {
		return Person{}, ErrWrongPassword
	}
	var row db.PersonByEmailRow
	var memberships []db.MembershipsRow
	if email, ok := normalEmail(email); ok {
		err := s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
			if row, err = q.PersonByEmail(ctx, email); err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			memberships, err = q.Memberships(ctx, row.ID) // also for an unknown email, to take as long
			return err
		})
		if err != nil {
			return Person{}, err
		}
	}
	hash := s.hasher.dummy()
	if row.PasswordHash != nil {
		hash = *row.PasswordHash
	}
	right, err := s.hasher.matches(ctx, hash, password)
	if err != nil {
		return Person{}, err
	}
	if !right || row.PasswordHash == nil { // unknown, or only invited
		return Person{}, ErrWrongPassword
	}
	return Person{ID: row.ID, Email: row.Email, Memberships: membershipsOf(memberships), proved: hash}, nil
}

// stillProved returns ErrWrongPassword if the person has another password now than the one that
// VerifyPassword compared: hashing takes a while, and a reset meanwhile must end what a thief began
// with the old one. Until the transaction ends, nobody sets another.
func (p *Person) stillProved(ctx context.Context, q *db.Queries) error {
	if p.proved == "" {
		return nil
	}
	has, err := q.HasPassword(ctx, db.HasPasswordParams{ID: p.ID, PasswordHash: p.proved})
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !has {
		err = ErrWrongPassword
	}
	return err
}

// PasswordCost is the cost of hashing one password with Argon2id.
type PasswordCost struct {
	Memory uint32 // KiB
	Passes uint32
}

// DefaultPasswordCost is the minimum that OWASP recommends.
var DefaultPasswordCost = PasswordCost{Memory: 19 * 1024, Passes: 2}

const (
	argonLanes = 1
	argonKey   = 32 // bytes
	argonSalt  = 16 // bytes
)

// hashing limits how many passwords are hashed concurrently, and so the memory for it. The other
// half of the processors is for checks, which would wait for a hash of some 20 ms otherwise. The
// networks of clients take turns, so that one that signs in very often keeps out no other one.
var hashing = newHashRounds(runtime.GOMAXPROCS(0) / 2)

// maxHashesWaiting is more than the dashboard has pages at once.
const maxHashesWaiting = 256

type hashRounds = places.Rounds[netip.Prefix]

func newHashRounds(most int) *hashRounds {
	return places.NewRounds[netip.Prefix](most, maxHashesWaiting)
}

// hasher hashes passwords, a few at once.
type hasher struct {
	PasswordCost
	rounds *hashRounds
}

// dummy is a hash of no password. VerifyPassword compares with it for an unknown email, so that it
// takes as long as for a wrong password.
func (c PasswordCost) dummy() string {
	return c.encode(make([]byte, argonSalt), make([]byte, argonKey))
}

func (c hasher) key(ctx context.Context, password string, salt []byte) ([]byte, error) {
	from, _ := ctx.Value(originKey{}).(Origin) // a command has none
	within := origin.WithinHost(from.Address)
	if err := c.rounds.Take(ctx, within[:]...); err != nil {
		return nil, err
	}
	defer c.rounds.Leave()
	return argon2.IDKey([]byte(password), salt, c.Passes, c.Memory, argonLanes, argonKey), nil
}

func (c hasher) hash(ctx context.Context, password string) (string, error) {
	salt := make([]byte, argonSalt)
	_, _ = rand.Read(salt) // never fails: the runtime aborts instead
	key, err := c.key(ctx, password, salt)
	if err != nil {
		return "", err
	}
	return c.encode(salt, key), nil
}

func (c PasswordCost) encode(salt, key []byte) string {
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, c.Memory, c.Passes, argonLanes,
		base64.RawStdEncoding.EncodeToString(salt), base64.RawStdEncoding.EncodeToString(key))
}

// matches compares with a stored hash. A hash with another cost is an error, not a wrong password.
func (c hasher) matches(ctx context.Context, stored, password string) (bool, error) {
	fields := strings.Split(stored, "$")
	parameters := c.encode(nil, nil) // ends in two empty fields
	if len(fields) != 6 || !strings.HasPrefix(parameters, strings.Join(fields[:4], "$")+"$") {
		return false, errors.New("a stored password has unknown parameters")
	}
	salt, err1 := base64.RawStdEncoding.DecodeString(fields[4])
	want, err2 := base64.RawStdEncoding.DecodeString(fields[5])
	if err := errors.Join(err1, err2); err != nil {
		return false, fmt.Errorf("read a stored password: %w", err)
	}
	got, err := c.key(ctx, password, salt)
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(got, want) == 1, nil
}
