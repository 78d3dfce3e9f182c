package redis

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// returning is a server that returns all units. The first bound ends with one of its commands.
type returning struct {
	end      func()
	last     int // the command
	commands int
	returned map[string]int // runs, by counter
}

func (r *returning) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *returning) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r *returning) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if r.commands++; r.commands == r.last {
			r.end()
		}
		if ctx.Err() != nil {
			cmd.SetErr(ctx.Err())
			return ctx.Err()
		}
		run, ok := cmd.(*redis.Cmd)
		if once, is := cmd.(onceRefund); is {
			run, ok = once.Cmd, true
		}
		if !ok { // the changes of a counter
			cmd.SetErr(redis.Nil)
			return redis.Nil
		}
		r.returned[run.Args()[3].(string)]++
		run.SetVal(int64(1))
		return nil
	}
}

// If the time for many refunds of moving counters ends with any command, the refund that has begun
// is finished, for all of its counters. The others were not tried, so they can be sent again.
func TestRefundsOfMovingCountersAreFinished(t *testing.T) {
	t.Parallel()
	const refunds, counters, commands = 3, 2, 2 // for each counter
	for last := 1; last <= refunds*counters*commands+1; last++ {
		server := &returning{last: last, returned: map[string]int{}}
		client := redis.NewClient(&redis.Options{MaxRetries: -1})
		client.AddHook(server)
		e := &Engine{options: Options{Refunds: client}, refund: newScript("refund")}
		var all []*engine.Refund
		for n := range refunds {
			r := &engine.Refund{}
			for c := range counters {
				r.Parts = append(r.Parts, engine.RefundPart{
					Key: fmt.Sprintf("w{}%d-%d", n, c), Units: 1, Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 9, WindowMS: 60_000},
				})
			}
			all = append(all, r)
		}
		e.refundEach(all, func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			if server.end == nil {
				server.end = cancel
			}
			return ctx, cancel
		})
		begun := min((last-1)/(counters*commands)+1, refunds)
		require.Len(t, server.returned, begun*counters, "last command %d", last)
		for n, r := range all {
			for _, p := range r.Parts {
				require.LessOrEqual(t, server.returned[p.Key], 1)
			}
			require.Zero(t, r.Refused)
			if n < begun {
				require.NoError(t, r.Err, "last command %d", last)
				continue
			}
			require.ErrorIs(t, r.Err, engine.ErrMoving)
			require.True(t, engine.NotCounted(r.Err))
		}
		require.NoError(t, client.Close())
	}
}
