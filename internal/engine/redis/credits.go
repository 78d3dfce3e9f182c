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

// appendGrants appends the grants of a counter for credits.lua.
func appendGrants(b []byte, grants []limit.Grant) []byte {
	b = append(b, byte(len(grants))) // at most limit.MaxGrants
	for i := range grants {
		g := &grants[i]
		b = appendUint(appendUint(append(b, g.ID[:]...), g.Units, 7), g.ExpiresMS, 6)
	}
	return b
}

// OpenCredits implements engine.CreditStore.
func (e *Engine) OpenCredits(ctx context.Context, key string, grants ...limit.Spent) (opened int, err error) {
	var arg []byte
	for i := range grants {
		g := &grants[i]
		arg = appendUint(appendUint(append(arg, g.ID[:]...), g.Units, 7), g.ExpiresMS, 6)
	}
	opened, err = e.runScript(ctx, e.open, key, arg).Int()
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
	if err := e.runScript(ctx, e.settle, outbox, args...).Err(); err != nil {
		return fmt.Errorf("settle credits: %w", err)
	}
	return nil
}

// runScript runs a script on one key.
func (e *Engine) runScript(ctx context.Context, s *script, key string, args ...any) *redis.Cmd {
	cmd := e.client.EvalSha(ctx, s.sha, []string{key}, args...)
	if err := cmd.Err(); err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		e.loads.Add(1)
		cmd = e.client.Eval(ctx, s.text, []string{key}, args...)
	}
	return cmd
}

var _ engine.CreditStore = (*Engine)(nil)
