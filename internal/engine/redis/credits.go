package redis

import (
	"context"
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
func (e *Engine) OpenCredits(ctx context.Context, o *engine.Opening) (opened int, err error) {
	arg := appendUint(appendUint(nil, o.AskedUS, 7), o.ReadUS, 7)
	arg = appendUint(append(arg, oneIf(o.Whole)), e.serverOf(o.Key).lostMS.Load(), 6)
	for i := range o.Grants {
		g := &o.Grants[i]
		arg = appendUint(appendUint(append(arg, g.ID[:]...), g.Units, 7), g.ExpiresMS, 6)
	}
	opened, err = e.runScript(ctx, e.open, []string{o.Key, o.Outbox}, arg).Int()
	if err == nil && opened < 0 {
		err = engine.ErrOpenedSince
	}
	if err != nil {
		return 0, fmt.Errorf("open credits: %w", err)
	}
	return opened, nil
}

// SpentCredits implements engine.CreditStore.
func (e *Engine) SpentCredits(ctx context.Context, outboxes []string, most int) ([][]limit.Spent, error) {
	pipe := e.client.Pipeline()
	cmds := make([]*redis.KeyValueSliceCmd, len(outboxes))
	for i, box := range outboxes {
		cmds[i] = pipe.HRandFieldWithValues(ctx, box, most)
	}
	if _, err := pipe.Exec(ctx); err != nil && err != redis.Nil {
		return nil, fmt.Errorf("read spent credits: %w", err)
	}
	out := make([][]limit.Spent, len(outboxes))
	for i, cmd := range cmds {
		for _, field := range cmd.Val() {
			units, err := strconv.ParseInt(field.Value, 10, 64)
			if err != nil || len(field.Key) != len(limit.GrantID{}) {
				return nil, fmt.Errorf("read spent credits: %w", errReply)
			}
			out[i] = append(out[i], limit.Spent{ID: limit.GrantID([]byte(field.Key)), Units: units})
		}
	}
	return out, nil
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
	if err := cmd.Err(); err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		e.loads.Add(1)
		cmd = e.client.Eval(ctx, s.text, keys, args...)
	}
	return cmd
}

var _ engine.CreditStore = (*Engine)(nil)
