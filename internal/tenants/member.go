package tenants

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// Role is the role of a member in a tenant.
type Role string

// The roles.
const (
	Owner   Role = "owner"
	Admin   Role = "admin"
	Editor  Role = "editor"  // rules, plans, subjects
	Support Role = "support" // may reset a subject and create a temporary override
	Viewer  Role = "viewer"
)

// Roles lists the roles, the one with most rights first.
var Roles = []Role{Owner, Admin, Editor, Support, Viewer}

// MemberState says whether a member has accepted the invitation.
type MemberState string

// The states of a member. An invited member has no rights yet.
const (
	MemberInvited MemberState = "invited"
	MemberActive  MemberState = "active"
)

func memberState(joinedAt *time.Time) MemberState {
	if joinedAt == nil {
		return MemberInvited
	}
	return MemberActive
}

// Member is a person in a tenant.
type Member struct {
	ID        uuid.UUID // of the membership: the same person has another one in another tenant
	PersonID  uuid.UUID
	Email     string
	Role      Role
	State     MemberState
	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
}

func memberOf(row db.MemberByIDRow) Member {
	return Member{
		ID: row.ID, PersonID: row.PersonID, Email: row.Email, Role: Role(row.Role), State: memberState(row.JoinedAt),
		Version: row.Version, CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
	}
}

// writtenMember converts a row that a write returned, which has no email.
func writtenMember(row db.Member, email string) Member {
	return memberOf(db.MemberByIDRow{
		ID: row.ID, PersonID: row.PersonID, Role: row.Role, JoinedAt: row.JoinedAt, Version: row.Version,
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, Email: email,
	})
}

// Person is a person who can log in.
type Person struct {
	ID          uuid.UUID
	Email       string
	Memberships []Membership // by slug

	proved string // the stored hash of the password that the person has entered; "": none
}

// Membership is a tenant that a person is a member of.
type Membership struct {
	MemberID   uuid.UUID
	TenantID   uuid.UUID
	Slug, Name string // of the tenant
	Suspended  bool   // whether the tenant is suspended: its members have no access
	Role       Role
	State      MemberState // the role is valid only if MemberActive

	limits *sessionLimits // of the tenant; nil: the defaults
}

func membershipsOf(rows []db.MembershipsRow) (out []Membership) {
	for _, m := range rows {
		out = append(out, Membership{
			MemberID: m.MemberID, TenantID: m.TenantID, Slug: m.Slug, Name: m.Name, Suspended: m.TenantState == TenantSuspended,
			Role: Role(m.Role), State: memberState(m.JoinedAt),
			limits: sessionLimitsOf(&m),
		})
	}
	return out
}

// sessionLimits are a tenant's settings for the sessions of its members.
type sessionLimits struct{ idle, life, confirm time.Duration }

var defaultSessionLimits = sessionLimits{SessionIdle, SessionLife, defaultConfirmAfter}

func sessionLimitsOf(m *db.MembershipsRow) *sessionLimits {
	if m.SessionIdleMs == nil || m.SessionLifeMs == nil || m.ConfirmAfterMs == nil {
		return nil
	}
	const ms = time.Millisecond
	return &sessionLimits{time.Duration(*m.SessionIdleMs) * ms, time.Duration(*m.SessionLifeMs) * ms, time.Duration(*m.ConfirmAfterMs) * ms}
}

// sessions returns the limits of sessions in the tenant.
func (m *Membership) sessions() sessionLimits {
	if m.limits == nil {
		return defaultSessionLimits
	}
	return *m.limits
}

const (
	maxEmail   = 254  // bytes
	maxMembers = 1000 // of a tenant
	// maxMemberships is how many tenants a person can join: each event of a login is written to all
	// of them, and each request with a session reads them.
	maxMemberships = 200
)

// CreateMember makes the person with this email an active member of the actor's tenant, or gives a
// member that role. A person without a login gets one with the password. A person with a login
// keeps it, unless the actor is the server itself (SystemActor). Errors: *InvalidError,
// *ConflictError with CodeLastOwner, ErrUnavailable.
func (s *Store) CreateMember(ctx context.Context, a Actor, email, password string, role Role) (out Member, err error) {
	email, fields := checkMember(email, role)
	if err := invalidIf(append(fields, checkPassword(password, email)...)); err != nil {
		return Member{}, err
	}
	hash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return Member{}, err
	}
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := c.MemberByEmail(ctx, db.MemberByEmailParams{TenantID: c.tenant, Email: email})
		if err := c.mayChangeRole(ctx, Role(old.Role), role); err != nil {
			return err
		}
		switch {
		case err == nil && Role(old.Role) != role:
			if err := c.keepAnOwner(ctx, memberOf(db.MemberByIDRow(old))); err != nil {
				return err
			}
			if err := c.endSessionsHere(ctx, old.PersonID); err != nil {
				return err
			}
		case err != nil && !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		person, err := c.ensurePerson(ctx, email, &hash, a.kind == SystemActor)
		if err != nil {
			return err
		}
		out, err = c.writeMember(ctx, person, email, role, &c.now)
		return err
	})
	return out, err
}

// MemberByID returns a member, or ErrNotFound.
func (s *Store) MemberByID(ctx context.Context, a Actor, id uuid.UUID) (out Member, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.MemberByID(ctx, db.MemberByIDParams{TenantID: a.tenant, ID: id})
		out = memberOf(row)
		return err
	})
	return out, err
}

// MemberByEmail returns the member with this address, or ErrNotFound.
func (s *Store) MemberByEmail(ctx context.Context, a Actor, email string) (out Member, err error) {
	normal, ok := normalEmail(email)
	if !ok {
		return Member{}, ErrNotFound
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.MemberByEmail(ctx, db.MemberByEmailParams{TenantID: a.tenant, Email: normal})
		out = memberOf(db.MemberByIDRow(row))
		return err
	})
	return out, err
}

// Members lists members, newest first, and returns where the next page begins.
func (s *Store) Members(ctx context.Context, a Actor, p Page) (out []Member, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.Members(ctx, db.MembersParams{TenantID: a.tenant, After: after, Most: p.most()})
		if err != nil {
			return err
		}
		rows, next = cut(p, rows, func(r db.MembersRow) uuid.UUID { return r.ID })
		out = make([]Member, len(rows))
		for i, row := range rows {
			out[i] = memberOf(db.MemberByIDRow(row))
		}
		return nil
	})
	return out, next, err
}

// EditMember calls edit to change the role of a member; other changes are ignored. Errors:
// ErrNotFound, ErrForbidden, ErrNotPermitted, ErrPreconditionFailed, *InvalidError, *ConflictError
// with CodeLastOwner.
func (s *Store) EditMember(ctx context.Context, a Actor, id uuid.UUID, m Match, edit func(*Member)) (out Member, err error) {
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := c.member(ctx, id, m)
		if err != nil {
			return err
		}
		in := old
		edit(&in)
		if err := invalidIf(checkRole(nil, in.Role)); err != nil {
			return err
		}
		if in.Role == old.Role {
			out = old
			return nil
		}
		if err := c.mayChangeRole(ctx, old.Role); err != nil {
			return err
		}
		if err := c.mayGiveRole(ctx, in.Role); err != nil {
			return err
		}
		if err := c.keepAnOwner(ctx, old); err != nil {
			return err
		}
		if err := c.endSessionsHere(ctx, old.PersonID); err != nil {
			return err
		}
		version, err := c.next(ctx, parts{})
		if err != nil {
			return err
		}
		row, err := c.UpdateMemberRole(ctx, db.UpdateMemberRoleParams{TenantID: c.tenant, ID: id, Role: string(in.Role), Version: version})
		out = writtenMember(row, old.Email)
		return err
	})
	return out, err
}

// RemoveMember ends a membership; the person and their other memberships stay. Errors:
// ErrNotFound, ErrPreconditionFailed, *ConflictError with CodeLastOwner.
func (s *Store) RemoveMember(ctx context.Context, a Actor, id uuid.UUID, m Match) error {
	return s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := c.member(ctx, id, m)
		if err != nil {
			return err
		}
		return c.remove(ctx, old)
	})
}

// Leave ends the membership of the actor, which every role may do. The sessions of the person
// continue in their other tenants. Errors: ErrForbidden for an actor who is not a member;
// *ConflictError with CodeLastOwner.
func (s *Store) Leave(ctx context.Context, a Actor) error {
	if a.kind != MemberActor {
		return ErrForbidden
	}
	return s.change(ctx, a, 0, func(ctx context.Context, c *change) error {
		m, err := c.member(ctx, a.id, Match{})
		if err != nil {
			return err
		}
		if err := c.keepAnOwner(ctx, m); err != nil {
			return err
		}
		if _, err := c.next(ctx, parts{}); err != nil {
			return err
		}
		return c.DeleteMember(ctx, db.DeleteMemberParams{TenantID: c.tenant, ID: m.ID})
	})
}

// remove ends a membership.
func (c *change) remove(ctx context.Context, old Member) error {
	if err := c.mayChangeRole(ctx, old.Role); err != nil {
		return err
	}
	if err := c.keepAnOwner(ctx, old); err != nil {
		return err
	}
	if err := c.endSessionsHere(ctx, old.PersonID); err != nil {
		return err
	}
	if _, err := c.next(ctx, parts{}); err != nil {
		return err
	}
	return c.DeleteMember(ctx, db.DeleteMemberParams{TenantID: c.tenant, ID: old.ID})
}

var emailError = limit.FieldProblem("email", limit.MustBe("an address such as name@example.com, of at most %d bytes; letters outside A to Z in lower case", maxEmail))

func checkMember(email string, role Role) (normal string, fields []limit.FieldError) {
	normal, ok := normalEmail(email)
	if !ok {
		fields = append(fields, emailError)
	}
	return normal, checkRole(fields, role)
}

func checkRole(fields []limit.FieldError, role Role) []limit.FieldError {
	if !slices.Contains(Roles, role) {
		fields = append(fields, limit.FieldProblem("role", limit.OneOf("owner, admin, editor, support, viewer")))
	}
	return fields
}

func (c *change) member(ctx context.Context, id uuid.UUID, m Match) (Member, error) {
	row, err := c.MemberByID(ctx, db.MemberByIDParams{TenantID: c.tenant, ID: id})
	if err != nil {
		return Member{}, err
	}
	return memberOf(row), m.check(row.Version)
}

// mayChangeRole returns ErrOwnersOnly or ErrNotOperator if the actor may not make a change from or
// to one of these roles. While no owner has joined, a key may change owners: it can invite the
// first owner of a new tenant, and withdraw an invitation to a wrong address.
func (c *change) mayChangeRole(ctx context.Context, roles ...Role) error {
	if err := c.mayChangeOperators(ctx, roles); err != nil {
		return err
	}
	if !slices.Contains(roles, Owner) || c.actor.May(MayOwn) {
		return nil
	}
	if c.actor.kind == KeyActor && c.actor.May(MayManage) {
		joined, err := c.CountOtherOwners(ctx, db.CountOtherOwnersParams{TenantID: c.tenant, ID: uuid.Nil})
		if err != nil || joined == 0 {
			return err
		}
	}
	return ErrOwnersOnly
}

// mayChangeOperators returns ErrNotOperator if one of these roles makes its members operators, and
// the actor is a key that is no operator's.
func (c *change) mayChangeOperators(ctx context.Context, roles []Role) error {
	manages := func(r Role) bool { return r.Rights()&MayManage != 0 }
	if c.actor.kind != KeyActor || c.actor.operator || !slices.ContainsFunc(roles, manages) {
		return nil
	}
	tenant, err := c.TenantByID(ctx, c.tenant)
	if err == nil && tenant.Slug == PlatformSlug {
		err = ErrNotOperator
	}
	return err
}

// mayGiveRole returns ErrOwnersOnly or ErrNotOperator if the actor may not give the role, and
// ErrNotPermitted if the member would have more permissions than the actor, or for longer.
func (c *change) mayGiveRole(ctx context.Context, role Role) error {
	if err := c.mayChangeRole(ctx, role); err != nil {
		return err
	}
	if !c.actor.mayGrantRole(role) {
		return ErrNotPermitted
	}
	return nil
}

// keepAnOwner refuses to take the role from the last owner who has joined. Invited owners do not
// count, because they may never join.
func (c *change) keepAnOwner(ctx context.Context, m Member) error {
	if m.Role != Owner || m.State == MemberInvited {
		return nil
	}
	others, err := c.CountOtherOwners(ctx, db.CountOtherOwnersParams{TenantID: c.tenant, ID: m.ID})
	if err != nil || others > 0 {
		return err
	}
	return &ConflictError{CodeLastOwner, "this is the last owner of the tenant: make another member an owner first, who has joined"}
}

func (c *change) writeMember(ctx context.Context, person uuid.UUID, email string, role Role, joinedAt *time.Time) (Member, error) {
	if err := c.checkTierMembers(ctx, person); err != nil {
		return Member{}, err
	}
	version, err := c.next(ctx, parts{})
	if err != nil {
		return Member{}, err
	}
	row, err := c.UpsertMember(ctx, db.UpsertMemberParams{
		TenantID: c.tenant, PersonID: person, ID: newID(), Role: string(role), JoinedAt: joinedAt, Version: version,
	})
	return writtenMember(row, email), err
}

// ensurePerson returns the id of the person with this email, and creates the person if necessary,
// without a login if hash is nil. If reset is set, an existing person gets the password. People
// belong to no tenant, so another role of the database writes them, in the same transaction.
func (c *change) ensurePerson(ctx context.Context, email string, hash *string, reset bool) (uuid.UUID, error) {
	if _, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleSystem); err != nil {
		return uuid.Nil, err
	}
	id, created, err := holdPerson(ctx, c.Queries, email, hash)
	if err != nil {
		return uuid.Nil, err
	}
	if !created && reset {
		if err := setPassword(ctx, c.Queries, id, *hash, c.now); err != nil {
			return uuid.Nil, err
		}
	}
	_, err = c.tx.Exec(ctx, "SET LOCAL ROLE "+roleApp)
	return id, err
}

// ValidEmail reports whether text is a valid address of a person.
func ValidEmail(text string) bool {
	_, ok := normalEmail(text)
	return ok
}
