package tenants

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// APIKey is a stored key, without its secret.
type APIKey struct {
	ID         uuid.UUID
	Name       string
	Kind       KeyKind
	Scopes     []Scope
	Last4      string
	CreatedBy  string
	Version    int64
	CreatedAt  time.Time
	ExpiresAt  *time.Time
	RevokedAt  *time.Time
	LastUsedAt *time.Time // at most about a minute behind
	RotatedTo  *uuid.UUID // the key that replaces it
	Bounds     KeyBounds
}

// NewAPIKey has the fields of a new key.
type NewAPIKey struct {
	Name      string
	Kind      KeyKind // "": TenantKey. OperatorKey only by the operator, in the platform tenant
	Scopes    []Scope // at least one
	ExpiresAt *time.Time
	Bounds    KeyBounds
}

const (
	// MaxKeys is the number of keys of a tenant that work at once. Every instance keeps them in
	// memory, and reads all of them after a change of one.
	MaxKeys = 1000
	// maxStoredKeys also counts keys that have ended. PurgeKeys makes room.
	maxStoredKeys = 10_000
)

// MaxRotationOverlap is the maximum time for which a replaced key may continue to work.
const MaxRotationOverlap = 30 * 24 * time.Hour

func keyOf(row db.ApiKey) APIKey {
	return APIKey{
		ID: row.ID, Name: row.Name, Kind: KeyKind(row.Kind), Scopes: newScopes(row.Scopes).List(), Last4: row.Last4,
		CreatedBy: row.CreatedBy, Version: row.Version, CreatedAt: row.CreatedAt, ExpiresAt: row.ExpiresAt,
		RevokedAt: row.RevokedAt, LastUsedAt: row.LastUsedAt, RotatedTo: row.RotatedTo,
		Bounds: KeyBounds{Addresses: row.Addresses, Resources: row.Resources},
	}
}

func keyParams(tenant uuid.UUID, key Key, name string, scopes Scopes, expiresAt *time.Time, bounds KeyBounds, a Actor, version int64) db.InsertKeyParams {
	hash := key.Hash()
	return db.InsertKeyParams{
		TenantID: tenant, ID: newID(), Name: name, Kind: string(key.Kind()), Scopes: scopes.texts(), Hash: hash[:],
		Last4: key.Last4(), CreatedBy: a.label(), ExpiresAt: expiresAt, Version: version,
		Addresses: append([]string{}, bounds.Addresses...), Resources: append([]string{}, bounds.Resources...),
	}
}

// texts returns the scopes in the form of the database.
func (s Scopes) texts() []string {
	texts := []string{}
	for _, scope := range s.List() {
		texts = append(texts, string(scope))
	}
	return texts
}

func validateKey(name string, scopes []Scope, expiresAt *time.Time, now time.Time) (fields []limit.FieldError) {
	checkText(&fields, "name", name, 200)
	if len(scopes) == 0 {
		fields = append(fields, limit.FieldProblem("scopes", limit.Wrong("Add a scope.", "must name at least one of check, read, write, manage")))
	}
	for i, scope := range scopes {
		if !slices.Contains(AllScopes, scope) || slices.Contains(scopes[:i], scope) {
			fields = append(fields, limit.FieldProblem("scopes", limit.Wrong("Use each of check, read, write, manage once at most.", "may name each of check, read, write, manage once")))
			break
		}
	}
	if expiresAt != nil && (!expiresAt.After(now) || expiresAt.Year() > maxYear) {
		fields = append(fields, limit.FieldProblem("expires_at", limit.Wrong("Use a later time.", "must be in the future, up to year %d", maxYear)))
	}
	return fields
}

// CreateKey creates a key; the returned Key is not stored. Errors: *InvalidError (also for a kind
// that the actor must not create), ErrNotPermitted.
func (s *Store) CreateKey(ctx context.Context, a Actor, n NewAPIKey) (out APIKey, key Key, err error) {
	n.ExpiresAt = stored(n.ExpiresAt)
	if n.Kind == "" {
		n.Kind = TenantKey
	}
	n.Bounds = n.Bounds.clone()
	fields := append(validateKey(n.Name, n.Scopes, n.ExpiresAt, s.instant()), n.Bounds.clean(n.Scopes)...)
	if n.Kind != TenantKey && (n.Kind != OperatorKey || !a.operator) {
		fields = append(fields, limit.FieldProblem("kind", limit.MustBe("key")))
	}
	if err := invalidIf(fields); err != nil {
		return APIKey{}, Key{}, err
	}
	scopes := newScopes(n.Scopes)
	key = NewKey(n.Kind)
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		if !c.actor.mayGrant(scopes, n.ExpiresAt) || !c.actor.mayGrantBounds(n.Bounds) {
			return ErrNotPermitted
		}
		if err := c.roomForKey(ctx, "name", 0); err != nil {
			return err
		}
		version, err := c.next(ctx, parts{keys: true})
		if err != nil {
			return err
		}
		row, err := c.InsertKey(ctx, keyParams(c.tenant, key, n.Name, scopes, n.ExpiresAt, n.Bounds, a, version))
		out = keyOf(row)
		return err
	})
	if err != nil {
		return APIKey{}, Key{}, err
	}
	return out, key, nil
}

// roomForKey returns the error of a field if the tenant cannot have another key, while as many as
// ends stop working. The change holds the tenant's lock, so no other key is created meanwhile.
func (c *change) roomForKey(ctx context.Context, field string, ends int64) error {
	n, err := c.CountKeys(ctx, db.CountKeysParams{TenantID: c.tenant, Now: c.now})
	switch {
	case err != nil:
		return err
	case n.Working-ends >= MaxKeys:
		return invalid(field, limit.Wrong("Revoke a key that is no longer needed.",
			"would be one key too many: a tenant may have %d that work", MaxKeys))
	case n.Stored >= maxStoredKeys:
		return invalid(field, limit.Wrong("Try again in an hour, when old keys have been deleted.",
			"would be one key too many: a tenant may have %d, with those that have ended", maxStoredKeys))
	}
	return nil
}

// CreateOperatorKey creates a key of the operator, in the platform tenant, which it creates if
// necessary. Only the server's own commands call it.
func (s *Store) CreateOperatorKey(ctx context.Context, name string) (APIKey, Key, error) {
	platform, err := s.EnsurePlatform(ctx)
	if err != nil {
		return APIKey{}, Key{}, err
	}
	a := AsOperator("command line")
	a.tenant = platform.ID
	return s.CreateKey(ctx, a, NewAPIKey{Name: name, Kind: OperatorKey, Scopes: AllScopes})
}

// Keys lists keys, including revoked ones, newest first, and returns where the next page begins.
func (s *Store) Keys(ctx context.Context, a Actor, p Page) (out []APIKey, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.Keys(ctx, db.KeysParams{TenantID: a.tenant, After: after, Most: p.most()})
		if err != nil {
			return err
		}
		rows, next = cut(p, rows, func(r db.ApiKey) uuid.UUID { return r.ID })
		out = make([]APIKey, len(rows))
		for i, row := range rows {
			out[i] = keyOf(row)
		}
		return nil
	})
	return out, next, err
}

// KeyByID returns a key, or ErrNotFound.
func (s *Store) KeyByID(ctx context.Context, a Actor, id uuid.UUID) (out APIKey, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.KeyByID(ctx, db.KeyByIDParams{TenantID: a.tenant, ID: id})
		out = keyOf(row)
		return err
	})
	return out, err
}

// key reads a key that the actor may change. Only the operator may change the operator's keys.
func (c *change) key(ctx context.Context, id uuid.UUID, m Match) (APIKey, error) {
	row, err := c.KeyByID(ctx, db.KeyByIDParams{TenantID: c.tenant, ID: id})
	if err != nil {
		return APIKey{}, translate(err)
	}
	old := keyOf(row)
	if old.Kind == OperatorKey && !c.actor.operator {
		return APIKey{}, ErrNotOperator
	}
	return old, m.check(old.Version)
}

// active returns the error if a key can be neither edited nor rotated.
func (k *APIKey) active(now time.Time) error {
	switch {
	case k.RevokedAt != nil:
		return &ConflictError{CodeKeyInactive, "this key has been revoked: create a new one"}
	case k.RotatedTo != nil:
		return &ConflictError{CodeKeyInactive, "this key has been rotated already: use the key that replaces it"}
	case k.ExpiresAt != nil && !k.ExpiresAt.After(now):
		return &ConflictError{CodeKeyInactive, "this key has expired: create a new one"}
	}
	return nil
}

// EditKey lets edit change name, scopes and expiry of a key. Errors: ErrNotFound,
// ErrPreconditionFailed, *InvalidError, ErrNotPermitted, *ConflictError with CodeKeyInactive.
func (s *Store) EditKey(ctx context.Context, a Actor, id uuid.UUID, m Match, edit func(*APIKey) error) (out APIKey, err error) {
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := c.key(ctx, id, m)
		if err != nil {
			return err
		}
		if err := old.active(c.now); err != nil {
			return err
		}
		in := old
		in.Scopes, in.Bounds = slices.Clone(old.Scopes), old.Bounds.clone()
		if err := edit(&in); err != nil {
			return err
		}
		in.ExpiresAt = stored(in.ExpiresAt)
		fields := append(validateKey(in.Name, in.Scopes, in.ExpiresAt, c.now), in.Bounds.clean(in.Scopes)...)
		if err := invalidIf(fields); err != nil {
			return err
		}
		scopes := newScopes(in.Scopes)
		reach := scopes != newScopes(old.Scopes) || !sameInstant(in.ExpiresAt, old.ExpiresAt) || !in.Bounds.same(old.Bounds)
		if !reach && in.Name == old.Name {
			out = old
			return nil
		}
		if reach && !(c.actor.mayGrant(scopes, in.ExpiresAt) && c.actor.mayGrantBounds(in.Bounds)) {
			return ErrNotPermitted
		}
		old.Name, old.ExpiresAt, old.Bounds = in.Name, in.ExpiresAt, in.Bounds
		out, err = c.writeKey(ctx, old, scopes)
		return err
	})
	return out, err
}

// RevokeKey revokes a key immediately and permanently. Revoking it again changes nothing. Errors:
// ErrNotFound, ErrPreconditionFailed.
func (s *Store) RevokeKey(ctx context.Context, a Actor, id uuid.UUID, m Match) error {
	return s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := c.key(ctx, id, m)
		if err != nil || old.RevokedAt != nil {
			return err
		}
		old.RevokedAt = &c.now
		_, err = c.writeKey(ctx, old, newScopes(old.Scopes))
		return err
	})
}

// RotateKey creates a key with the name, scopes and expiry of another key, which continues to work
// for overlap (0 to MaxRotationOverlap). Errors: ErrNotFound, *InvalidError, ErrNotPermitted,
// *ConflictError with CodeKeyInactive.
func (s *Store) RotateKey(ctx context.Context, a Actor, id uuid.UUID, overlap time.Duration) (out APIKey, key Key, err error) {
	if overlap < 0 || overlap > MaxRotationOverlap {
		return APIKey{}, Key{}, invalid("overlap", limit.MustBe("a duration from 0 to 30d"))
	}
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := c.key(ctx, id, Match{})
		if err != nil {
			return err
		}
		if err := old.active(c.now); err != nil {
			return err
		}
		scopes := newScopes(old.Scopes)
		// The actor gets the secret of the new key, so the key must not have more permissions than
		// the actor.
		if old.ID != c.actor.id && !(c.actor.mayGrant(scopes, old.ExpiresAt) && c.actor.mayGrantBounds(old.Bounds)) {
			return ErrNotPermitted
		}
		ends := int64(0)
		if overlap == 0 {
			ends = 1
		}
		if err := c.roomForKey(ctx, "overlap", ends); err != nil {
			return err
		}
		version, err := c.next(ctx, parts{keys: true})
		if err != nil {
			return err
		}
		key = NewKey(old.Kind)
		row, err := c.InsertKey(ctx, keyParams(c.tenant, key, old.Name, scopes, old.ExpiresAt, old.Bounds, a, version))
		if err != nil {
			return err
		}
		out = keyOf(row)
		end := c.now.Add(overlap)
		if old.ExpiresAt == nil || old.ExpiresAt.After(end) {
			old.ExpiresAt = &end
		}
		old.RotatedTo = &out.ID
		_, err = c.updateKey(ctx, old, scopes, version)
		return err
	})
	if err != nil {
		return APIKey{}, Key{}, err
	}
	return out, key, nil
}

func (c *change) writeKey(ctx context.Context, k APIKey, scopes Scopes) (APIKey, error) {
	version, err := c.next(ctx, parts{keys: true})
	if err != nil {
		return APIKey{}, err
	}
	return c.updateKey(ctx, k, scopes, version)
}

func (c *change) updateKey(ctx context.Context, k APIKey, scopes Scopes, version int64) (APIKey, error) {
	row, err := c.UpdateKey(ctx, db.UpdateKeyParams{
		TenantID: c.tenant, ID: k.ID, Name: k.Name, Scopes: scopes.texts(), ExpiresAt: k.ExpiresAt,
		RevokedAt: k.RevokedAt, RotatedTo: k.RotatedTo, Version: version, Addresses: k.Bounds.Addresses, Resources: k.Bounds.Resources,
	})
	return keyOf(row), err
}
