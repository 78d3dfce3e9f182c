package redis

import (
	"cmp"
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
)

// Reset deletes counters, also in groups, and their penalty marks.
func (e *Engine) Reset(ctx context.Context, counters ...engine.Counter) error {
	ctx, cancel := context.WithTimeout(ctx, e.deadline)
	defer cancel()
	unknown, err := e.sendResets(ctx, counters)
	for len(unknown) > 0 { // in a Cluster, up to once for each master
		c := &unknown[0]
		key := c.OwnKey()
		failed := e.runScript(ctx, e.forget, []string{key, penaltyKey(key)}, c.ID).Err()
		if failed == nil {
			unknown, failed = e.sendResets(ctx, unknown[1:])
		} else {
			unknown = nil
		}
		err = cmp.Or(err, failed)
	}
	if err != nil {
		return fmt.Errorf("reset counters: %w", err)
	}
	return nil
}

// sendResets deletes counters in one pipeline, and returns those whose server does not know the
// script.
func (e *Engine) sendResets(ctx context.Context, counters []engine.Counter) (unknown []engine.Counter, err error) {
	if len(counters) == 0 {
		return nil, nil
	}
	pipe := e.client.Pipeline()
	cmds := make([]redis.Cmder, len(counters))
	for i := range counters {
		// One command for each counter: in a Cluster, different keys can be in different slots.
		c := &counters[i]
		key := c.OwnKey()
		if c.ID == "" {
			cmds[i] = pipe.Unlink(ctx, key, penaltyKey(key))
		} else {
			cmds[i] = pipe.EvalSha(ctx, e.forget.sha, []string{key, penaltyKey(key)}, c.ID)
		}
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
	for i := range counters {
		if failed := cmds[i].Err(); unknownScript(failed) {
			unknown = append(unknown, counters[i])
		} else {
			err = cmp.Or(err, failed)
		}
	}
	return unknown, err
}

// penaltyKey returns the key of a counter's penalty mark, in the same slot.
func penaltyKey(key string) string { return key + ":p" }
