// Package once makes it safe to repeat a request. The first request with a key is executed, and
// every repeat within a minute gets the answer of the first.
//
// A record is stored in Redis, so it is valid on every instance. It has two states. Begin claims
// the key: one script sets the record to "pending" unless it exists. The holder of the claim then
// executes the request, and Finish replaces "pending" by the answer. A repeat that finds "pending"
// waits a short time for the answer. If the holder crashes in between, the record stays pending
// until it expires. Repeats then get an error and are not executed. A request is therefore executed
// at most once within a minute, whatever fails.
//
// For example, a tenant sends the key "order-7" twice at the same time, to two instances. Both run
// the claim script; Redis runs them one after the other. The first gets the claim, counts, and
// finishes with its answer of 400 bytes. The second sees "pending", retries after 1 ms and after 2
// ms more, and gets the 400 bytes.
//
// An answer has the subject, the resource and what was decided, so it is encrypted in Redis. The
// client's key and the request are keyed hashes. The encryption key is derived from the secret of
// the deployment, which is in Postgres.
//
// The bytes of a tenant's records are bounded (package budget). Beyond that, requests with a new
// key are not executed, and repeats still get their answers.
//
// While Redis is unavailable, the records are stored in this process, limited in number and size.
// Repeats on another instance are then executed again. Repeats on this instance are not, also after
// Redis returned: Begin looks in this process first. For this, a claim in Redis has a record in
// this process, too, until its answer is in Redis. So a repeat on this instance is executed again
// only if Redis fails between the answer and the repeat.
//
// docs/decisions/0009-idempotent-checks.md has the reasons.
package once

import (
	"bytes"
	"cmp"
	"compress/flate"
	"context"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"weir/internal/budget"
	"weir/internal/places"
	"weir/internal/records"
	"weir/internal/seal"
)

// Lifetime is how long a record is stored, from its claim.
const Lifetime = time.Minute

// finishWait is how many timeouts Finish and Release wait for their turn: longer than Begin, so
// that calls which came later do not keep them from it. Without its answer, a record stays pending.
const finishWait = 4

// Errors of Begin, besides records.ErrBusy.
var (
	// ErrReused: the key was used for another request.
	ErrReused = errors.New("the idempotency key was used for another request")
	// ErrPending: the first request has no answer yet, or its instance has crashed.
	ErrPending = errors.New("the first request with this idempotency key has no answer yet")
)

// Print identifies a request.
type Print [16]byte

// PrintOf returns the print of a request. The encoding of the request must be unambiguous.
func PrintOf(request []byte) Print {
	sum := sha256.Sum256(request)
	return Print(sum[:16])
}

// Records stores answers. It is safe for concurrent use.
type Records struct {
	client  redis.UniversalClient
	secret  [16]byte
	prints  [sha256.Size]byte // the key of stored prints
	aead    cipher.AEAD
	away    func(key string) bool
	turns   *records.Turns
	timeout time.Duration
	wait    time.Duration
	local   *local
	budget  *budget.Budget
	packing *places.Turns[uuid.UUID] // to compress long answers and to read them
}

// Options are the parts and settings of Records.
type Options struct {
	Client  redis.UniversalClient    // nil: records are stored only in this process
	Secret  [16]byte                 // of the deployment
	Away    func(key string) bool    // reports whether the server of a key is known to be unavailable; nil: never
	Turns   *records.Turns           // of calls to Redis; nil: no call waits for a turn
	Timeout time.Duration            // of one call to Redis, and of the wait for its turn; 0: 100 ms
	Wait    time.Duration            // how long a repeat waits for the first request; 0: one second
	Budget  *budget.Budget           // bounds the records of a tenant in Redis; nil: no bound
	Packing *places.Turns[uuid.UUID] // to compress and read long answers; nil: own turns
}

// New returns Records.
func New(o Options) *Records {
	r := &Records{client: o.Client, secret: o.Secret, away: o.Away, turns: o.Turns, timeout: o.Timeout, wait: o.Wait, local: newLocal(time.Now), budget: o.Budget}
	if r.away == nil {
		r.away = func(string) bool { return false }
	}
	if r.timeout == 0 {
		r.timeout = 100 * time.Millisecond
	}
	if r.wait == 0 {
		r.wait = time.Second
	}
	if r.packing = o.Packing; r.packing == nil {
		r.packing = places.NewProcessors(runtime.GOMAXPROCS(0)).Short
	}
	r.prints = seal.Derive("prints of idempotent checks ", o.Secret)
	r.aead = seal.AEAD(seal.Derive("answers of idempotent checks ", o.Secret))
	return r
}

// Claim is the right and the obligation to execute a request: Finish, Release or Abandon must
// follow.
type Claim struct {
	name    string
	tenant  uuid.UUID
	print   Print
	pending []byte
	since   time.Time
	entry   *entry // in this process
	shared  bool   // the record is in Redis, too
	hold    budget.Hold
}

// Begin claims a key of a tenant for a request, whose answer has up to about so many bytes when it
// is compressed. It returns the claim if the request is the first, and otherwise the answer of the
// first request. The other result is nil. The error is ErrReused, ErrPending, a *budget.FullError,
// records.ErrBusy, or about an unreadable record. Nothing was claimed then.
func (r *Records) Begin(ctx context.Context, tenant uuid.UUID, key string, print Print, size int) (*Claim, []byte, error) {
	name := r.name(tenant, key)
	deadline := time.Now().Add(r.wait)
	print = r.keyed(name, print)
	claim := &Claim{name: name, tenant: tenant, print: print, pending: pendingRecord(print), since: time.Now()}
	full := r.reserve(claim, size)
	got, answer, err := r.begin(ctx, claim, deadline, full)
	if got == nil {
		claim.hold.Cancel()
	}
	return got, answer, err
}

// begin is Begin for a claim. full is not nil if its record would exceed the budget.
func (r *Records) begin(ctx context.Context, claim *Claim, deadline time.Time, full error) (*Claim, []byte, error) {
	name := claim.name
	for pause := time.Millisecond; ; pause = min(2*pause, 32*time.Millisecond) {
		if r.client == nil || r.away(name) {
			return r.local.begin(ctx, claim, time.Until(deadline))
		}
		answer, err := r.local.find(ctx, claim, time.Until(deadline))
		if answer != nil || err != nil {
			return nil, answer, err
		}
		claim.since = time.Now()
		record, err := r.claimOrRead(ctx, claim, full)
		switch {
		case errors.Is(err, records.ErrBusy):
			return nil, nil, err
		case err != nil: // it is unknown whether the claim arrived: Finish overwrites it
			return r.local.begin(ctx, claim, time.Until(deadline))
		case record == nil && full != nil:
			return nil, nil, full
		case record == nil && !r.local.hold(claim):
			r.unclaim(claim)
			continue
		case record == nil:
			claim.shared = true
			return claim, nil, nil
		}
		answer, err = r.readRecord(ctx, claim, record)
		switch {
		case err != nil:
			return nil, nil, err
		case answer != nil:
			return nil, answer, nil
		case time.Until(deadline) < pause:
			return nil, nil, ErrPending
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, nil, ErrPending
		}
	}
}

// Finish stores the answer for repeats, until Lifetime after the claim. If Redis fails, it is
// stored in this process.
func (r *Records) Finish(claim *Claim, answer []byte) {
	if r.client != nil && !r.away(claim.name) {
		record := r.answerRecord(claim, answer)
		err := r.inTurn(context.Background(), claim, finishWait*r.timeout, func(ctx context.Context) error {
			left := Lifetime - time.Since(claim.since)
			claim.hold.Wrote(budget.Size(len(claim.name), len(record)), left)
			return finishScript.Run(ctx, r.client, []string{claim.name}, claim.pending, record, max(left.Milliseconds(), 1)).Err()
		})
		if err == nil && claim.shared {
			r.local.release(claim)
			return
		}
	}
	claim.hold.Cancel()
	r.local.finish(claim, answer)
}

// Release releases the claim: the request was not executed, and a repeat may be.
func (r *Records) Release(claim *Claim) {
	claim.hold.Cancel()
	r.local.release(claim)
	if r.client != nil && !r.away(claim.name) {
		r.unclaim(claim)
	}
}

// Abandon ends a claim whose request may have been executed, and has no answer. Repeats get
// ErrPending until the record expires, as after a crash. It does nothing after Finish or Release.
func (r *Records) Abandon(claim *Claim) {
	claim.hold.Wrote(budget.Size(len(claim.name), len(claim.pending)), Lifetime-time.Since(claim.since))
	r.local.abandon(claim)
}

// unclaim deletes the pending record of a claim in Redis. If Redis fails, it expires.
func (r *Records) unclaim(claim *Claim) {
	_ = r.inTurn(context.Background(), claim, finishWait*r.timeout, func(ctx context.Context) error {
		return releaseScript.Run(ctx, r.client, []string{claim.name}, claim.pending).Err()
	})
}

// inTurn makes a call about a claim when it is the tenant's turn. It waits for this until ctx ends,
// but not longer than wait, and then returns records.ErrBusy. The end of ctx does not end the call:
// if the client disconnects, no claim without an owner may remain.
func (r *Records) inTurn(ctx context.Context, claim *Claim, wait time.Duration, call func(ctx context.Context) error) (err error) {
	busy := r.turns.Do(ctx, claim.tenant, wait, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
		defer cancel()
		err = call(ctx)
	})
	return cmp.Or(busy, err)
}

func (r *Records) name(tenant uuid.UUID, key string) string {
	b := append(append(r.secret[:], tenant[:]...), key...)
	sum := sha256.Sum256(b)
	return "w{" + hex.EncodeToString(sum[:16]) + "}once"
}

// keyed returns the print as it is stored. Without the key, nobody can find out by trial which
// subject a record belongs to, and equal requests with different keys have different prints.
func (r *Records) keyed(name string, print Print) Print {
	var buf [128]byte
	b := append(append(append(buf[:0], r.prints[:]...), name...), print[:]...)
	sum := sha256.Sum256(b)
	return Print(sum[:len(print)])
}

// The scripts compare and set in one step. KEYS[1] is the record, ARGV[1] the claim's pending
// record.
var (
	claimScript = redis.NewScript(`
local record = redis.call('GET', KEYS[1])
if record then return record end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false`)
	// A missing record is written again: Redis may have restarted since the claim.
	finishScript = redis.NewScript(`
local record = redis.call('GET', KEYS[1])
if record and record ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)
	releaseScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1`)
)

// claim returns the existing record, or nil if the claim was created.
func (r *Records) claim(ctx context.Context, claim *Claim) ([]byte, error) {
	return r.ask(ctx, claim, func(ctx context.Context) (string, error) {
		return claimScript.Run(ctx, r.client, []string{claim.name}, claim.pending, Lifetime.Milliseconds()).Text()
	})
}

// ask returns the record that a call finds, or nil if there is none.
func (r *Records) ask(ctx context.Context, claim *Claim, call func(ctx context.Context) (string, error)) ([]byte, error) {
	var record string
	err := r.inTurn(ctx, claim, r.timeout, func(ctx context.Context) (err error) {
		record, err = call(ctx)
		return err
	})
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the record of an idempotency key: %w", err)
	}
	return []byte(record), nil
}

// A record consists of its state, the keyed print of the request, and the claim's token or the
// encrypted answer. The states p, d and z belong to records without encryption of earlier versions.
const (
	statePending = 'P'
	stateDone    = 'D'
	statePacked  = 'Z' // done, and the answer is compressed
	headBytes    = 1 + len(Print{})
	tokenBytes   = 16
)

func pendingRecord(print Print) []byte {
	b := append(make([]byte, 0, headBytes+tokenBytes), statePending)
	b = append(b, print[:]...)
	b = b[:headBytes+tokenBytes]
	_, _ = rand.Read(b[headBytes:]) // it never fails
	return b
}

// packFrom is the size from which answers are compressed. The answer to a batch of a hundred checks
// has about 50 KB with many repetitions.
const packFrom = 1 << 10

// To compress the answer to a batch of a hundred checks with 30 rules, of 600 KB, takes a processor
// three milliseconds, and to read it for a repeat, which counts as nothing, two. So long answers
// take turns among short work (places.Processors).
const (
	packsInTurn = 64 << 10 // bytes of an answer
	// unpackInTurn is of a compressed one: equal checks become 80 times as long.
	unpackInTurn = 512
)

// packTurn waits for a turn of the tenant. The answer is needed in any case, so it is packed or
// read without one after the wait.
func (r *Records) packTurn(tenant uuid.UUID) (leave func()) {
	return r.packing.TryWithin(tenant, r.wait)
}

func (r *Records) answerRecord(claim *Claim, answer []byte) []byte {
	b := append(make([]byte, 0, headBytes+len(answer)+r.aead.Overhead()), stateDone)
	b = append(b, claim.print[:]...)
	if len(answer) >= packFrom {
		b[0] = statePacked
		if len(answer) >= packsInTurn {
			defer r.packTurn(claim.tenant)()
		}
		var packed bytes.Buffer
		w, _ := flate.NewWriter(&packed, flate.BestSpeed) // the level is valid
		_, _ = w.Write(answer)                            // a buffer accepts all writes
		_ = w.Close()
		answer = packed.Bytes()
	}
	return r.aead.Seal(b, nil, answer, r.bound(claim.name, b))
}

// bound returns what an encrypted answer is bound to: its name, state and print. A program that can
// write to Redis cannot move an answer to another key or request.
func (r *Records) bound(name string, head []byte) []byte {
	return append(append(make([]byte, 0, headBytes+len(name)), head...), name...)
}

// readRecord returns the answer of a record, or nil while it is pending. It compares the prints
// first: decrypting an answer that nobody gets can cost as much as sending it.
func (r *Records) readRecord(ctx context.Context, claim *Claim, record []byte) (answer []byte, err error) {
	if len(record) < headBytes {
		return nil, fmt.Errorf("idempotency record of %d bytes is unreadable", len(record))
	}
	switch state := record[0]; {
	case state != statePending && state != stateDone && state != statePacked:
		return nil, fmt.Errorf("idempotency record in the unknown state %q", state)
	case Print(record[1:headBytes]) != claim.print:
		return nil, ErrReused
	case state == statePending:
		return nil, nil
	}
	// The answer is not nil, also if it is empty: nil means that there is none yet.
	answer, err = r.aead.Open([]byte{}, nil, record[headBytes:], r.bound(claim.name, record[:headBytes]))
	if err == nil && record[0] == statePacked {
		if len(answer) >= unpackInTurn {
			defer r.packTurn(claim.tenant)()
		}
		answer, err = io.ReadAll(flate.NewReader(bytes.NewReader(answer)))
	}
	if err != nil {
		return nil, fmt.Errorf("read an idempotency record: %w", err)
	}
	return answer, nil
}

// AppendPart appends a part of a request after its length, so that different requests have
// different encodings.
func AppendPart(b []byte, part string) []byte {
	b = binary.AppendUvarint(b, uint64(len(part)))
	return append(b, part...)
}
