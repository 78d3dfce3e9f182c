package tenants

import (
	"bytes"
	"slices"
	"sync/atomic"
	"time"

	"weir/internal/tenants/db"
)

// knownKey is a key in memory. It is replaced, never changed. There is one for each key, so it is
// small.
type knownKey struct {
	actor     Actor // includes the expiry of the key
	at        reading
	lastTouch atomic.Int64 // milliseconds since 1970
	state     keyState
}

// keyState says why a key does not work.
type keyState uint8

const (
	keyWorks     keyState = iota // until it expires
	keyRotated                   // as keyWorks, but another key has replaced it
	keyRevoked                   // at any time
	keySuspended                 // at any time, while its tenant is suspended
)

// refusal returns why the key does not work at this time, or nil.
func (k *knownKey) refusal(now time.Time) error {
	switch k.state {
	case keyRevoked:
		return ErrKeyRevoked
	case keySuspended:
		return ErrTenantSuspended
	}
	switch over := !k.actor.keyExpiresAt.IsZero() && !now.Before(k.actor.keyExpiresAt); {
	case over && k.state == keyRotated:
		return ErrKeyRotated
	case over:
		return ErrKeyExpired
	}
	return nil
}

// worksAs reports whether two states of a key are the same for its users.
func (k *knownKey) worksAs(o *knownKey) bool {
	return k.state == o.state && k.actor.scopes == o.actor.scopes && k.actor.keyExpiresAt.Equal(o.actor.keyExpiresAt) &&
		k.actor.keyBounds().same(o.actor.keyBounds())
}

// tenantKeys has the known keys of one tenant.
type tenantKeys struct {
	at     reading
	hashes [][32]byte // in order, so that one of many is found fast
}

func (t *tenantKeys) find(hash [32]byte) (i int, found bool) {
	return slices.BinarySearchFunc(t.hashes, hash, func(x, y [32]byte) int { return bytes.Compare(x[:], y[:]) })
}

func (t *tenantKeys) has(hash [32]byte) bool {
	_, found := t.find(hash)
	return found
}

func (t *tenantKeys) add(hash [32]byte) {
	if i, found := t.find(hash); !found {
		t.hashes = slices.Insert(t.hashes, i, hash)
	}
}

// reading says how new data is that was read: the history of the database, then the version within
// it.
type reading struct{ history, version int64 }

func (r reading) olderThan(o reading) bool {
	return r.history < o.history || r.history == o.history && r.version < o.version
}

func knownKeyOf(row db.LookUpKeyRow, at reading) *knownKey {
	k := &knownKey{at: at}
	k.actor = Actor{
		tenant: row.TenantID, kind: KeyActor, id: row.ID, name: row.Name, scopes: newScopes(row.Scopes),
		// Both must be true: a key of this kind in another tenant is not an operator key.
		operator: KeyKind(row.Kind) == OperatorKey && row.TenantSlug == PlatformSlug,
		bounds:   KeyBounds{Addresses: row.Addresses, Resources: row.Resources}.compile(),
	}
	if row.ExpiresAt != nil {
		k.actor.keyExpiresAt = *row.ExpiresAt
	}
	switch {
	case row.RevokedAt != nil:
		k.state = keyRevoked
	case row.TenantState != TenantActive:
		k.state = keySuspended
	case row.RotatedTo != nil:
		k.state = keyRotated
	}
	return k
}
