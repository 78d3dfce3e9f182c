package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

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
	pipe := e.client.Pipeline()
	cmds := make([]*redis.Cmd, len(openings))
	for i, o := range openings {
		cmds[i] = pipe.EvalSha(ctx, e.open.sha, []string{o.Key, o.Outbox}, e.openingArg(o))
	}
	_, _ = pipe.Exec(ctx) // each command has its error
	var since, failed error
	for i, o := range openings {
		if unknownScript(cmds[i].Err()) {
			cmds[i] = e.runScript(ctx, e.open, []string{o.Key, o.Outbox}, e.openingArg(o))
		}
		switch n, err := cmds[i].Int(); {
		case err != nil:
			failed = err
		case n < 0:
			since = engine.ErrOpenedSince
		default:
			opened += n
		}
	}
	if err = cmp.Or(failed, since); err != nil {
		return opened, fmt.Errorf("open credits: %w", err)
	}
	return opened, nil
}

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
	pipe := e.client.Pipeline()
	cmds, errs := make([]*redis.Cmd, len(openings)), make([]error, len(openings))
	for i, o := range openings {
		cmds[i] = pipe.EvalSha(ctx, e.shut.sha, []string{o.Key, o.Outbox}, closingArg(o))
	}
	_, _ = pipe.Exec(ctx) // each command has its error
	for i, o := range openings {
		if unknownScript(cmds[i].Err()) {
			cmds[i] = e.runScript(ctx, e.shut, []string{o.Key, o.Outbox}, closingArg(o))
		}
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
	pipe := e.client.Pipeline()
	cmds := make([]*redis.KeyValueSliceCmd, len(outboxes))
	for i, box := range outboxes {
		cmds[i] = redis.NewKeyValueSliceCmd(ctx, "hrandfield", box, most, "withvalues")
		_ = pipe.Process(ctx, onceSpent{cmds[i]})
	}
	_, _ = pipe.Exec(ctx) // each outbox has its own error
	out, errs := make([][]limit.Spent, len(outboxes)), make([]error, len(outboxes))
	for i, cmd := range cmds {
		if out[i], errs[i] = spentOf(cmd); errs[i] != nil {
			out[i], errs[i] = nil, fmt.Errorf("read spent credits: %w", errs[i])
		}
	}
	return out, errs
}

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

// SettleCredits implements engine.CreditStore.
func (e *Engine) SettleCredits(ctx context.Context, outbox string, totals []limit.Spent) error {
	args := make([]any, 0, 2*len(totals))
	for i := range totals {
		args = append(args, totals[i].ID[:], totals[i].Units)
	}
	if err := e.runScript(ctx, e.settle, []string{outbox}, args...).Err(); err != nil {
		return fmt.Errorf("settle credits: %w", err)
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
