package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
	"weir/internal/limit"
)

// appendGrants appends the grants of a counter for credits.lua, and when the server is known to
// have lost data.
func appendGrants(b []byte, lostMS int64, grants []limit.Grant) []byte {
	b = append(appendUint(b, lostMS, 6), byte(len(grants))) // at most limit.MaxGrants
	for i := range grants {
		g := &grants[i]
		b = appendUint(appendUint(append(b, g.ID[:]...), g.Units, 7), g.ExpiresMS, 6)
	}
	return b
}

// OpenCredits implements engine.CreditStore.
func (e *Engine) OpenCredits(ctx context.Context, openings ...*engine.Opening) (opened int, err error) {
	if len(openings) == 0 {
		return 0, nil
	}
	cmds := e.runOpenings(ctx, e.open, openings, e.openingArg)
	var since, failed error
	for i, o := range openings {
		o.Err = nil
		switch n, err := cmds[i].Int(); {
		case err != nil:
			o.Err, failed = fmt.Errorf("open credits: %w", err), err
		case n < 0:
			o.Err, since = engine.ErrOpenedSince, engine.ErrOpenedSince
		default:
			opened += n
		}
	}
	if err = cmp.Or(failed, since); err != nil {
		return opened, fmt.Errorf("open credits: %w", err)
	}
	return opened, nil
}

// openPatience is how long a server may take to open or close credits. It is less than what a round
// has for all tenants, so it is known that this server has not answered.
const openPatience = 250 * time.Millisecond

// runOpenings runs a script for each opening. The next round repeats what has failed.
func (e *Engine) runOpenings(ctx context.Context, s *script, openings []*engine.Opening, argOf func(*engine.Opening) []byte) []*redis.Cmd {
	cmds, keys := make([]*redis.Cmd, len(openings)), make([]string, len(openings))
	for i, o := range openings {
		keys[i] = o.Key
	}
	e.eachServer(ctx, openPatience, keys, func(ctx context.Context, at []int) {
		if unknown := e.sendOpenings(ctx, "evalsha", s.sha, openings, argOf, at, cmds); len(unknown) > 0 {
			e.loads.Add(int64(len(unknown)))
			e.sendOpenings(ctx, "eval", s.text, openings, argOf, unknown, cmds)
		}
	})
	return cmds
}

// sendOpenings runs a script for the openings at some indexes, which are of one server, and returns
// those for which the server does not know it.
func (e *Engine) sendOpenings(
	ctx context.Context, command, script string, openings []*engine.Opening, argOf func(*engine.Opening) []byte, at []int, cmds []*redis.Cmd,
) (unknown []int) {
	pipe := e.client.Pipeline()
	for _, i := range at {
		o := openings[i]
		cmds[i] = redis.NewCmd(ctx, command, script, 2, o.Key, o.Outbox, argOf(o))
		_ = pipe.Process(ctx, onceOpening{cmds[i]})
	}
	_, _ = pipe.Exec(ctx) // each command has its error
	for _, i := range at {
		if unknownScript(cmds[i].Err()) {
			unknown = append(unknown, i)
		}
	}
	return unknown
}

// onceOpening is not repeated, as onceSpent is not.
type onceOpening struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (onceOpening) NoRetry() bool { return true }

// openingArg encodes an opening for open_credits.lua.
func (e *Engine) openingArg(o *engine.Opening) []byte {
	arg := appendUint(appendUint(nil, o.AskedUS, 7), o.ReadUS, 7)
	arg = appendUint(append(arg, oneIf(o.Whole)), e.serverOf(o.Key).lostMS.Load(), 6)
	for i := range o.Grants {
		g := &o.Grants[i]
		arg = appendUint(appendUint(append(arg, g.ID[:]...), g.Units, 7), g.ExpiresMS, 6)
	}
	return arg
}

// CloseCredits implements engine.CreditStore.
func (e *Engine) CloseCredits(ctx context.Context, openings ...*engine.Opening) []error {
	cmds, errs := e.runOpenings(ctx, e.shut, openings, closingArg), make([]error, len(openings))
	for i, o := range openings {
		switch totals, err := cmds[i].Int64Slice(); {
		case err != nil:
			errs[i] = fmt.Errorf("close credits: %w", err)
		case len(totals) != len(o.Grants):
			errs[i] = engine.ErrOpenedSince
		default:
			for n := range o.Grants {
				o.Grants[n].Units = max(o.Grants[n].Units, totals[n])
			}
		}
	}
	return errs
}

// closingArg encodes an opening for close_credits.lua.
func closingArg(o *engine.Opening) []byte {
	arg := appendUint(appendUint(nil, o.AskedUS, 7), o.ReadUS, 7)
	for i := range o.Grants {
		arg = append(arg, o.Grants[i].ID[:]...)
	}
	return arg
}

// SpentCredits implements engine.CreditStore.
func (e *Engine) SpentCredits(ctx context.Context, outboxes []string, most int) ([][]limit.Spent, []error) {
	cmds := make([]*redis.KeyValueSliceCmd, len(outboxes))
	e.eachServer(ctx, spentPatience, outboxes, func(ctx context.Context, at []int) {
		pipe := e.client.Pipeline()
		for _, i := range at {
			cmds[i] = redis.NewKeyValueSliceCmd(ctx, "hrandfield", outboxes[i], most, "withvalues")
			_ = pipe.Process(ctx, onceSpent{cmds[i]})
		}
		_, _ = pipe.Exec(ctx) // each outbox has its own error
	})
	out, errs := make([][]limit.Spent, len(outboxes)), make([]error, len(outboxes))
	for i, cmd := range cmds {
		if out[i], errs[i] = spentOf(cmd); errs[i] != nil {
			out[i], errs[i] = nil, fmt.Errorf("read spent credits: %w", errs[i])
		}
	}
	return out, errs
}

// spentPatience is how long a server may take to return or settle spent credits, which may be many.
const spentPatience = time.Second

// onceSpent is not repeated when a server of a Cluster does not answer. The next round reads again,
// and if the time ended during a repetition, the answers of other servers would be lost.
type onceSpent struct{ *redis.KeyValueSliceCmd }

// NoRetry implements redis.Cmder.
func (onceSpent) NoRetry() bool { return true }

// spentOf returns the totals of an outbox.
func spentOf(cmd *redis.KeyValueSliceCmd) (totals []limit.Spent, err error) {
	if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	for _, field := range cmd.Val() {
		units, err := strconv.ParseInt(field.Value, 10, 64)
		if err != nil || len(field.Key) != len(limit.GrantID{}) {
			return nil, errReply
		}
		totals = append(totals, limit.Spent{ID: limit.GrantID([]byte(field.Key)), Units: units})
	}
	return totals, nil
}

// settledTotals is how many totals one run removes. Redis serves nothing else meanwhile.
const settledTotals = 250

// SettleCredits implements engine.CreditStore.
func (e *Engine) SettleCredits(ctx context.Context, outbox string, totals []limit.Spent) error {
	ctx, cancel := context.WithTimeout(ctx, max(spentPatience, e.deadline))
	defer cancel()
	for some := range slices.Chunk(totals, settledTotals) {
		args := make([]any, 0, 2*len(some))
		for i := range some {
			args = append(args, some[i].ID[:], some[i].Units)
		}
		if err := e.runScript(ctx, e.settle, []string{outbox}, args...).Err(); err != nil {
			return fmt.Errorf("settle credits: %w", err)
		}
	}
	return nil
}

// runScript runs a script on keys of one slot.
func (e *Engine) runScript(ctx context.Context, s *script, keys []string, args ...any) *redis.Cmd {
	cmd := e.client.EvalSha(ctx, s.sha, keys, args...)
	if unknownScript(cmd.Err()) {
		e.loads.Add(1)
		cmd = e.client.Eval(ctx, s.text, keys, args...)
	}
	return cmd
}

// unknownScript reports whether a server does not know a script that was named by its hash.
func unknownScript(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") }

var _ engine.CreditStore = (*Engine)(nil)
