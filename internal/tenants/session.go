package tenants

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// The duration of a session.
const (
	SessionIdle = 12 * time.Hour     // without a request
	SessionLife = 7 * 24 * time.Hour // in all
)

const (
	sessionTokenBytes = 32
	// sessionTouchAfter is the interval in which the last use of a session is stored.
	sessionTouchAfter = time.Minute
	maxUserAgent      = 512 // bytes
)

// ErrNoSession: the session does not exist or has ended.
var ErrNoSession = errors.New("no session")

// Session is a person signed in to the dashboard. It has the current roles: a changed role or an
// ended membership shows in the next read.
type Session struct {
	ID          uuid.UUID
	PersonID    uuid.UUID
	Email       string
	CreatedAt   time.Time
	Memberships []Membership // those with rights: joined, in active tenants; by slug
	Current     *Membership  // of the chosen tenant, or else the first; nil if there is none
}

// Actor returns the person as a member of the current tenant, who may read it and change what the
// role allows. There must be a current tenant. A member who manages the operator's own tenant is
// the operator.
func (s *Session) Actor() Actor {
	a := Actor{
		tenant: s.Current.TenantID, kind: MemberActor, id: s.Current.MemberID, name: s.Email,
		scopes: newScopes([]Scope{ScopeRead}), rights: s.Current.Role.Rights(),
	}
	if a.May(MayManage) {
		a.scopes = everyScope // a key that they create may have any scope
		a.operator = s.Current.Slug == PlatformSlug
	}
	return a
}

// OpenSession is a session in the list of its owner.
type OpenSession struct {
	ID        uuid.UUID
	Address   string // from which it was started
	UserAgent string
	CreatedAt time.Time
	SeenAt    time.Time // about a minute behind
}

// StartSession starts a session for a person who was authenticated by a password, and returns its
// token, which is not stored. Errors: ErrUnavailable.
func (s *Store) StartSession(ctx context.Context, person Person, address, userAgent string) (token string, err error) {
	token, hash := newToken()
	var chosen *uuid.UUID
	if usable := usableMemberships(person.Memberships); len(usable) > 0 {
		chosen = &usable[0].TenantID
	}
	if !plain(userAgent) {
		userAgent = ""
	}
	if len(userAgent) > maxUserAgent {
		userAgent = strings.ToValidUTF8(userAgent[:maxUserAgent], "")
	}
	err = s.asSystem(ctx, operationTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		return q.InsertSession(ctx, db.InsertSessionParams{
			TokenHash: hash, ID: newID(), PersonID: person.ID, ChosenTenant: chosen,
			Address: address, UserAgent: userAgent, Now: s.instant(),
		})
	})
	return token, err
}

// Session returns the session of a token, and records its use. Errors: ErrNoSession,
// ErrUnavailable.
func (s *Store) Session(ctx context.Context, token string) (Session, error) {
	hash, ok := tokenHash(token)
	if !ok {
		return Session{}, ErrNoSession
	}
	now := s.instant()
	var row db.SessionByTokenRow
	var memberships []db.MembershipsRow
	err := s.asSystem(ctx, operationTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		row, err = q.SessionByToken(ctx, db.SessionByTokenParams{
			TokenHash: hash, Oldest: now.Add(-SessionLife), IdleSince: now.Add(-SessionIdle),
		})
		if err != nil {
			return err
		}
		memberships, err = q.Memberships(ctx, row.PersonID)
		return err
	})
	switch {
	case errors.Is(err, ErrNotFound):
		return Session{}, ErrNoSession
	case err != nil:
		return Session{}, err
	}
	if now.Sub(row.SeenAt) >= sessionTouchAfter {
		err := s.asSystem(ctx, operationTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
			return q.TouchSession(ctx, db.TouchSessionParams{ID: row.ID, Now: now})
		})
		if err != nil {
			return Session{}, err
		}
	}
	out := Session{
		ID: row.ID, PersonID: row.PersonID, Email: row.Email, CreatedAt: row.CreatedAt,
		Memberships: usableMemberships(membershipsOf(memberships)),
	}
	out.choose(row.ChosenTenant)
	return out, nil
}

func (s *Session) choose(tenant *uuid.UUID) {
	if len(s.Memberships) == 0 {
		return
	}
	s.Current = &s.Memberships[0]
	for i := range s.Memberships {
		if tenant != nil && s.Memberships[i].TenantID == *tenant {
			s.Current = &s.Memberships[i]
		}
	}
}

// usableMemberships returns the memberships that have rights.
func usableMemberships(all []Membership) []Membership {
	return slices.DeleteFunc(slices.Clone(all), func(m Membership) bool { return m.State != MemberActive || m.Suspended })
}

// ChooseTenant makes another of the person's tenants the current one of the session. Errors:
// ErrNotFound if the person has not joined it; ErrUnavailable.
func (s *Store) ChooseTenant(ctx context.Context, session Session, tenant uuid.UUID) error {
	return s.asSystem(ctx, operationTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		n, err := q.ChooseTenant(ctx, db.ChooseTenantParams{ID: session.ID, TenantID: tenant})
		if err == nil && n == 0 {
			return ErrNotFound
		}
		return err
	})
}

// OpenSessions lists the person's sessions, most recently used first, at most 100.
func (s *Store) OpenSessions(ctx context.Context, session Session) (out []OpenSession, err error) {
	now := s.instant()
	err = s.asSystem(ctx, operationTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.SessionsOf(ctx, db.SessionsOfParams{
			PersonID: session.PersonID, Oldest: now.Add(-SessionLife), IdleSince: now.Add(-SessionIdle),
		})
		for _, row := range rows {
			out = append(out, OpenSession(row))
		}
		return err
	})
	return out, err
}

// EndSession ends one of the person's sessions. Errors: ErrNotFound, also for a session of another
// person; ErrUnavailable.
func (s *Store) EndSession(ctx context.Context, session Session, id uuid.UUID) error {
	return s.asSystem(ctx, operationTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		n, err := q.DeleteSession(ctx, db.DeleteSessionParams{PersonID: session.PersonID, ID: id})
		if err == nil && n == 0 {
			return ErrNotFound
		}
		return err
	})
}

// EndOtherSessions ends all of the person's sessions but this one.
func (s *Store) EndOtherSessions(ctx context.Context, session Session) error {
	return s.asSystem(ctx, operationTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		_, err := q.DeleteOtherSessions(ctx, db.DeleteOtherSessionsParams{PersonID: session.PersonID, Keep: session.ID})
		return err
	})
}

// endSessionsHere ends the person's sessions in this tenant, because the person's rights there have
// changed. Another role of the database writes sessions, as for people.
func (c *change) endSessionsHere(ctx context.Context, person uuid.UUID) error {
	if _, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleSystem); err != nil {
		return err
	}
	if err := c.DeleteSessionsIn(ctx, db.DeleteSessionsInParams{PersonID: person, TenantID: &c.tenant}); err != nil {
		return err
	}
	_, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleApp)
	return err
}

func sessionHash(secret []byte) []byte {
	sum := sha256.Sum256(secret)
	return sum[:]
}
