package tenants

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// States of a tenant. The keys of a suspended tenant do not work.
const (
	TenantActive    = "active"
	TenantSuspended = "suspended"
)

// PlatformSlug is the slug of the operator's own tenant, whose subjects are the other tenants.
const PlatformSlug = "platform"

// Tenant is a customer of the service.
type Tenant struct {
	ID         uuid.UUID
	Slug, Name string
	State      string // TenantActive or TenantSuspended
	Partitions int    // hash tags over which its counters are spread, 1 to check.MaxPartitions
	Version    int64
	CreatedAt  time.Time
	UpdatedAt  time.Time
}

// NewTenant has the fields of a new tenant.
type NewTenant struct {
	Slug, Name string
	Partitions int // 0: 1
}

func tenantOf(row db.Tenant) Tenant {
	return Tenant{
		ID: row.ID, Slug: row.Slug, Name: row.Name, State: row.State, Partitions: int(row.Partitions),
		Version: row.Version, CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
	}
}

// Tenant returns the actor's own tenant.
func (s *Store) Tenant(ctx context.Context, a Actor) (out Tenant, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.TenantByID(ctx, a.tenant)
		out = tenantOf(row)
		return err
	})
	return out, err
}

// EditTenant calls edit to change the name of the actor's own tenant. Errors:
// ErrPreconditionFailed, *InvalidError (also for changes of other fields).
func (s *Store) EditTenant(ctx context.Context, a Actor, m Match, edit func(*Tenant) error) (out Tenant, err error) {
	err = s.change(ctx, a, MayConfigure, func(ctx context.Context, c *change) error {
		row, err := c.TenantByID(ctx, c.tenant)
		if err != nil {
			return err
		}
		old := tenantOf(row)
		in, err := editedTenant(old, m, edit)
		if err != nil {
			return err
		}
		switch {
		case in.State != old.State:
			return invalid("state", limit.Wrong("Omit it, or ask the operator of the service.", "can be changed only by the operator"))
		case in.Partitions != old.Partitions:
			return invalid("partitions", limit.Wrong("Omit it, or ask the operator of the service.", "can be changed only by the operator"))
		case in == old:
			out = old
			return nil
		}
		if _, err := c.next(ctx, parts{itself: true}); err != nil {
			return err
		}
		row, err = c.UpdateTenantName(ctx, db.UpdateTenantNameParams{ID: c.tenant, Name: in.Name})
		out = tenantOf(row)
		return err
	})
	return out, err
}

func editedTenant(old Tenant, m Match, edit func(*Tenant) error) (Tenant, error) {
	if err := m.check(old.Version); err != nil {
		return Tenant{}, err
	}
	in := old
	if err := edit(&in); err != nil {
		return Tenant{}, err
	}
	var fields []limit.FieldError
	if in.Slug != old.Slug {
		fields = append(fields, limit.FieldProblem("slug", isFixed("tenant")))
	}
	checkText(&fields, "name", in.Name, 200)
	if in.State != TenantActive && in.State != TenantSuspended {
		fields = append(fields, limit.FieldProblem("state", limit.OneOf("active, suspended")))
	}
	checkPartitions(&fields, in.Partitions)
	return in, invalidIf(fields)
}

// CreateTenant creates a tenant with its first key, which has all scopes. For the operator only. An
// operator key must itself have all scopes, no expiry and no addresses, because the first key has
// that, too. Errors: ErrNotOperator; ErrNotPermitted; *InvalidError; *ConflictError with
// CodeSlugTaken.
func (s *Store) CreateTenant(ctx context.Context, a Actor, n NewTenant) (Tenant, APIKey, Key, error) {
	var fields []limit.FieldError
	if n.Slug == PlatformSlug {
		fields = append(fields, limit.FieldProblem("slug", limit.Wrong("Use another slug.", "is reserved for the operator's own tenant")))
	} else if !limit.ValidSlug(n.Slug) {
		fields = append(fields, limit.FieldProblem("slug", limit.InvalidSlug))
	} else if uuid.Validate(n.Slug) == nil {
		fields = append(fields, limit.FieldProblem("slug", limit.Wrong("Use another slug.", "must not have the form of an id: a path names a tenant by either")))
	}
	checkText(&fields, "name", n.Name, 200)
	if n.Partitions != 0 {
		checkPartitions(&fields, n.Partitions)
	}
	if !a.operator {
		return Tenant{}, APIKey{}, Key{}, ErrNotOperator
	}
	if err := invalidIf(fields); err != nil {
		return Tenant{}, APIKey{}, Key{}, err
	}
	var tenant Tenant
	var first APIKey
	key := NewKey(TenantKey)
	err := s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		c, row, err := s.insertTenant(ctx, tx, q, a, n)
		if err != nil {
			return err
		}
		if !c.actor.mayGrant(everyScope, nil) || !c.actor.mayGrantBounds(KeyBounds{}) {
			return ErrNotPermitted
		}
		tenant = tenantOf(row)
		return c.endOperator(ctx, func() error { // the key belongs to the tenant, so the other role writes it
			saved, err := c.InsertKey(ctx, keyParams(row.ID, key, "first key", everyScope, nil, KeyBounds{}, a, row.Version))
			first = keyOf(saved)
			return err
		})
	})
	if err != nil {
		return Tenant{}, APIKey{}, Key{}, err
	}
	return tenant, first, key, nil
}

// insertTenant creates a tenant, in a change that the caller ends.
func (s *Store) insertTenant(ctx context.Context, tx pgx.Tx, q *db.Queries, a Actor, n NewTenant) (*change, db.Tenant, error) {
	// Checked before the version's lock is taken, for which every change waits.
	if _, err := q.TenantBySlug(ctx, n.Slug); err == nil {
		conflict := uniqueConflicts["tenants_slug_key"]
		return nil, db.Tenant{}, &conflict
	}
	id := newID()
	c := s.newChange(q, tx, a, id, s.instant())
	if err := c.lockTrails(ctx); err != nil { // that of the tenant does not exist yet
		return nil, db.Tenant{}, err
	}
	bumped, err := c.BumpVersion(ctx, id.String())
	if err != nil {
		return nil, db.Tenant{}, err
	}
	row, err := c.InsertTenant(ctx, db.InsertTenantParams{ID: id, Slug: n.Slug, Name: n.Name, Partitions: int32(max(n.Partitions, 1)), Version: bumped.Version}) // at most MaxPartitions
	return c, row, err
}

// TenantBySlugOrID returns any tenant. For the operator only. Errors: ErrNotOperator, ErrNotFound.
func (s *Store) TenantBySlugOrID(ctx context.Context, a Actor, ref string) (out Tenant, err error) {
	if !a.operator {
		return Tenant{}, ErrNotOperator
	}
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := tenantByRef(ctx, q, ref)
		out = tenantOf(row)
		return err
	})
	return out, err
}

func tenantByRef(ctx context.Context, q *db.Queries, ref string) (db.Tenant, error) {
	// Slugs of older tenants may look like ids. Ids are tried first, because they cannot be chosen.
	if id, err := uuid.Parse(ref); err == nil {
		row, err := q.TenantByID(ctx, id)
		if !errors.Is(err, pgx.ErrNoRows) {
			return row, err
		}
	}
	if !limit.ValidSlug(ref) {
		return db.Tenant{}, ErrNotFound
	}
	return q.TenantBySlug(ctx, ref)
}

// EditTenantByRef calls edit to change the name, state and partitions of any tenant, by slug or id.
// For the operator only. Errors: ErrNotOperator, ErrNotFound, ErrPreconditionFailed, *InvalidError,
// *ConflictError with CodePlatform, or CodeConflict if the partitions cannot be changed now.
func (s *Store) EditTenantByRef(ctx context.Context, a Actor, ref string, m Match, edit func(*Tenant) error) (out Tenant, err error) {
	err = s.changeTenant(ctx, a, ref, m, func(ctx context.Context, c *change, old Tenant) error {
		in, err := editedTenant(old, m, edit)
		if err != nil {
			return err
		}
		if in == old {
			out = old
			return nil
		}
		if old.Slug == PlatformSlug && in.State != old.State {
			return &ConflictError{CodePlatform, "the operator's own tenant cannot be suspended"}
		}
		params := db.UpdateTenantParams{ID: old.ID, Name: in.Name, State: in.State}
		if err := s.changePartitions(ctx, c, old, in.Partitions, &params); err != nil {
			return err
		}
		if err := c.lockTrails(ctx, old.ID); err != nil {
			return err
		}
		moved := in.State != old.State
		if _, err := c.next(ctx, parts{itself: true, policy: moved || in.Partitions != old.Partitions, keys: moved}); err != nil {
			return err
		}
		row, err := c.UpdateTenant(ctx, params)
		out = tenantOf(row)
		return err
	})
	return out, err
}

// DeleteTenant deletes a tenant with everything that belongs to it, permanently: from now on it
// does not exist, and another may have its slug. DeleteTenantRows deletes its rows. For the
// operator only. Errors: ErrNotOperator, ErrNotFound, ErrPreconditionFailed, *ConflictError with
// CodePlatform.
func (s *Store) DeleteTenant(ctx context.Context, a Actor, ref string, m Match) error {
	return s.changeTenant(ctx, a, ref, m, func(ctx context.Context, c *change, old Tenant) error {
		if old.Slug == PlatformSlug {
			return &ConflictError{CodePlatform, "the operator's own tenant cannot be deleted"}
		}
		if err := c.DeleteTenant(ctx, old.ID); err != nil { // before others wait
			return err
		}
		if err := c.lockTrails(ctx); err != nil {
			return err
		}
		bumped, err := c.BumpVersion(ctx, old.ID.String())
		if err != nil {
			return err
		}
		return c.InsertDeletedTenant(ctx, db.InsertDeletedTenantParams{ID: old.ID, Slug: old.Slug, Version: bumped.Version})
	})
}

// changeTenant runs fn with a tenant that the operator names, locked.
func (s *Store) changeTenant(ctx context.Context, a Actor, ref string, m Match,
	fn func(ctx context.Context, c *change, old Tenant) error,
) error {
	if !a.operator {
		return ErrNotOperator
	}
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		row, err := tenantByRef(ctx, q, ref)
		if err != nil {
			return err
		}
		if err := announceUrgent(ctx, tx, q, row.ID); err != nil {
			return err
		}
		if row, err = q.LockTenant(ctx, row.ID); err != nil {
			return err
		}
		if err := m.check(row.Version); err != nil {
			return err
		}
		c := s.newChange(q, tx, a, row.ID, s.instant())
		if err := fn(ctx, c, tenantOf(row)); err != nil {
			return err
		}
		return c.endOperator(ctx, func() error { return nil })
	})
}

// lockTrails locks the ends of the trails of tenants and of the operator, for a change by the
// operator, which adds rows to them. It is called before the change takes its number, as next does
// for other changes. The order of the locks is the same for all changes. An actor whose rights have
// ended meanwhile is refused: who ends them needs the end of the operator's trail as well.
func (c *change) lockTrails(ctx context.Context, of ...uuid.UUID) error {
	platform, err := c.TenantBySlug(ctx, PlatformSlug)
	switch {
	case err == nil:
		of = append(of, platform.ID)
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	if _, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleApp); err != nil {
		return err
	}
	for _, id := range of {
		if err := c.SetTenant(ctx, id.String()); err != nil {
			return err
		}
		if _, err := c.LockAuditHead(ctx, db.LockAuditHeadParams{TenantID: id, Genesis: genesis[:]}); err != nil {
			return err
		}
	}
	if c.actor.operator && c.actor.tenant == platform.ID {
		if c.actor, err = c.actor.again(ctx, c.Queries, c.now); err == nil && !c.actor.operator {
			err = ErrNotOperator
		}
		if err != nil {
			return err
		}
	}
	_, err = c.tx.Exec(ctx, "SET LOCAL ROLE "+roleSystem)
	return err
}

// endOperator ends a change of a tenant by the operator, in the trails of both. The tenant's trail
// names only the operator, and not the person or key. The operator's own trail has all details, and
// also the deletion of a tenant. asTenant does further writes as weir_app in the tenant.
func (c *change) endOperator(ctx context.Context, asTenant func() error) error {
	platform, err := c.TenantBySlug(ctx, PlatformSlug)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	rows, err := c.trail.rows(ctx)
	if err != nil {
		return err
	}
	c.trail = newTrail(c.Queries, c.tenant)
	if _, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleApp); err != nil {
		return err
	}
	if err := c.SetTenant(ctx, c.tenant.String()); err != nil {
		return err
	}
	if err := asTenant(); err != nil {
		return err
	}
	more, err := c.trail.rows(ctx)
	if err != nil {
		return err
	}
	ofTenant, rows := rows, append(rows, more...)
	isOwn := platform.ID == c.tenant
	deleted := slices.ContainsFunc(rows, func(r auditRow) bool { return r.kind == auditTenant && r.action == "delete" })
	if !deleted {
		inTrail, operator := context.WithValue(ctx, originKey{}, Origin{}), Actor{kind: OperatorActor, name: "operator"}
		switch {
		case isOwn:
			operator = c.actor
		case c.actor.tenant == c.tenant: // a person who signs up, and is not the operator
			inTrail, operator = ctx, c.actor
		}
		if err := appendAudit(inTrail, c.Queries, c.tenant, operator, c.now, c.auditDay, rows); err != nil {
			return err
		}
	}
	if isOwn || platform.ID == uuid.Nil {
		return nil
	}
	if err := c.SetTenant(ctx, platform.ID.String()); err != nil {
		return err
	}
	return appendAudit(ctx, c.Queries, platform.ID, c.actor, c.now, c.auditDay, ofTenant)
}

// EnsurePlatform returns the operator's own tenant, and creates it if necessary.
func (s *Store) EnsurePlatform(ctx context.Context) (out Tenant, err error) {
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		row, err := q.TenantBySlug(ctx, PlatformSlug)
		out = tenantOf(row)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		c, row, err := s.insertTenant(ctx, tx, q, AsOperator("start"), NewTenant{Slug: PlatformSlug, Name: "Platform"})
		if err != nil {
			return err
		}
		out = tenantOf(row)
		return c.endOperator(ctx, func() error { return nil })
	})
	var conflict *ConflictError
	if errors.As(err, &conflict) {
		// Another server that started at the same time created it.
		return s.TenantBySlugOrID(ctx, AsOperator("start"), PlatformSlug)
	}
	if err != nil {
		return Tenant{}, fmt.Errorf("ensure the platform tenant: %w", err)
	}
	return out, nil
}
