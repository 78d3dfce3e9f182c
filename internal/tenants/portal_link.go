package tenants

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// How long a link can be followed, and how long the page stays open in a browser that followed it.
const (
	DefaultLinkLife   = time.Hour
	MinLinkLife       = time.Minute
	MaxLinkLife       = 30 * 24 * time.Hour
	PortalSessionLife = 12 * time.Hour
)

// maxSubjectLinks is how many links of one subject can be followed at the same time.
const maxSubjectLinks = 100

// PortalLink opens the customer page of one subject.
type PortalLink struct {
	ID        uuid.UUID
	Subject   string
	SingleUse bool // one browser can follow it
	CreatedBy string
	CreatedAt time.Time
	ExpiresAt time.Time
	UsedAt    *time.Time // when a browser followed it last
}

// NewPortalLink has the fields of a new link.
type NewPortalLink struct {
	Subject   string
	Life      time.Duration // 0: DefaultLinkLife
	SingleUse bool
}

// CreatePortalLink creates a link to the customer page of a subject, registered or not, and returns
// the token of its address, which is stored only as a hash. A key shows others no more than it can
// read, and not after its expiry: its link, and the pages that it opens, end then.
// Errors: *InvalidError, ErrNotPermitted.
func (s *Store) CreatePortalLink(ctx context.Context, a Actor, n NewPortalLink) (out PortalLink, token string, err error) {
	var fields []limit.FieldError
	if problem := limit.ValidName(n.Subject); problem != nil {
		fields = append(fields, limit.FieldProblem("subject", problem))
	}
	if n.Life == 0 {
		n.Life = DefaultLinkLife
	}
	if n.Life < MinLinkLife || n.Life > MaxLinkLife {
		fields = append(fields, limit.FieldProblem("expires_in", limit.MustBe("a duration from 1m to 30d, such as 1h")))
	}
	if err := invalidIf(fields); err != nil {
		return PortalLink{}, "", err
	}
	token, hash := newToken()
	err = s.change(ctx, a, MayBoost, func(ctx context.Context, c *change) error {
		if !c.actor.mayShow() {
			return ErrNotPermitted
		}
		live, err := c.PortalLinks(ctx, db.PortalLinksParams{TenantID: c.tenant, Subject: n.Subject, Now: c.now, Most: maxSubjectLinks})
		if err != nil {
			return err
		}
		if len(live) == maxSubjectLinks {
			return invalid("subject", limit.Wrong("Wait until some have expired, or delete some.", "has %d links already", maxSubjectLinks))
		}
		in := db.InsertPortalLinkParams{
			TenantID: c.tenant, ID: newID(), Subject: n.Subject, TokenHash: hash, SingleUse: n.SingleUse,
			CreatedBy: c.actor.label(), CreatedAt: c.now, ExpiresAt: c.now.Add(n.Life),
		}
		if end := c.actor.keyExpiresAt; !end.IsZero() {
			in.ExpiresAt, in.PagesUntil = earlier(in.ExpiresAt, end), &end
		}
		row, err := c.InsertPortalLink(ctx, in)
		out = portalLinkOf(row)
		return err
	})
	if err != nil {
		return PortalLink{}, "", err
	}
	return out, token, nil
}

func portalLinkOf(row db.PortalLink) PortalLink {
	return PortalLink{
		ID: row.ID, Subject: row.Subject, SingleUse: row.SingleUse, CreatedBy: row.CreatedBy,
		CreatedAt: row.CreatedAt, ExpiresAt: row.ExpiresAt, UsedAt: row.UsedAt,
	}
}

// PortalLinks lists the links of a subject that have not expired or keep a page open, newest first.
func (s *Store) PortalLinks(ctx context.Context, a Actor, subject string, p Page) (out []PortalLink, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.PortalLinks(ctx, db.PortalLinksParams{TenantID: a.tenant, Subject: subject, After: after, Now: s.instant(), Most: p.most()})
		rows, next = cut(p, rows, func(r db.PortalLink) uuid.UUID { return r.ID })
		out = make([]PortalLink, len(rows))
		for i, row := range rows {
			out[i] = portalLinkOf(row)
		}
		return err
	})
	return out, next, err
}

// DeletePortalLink revokes a link: it cannot be followed any more, and pages that it opened end.
// A link has no version, so m can only require that it exists. Errors: ErrNotFound,
// ErrPreconditionFailed.
func (s *Store) DeletePortalLink(ctx context.Context, a Actor, subject string, id uuid.UUID, m Match) error {
	return s.change(ctx, a, MayBoost, func(ctx context.Context, c *change) error {
		if _, err := c.PortalLinkByID(ctx, db.PortalLinkByIDParams{TenantID: c.tenant, Subject: subject, ID: id}); err != nil {
			return err
		}
		if err := m.check(); err != nil {
			return err
		}
		return c.DeletePortalLink(ctx, db.DeletePortalLinkParams{TenantID: c.tenant, ID: id})
	})
}

// FollowedLink is what a browser that has the address of a link sees of it.
type FollowedLink struct {
	Tenant     uuid.UUID
	TenantName string // or its slug
	Portal     Portal
	Usable     bool // otherwise it has expired or was used
	link       uuid.UUID
}

// PortalLinkByToken returns the link of an address. It does not use the link. It calls found with
// the tenant before it reads what the tenant has, because that read waits for the tenant's turn;
// nil: nothing is called. Errors: ErrNotFound, those of found.
func (s *Store) PortalLinkByToken(ctx context.Context, token string, found func(tenant uuid.UUID) error) (out FollowedLink, err error) {
	hash, ok := tokenHash(token)
	if !ok {
		return FollowedLink{}, ErrNotFound
	}
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.TenantOfPortalLink(ctx, hash)
		out.Tenant, out.link = row.TenantID, row.ID
		return err
	})
	if err != nil {
		return FollowedLink{}, err
	}
	if found != nil {
		if err := found(out.Tenant); err != nil {
			return FollowedLink{}, err
		}
	}
	err = s.read(ctx, Actor{tenant: out.Tenant}, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		link, err := q.PortalLink(ctx, db.PortalLinkParams{TenantID: out.Tenant, ID: out.link})
		if err != nil {
			return err
		}
		out.Usable = link.ExpiresAt.After(s.instant()) && (!link.SingleUse || link.UsedAt == nil)
		return out.readTenant(ctx, q)
	})
	return out, err
}

func (f *FollowedLink) readTenant(ctx context.Context, q *db.Queries) error {
	tenant, err := q.TenantByID(ctx, f.Tenant)
	if err != nil {
		return err
	}
	f.TenantName = cmp.Or(tenant.Name, tenant.Slug)
	f.Portal, err = readPortal(ctx, q, f.Tenant)
	return err
}

// FollowPortalLink uses a link: it starts a session of its page in one browser, and returns the
// session's id and its token, which is stored only as a hash. Errors: ErrNotFound, also for a link
// that has expired or was used.
func (s *Store) FollowPortalLink(ctx context.Context, token string) (session uuid.UUID, secret string, err error) {
	link, err := s.PortalLinkByToken(ctx, token, nil)
	if err != nil {
		return uuid.Nil, "", err
	}
	secret, hash := newToken()
	session = uuid.New() // random, because it says nothing about when others were made
	now := s.instant()
	err = s.write(ctx, roleApp, link.Tenant, s.operation, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if err := q.SetTenant(ctx, link.Tenant.String()); err != nil {
			return err
		}
		until, err := q.UsePortalLink(ctx, db.UsePortalLinkParams{TenantID: link.Tenant, ID: link.link, Now: &now})
		if err != nil {
			return err // also if it was used
		}
		end := now.Add(PortalSessionLife)
		if until != nil {
			end = earlier(end, *until)
		}
		return q.InsertPortalSession(ctx, db.InsertPortalSessionParams{
			TenantID: link.Tenant, ID: session, LinkID: link.link, TokenHash: hash, CreatedAt: now, ExpiresAt: end,
		})
	})
	if err != nil {
		return uuid.Nil, "", err
	}
	return session, secret, nil
}

// PortalVisit is a browser on the customer page of one subject. It gives access to that subject
// only.
type PortalVisit struct {
	FollowedLink
	ID        uuid.UUID
	Subject   string
	ExpiresAt time.Time
}

// Actor returns the customer, who may read what the page shows and may change nothing but through
// the methods for customers.
func (v *PortalVisit) Actor() Actor {
	return Actor{tenant: v.Tenant, kind: CustomerActor, name: v.Subject}
}

// PortalVisit returns the visit of a session by its id and token. It calls found as
// PortalLinkByToken does. Errors: ErrNotFound, those of found.
func (s *Store) PortalVisit(ctx context.Context, session uuid.UUID, secret string, found func(tenant uuid.UUID) error) (out PortalVisit, err error) {
	hash, ok := tokenHash(secret)
	if !ok {
		return PortalVisit{}, ErrNotFound
	}
	now := s.instant()
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out.Tenant, err = q.TenantOfPortalSession(ctx, db.TenantOfPortalSessionParams{TokenHash: hash, ID: session, Now: now})
		return err
	})
	if err != nil {
		return PortalVisit{}, err
	}
	if found != nil {
		if err := found(out.Tenant); err != nil {
			return PortalVisit{}, err
		}
	}
	err = s.read(ctx, Actor{tenant: out.Tenant}, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.PortalVisit(ctx, db.PortalVisitParams{TenantID: out.Tenant, ID: session, Now: now})
		if err != nil {
			return err
		}
		out.ID, out.link, out.Subject, out.ExpiresAt, out.Usable = row.ID, row.LinkID, row.Subject, row.ExpiresAt, true
		return out.readTenant(ctx, q)
	})
	return out, err
}

// PortalLinkPath returns the path of the address of a link.
func PortalLinkPath(token string) string { return "/portal/open/" + token }
