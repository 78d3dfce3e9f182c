package tenants

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// KeyChanges are keys that instances may have in memory and that work differently since a version
// of their tenant's keys. Instances tell them to each other, so that a key that was revoked stops
// working everywhere, even at an instance that cannot reach Postgres.
type KeyChanges struct {
	Tenant  uuid.UUID   `json:"tenant"`
	Version int64       `json:"version"`
	Keys    []KeyChange `json:"keys"`
}

// KeyChange is the new state of a key.
type KeyChange struct {
	Hash        []byte `json:"hash"`
	State       uint8  `json:"state"`
	ExpiresAtMS int64  `json:"expires_at_ms,omitempty"` // since 1970; 0: never
	// Bounds is nil for a key that does not work, and in a message of an earlier release. The key
	// then keeps its bounds.
	Bounds *KeyBounds `json:"bounds,omitempty"`
	// Scopes is empty in the same cases. The key then keeps its scopes.
	Scopes []string `json:"scopes,omitempty"`
}

// maxKeyChanges and maxKeyMessage, in bytes, bound one message, except for one with a single key,
// whose bounds take up to 32 KiB. Receivers refuse more than 128 KiB.
const (
	maxKeyChanges = 500
	maxKeyMessage = 64 << 10
)

// change describes the key as it is now.
func (k *knownKey) change(hash [32]byte) KeyChange {
	c := KeyChange{Hash: hash[:], State: uint8(k.state)}
	if k.state == keyWorks || k.state == keyRotated {
		bounds := k.actor.keyBounds()
		c.Bounds, c.Scopes = &bounds, k.actor.scopes.texts()
	}
	if !k.actor.keyExpiresAt.IsZero() {
		c.ExpiresAtMS = k.actor.keyExpiresAt.UnixMilli()
	}
	return c
}

// Tell calls send for each change of known keys that this instance reads from Postgres. Call it
// before Load. send must not block.
func (a *Authenticator) Tell(send func(message []byte)) { a.send = send }

// tell sends changes, in messages of bounded length.
func (a *Authenticator) tell(c KeyChanges) {
	for all := c.Keys; a.send != nil && len(all) > 0; {
		n := oneMessage(all)
		c.Keys, all = all[:n], all[n:]
		a.send(jsonOf(c))
	}
}

// oneMessage returns how many of the keys are told in one message.
func oneMessage(keys []KeyChange) int {
	size := 0
	for i := range keys {
		size += len(jsonOf(&keys[i]))
		if i > 0 && (size > maxKeyMessage || i == maxKeyChanges) {
			return i
		}
	}
	return len(keys)
}

// jsonOf returns the JSON of a message or a part of one.
func jsonOf(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil { // it has numbers, texts and bytes only
		panic(err)
	}
	return text
}

// Learn takes over changes that another instance has read, as far as they are newer than what this
// one has read itself. It errs if the message has another form.
func (a *Authenticator) Learn(message []byte) error {
	var c KeyChanges
	if err := json.Unmarshal(message, &c); err != nil {
		return fmt.Errorf("changes of keys: %w", err)
	}
	for i := range c.Keys {
		if len(c.Keys[i].Hash) != 32 || c.Keys[i].State > uint8(keySuspended) {
			return fmt.Errorf("changes of keys: key %d has another form", i)
		}
	}
	if a.learn(&c) {
		a.store.watcher.poke() // Postgres has a newer version
	}
	return nil
}

func (a *Authenticator) learn(c *KeyChanges) (learned bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, change := range c.Keys {
		hash := [32]byte(change.Hash)
		old, found := a.known.Load(hash)
		if !found || old.actor.tenant != c.Tenant || old.at.version >= c.Version {
			continue
		}
		k := &knownKey{actor: old.actor, at: reading{old.at.history, c.Version}, state: keyState(change.State)}
		k.actor.keyExpiresAt = time.Time{}
		if change.ExpiresAtMS != 0 {
			k.actor.keyExpiresAt = time.UnixMilli(change.ExpiresAtMS).UTC()
		}
		if change.Bounds != nil {
			k.actor.bounds = change.Bounds.compile()
		}
		if len(change.Scopes) > 0 {
			k.actor.scopes = newScopes(change.Scopes)
		}
		k.lastTouch.Store(old.lastTouch.Load())
		a.known.Store(hash, k)
		learned = true
	}
	return learned
}
