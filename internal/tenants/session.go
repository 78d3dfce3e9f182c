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
	ProvedAt    time.Time    // when the person last entered the password
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

// ConfirmUntil returns until when the person may change keys, members, billing and the security
// settings of the current tenant without entering the password again.
func (s *Session) ConfirmUntil() time.Time { return s.ProvedAt.Add(s.Current.sessions().confirm) }

// SignIn is how a session begins.
type SignIn struct {
	Address   string
	UserAgent string
	NewDevice bool   // the browser is new to the login
	How       string // such as "password"; for the security event
}

// StartSession starts a session for a person who was authenticated by a password, and returns its
// token, which is not stored. Errors: ErrUnavailable.
func (s *Store) StartSession(ctx context.Context, person Person, address, userAgent string) (token string, err error) {
	return s.SignIn(ctx, person, SignIn{Address: address, UserAgent: userAgent, How: "password"})
}

// SignIn is StartSession with more about how the session begins. If the person then has more
// sessions than one of the tenants allows, the least recently used ones end. Errors:
// ErrUnavailable; ErrWrongPassword if the password was changed after the person had entered it.
func (s *Store) SignIn(ctx context.Context, person Person, in SignIn) (token string, err error) {
	address, userAgent := in.Address, in.UserAgent
	token, hash := newToken()
	if !plain(userAgent) {
		userAgent = ""
	}
	if len(userAgent) > maxUserAgent {
		userAgent = strings.ToValidUTF8(userAgent[:maxUserAgent], "")
	}
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := person.stillProved(ctx, q); err != nil {
			return err
		}
		now := s.instant()
		last, err := q.LastTenant(ctx, person.ID)
		if err != nil {
			return err
		}
		chosen := firstTenant(person, last)
		err = q.InsertSession(ctx, db.InsertSessionParams{
			TokenHash: hash, ID: newID(), PersonID: person.ID, ChosenTenant: chosen,
			Address: address, UserAgent: userAgent, Now: now,
		})
		if err != nil {
			return err
		}
		if err := s.signedIn(ctx, tx, q, person, &in); err != nil || address == "" {
			return err
		}
		if err := q.RememberAddress(ctx, db.RememberAddressParams{PersonID: person.ID, Address: address, Now: now}); err != nil {
			return err
		}
		return q.TrimAddresses(ctx, db.TrimAddressesParams{PersonID: person.ID, Most: maxKnownAddresses})
	})
	return token, err
}

// firstTenant returns the tenant in which a session of the person begins: the one that they used
// last, or else the first by slug; nil if there is none.
func firstTenant(person Person, last *uuid.UUID) *uuid.UUID {
	start := Session{Memberships: usableMemberships(person.Memberships)}
	start.choose(last)
	if start.Current == nil {
		return nil
	}
	return &start.Current.TenantID
}

// signedIn limits the person's sessions, and records the sign-in.
func (s *Store) signedIn(ctx context.Context, tx pgx.Tx, q *db.Queries, person Person, in *SignIn) error {
	most, err := q.MaxSessionsOf(ctx, person.ID)
	if err != nil {
		return err
	}
	if _, err := q.TrimSessions(ctx, db.TrimSessionsParams{PersonID: person.ID, Most: most}); err != nil {
		return err
	}
	event := newEvent{kind: EventSignIn, details: map[string]any{"how": in.How}}
	if err := s.personEvent(ctx, tx, person.ID, event); err != nil || !in.NewDevice {
		return err
	}
	event.kind = EventNewDevice
	return s.personEvent(ctx, tx, person.ID, event)
}

// Confirm records that the person has entered the password again. It does not count any more how
// long the session was idle before. Errors: ErrUnavailable.
func (s *Store) Confirm(ctx context.Context, session Session) error {
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		now := s.instant()
		switch n, err := q.ConfirmSession(ctx, db.ConfirmSessionParams{Now: &now, ID: session.ID, PersonID: session.PersonID}); {
		case err != nil:
			return err
		case n == 0:
			return ErrNoSession
		}
		return s.personEvent(ctx, tx, session.PersonID, newEvent{kind: EventConfirmed})
	})
}

const (
	// AddressLife is how long an address counts as known after the person's last sign-in from it.
	AddressLife       = 90 * 24 * time.Hour
	maxKnownAddresses = 20 // of one person, the last ones
	// BrowserLife is how long a browser counts as known after the person's last sign-in with it.
	BrowserLife = 365 * 24 * time.Hour
)

// KnownAddress reports whether the person with this email has signed in from this address within
// AddressLife. It takes as long for an unknown email. Errors: ErrUnavailable.
func (s *Store) KnownAddress(ctx context.Context, email, address string) (known bool, err error) {
	email, _ = normalEmail(email)
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		known, err = q.KnownAddress(ctx, db.KnownAddressParams{Email: email, Address: address, Since: s.instant().Add(-AddressLife)})
		return err
	})
	return known, err
}

// BrowsersSince returns since when browsers of the person with this email are known, in whole
// seconds: those that signed in before are not known any more. It takes as long for an unknown
// email. Errors: ErrUnavailable.
func (s *Store) BrowsersSince(ctx context.Context, email string) (since time.Time, err error) {
	email, _ = normalEmail(email)
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		since, err = q.BrowsersSince(ctx, email)
		return err
	})
	return since, err
}

// forgetClients ends that browsers and addresses are known, except for the address of a session
// (nil: none). Otherwise a stolen cookie of a browser would keep attempts to sign in of its own.
func forgetClients(ctx context.Context, q *db.Queries, now time.Time, person uuid.UUID, keep *uuid.UUID) error {
	if err := q.ForgetAddresses(ctx, db.ForgetAddressesParams{PersonID: person, Keep: keep}); err != nil {
		return err
	}
	// The cookie of a browser has whole seconds, and one of this second may be the stolen one.
	since := now.Truncate(time.Second).Add(time.Second)
	return q.ForgetBrowsers(ctx, db.ForgetBrowsersParams{PersonID: person, Since: since})
}

// Session returns the session of a token, and records its use. A session that was idle for longer
// than its current tenant allows has ended, also if it was in another tenant at that time. Errors:
// ErrNoSession, ErrUnavailable.
func (s *Store) Session(ctx context.Context, token string) (Session, error) {
	now := s.instant()
	out, seenAt, err := s.openSession(ctx, token, now)
	if err != nil || now.Sub(seenAt) < sessionTouchAfter {
		return out, err
	}
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if err := q.TouchSession(ctx, db.TouchSessionParams{ID: out.ID, Now: now}); err != nil || out.Current == nil {
			return err
		}
		return q.SetLastTenant(ctx, db.SetLastTenantParams{ID: out.PersonID, TenantID: out.Current.TenantID})
	})
	if err != nil {
		return Session{}, err
	}
	return out, nil
}

// UnusedSession is Session for requests that a browser repeats by itself: it does not count as use.
func (s *Store) UnusedSession(ctx context.Context, token string) (Session, error) {
	out, _, err := s.openSession(ctx, token, s.instant())
	return out, err
}

// openSession returns the session of a token, and when it was last used.
func (s *Store) openSession(ctx context.Context, token string, now time.Time) (out Session, seenAt time.Time, err error) {
	hash, ok := tokenHash(token)
	if !ok {
		return Session{}, seenAt, ErrNoSession
	}
	var row db.SessionByTokenRow
	var memberships []db.MembershipsRow
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
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
		return Session{}, seenAt, ErrNoSession
	case err != nil:
		return Session{}, seenAt, err
	}
	out = Session{
		ID: row.ID, PersonID: row.PersonID, Email: row.Email, CreatedAt: row.CreatedAt, ProvedAt: row.ProvedAt,
		Memberships: usableMemberships(membershipsOf(memberships)),
	}
	out.choose(row.ChosenTenant)
	if out.Current != nil {
		limits := out.Current.sessions()
		idle := max(now.Sub(row.SeenAt), time.Duration(row.LongestIdleMs)*time.Millisecond)
		if now.Sub(row.CreatedAt) >= limits.life || idle >= limits.idle {
			return Session{}, seenAt, ErrNoSession
		}
	}
	return out, row.SeenAt, nil
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
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		n, err := q.ChooseTenant(ctx, db.ChooseTenantParams{ID: session.ID, TenantID: tenant})
		if err == nil && n == 0 {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		return q.SetLastTenant(ctx, db.SetLastTenantParams{ID: session.PersonID, TenantID: tenant})
	})
}

// In returns the session in another of the person's tenants, and whether the person has joined it.
func (s *Session) In(tenant uuid.UUID) (Session, bool) {
	out := *s
	out.choose(&tenant)
	return out, out.Current != nil && out.Current.TenantID == tenant
}

// OpenSessions lists the person's sessions, most recently used first, at most 100.
func (s *Store) OpenSessions(ctx context.Context, session Session) (out []OpenSession, err error) {
	now := s.instant()
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
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
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		n, err := q.DeleteSession(ctx, db.DeleteSessionParams{PersonID: session.PersonID, ID: id})
		if err == nil && n == 0 {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		return s.personEvent(ctx, tx, session.PersonID, newEvent{kind: EventSessionEnded})
	})
}

// EndOtherSessions ends all of the person's sessions but this one. No browser and no other address
// is known any more (BrowsersSince).
func (s *Store) EndOtherSessions(ctx context.Context, session Session) error {
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := forgetClients(ctx, q, s.instant(), session.PersonID, &session.ID); err != nil {
			return err
		}
		n, err := q.DeleteOtherSessions(ctx, db.DeleteOtherSessionsParams{PersonID: session.PersonID, Keep: session.ID})
		if err != nil || n == 0 {
			return err
		}
		event := newEvent{kind: EventSessionEnded, details: map[string]any{"sessions": n}}
		return s.personEvent(ctx, tx, session.PersonID, event)
	})
}

// endSessionsHere ends the person's sessions in this tenant, because the person's rights there have
// changed. Another role of the database writes sessions, as for people.
func (c *change) endSessionsHere(ctx context.Context, person uuid.UUID) error {
	return c.asPeople(ctx, func() error {
		return c.DeleteSessionsIn(ctx, db.DeleteSessionsInParams{PersonID: person, TenantID: &c.tenant})
	})
}

func sessionHash(secret []byte) []byte {
	sum := sha256.Sum256(secret)
	return sum[:]
}
