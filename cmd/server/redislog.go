package main

import (
	"context"
	"fmt"
	"log/slog"
)

// redisLog takes what the Redis client has to say, a line for each lost connection and the
// like, which it would otherwise print as it pleases. It is for debugging: that Redis is away
// is told by metrics and by /readyz.
type redisLog struct{ log *slog.Logger }

// Printf logs one message of the client.
func (l redisLog) Printf(ctx context.Context, format string, values ...any) {
	l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, values...))
}
