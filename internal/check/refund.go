package check

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Refund is units of one lease that nobody was given, on their way back to the counters that
// they were charged to.
type Refund struct {
	Parts []RefundPart // one for each counter, all of one tenant

	// Filled in by Engine.Refund.
	Refused int   // parts that changed nothing, because their counter has moved on
	Err     error // the counters could not be reached: some parts may have been taken back
}

// RefundPart is what goes back to one counter.
//
// A part changes nothing where the counter is not in the state that was charged any more, or holds
// less than would go back: it creates no counter, brings none below zero, and leaves the expiry as
// it is. What was counted of a window that is over by now still goes back as long as it weighs
// on the present one.
type RefundPart struct {
	Key     string  // Counter.OwnKey
	ID      string  // Counter.ID
	Numbers Numbers // Leasable
	Units   int64   // 1 and up
	// Ground tells the state that was charged: of a fixed window its end; of a sliding window
	// counter the number of the window; of sub-buckets the number of the one; of a bucket the
	// instant of being whole as the charge left it (Verdict.ResetMS), which every later charge
	// moves.
	Ground int64
}

// Leasable reports whether units of a counter with these numbers can be charged now and given out
// a moment later, as if they had been asked for then. Not so where each request counts at its
// own instant (sliding_window_log), is held up by those before it (leaky_bucket_queue), or
// starts a penalty when denied.
func (n *Numbers) Leasable() bool {
	return n.Algorithm != SlidingWindowLog && n.Algorithm != LeakyBucketQueue && n.PenaltyMS == 0
}

// refundable reports whether units can go back at all: a unit of a bucket must move the instant of
// being whole by a millisecond or more, so that no charge goes unnoticed.
func (n *Numbers) refundable() bool { return !n.Algorithm.Bucket() || n.Limit <= n.WindowMS }

// ground is RefundPart.Ground of a charge that was answered with v at nowMS.
func (n *Numbers) ground(v *Verdict, nowMS int64) int64 {
	switch n.Algorithm {
	case SlidingWindowCounter:
		return nowMS / n.WindowMS
	case SlidingWindowBuckets:
		return nowMS / n.PrecisionMS
	}
	return v.ResetMS
}

var (
	errRefund = errors.New("nothing of a refund can go back: its units or numbers are out of range")
	errSlots  = errors.New("a refund of counters of different tenants")
)

// validate returns why an engine cannot take the refund, before it touches anything.
func (r *Refund) validate() error {
	for i := range r.Parts {
		part := &r.Parts[i]
		if !part.Numbers.valid() || !part.Numbers.Leasable() || !part.Numbers.refundable() ||
			part.Units < 1 || part.Units > MaxFixedLimit || part.Ground < 0 || part.Ground > MaxInstantMS {
			return errRefund
		}
		if hashTag(part.Key) != hashTag(r.Parts[0].Key) {
			return errSlots
		}
	}
	return nil
}

// refundable is a state that units can go back to.
type refundable interface {
	state
	// refund takes the part back, or reports false and changes nothing.
	refund(n *Numbers, part *RefundPart) bool
	// idle reports whether nothing is counted, so that the state is that of an unseen counter.
	idle() bool
}

// Refund takes units back. Counters that share an overflow counter keep them: who was charged what of
// it is not known.
func (e *MemoryEngine) Refund(_ context.Context, refunds ...*Refund) {
	for _, r := range refunds {
		r.Refused = 0
		if r.Err = r.validate(); r.Err != nil {
			continue
		}
		for i := range r.Parts {
			if !e.refund(&r.Parts[i]) {
				r.Refused++
			}
		}
	}
}

func (e *MemoryEngine) refund(part *RefundPart) bool {
	shard := &e.shards[maphash.String(e.seed, part.Key)%memoryShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	kept := shard.counters[part.Key]
	if kept == nil {
		return false
	}
	s, ok := kept.state.(refundable)
	if !ok || !s.refund(&part.Numbers, part) {
		return false
	}
	if s.idle() && kept.mark == 0 {
		e.remove(shard, kept)
	}
	return true
}

// refundPartBytes is the length of a counter's part of the argument of refund.lua.
const refundPartBytes = 40

// encode appends the argument of refund.lua.
func (r *Refund) encode(b []byte) []byte {
	for i := range r.Parts {
		part := &r.Parts[i]
		n := &part.Numbers
		b = append(b, byte(n.Algorithm))
		b = appendUint(b, n.Limit, 7)
		b = appendUint(b, n.WindowMS, 5)
		b = appendUint(b, n.extra(), 5)
		b = appendUint(b, part.Ground, 6)
		b = appendID(appendUint(b, part.Units, 7), part.ID)
	}
	return b
}

// Refund takes units back, each refund in one step, all in one pipeline.
func (e *RedisEngine) Refund(ctx context.Context, refunds ...*Refund) {
	ctx, cancel := context.WithTimeout(ctx, e.deadline)
	defer cancel()
	var sent []*Refund
	for _, r := range refunds {
		r.Refused = 0
		if r.Err = r.validate(); r.Err == nil && len(r.Parts) > 0 {
			sent = append(sent, r)
		}
	}
	if unknown := e.sendRefunds(ctx, sent, "evalsha", e.refund.sha); len(unknown) > 0 {
		e.loads.Add(int64(len(unknown)))
		e.sendRefunds(ctx, unknown, "eval", e.refund.text)
	}
}

// sendRefunds runs refund.lua by a command and returns the refunds whose script the server does not know.
func (e *RedisEngine) sendRefunds(ctx context.Context, refunds []*Refund, command, script string) (unknown []*Refund) {
	if len(refunds) == 0 {
		return nil
	}
	pipe := e.client.Pipeline()
	cmds := make([]*redis.Cmd, len(refunds))
	for i, r := range refunds {
		args := []any{command, script, len(r.Parts)}
		for j := range r.Parts {
			args = append(args, r.Parts[j].Key)
		}
		cmds[i] = pipe.Do(ctx, append(args, r.encode(nil))...)
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
	for i, r := range refunds {
		taken, err := cmds[i].Int()
		switch {
		case err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT"):
			unknown = append(unknown, r)
		case err != nil:
			r.Err = fmt.Errorf("refund counters: %w", err)
		case taken < 0 || taken > len(r.Parts):
			r.Err = fmt.Errorf("refund counters: %w", errReply)
		default:
			r.Refused = len(r.Parts) - taken
		}
	}
	return unknown
}
