package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
)

// While a slot is moved, refund.lua runs where the counter is, but two other keys that it reads may
// be on the other server: the changes of a scaled counter, and the group that the counter may be
// in. So these refunds are sent again, each counter by itself, with what was read of those keys.
//
//	the changes  are read before, and passed to the script
//	the group    if the counter is still in it, the counter cannot leave it before it was moved:
//	             the server that has it creates no keys. The refund must be sent again later

// slotMoves reports whether a server executed nothing of a command because of where its keys are.
func slotMoves(err error) bool {
	text := replyText(err)
	return strings.HasPrefix(text, "TRYAGAIN ") || strings.HasPrefix(text, "ASK ") || strings.HasPrefix(text, "MOVED ")
}

// refundMoving decides refunds whose slot is being moved, for one deadline, one after the other, in
// an order that changes. Those that are left are not tried, so they can be sent again.
func (e *Engine) refundMoving(ctx context.Context, refunds []*engine.Refund) {
	from := rand.IntN(len(refunds)) // else the last ones would never be tried
	e.refundEach(slices.Concat(refunds[from:], refunds[:from]), func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, e.deadline)
	})
}

// refundEach begins refunds until a bound ends. Each that has begun has a bound of its own: if it
// were cut off, units of which nobody knows whether they have returned would be lost, or those of
// its other counters.
func (e *Engine) refundEach(refunds []*engine.Refund, bound func() (context.Context, context.CancelFunc)) {
	all, cancel := bound()
	defer cancel()
	for _, r := range refunds {
		if all.Err() != nil {
			r.Err = fmt.Errorf("refund counters: %w: %w", engine.ErrMoving, all.Err())
			continue
		}
		own, cancel := bound()
		e.refundParts(own, r)
		cancel()
	}
}

// refundParts returns the units of a refund to one counter after the other. If it cannot return
// those of the first, the whole refund can be repeated. Later it cannot, because units must not
// return twice.
func (e *Engine) refundParts(ctx context.Context, r *engine.Refund) {
	parts := slices.Clone(r.Parts)
	slices.SortStableFunc(parts, func(a, b engine.RefundPart) int { // those that may be in a group first
		return int(oneIf(a.ID == "")) - int(oneIf(b.ID == ""))
	})
	some := false
	for i := range parts {
		returned, err := e.refundPart(ctx, &parts[i], r.NowMS)
		if r.Err = err; err != nil && !(some && engine.NotCounted(err)) {
			return
		}
		r.Err = nil
		if some = some || returned; !returned {
			r.Refused++
		}
	}
}

// refundPart returns units to one counter, and reports whether it did. With an error for which
// NotCounted is true, it certainly did not.
func (e *Engine) refundPart(ctx context.Context, part *engine.RefundPart, nowMS int64) (returned bool, err error) {
	if ctx.Err() != nil {
		return false, fmt.Errorf("refund counters: %w: %w", engine.ErrMoving, ctx.Err())
	}
	client := e.options.Refunds
	changes, err := client.Get(ctx, changesKey(part.Key)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, beforeRefund(err)
	}
	run := func(command, script string) (int, error) {
		cmd := redis.NewCmd(ctx, command, script, 1, part.Key, encodeRefund([]engine.RefundPart{*part}), nowMS, changesAre+changes)
		_ = client.Process(ctx, onceRefund{cmd}) // the error is the command's
		return cmd.Int()
	}
	taken, err := run("evalsha", e.refund.sha)
	if unknownScript(err) {
		e.loads.Add(1)
		taken, err = run("eval", e.refund.text)
	}
	switch {
	case slotMoves(err):
		return false, beforeRefund(err)
	case err != nil || taken >= 0:
		return taken > 0, refundError(taken, 1, err)
	}
	// Neither the counter nor its group was where the script ran.
	counter := engine.Counter{Key: part.Key, ID: part.ID}
	size, err := client.StrLen(ctx, counter.OtherKey()).Result()
	switch {
	case err != nil:
		return false, beforeRefund(err)
	case size > 0:
		return false, fmt.Errorf("refund counters: %w", engine.ErrMoving)
	}
	return false, nil
}

// beforeRefund returns the error of a refund before which another command has failed.
func beforeRefund(err error) error {
	switch {
	case errors.Is(err, redis.ErrPoolTimeout):
		return refundError(0, 1, err)
	case replyText(err) != "":
		return fmt.Errorf("refund counters: %w: %w", engine.ErrMoving, err)
	}
	return fmt.Errorf("refund counters: %w", notReached{err})
}

// changesKey returns the key of the latest changes of a counter that was scaled (amend.lua).
func changesKey(key string) string { return key + ":s" }
