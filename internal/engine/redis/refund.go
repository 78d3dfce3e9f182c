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
func encodeRefund(parts []engine.RefundPart) (b []byte) {
	for i := range parts {
		part := &parts[i]
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

// Values of the last argument of refund.lua.
const (
	changesHere      = ""
	changesElsewhere = "?" // perhaps
	changesAre       = "=" // and what they are
)

// Refund returns units, each refund in one step, all of them in one pipeline.
func (e *Engine) Refund(ctx context.Context, refunds ...*engine.Refund) {
	var sent []*engine.Refund
	for _, r := range refunds {
		r.Refused = 0
		if r.Err = r.Validate(); r.Err == nil && len(r.Parts) > 0 {
			sent = append(sent, r)
		}
	}
	if moving := e.sendRefunds(ctx, sent); len(moving) > 0 {
		e.redirects.Add(int64(len(moving)))
		e.refundMoving(ctx, moving)
	}
}

// sendRefunds sends refunds, and returns those that no server could decide because their slot is
// being moved. Of these, nothing was returned.
func (e *Engine) sendRefunds(ctx context.Context, refunds []*engine.Refund) (moving []*engine.Refund) {
	ctx, cancel := context.WithTimeout(ctx, e.deadline)
	defer cancel()
	unknown, moving := e.runRefunds(ctx, refunds, "evalsha", e.refund.sha)
	if len(unknown) > 0 {
		e.loads.Add(int64(len(unknown)))
		_, others := e.runRefunds(ctx, unknown, "eval", e.refund.text)
		moving = append(moving, others...)
	}
	return moving
}

// runRefunds runs refund.lua with a command. It returns the refunds whose script the server does
// not know, and those whose slot is being moved.
func (e *Engine) runRefunds(ctx context.Context, refunds []*engine.Refund, command, script string) (unknown, moving []*engine.Refund) {
	if len(refunds) == 0 {
		return nil, nil
	}
	pipe := e.options.Refunds.Pipeline()
	cmds := make([]*redis.Cmd, len(refunds))
	for i, r := range refunds {
		args := make([]any, 0, 6+len(r.Parts))
		args = append(args, command, script, len(r.Parts))
		for j := range r.Parts {
			args = append(args, r.Parts[j].Key)
		}
		cmds[i] = redis.NewCmd(ctx, append(args, encodeRefund(r.Parts), r.NowMS, changesHere)...)
		_ = pipe.Process(ctx, firstRefund{onceRefund{cmds[i]}})
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
	for i, r := range refunds {
		taken, err := cmds[i].Int()
		switch {
		case unknownScript(err):
			unknown = append(unknown, r)
		case slotMoves(err), err == nil && taken < 0:
			moving = append(moving, r)
		default:
			r.Refused, r.Err = len(r.Parts)-taken, refundError(taken, len(r.Parts), err)
			if r.Err != nil {
				r.Refused = 0
			}
		}
	}
	return unknown, moving
}

// refundError returns the error of a run of refund.lua with some counters.
func refundError(taken, counters int, err error) error {
	switch {
	case errors.Is(err, redis.ErrPoolTimeout): // there are too many refunds, so the server has not failed
		return fmt.Errorf("refund counters: %w: %w", engine.ErrNotSent, err)
	case err != nil:
		return fmt.Errorf("refund counters: %w", err)
	case taken < 0 || taken > counters:
		return fmt.Errorf("refund counters: %w", errReply)
	}
	return nil
}

// onceRefund is the same as onceCmd: units must not go back twice.
type onceRefund struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (onceRefund) NoRetry() bool { return true }

// firstRefund is a refund that was not sent before.
type firstRefund struct{ onceRefund }

// SetErr implements redis.Cmder. After ASK, the client of a Cluster sends the command again, to the
// server to which the slot is moved. The script cannot know that it runs there, where the changes
// of its counters may not be yet.
func (r firstRefund) SetErr(err error) {
	if strings.HasPrefix(replyText(err), "ASK ") {
		args := r.Args()
		args[len(args)-1] = changesElsewhere
	}
	r.onceRefund.SetErr(err)
}
