// Package budget bounds the bytes of records that each tenant has alive in Redis: answers of checks
// with an Idempotency-Key (package once), and leases of clients (package leases). A tenant decides
// how many there are and how long they are, and a full Redis degrades all tenants.
//
// A record is counted by its size and its expiry, when it is written. It is not subtracted when a
// lease is returned: the mark that replaces it lives as long. Each instance counts what it has
// written in memory. In the background, it stores this in a hash of the tenant in Redis, and reads
// what the other instances have written. What Redis loses, it loses together with the records.
//
// Each time an instance reads the hash, it grants itself a part of what is left of the bound: all
// of it if it is the only instance, and otherwise half of its share. Before a record is created, it
// reserves what its request can need, and what the record does not need is returned. So no request
// waits for this, and a tenant does not exceed its bound with many requests at once.
//
// Example: a tenant may have 64 MiB, and 60 MiB are alive, 20 of them written by this instance.
// There are two instances, so this one grants itself 1 MiB and may have 21 MiB alive until it reads
// the hash again. When 4 MiB of its own expire, it may write 5 MiB.
package budget

import (
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
	"github.com/redis/go-redis/v9"

	"weir/internal/limit"
	"weir/internal/paced"
	"weir/internal/waterlevel"
)

// Options are the parts of a Budget. All fields but Default and Now are required.
type Options struct {
	Client redis.UniversalClient
	// Bound returns how many bytes of records a tenant may have alive, 0 for Default, or false if
	// that is not known now. It must not wait.
	Bound   func(limit.TenantID) (bytes int64, known bool)
	Default int64 // 0: no bound
	// Prefix returns the beginning of a tenant's keys, with its hash tag.
	Prefix func(limit.TenantID) string
	// Instances returns how many instances share Redis.
	Instances func() int
	Now       func() time.Time // with a monotonic reading; nil: time.Now
}

// Budget has the bytes of records of all tenants, as this instance knows them. A nil Budget has no
// bound. It is safe for concurrent use. Run must run.
type Budget struct {
	o         Options
	name      string // of this instance
	begun     time.Time
	tenants   *xsync.Map[limit.TenantID, *tenant]
	loop      *paced.Loop // looks at the hashes
	refused   atomic.Int64
	level     atomic.Int64 // bytes that the memory of Redis lets a tenant have alive
	allowance atomic.Int64 // bytes that this instance may write until the memory is read again
	kept      atomic.Int64 // of these, bytes for tenants that have less than half of the level
}

// tenant has the bytes of a tenant. Requests with records take the lock for an addition.
type tenant struct {
	id limit.TenantID

	mu       sync.Mutex
	gone     bool // no longer among the tenants
	bound    int64
	own      map[int64]int64 // bytes that this instance wrote and that are alive, by the period of their expiry
	alive    int64           // the sum of own
	period   int64           // in which own was cleaned
	reserved int64           // by requests in flight
	most     int64           // how many bytes this instance may have alive and reserved, until the next look
	granted  int64           // by the last look
	wanted   int64           // of the largest record that was refused since then
	others   int64           // bytes of the other instances, as of the last look
	looked   time.Time
	used     time.Time // last
	soon     bool      // too little is left: look soon
}

const (
	// period is the unit of expiries, which are rounded up to it. A record is counted for this long
	// after its expiry at most.
	period = 4 * time.Second
	// longest is the greatest lifetime of a record; longer ones are counted for this long.
	longest = 64 * time.Second
	// forgetAfter is after how much time without a record a tenant is forgotten. Its hash has
	// expired by then.
	forgetAfter = 2 * longest
	// unbounded is the bound of a tenant without one.
	unbounded = waterlevel.None
)

//go:embed records.lua
var recordsText string

// New returns a Budget.
func New(o Options) *Budget {
	if o.Now == nil {
		o.Now = time.Now
	}
	var name [8]byte
	_, _ = rand.Read(name[:]) // it never fails
	b := &Budget{
		o: o, name: hex.EncodeToString(name[:]), begun: o.Now(),
		tenants: xsync.NewMap[limit.TenantID, *tenant](), loop: paced.New(lookEvery, lookGap),
	}
	b.setLeft(unbounded, unbounded)
	return b
}

// FullError is the error of a request whose record would exceed the budget of its tenant.
type FullError struct {
	Wait time.Duration // until records expire
}

func (e *FullError) Error() string {
	return fmt.Sprintf("the tenant has as many bytes of records alive as it may; some expire in %s", e.Wait)
}

// Hold is bytes that a request has reserved. The zero Hold has none.
type Hold struct {
	of     *Budget
	tenant *tenant
	bytes  int64
}

// Reserve reserves bytes for a record of a tenant. Wrote or Cancel must follow. The error is a
// *FullError.
func (b *Budget) Reserve(id limit.TenantID, bytes int64) (Hold, error) {
	if b == nil {
		return Hold{}, nil
	}
	now := b.o.Now()
	for {
		t := b.of(id)
		t.mu.Lock()
		if t.gone {
			t.mu.Unlock()
			continue
		}
		wait := b.reserve(t, now, bytes)
		soon := t.soon
		t.mu.Unlock()
		if soon {
			b.loop.Hurry()
		}
		if wait > 0 {
			b.refused.Add(1)
			return Hold{}, &FullError{Wait: wait}
		}
		return Hold{b, t, bytes}, nil
	}
}

// reserve reserves bytes, or returns the time until some of the tenant expire. The caller holds the
// lock of the tenant.
func (b *Budget) reserve(t *tenant, now time.Time, bytes int64) (wait time.Duration) {
	at := b.periodOf(now)
	t.clean(at)
	t.used = now
	left := t.most - t.alive - t.reserved - bytes
	if left < t.granted/2 {
		t.soon = true
	}
	if left >= 0 && b.fits(t, bytes) {
		t.reserved += bytes
		b.allowance.Add(-bytes)
		return 0
	}
	t.wanted = max(t.wanted, bytes)
	first := at + int64(longest/period)
	for expires := range t.own {
		first = min(first, expires)
	}
	if len(t.own) == 0 {
		first = at
	}
	return max(time.Duration(first-at+1)*period, time.Second)
}

// Wrote records that the record was written, or may have been, with its size and lifetime, instead
// of what was reserved.
func (h *Hold) Wrote(bytes int64, life time.Duration) {
	if h.tenant == nil {
		return
	}
	now, t := h.of.o.Now(), h.tenant
	expires := h.of.periodOf(now.Add(min(life, longest)))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clean(h.of.periodOf(now))
	t.reserved -= h.bytes
	h.of.allowance.Add(h.bytes - bytes)
	t.own[expires] += bytes
	t.alive += bytes
	t.used = now
	*h = Hold{}
}

// Cancel returns what was reserved and not written. It may be called again, and after Wrote.
func (h *Hold) Cancel() {
	if h.tenant == nil {
		return
	}
	h.tenant.mu.Lock()
	defer h.tenant.mu.Unlock()
	h.tenant.reserved -= h.bytes
	h.of.allowance.Add(h.bytes)
	*h = Hold{}
}

// Size returns the approximate memory that Redis needs for a record with this key and value, with
// what it adds to each key that expires.
func Size(key, value int) int64 { return int64(key+value+value/4) + 160 }

// of returns the tenant.
func (b *Budget) of(id limit.TenantID) *tenant {
	if t, known := b.tenants.Load(id); known {
		return t
	}
	t, _ := b.tenants.LoadOrCompute(id, func() (*tenant, bool) {
		t := &tenant{id: id, own: map[int64]int64{}, soon: true}
		bound, _ := b.o.Bound(id)
		t.bound = b.boundOr(bound)
		// Until the first look: a part, since other instances may have written more.
		t.granted = min(t.bound/int64(2*max(b.o.Instances(), 1)), b.share())
		t.most = t.granted
		return t, false
	})
	return t
}

func (b *Budget) boundOr(bound int64) int64 {
	if bound <= 0 {
		bound = b.o.Default
	}
	if bound <= 0 {
		bound = unbounded
	}
	return bound
}

// periodOf returns the period of an instant.
func (b *Budget) periodOf(at time.Time) int64 { return int64(at.Sub(b.begun) / period) }

// clean removes what has expired. The caller holds the lock.
func (t *tenant) clean(at int64) {
	if t.period == at {
		return
	}
	t.period = at
	for expires, bytes := range t.own {
		if expires < at {
			t.alive -= bytes
			delete(t.own, expires)
		}
	}
}

// Refused returns how many requests were refused because their records would exceed the budget of
// their tenant.
func (b *Budget) Refused() int64 { return b.refused.Load() }

// Alive returns how many bytes of records this instance has written that are alive, and how many
// tenants may write none now.
func (b *Budget) Alive() (bytes int64, full int) {
	at := b.periodOf(b.o.Now())
	b.tenants.Range(func(_ limit.TenantID, t *tenant) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.clean(at)
		bytes += t.alive
		if t.alive+t.reserved >= t.most || !b.fits(t, 1) {
			full++
		}
		return true
	})
	return bytes, full
}
