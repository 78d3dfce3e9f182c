// Package leases stores what a client may return of a lease. Units of a lease are charged when it
// is granted. What the client does not grant comes back exactly once, on any instance.
//
// A record is a value in Redis with an expiry. Take marks it with the token of the caller in the
// same script that reads it, so only one caller gets the record. A crash after Take leaves the
// units charged: they count until their window ends. They are never returned twice.
//
// If Redis does not answer in time, it may still execute the script later. The caller then calls
// Take again with the same token. It gets the record, unless another caller was faster.
//
// For example, a client returns 40 units of a lease and loses the answer. It repeats the return, at
// another instance. The first Take gets the record and returns the units to the counters. The
// second finds the mark, and returns nothing.
//
// A name is a keyed hash of the tenant and the lease, and a record is encrypted, because it has the
// subject: Redis contains no customer data.
package leases

import (
	"context"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"weir/internal/budget"
	"weir/internal/records"
	"weir/internal/seal"
)

// Grace is how long after the end of a lease its record is kept, for a return that is late or is
// repeated.
const Grace = 10 * time.Second

// Errors of Take.
var (
	ErrUnknown = errors.New("the tenant has no such lease, or it ended too long ago")
	ErrTaken   = errors.New("the lease was returned before")
	// ErrUnavailable: the server is known to be unavailable, or did not answer.
	ErrUnavailable = errors.New("the records of leases are unavailable")
	// ErrUnanswered is an ErrUnavailable after which the record may be taken, also later.
	ErrUnanswered = errors.New("no answer")
)

// Records stores records of leases. It is safe for concurrent use.
type Records struct {
	client  redis.UniversalClient
	secret  [16]byte
	aead    cipher.AEAD
	away    func(key string) bool
	turns   *records.Turns
	timeout time.Duration

	mu    sync.Mutex // guards local, which is used without a client
	local map[string]localRecord
}

type localRecord struct {
	value   []byte
	expires time.Time
}

// Options are the parts and settings of Records.
type Options struct {
	Client  redis.UniversalClient // nil: records are stored only in this process
	Secret  [16]byte              // of the deployment
	Away    func(key string) bool // reports whether the server of a key is known to be unavailable; nil: never
	Turns   *records.Turns        // nil: nothing waits for a turn
	Timeout time.Duration         // of one call to Redis, and of the wait for a turn; 0: 100 ms
}

// New returns Records.
func New(o Options) *Records {
	r := &Records{client: o.Client, secret: o.Secret, away: o.Away, turns: o.Turns, timeout: o.Timeout, local: map[string]localRecord{}}
	if r.away == nil {
		r.away = func(string) bool { return false }
	}
	if r.timeout == 0 {
		r.timeout = 100 * time.Millisecond
	}
	r.aead = seal.AEAD(seal.Derive("leases of clients ", o.Secret))
	return r
}

// NewID returns the id of a lease, which nobody can guess.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return "lease_" + hex.EncodeToString(b[:])
}

// Token identifies a caller of Take.
type Token [16]byte

// NewToken returns a random token.
func NewToken() (t Token) {
	_, _ = rand.Read(t[:]) // it never fails
	return t
}

// Size returns how many bytes the record of a lease, which has this length, takes in Redis, for
// package budget.
func (r *Records) Size(record int) int64 {
	const key = len("w{}lease") + 2*16
	return budget.Size(key, record+r.aead.Overhead()+len(markText)+len(Token{}))
}

func (r *Records) name(tenant uuid.UUID, id string) string {
	b := append(append(r.secret[:], tenant[:]...), "lease "...)
	sum := sha256.Sum256(append(b, id...))
	return "w{" + hex.EncodeToString(sum[:16]) + "}lease"
}

// taken is what swap returns of a record that another caller has taken. Earlier versions also store
// it. Other values are longer.
var taken = []byte("t")

// markText and the token follow a record that was taken. A record ends with random bytes, which are
// never this text.
const markText = "\x00taken:\x00"

// takeScript marks the record KEYS[1] and returns it. ARGV[1] is the mark of the caller, ARGV[2] is
// markText. Earlier versions cannot read a record with a mark, so they do not return it again.
var takeScript = redis.NewScript(`
local value = redis.call('GET', KEYS[1])
if not value then return false end
local mark = string.sub(value, -#ARGV[1])
if mark == ARGV[1] then return string.sub(value, 1, #value - #mark) end
if value == 't' or string.sub(mark, 1, #ARGV[2]) == ARGV[2] then return 't' end
redis.call('SET', KEYS[1], value .. ARGV[1], 'KEEPTTL')
return value`)

// Turn runs do when it is the tenant's turn, or returns records.ErrBusy. All calls of one request
// belong in one turn: the charge and Put, or Take and the refund. So no request waits for another
// turn after it has charged or taken units.
func (r *Records) Turn(ctx context.Context, tenant uuid.UUID, do func()) error {
	return r.turns.Do(ctx, tenant, r.timeout, do)
}

// Put stores the record of a lease that ends after life.
func (r *Records) Put(ctx context.Context, tenant uuid.UUID, id string, record []byte, life time.Duration) error {
	name := r.name(tenant, id)
	value := r.aead.Seal(nil, nil, record, []byte(name))
	if r.client == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.local[name] = localRecord{value, time.Now().Add(life + Grace)}
		return nil
	}
	if r.away(name) {
		return ErrUnavailable
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
	defer cancel()
	if err := r.client.Set(ctx, name, value, life+Grace).Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// Take returns the record of a lease to its first caller. After ErrUnanswered, it can be called
// again with the same token, which no other caller may have.
func (r *Records) Take(ctx context.Context, tenant uuid.UUID, id string, token Token) ([]byte, error) {
	name := r.name(tenant, id)
	value, err := r.swap(ctx, name, token)
	switch {
	case err != nil:
		return nil, err
	case len(value) == len(taken):
		return nil, ErrTaken
	}
	record, err := r.aead.Open(nil, nil, value, []byte(name))
	if err != nil {
		return nil, fmt.Errorf("%w: the record cannot be decrypted", ErrUnknown)
	}
	return record, nil
}

// swap marks a record, and returns it.
func (r *Records) swap(ctx context.Context, name string, token Token) ([]byte, error) {
	if r.client == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		found, ok := r.local[name]
		if !ok || time.Now().After(found.expires) {
			return nil, ErrUnknown
		}
		r.local[name] = localRecord{taken, found.expires}
		return found.value, nil
	}
	if r.away(name) {
		return nil, ErrUnavailable
	}
	// If the client disconnects, the caller must still learn what it took.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
	defer cancel()
	value, err := takeScript.Run(ctx, r.client, []string{name}, markText+string(token[:]), markText).Text()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, ErrUnknown
	case err != nil:
		return nil, fmt.Errorf("%w: %w: %w", ErrUnavailable, ErrUnanswered, err)
	}
	return []byte(value), nil
}
