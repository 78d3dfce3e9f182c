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

// InvitationLife is how long the link of an invitation is valid.
const InvitationLife = 7 * 24 * time.Hour

// MailState is the state of the mail with a link.
type MailState string

// The states of a mail.
const (
	MailOff     MailState = "off" // there was no mail to send
	MailWaiting MailState = "waiting"
	MailSent    MailState = "sent"
	MailFailed  MailState = "failed" // all attempts failed
)

// Invitation is a member who has not joined yet, with the link for joining.
type Invitation struct {
	Member
	Tenant    string // its name, or its slug if it has none
	TenantID  uuid.UUID
	HasLogin  bool   // the person already has a password
	By        string // the email of who has just made it; "": no person did, or it was made before
	SentAt    time.Time
	ExpiresAt time.Time
	Mail      MailState
	// Token is the secret of the link. It is not stored, so it is known only when the invitation
	// was just created.
	Token string
}

// InviteMember creates a membership for the person with this email, who has not joined yet, and a
// link for joining. The result does not depend on whether that person has a login: HasLogin is
// false. The caller sends the link and reports the result with RecordInvitation. Errors:
// *InvalidError; ErrForbidden; ErrNotPermitted; *ConflictError with CodeMemberExists;
// *InvitationsError.
func (s *Store) InviteMember(ctx context.Context, a Actor, email string, role Role) (out Invitation, err error) {
	email, fields := checkMember(email, role)
	if err := invalidIf(fields); err != nil {
		return Invitation{}, err
	}
	if !a.May(MayManage) {
		return Invitation{}, ErrForbidden
	}
	end, err := s.mayInvite(ctx, a, email)
	if err != nil {
		return Invitation{}, err
	}
	defer func() { end(err) }()
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		if err := c.mayGiveRole(ctx, role); err != nil {
			return err
		}
		_, err := c.MemberByEmail(ctx, db.MemberByEmailParams{TenantID: c.tenant, Email: email})
		switch {
		case err == nil:
			return &ConflictError{CodeMemberExists, "this person is a member already: change the member's role instead"}
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		members, err := c.CountMembers(ctx, c.tenant)
		if err != nil {
			return err
		}
		if members >= maxMembers {
			return invalid("email", limit.Wrong("Remove a member first.", "would be one member too many: a tenant may have %d", maxMembers))
		}
		person, err := c.ensurePerson(ctx, email, nil, false)
		if err != nil {
			return err
		}
		m, err := c.writeMember(ctx, person, email, role, nil)
		if err != nil {
			return err
		}
		out, err = c.invite(ctx, m)
		return err
	})
	return out, err
}

// ResendInvitation creates a new link for a member who has not joined; the previous link becomes
// void. Errors: ErrNotFound, ErrForbidden, ErrNotPermitted, *ConflictError with CodeMemberExists if
// they have joined, *InvitationsError.
func (s *Store) ResendInvitation(ctx context.Context, a Actor, id uuid.UUID) (out Invitation, err error) {
	if !a.May(MayManage) {
		return Invitation{}, ErrForbidden
	}
	invited, err := s.MemberByID(ctx, a, id)
	if err != nil {
		return Invitation{}, err
	}
	end, err := s.mayInvite(ctx, a, invited.Email)
	if err != nil {
		return Invitation{}, err
	}
	defer func() { end(err) }()
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		m, err := c.member(ctx, id, Match{})
		if err != nil {
			return err
		}
		if err := c.mayGiveRole(ctx, m.Role); err != nil {
			return err
		}
		if m.State != MemberInvited {
			return &ConflictError{CodeMemberExists, "this person has joined already"}
		}
		out, err = c.invite(ctx, m)
		return err
	})
	return out, err
}

// WithdrawInvitation ends the membership and the link of a member who has not joined. Errors:
// ErrNotFound, ErrForbidden, *ConflictError with CodeMemberExists if they have joined.
func (s *Store) WithdrawInvitation(ctx context.Context, a Actor, id uuid.UUID) (out Member, err error) {
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		if out, err = c.member(ctx, id, Match{}); err != nil {
			return err
		}
		if out.State != MemberInvited {
			return &ConflictError{CodeMemberExists, "this person has joined already: remove the member instead"}
		}
		return c.remove(ctx, out)
	})
	return out, err
}

// invite creates a link for a member.
func (c *change) invite(ctx context.Context, m Member) (Invitation, error) {
	tenant, err := c.TenantByID(ctx, c.tenant)
	if err != nil {
		return Invitation{}, err
	}
	out := Invitation{
		Member: m, Tenant: nameOrSlug(tenant.Name, tenant.Slug), TenantID: c.tenant, SentAt: c.now, ExpiresAt: c.now.Add(InvitationLife),
		Mail: MailWaiting,
	}
	if c.actor.kind == MemberActor {
		out.By = c.actor.name
	}
	token, hash := newToken()
	out.Token = token
	return out, c.PutInvitation(ctx, db.PutInvitationParams{
		TenantID: c.tenant, MemberID: m.ID, TokenHash: hash, CreatedAt: out.SentAt, ExpiresAt: out.ExpiresAt, Mail: string(out.Mail),
	})
}

func nameOrSlug(name, slug string) string {
	if name != "" {
		return name
	}
	return slug
}

// RecordInvitation records the state of the mail with this link. It ignores a link that was
// replaced in the meantime.
func (s *Store) RecordInvitation(ctx context.Context, i Invitation, state MailState) error {
	hash, ok := tokenHash(i.Token)
	if !ok {
		return ErrNotFound
	}
	return s.inTenant(ctx, Actor{tenant: i.TenantID}, func(ctx context.Context, q *db.Queries) error {
		return q.RecordInvitationMail(ctx, db.RecordInvitationMailParams{
			Mail: string(state), TenantID: i.TenantID, MemberID: i.ID, TokenHash: hash,
		})
	})
}

// Link is the state of an invitation, as the tenant sees it.
type Link struct {
	SentAt    time.Time
	ExpiresAt time.Time
	Mail      MailState
}

// Invitations returns the state of the invitations of these members. Members without one are
// omitted.
func (s *Store) Invitations(ctx context.Context, a Actor, members []uuid.UUID) (map[uuid.UUID]Link, error) {
	out := make(map[uuid.UUID]Link, len(members))
	err := s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.InvitationsOf(ctx, db.InvitationsOfParams{TenantID: a.tenant, MemberIds: members})
		for _, row := range rows {
			out[row.MemberID] = Link{row.CreatedAt, row.ExpiresAt, MailState(row.Mail)}
		}
		return err
	})
	return out, err
}

// InvitationByToken returns the invitation of a link. Errors: ErrNotFound if it is unknown,
// replaced, used or expired; ErrUnavailable.
func (s *Store) InvitationByToken(ctx context.Context, token string) (out Invitation, err error) {
	hash, ok := tokenHash(token)
	if !ok {
		return Invitation{}, ErrNotFound
	}
	var row db.InvitationByTokenRow
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err = q.InvitationByToken(ctx, db.InvitationByTokenParams{TokenHash: hash, Now: s.instant()})
		return err
	})
	if err != nil {
		return Invitation{}, err
	}
	return Invitation{
		Member: Member{
			ID: row.MemberID, PersonID: row.PersonID, Email: row.Email, Role: Role(row.Role), State: MemberInvited, Version: row.Version,
			CreatedAt: row.MemberCreatedAt, UpdatedAt: row.MemberUpdatedAt,
		},
		Tenant: nameOrSlug(row.Name, row.Slug), TenantID: row.TenantID, HasLogin: row.HasLogin,
		SentAt: row.CreatedAt, ExpiresAt: row.ExpiresAt, Mail: MailState(row.Mail),
	}, nil
}

// Join accepts the invitation of a link for person, who was authenticated by a password or a
// session. Errors: ErrNotFound as InvitationByToken, also for an invitation of another person;
// *ConflictError of a person who is in maxMemberships tenants; ErrUnavailable.
func (s *Store) Join(ctx context.Context, token string, person Person) (Person, error) {
	i, err := s.InvitationByToken(ctx, token)
	if err != nil {
		return Person{}, err
	}
	if i.PersonID != person.ID {
		return Person{}, ErrNotFound
	}
	out, err := s.join(ctx, i, token, nil)
	out.proved = person.proved // for SignIn
	return out, err
}

// JoinNew accepts the invitation of a link for a person without a login, who sets a password.
// Errors: those of Join; *InvalidError of the field password; *ConflictError with CodeMemberExists
// if the person got a login in the meantime.
func (s *Store) JoinNew(ctx context.Context, token, password string) (Person, error) {
	i, err := s.InvitationByToken(ctx, token)
	if err != nil {
		return Person{}, err
	}
	if i.HasLogin {
		return Person{}, errHasLogin()
	}
	if err := invalidIf(checkPassword(password, i.Email)); err != nil {
		return Person{}, err
	}
	hash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return Person{}, err
	}
	return s.join(ctx, i, token, &hash)
}

func errHasLogin() error {
	return &ConflictError{CodeMemberExists, "a login with this email exists already: sign in with it"}
}

// join activates the membership of an invited person, and sets their first password if one is
// given. The link becomes void in the same transaction.
func (s *Store) join(ctx context.Context, i Invitation, token string, password *string) (Person, error) {
	hash, _ := tokenHash(token) // the invitation was found by it
	self := Actor{tenant: i.TenantID, kind: MemberActor, id: i.ID, name: i.Email}
	err := s.change(ctx, self, 0, func(ctx context.Context, c *change) error {
		taken, err := c.DeleteInvitation(ctx, db.DeleteInvitationParams{TenantID: c.tenant, MemberID: i.ID, TokenHash: hash, Now: c.now})
		if err != nil {
			return err
		}
		m, err := c.member(ctx, i.ID, Match{}) // the role may have changed in the meantime
		if err != nil {
			return err
		}
		if taken != 1 || m.State != MemberInvited {
			return ErrNotFound
		}
		if err := c.mayJoin(ctx, i.PersonID); err != nil {
			return err
		}
		if password != nil {
			if err := c.firstPassword(ctx, i.PersonID, *password); err != nil {
				return err
			}
		}
		_, err = c.writeMember(ctx, i.PersonID, i.Email, m.Role, &c.now)
		return err
	})
	if err != nil {
		return Person{}, err
	}
	return s.person(ctx, i.PersonID)
}

// firstPassword creates the login of a person who has none.
func (c *change) firstPassword(ctx context.Context, person uuid.UUID, hash string) error {
	return c.asPeople(ctx, func() error {
		n, err := c.SetFirstPassword(ctx, db.SetFirstPasswordParams{ID: person, PasswordHash: &hash})
		if err == nil && n != 1 { // by another invitation, at the same time
			err = errHasLogin()
		}
		return err
	})
}

// mayJoin refuses a person who is in as many tenants as a person may be in. Until the transaction
// ends, the person joins no other one.
func (c *change) mayJoin(ctx context.Context, person uuid.UUID) error {
	return c.asPeople(ctx, func() error {
		if err := c.LockPerson(ctx, person); err != nil {
			return err
		}
		n, err := c.CountJoined(ctx, person)
		if err == nil && n >= maxMemberships {
			err = &ConflictError{CodeConflict, fmt.Sprintf("you are a member of %d tenants, the most that a login can have: leave one first", n)}
		}
		return err
	})
}

// asPeople runs fn as weir_system, which people and their sessions need because they belong to no
// tenant.
func (c *change) asPeople(ctx context.Context, fn func() error) error {
	if _, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleSystem); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	_, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleApp)
	return err
}
