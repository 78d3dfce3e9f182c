package tenants

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/puzpuzpuz/xsync/v4"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"weir/internal/check"
	"weir/internal/tenants/db"
)

// Why a key does not authenticate. All but the last wrap ErrUnauthorized. A client may learn the
// reason, because for all except the first two it must have the real key.
var (
	ErrUnknownKey      = fmt.Errorf("%w: no such API key", ErrUnauthorized)
	ErrKeyRevoked      = fmt.Errorf("%w: this API key has been revoked", ErrUnauthorized)
	ErrKeyExpired      = fmt.Errorf("%w: this API key has expired", ErrUnauthorized)
	ErrKeyRotated      = fmt.Errorf("%w: this API key has been replaced by another and its overlap is over", ErrUnauthorized)
	ErrTenantSuspended = fmt.Errorf("%w: the tenant of this API key is suspended", ErrUnauthorized)
	// ErrKeyLookupUnavailable: the key is not in memory, and Postgres is unavailable.
	ErrKeyLookupUnavailable = errors.New("the API key cannot be looked up now")
)

const (
	maxLookups    = 50 // per second, of keys that are not in memory
	lookupTimeout = 2 * time.Second
	// MaxWaiting is the number of requests that may wait for lookups at once, also for the same.
	MaxWaiting = 256
	// Unknown keys are remembered for one to two periods, at most maxUnknown of them.
	unknownPeriod = 2 * time.Second
	maxUnknown    = 100_000
	// touchEvery is the minimum interval in which the use of a key is stored.
	touchEvery   = time.Minute
	touchPeriod  = 5 * time.Second
	touchBatch   = 1000
	retryPending = 250 * time.Millisecond
)

// Authenticator finds the tenant of a key. Known keys are found in memory, by their SHA-256,
// without a lock or a wait. Apply updates the known keys after changes of the database.
type Authenticator struct {
	store *Store
	log   *slog.Logger
	known *xsync.Map[[32]byte, *knownKey]

	loads   singleflight.Group
	lookups *rate.Limiter
	unknown unknownKeys
	unread  atomic.Pointer[keyFilter] // the keys that Load did not read are among these; nil: it read all
	down    atomic.Bool               // the last query to Postgres was not answered
	asked   atomic.Int64              // number of lookups
	waiting atomic.Int64              // number of requests that wait for lookups

	touches chan touch
	send    func(message []byte) // tells other instances of changed keys; may be nil

	mu      sync.Mutex // guards the fields below; held by every write to known
	tenants map[uuid.UUID]*tenantKeys
	pending map[uuid.UUID]bool // tenants whose keys could not be read after a change
	reload  bool               // the keys of all tenants could not be read after the database went back
	most    int                // tenants that Load reads
	upTo    reading            // Load has read all keys, or their hashes, as of this version or a later one
}

// NewAuthenticator returns an authenticator for the store's keys. It knows none until Load, and is
// updated only while Apply is called for each change; Run must run.
func NewAuthenticator(s *Store) *Authenticator {
	return &Authenticator{
		store: s, log: s.log, known: xsync.NewMap[[32]byte, *knownKey](),
		lookups: rate.NewLimiter(maxLookups, maxLookups),
		touches: make(chan touch, 4*touchBatch),
		tenants: map[uuid.UUID]*tenantKeys{}, pending: map[uuid.UUID]bool{}, most: maxTenantsRead,
	}
}

// Authenticate returns the actor with the key in text. For a known key it neither waits nor
// allocates. Errors: those that wrap ErrUnauthorized, and ErrKeyLookupUnavailable.
func (a *Authenticator) Authenticate(ctx context.Context, text string) (Actor, error) {
	key, err := ParseKey(text)
	if err != nil {
		return Actor{}, err
	}
	hash := key.Hash()
	k, found := a.known.Load(hash)
	if !found {
		if k, err = a.lookUp(ctx, hash); err != nil {
			return Actor{}, err
		}
	}
	now := a.store.now()
	if err := k.refusal(now); err != nil {
		return Actor{}, err
	}
	a.touch(k, now)
	return k.actor, nil
}

// lookUp looks up a key in the database that is not in memory.
func (a *Authenticator) lookUp(ctx context.Context, hash [32]byte) (*knownKey, error) {
	if a.unknown.has(hash, a.store.now()) {
		return nil, ErrUnknownKey
	}
	defer a.waiting.Add(-1)
	if a.waiting.Add(1) > MaxWaiting {
		return nil, ErrKeyLookupUnavailable
	}
	// The lookup continues if its caller disconnects, because others may wait for it, too.
	done := a.loads.DoChan(hex.EncodeToString(hash[:]), func() (_ any, err error) {
		defer check.RecoverTo(&err)
		if !a.unread.Load().has(hash) && !a.lookups.Allow() {
			if a.down.Load() {
				return nil, ErrKeyLookupUnavailable
			}
			return nil, ErrUnknownKey
		}
		return a.fill(context.WithoutCancel(ctx), hash)
	})
	select {
	case r := <-done:
		if r.Err != nil {
			check.PanicAgain(r.Err)
			return nil, r.Err
		}
		return r.Val.(*knownKey), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fill reads a key and keeps it. It reads it again if all keys were read in the meantime.
func (a *Authenticator) fill(ctx context.Context, hash [32]byte) (*knownKey, error) {
	for {
		if k, current, err := a.fillOnce(ctx, hash); err != nil || current {
			return k, err
		}
	}
}

// fillOnce reads a key and keeps it, unless current is false: then Load has read the other keys
// since the lookup began, and the key must be read again.
func (a *Authenticator) fillOnce(ctx context.Context, hash [32]byte) (k *knownKey, current bool, err error) {
	a.asked.Add(1)
	a.mu.Lock()
	upTo := a.upTo
	a.mu.Unlock()
	history := a.store.history.Load()
	var row db.LookUpKeyRow
	err = a.store.asSystemWithin(ctx, lookupTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		row, err = q.LookUpKey(ctx, hash[:])
		return err
	})
	a.down.Store(err != nil && !errors.Is(err, ErrNotFound))
	switch {
	case errors.Is(err, ErrNotFound):
		a.unknown.add(hash, a.store.now())
		return nil, false, ErrUnknownKey
	case err != nil:
		return nil, false, fmt.Errorf("%w: %w", ErrKeyLookupUnavailable, err)
	}
	return a.keep(hash, row, reading{history, row.KeysVersion}, upTo)
}

// keep stores the result of a lookup, unless the known key is newer: a lookup that began before a
// revocation must not restore the key after it. upTo was read before the key. If it has changed and
// the tenant is not known, the key may have changed before Load read it, and current is false.
func (a *Authenticator) keep(hash [32]byte, row db.LookUpKeyRow, at, upTo reading) (k *knownKey, current bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	tenant := a.tenants[row.TenantID]
	if tenant != nil && at.olderThan(tenant.at) {
		if k, found := a.known.Load(hash); found {
			return k, true, nil
		}
		return nil, false, ErrUnknownKey
	}
	if tenant == nil {
		if a.upTo != upTo {
			return nil, false, nil
		}
		tenant = &tenantKeys{at: reading{history: at.history}} // the next change reads all its keys
		a.tenants[row.TenantID] = tenant
	}
	// tenant.at stays, because this lookup read none of the tenant's other keys.
	tenant.add(hash)
	return a.put(hash, knownKeyOf(row, at)), true, nil
}

// put replaces a known key, unless the known one was read later. The caller holds a.mu.
func (a *Authenticator) put(hash [32]byte, k *knownKey) *knownKey {
	if old, found := a.known.Load(hash); found {
		if k.at.olderThan(old.at) {
			return old
		}
		k.lastTouch.Store(old.lastTouch.Load()) // a use in between is stored again
	}
	a.known.Store(hash, k)
	return k
}

// Lookups returns how often a key was looked up in Postgres because it was not in memory.
func (a *Authenticator) Lookups() int64 { return a.asked.Load() }

// Apply handles a change from Store.Watch. If Postgres does not answer, Run retries until it does.
func (a *Authenticator) Apply(ctx context.Context, c Change) {
	if c.Gone {
		a.remove(c.Tenant)
		return
	}
	now := reading{a.store.history.Load(), c.KeysVersion}
	a.mu.Lock()
	tenant, reload, upTo := a.tenants[c.Tenant], a.reload, a.upTo
	a.mu.Unlock()
	switch some := a.unread.Load() != nil; {
	case tenant != nil && !tenant.at.olderThan(now):
	case some && upTo.history < now.history || tenant != nil && tenant.at.history != now.history:
		// The database went back: all keys must be read, which is faster in one query.
		if !reload {
			a.loadAgain(ctx)
		}
	case some && tenant == nil && !upTo.olderThan(now): // its keys are looked up when they are used
	default:
		a.Changed(ctx, c.Tenant)
	}
}

// loadAgain reads all keys, or schedules it in Run if Postgres does not answer.
func (a *Authenticator) loadAgain(ctx context.Context) {
	err := a.Load(ctx)
	if err != nil {
		a.log.WarnContext(ctx, "API keys not reloaded; retrying", "error", err)
	}
	a.mu.Lock()
	a.reload = err != nil
	a.mu.Unlock()
}

// Changed reads the keys of a tenant again.
func (a *Authenticator) Changed(ctx context.Context, tenant uuid.UUID) {
	history := a.store.history.Load()
	rows, version, err := a.store.StoredKeys(ctx, tenant)
	switch {
	case err == nil:
		a.replace(tenant, rows, reading{history, version})
	case errors.Is(err, ErrNotFound):
		a.remove(tenant)
	default:
		a.log.WarnContext(ctx, "changed API keys not loaded; retrying", "tenant_id", tenant, "error", err)
		a.mu.Lock()
		a.pending[tenant] = true
		a.mu.Unlock()
	}
}

// StoredKey is what is stored of a key: its hash, never the key itself.
type StoredKey = db.LookUpTenantKeysRow

// maxEndedRead is how many keys of a tenant that have ended, those that changed last, an instance
// reads with the others. It needs them to answer why they do not work, without a lookup and also
// without Postgres. Older ones are looked up when they are used.
const maxEndedRead = 1000

// StoredKeys returns the keys of a tenant that instances keep in memory, with their version.
// Errors: ErrNotFound, ErrUnavailable.
func (s *Store) StoredKeys(ctx context.Context, tenant uuid.UUID) (keys []StoredKey, version int64, err error) {
	err = s.asSystemWithin(ctx, lookupTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		head, err := q.TenantByID(ctx, tenant)
		if err != nil {
			return err
		}
		version = head.KeysVersion
		keys, err = q.LookUpTenantKeys(ctx, db.LookUpTenantKeysParams{
			TenantID: tenant, Now: s.instant(), Most: maxEndedRead,
		})
		return err
	})
	return keys, version, err
}

// Restore makes keys known that StoredKeys returned before this process began. Whatever is read
// from Postgres replaces them.
func (a *Authenticator) Restore(tenant uuid.UUID, keys []StoredKey, version int64) {
	a.replaceKnown(tenant, keys, reading{history: a.store.history.Load() - 1, version: version})
}

// replace replaces the known keys of a tenant by rows, unless the known ones are newer, and tells
// the other instances what has changed.
func (a *Authenticator) replace(id uuid.UUID, rows []db.LookUpTenantKeysRow, at reading) {
	a.tell(KeyChanges{Tenant: id, Version: at.version, Keys: a.replaceKnown(id, rows, at)})
}

// replaceKnown returns the keys that work differently now. It prepares all it can before it takes
// the lock, for which revocations that other instances tell wait, too.
func (a *Authenticator) replaceKnown(id uuid.UUID, rows []db.LookUpTenantKeysRow, at reading) (changed []KeyChange) {
	tenant := &tenantKeys{at: at}
	keys := make([]*knownKey, len(rows))
	slices.SortFunc(rows, func(x, y db.LookUpTenantKeysRow) int { return bytes.Compare(x.Hash, y.Hash) })
	if len(rows) > 0 {
		tenant.hashes = make([][32]byte, len(rows))
	}
	for i, row := range rows {
		tenant.hashes[i], keys[i] = [32]byte(row.Hash), knownKeyOf(db.LookUpKeyRow(row), at)
	}
	clock := a.store.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pending, id)
	old := a.tenants[id]
	if old != nil && at.olderThan(old.at) {
		return nil
	}
	a.tenants[id] = tenant
	for i, hash := range tenant.hashes {
		before, found := a.known.Load(hash)
		now := a.put(hash, keys[i])
		// After the database went back, each instance reads everything again by itself.
		if found && before.at.history == at.history && !now.worksAs(before) {
			changed = append(changed, now.change(hash))
		}
	}
	if old == nil {
		return changed
	}
	for _, hash := range old.hashes {
		k, found := a.known.Load(hash)
		if !found || tenant.has(hash) {
			continue
		}
		// A lookup may have found a key that was created after rows were read.
		if at.olderThan(k.at) {
			tenant.add(hash)
			continue
		}
		a.known.Delete(hash)
		// A key that ended long ago is no longer read, which changes nothing for other instances.
		if old.at.history == at.history && k.refusal(clock) == nil {
			changed = append(changed, KeyChange{Hash: hash[:], State: uint8(keyRevoked)})
		}
	}
	return changed
}

// remove removes the keys of a deleted tenant, and notifies the other instances.
func (a *Authenticator) remove(id uuid.UUID) {
	a.tell(KeyChanges{Tenant: id, Version: math.MaxInt64, Keys: a.removeKnown(id)})
}

func (a *Authenticator) removeKnown(id uuid.UUID) (removed []KeyChange) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pending, id)
	if tenant := a.tenants[id]; tenant != nil {
		for _, hash := range tenant.hashes {
			a.known.Delete(hash)
			removed = append(removed, KeyChange{Hash: hash[:], State: uint8(keyRevoked)})
		}
	}
	// What remains is empty and newer than any read: a running lookup will find it.
	a.tenants[id] = &tenantKeys{at: reading{a.store.history.Load(), math.MaxInt64}}
	return removed
}

// Run stores when keys were last used, and retries to read changed keys, until ctx ends. Then it
// stores what is left and returns nil.
func (a *Authenticator) Run(ctx context.Context) error {
	write, retry := time.NewTicker(touchPeriod), time.NewTicker(retryPending)
	defer write.Stop()
	defer retry.Stop()
	for {
		select {
		case <-write.C:
			a.writeTouches(ctx)
		case <-retry.C:
			a.retry(ctx)
		case <-ctx.Done():
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
			defer cancel()
			a.writeTouches(ending)
			return nil
		}
	}
}

func (a *Authenticator) retry(ctx context.Context) {
	a.mu.Lock()
	var tenants []uuid.UUID
	for tenant := range a.pending {
		tenants = append(tenants, tenant)
	}
	reload := a.reload
	a.mu.Unlock()
	if reload {
		a.loadAgain(ctx)
	}
	for _, tenant := range tenants {
		a.Changed(ctx, tenant)
	}
}
