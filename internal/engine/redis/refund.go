package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
)

// encodeRefund returns the argument of refund.lua.
func encodeRefund(r *engine.Refund) (b []byte) {
	for i := range r.Parts {
		part := &r.Parts[i]
		n := &part.Numbers
		b = append(b, byte(n.Algorithm))
		b = appendUint(b, n.Limit, 7)
		b = appendUint(b, n.WindowMS, 5)
		b = appendUint(b, extra(n), 5)
		b = appendUint(appendUint(b, part.Ground, 6), part.Until, 6)
		b = appendUint(b, part.ChargedMS, 6)
		b = appendID(appendUint(b, part.Units, 7), part.ID)
	}
	return b
}

// Refund returns units, each refund in one step, all of them in one pipeline.
func (e *Engine) Refund(ctx context.Context, refunds ...*engine.Refund) {
	ctx, cancel := context.WithTimeout(ctx, e.deadline)
	defer cancel()
	var sent []*engine.Refund
	for _, r := range refunds {
		r.Refused = 0
		if r.Err = r.Validate(); r.Err == nil && len(r.Parts) > 0 {
			sent = append(sent, r)
		}
	}
	if unknown := e.sendRefunds(ctx, sent, "evalsha", e.refund.sha); len(unknown) > 0 {
		e.loads.Add(int64(len(unknown)))
		e.sendRefunds(ctx, unknown, "eval", e.refund.text)
	}
}

// sendRefunds runs refund.lua with a command, and returns the refunds whose script the server does
// not know.
func (e *Engine) sendRefunds(ctx context.Context, refunds []*engine.Refund, command, script string) (unknown []*engine.Refund) {
	if len(refunds) == 0 {
		return nil
	}
	pipe := e.options.Refunds.Pipeline()
	cmds := make([]*redis.Cmd, len(refunds))
	for i, r := range refunds {
		args := []any{command, script, len(r.Parts)}
		for j := range r.Parts {
			args = append(args, r.Parts[j].Key)
		}
		cmds[i] = redis.NewCmd(ctx, append(args, encodeRefund(r), r.NowMS)...)
		_ = pipe.Process(ctx, onceRefund{cmds[i]})
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
	for i, r := range refunds {
		taken, err := cmds[i].Int()
		switch {
		case err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT"):
			unknown = append(unknown, r)
		case errors.Is(err, redis.ErrPoolTimeout): // there are too many refunds, so the server has not failed
			r.Err = fmt.Errorf("refund counters: %w: %w", engine.ErrNotSent, err)
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

// onceRefund is the same as onceCmd: units must not go back twice.
type onceRefund struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (onceRefund) NoRetry() bool { return true }
