package once

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/budget"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// silent is a hook with which a Redis stops answering.
type silent struct{ on bool }

func (*silent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*silent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *silent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if s.on {
			cmd.SetErr(context.DeadlineExceeded)
			return context.DeadlineExceeded
		}
		return next(ctx, cmd)
	}
}

// frozen returns Records on a Redis that can become unavailable, in one of two ways: it is known to
// be unavailable, or it does not answer.
func frozen(t *testing.T, known bool) (r *Records, freeze, thaw func()) {
	t.Helper()
	var away bool
	client, hook := testenv.RedisClient(t), &silent{}
	client.AddHook(hook)
	r = New(Options{Client: client, Away: func(string) bool { return away }, Timeout: testenv.RedisTimeout, Wait: time.Millisecond})
	if known {
		return r, func() { away = true }, func() { away = false }
	}
	return r, func() { hook.on = true }, func() { hook.on = false }
}

// Redis becomes unavailable while a request that was claimed there is being executed. A repeat on
// this instance is not executed, neither before the first has its answer nor afterwards, nor when
// Redis is back.
func TestRepeatWhileRedisFreezes(t *testing.T) {
	for name, known := range map[string]bool{"away": true, "unanswered": false} {
		t.Run(name, func(t *testing.T) {
			r, freeze, thaw := frozen(t, known)
			key := uuid.NewString()
			first, _, err := r.Begin(ctx, tenant, key, print1, 0)
			require.NoError(t, err)
			require.NotNil(t, first)
			freeze()
			second, _, err := r.Begin(ctx, tenant, key, print1, 0)
			require.Nil(t, second)
			require.ErrorIs(t, err, ErrPending)
			_, _, err = r.Begin(ctx, tenant, key, print2, 0)
			require.ErrorIs(t, err, ErrReused)
			other, _, err := r.Begin(ctx, uuid.New(), key, print2, 0)
			require.NoError(t, err)
			require.NotNil(t, other, "another tenant's key is another key")

			r.Finish(first, []byte("x"))
			for range 2 {
				second, answer, err := r.Begin(ctx, tenant, key, print1, 0)
				require.NoError(t, err)
				require.Nil(t, second)
				require.Equal(t, "x", string(answer))
				thaw()
			}
		})
	}
}

// The entry of a claim in Redis is removed when its answer or its release is in Redis.
func TestNothingIsKeptOfClaimsInRedis(t *testing.T) {
	r, freeze, _ := frozen(t, true)
	for _, end := range []func(*Claim){func(c *Claim) { r.Finish(c, []byte("x")) }, r.Release} {
		claim, _, err := r.Begin(ctx, tenant, uuid.NewString(), print1, 0)
		require.NoError(t, err)
		require.Len(t, r.local.entries, 1)
		end(claim)
		require.Empty(t, r.local.entries)
		require.Zero(t, r.local.count.Load())
	}

	// A released one can be repeated here, also if Redis does not know of the release.
	key := uuid.NewString()
	claim, _, err := r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	freeze()
	r.Release(claim)
	claim, _, err = r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	require.NotNil(t, claim)
}

// While four tenants fill the memory of this process, in number or in bytes, another one keeps its
// few answers, and what it executes.
func TestFloodsOfLocalRecords(t *testing.T) {
	for name, flood := range map[string]struct{ records, size int }{
		"records": {maxLocalRecords / 2, 1},
		"bytes":   {20, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(Options{Wait: time.Millisecond})
			begin := func(tenant uuid.UUID, key string) (*Claim, []byte, error) {
				return r.Begin(ctx, tenant, key, print1, 0)
			}
			own := uuid.New()
			_, _, err := begin(own, "pending")
			require.NoError(t, err)
			claim, _, err := begin(own, "done")
			require.NoError(t, err)
			r.Finish(claim, []byte("mine"))
			floods := []uuid.UUID{uuid.New(), uuid.New(), uuid.New(), uuid.New()}
			for range flood.records {
				for _, of := range floods {
					claim, _, err := begin(of, uuid.NewString())
					require.NoError(t, err)
					r.Finish(claim, make([]byte, flood.size))
				}
			}
			require.LessOrEqual(t, r.local.all.Len(), maxLocalRecords)
			require.LessOrEqual(t, r.local.all.bytes, maxLocalBytes)
			again, answer, err := begin(own, "done")
			require.NoError(t, err)
			require.Nil(t, again)
			require.Equal(t, "mine", string(answer))
			again, _, err = begin(own, "pending")
			require.Nil(t, again)
			require.ErrorIs(t, err, ErrPending)
		})
	}
}

// A claim that is abandoned reserves nothing, and is not executed again. After the other ends,
// Abandon does nothing.
func TestAbandon(t *testing.T) {
	for name, away := range map[string]bool{"Redis": false, "away": true} {
		t.Run(name, func(t *testing.T) {
			r, freeze, _ := frozen(t, true)
			r.budget = budget.New(budget.Options{
				Client: r.client, Prefix: func(limit.TenantID) string { return "" }, Instances: func() int { return 1 },
				Bound: func(limit.TenantID) (int64, bool) { return 2 * 2500, true }, // half of it before the first look: one claim
			})
			if away {
				freeze()
			}
			own := uuid.New()
			begin := func(key string) (*Claim, error) {
				claim, _, err := r.Begin(ctx, own, key, print1, 0)
				return claim, err
			}
			key := uuid.NewString()
			claim, err := begin(key)
			require.NoError(t, err)
			r.Abandon(claim)
			_, err = begin(key)
			require.ErrorIs(t, err, ErrPending)
			require.Equal(t, 1, r.local.all.Len(), "it can be evicted")

			for _, end := range []func(*Claim){func(c *Claim) { r.Finish(c, []byte("x")) }, r.Release} {
				claim, err := begin(uuid.NewString())
				require.NoError(t, err, "nothing is reserved")
				end(claim)
				listed, entries := r.local.all.Len(), len(r.local.entries)
				r.Abandon(claim)
				require.Equal(t, listed, r.local.all.Len())
				require.Len(t, r.local.entries, entries)
			}
		})
	}
}
