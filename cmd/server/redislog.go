package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
)

// redisLog takes what the Redis client has to say, a line for each lost connection and the like,
// which it would otherwise print as it pleases. It is for debugging: that Redis is unavailable is
// told by metrics and by /readyz.
type redisLog struct{ log *slog.Logger }

// Printf logs one message of the client.
func (l redisLog) Printf(ctx context.Context, format string, values ...any) {
	l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, values...))
}

const (
	redisLook = time.Second
	redisPing = time.Second
)

// logRedisState logs when the circuit breaker opens, with what it answers now, and
// when it is back, until ctx ends. Checks themselves are counted and not logged.
func logRedisState(ctx context.Context, eng *engine.Stack, client redis.UniversalClient, log *slog.Logger) {
	look := time.NewTicker(redisLook)
	defer look.Stop()
	away := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		since := eng.DegradedSince()
		switch {
		case !away && !since.IsZero():
			away = true
			pingCtx, cancel := context.WithTimeout(ctx, redisPing)
			err := client.Ping(pingCtx).Err() // nil: it is back, or answers and refuses to count
			cancel()
			log.WarnContext(ctx, "redis does not count; each rule's on_unavailable answers", "since", since, "ping", err)
		case away && since.IsZero():
			away = false
			log.InfoContext(ctx, "redis counts again")
		}
	}
}
