package leases_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/leases"
	"weir/internal/records"
	"weir/internal/testenv"
)

var (
	tenant = uuid.MustParse("018f0000-0000-7000-8000-000000000001")
	other  = uuid.MustParse("018f0000-0000-7000-8000-000000000002")
)

// The first caller that takes a record gets it, on any instance, and no other one does.
func TestARecordIsTakenOnce(t *testing.T) {
	t.Parallel()
	redisClient := testenv.RedisClient(t)
	for name, instances := range map[string][]*leases.Records{
		"redis": {
			leases.New(leases.Options{Client: redisClient, Timeout: testenv.RedisTimeout}),
			leases.New(leases.Options{Client: redisClient, Timeout: testenv.RedisTimeout}),
		},
		"process": {leases.New(leases.Options{})},
	} {
		t.Run(name, func(t *testing.T) {
			id := leases.NewID()
			require.NoError(t, instances[0].Put(t.Context(), tenant, id, []byte("of user_42"), time.Minute))
			var got atomic.Int64
			var all sync.WaitGroup
			for n := range 16 {
				all.Go(func() {
					record, err := instances[n%len(instances)].Take(t.Context(), tenant, id, leases.NewToken())
					if err == nil {
						got.Add(1)
						if string(record) != "of user_42" {
							t.Errorf("%q", record)
						}
					} else if err != leases.ErrTaken {
						t.Error(err)
					}
				})
			}
			all.Wait()
			require.EqualValues(t, 1, got.Load())
		})
	}
}

// lateAnswers makes a client lose the answers of commands that Redis executed.
type lateAnswers struct{ left atomic.Int64 }

func (*lateAnswers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*lateAnswers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lateAnswers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && l.left.Add(-1) >= 0 {
			cmd.SetErr(context.DeadlineExceeded)
			return context.DeadlineExceeded
		}
		return err
	}
}

// A caller whose answer was lost gets the record with the same token, and nobody else does.
func TestALostAnswerOfTake(t *testing.T) {
	t.Parallel()
	client, late := testenv.RedisClient(t), &lateAnswers{}
	client.AddHook(late)
	r := leases.New(leases.Options{Client: client, Timeout: testenv.RedisTimeout})
	id, token := leases.NewID(), leases.NewToken()
	require.NoError(t, r.Put(t.Context(), tenant, id, []byte("of user_42"), time.Minute))
	late.left.Store(1)
	_, err := r.Take(t.Context(), tenant, id, token)
	require.ErrorIs(t, err, leases.ErrUnanswered)
	require.ErrorIs(t, err, leases.ErrUnavailable)

	_, err = r.Take(t.Context(), tenant, id, leases.NewToken())
	require.ErrorIs(t, err, leases.ErrTaken)
	record, err := r.Take(t.Context(), tenant, id, token)
	require.NoError(t, err)
	require.Equal(t, "of user_42", string(record))
	_, err = r.Take(t.Context(), tenant, id, leases.NewToken())
	require.ErrorIs(t, err, leases.ErrTaken)

	keys, err := client.Keys(t.Context(), "*lease").Result()
	require.NoError(t, err)
	for _, key := range keys {
		left, err := client.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		require.NotEqual(t, time.Duration(-1), left, "a mark expires with its record")
	}
}

// During an upgrade, a record that an instance of the earlier version took is not taken again.
func TestAMarkOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	client := testenv.RedisClient(t)
	name := ""
	client.AddHook(&sets{&name})
	r := leases.New(leases.Options{Client: client, Timeout: testenv.RedisTimeout})
	id := leases.NewID()
	require.NoError(t, r.Put(t.Context(), tenant, id, []byte("x"), time.Minute))
	require.NoError(t, client.SetArgs(t.Context(), name, "t", redis.SetArgs{Mode: "XX", KeepTTL: true}).Err())
	_, err := r.Take(t.Context(), tenant, id, leases.NewToken())
	require.ErrorIs(t, err, leases.ErrTaken)
}

// sets records the key of the first command.
type sets struct{ name *string }

func (*sets) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*sets) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *sets) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if *s.name == "" && cmd.Name() == "set" {
			*s.name, _ = cmd.Args()[1].(string)
		}
		return next(ctx, cmd)
	}
}

func TestARecordBelongsToItsTenant(t *testing.T) {
	t.Parallel()
	r := leases.New(leases.Options{Client: testenv.RedisClient(t), Timeout: testenv.RedisTimeout})
	id := leases.NewID()
	require.NoError(t, r.Put(t.Context(), tenant, id, []byte("x"), time.Minute))
	_, err := r.Take(t.Context(), other, id, leases.NewToken())
	require.ErrorIs(t, err, leases.ErrUnknown)
	_, err = r.Take(t.Context(), tenant, leases.NewID(), leases.NewToken())
	require.ErrorIs(t, err, leases.ErrUnknown)
	_, err = r.Take(t.Context(), tenant, id, leases.NewToken())
	require.NoError(t, err)
}

// Redis has neither the subject nor the tenant in plain text, and a record expires.
func TestRedisHasNoCustomerData(t *testing.T) {
	t.Parallel()
	options, err := redis.ParseURL(testenv.StartRedis(t).URL) // of its own: records of other tests come and go
	require.NoError(t, err)
	options.ReadTimeout = testenv.RedisTimeout
	c := redis.NewClient(options)
	t.Cleanup(func() { _ = c.Close() })
	r := leases.New(leases.Options{Client: c, Secret: [16]byte{9}, Timeout: testenv.RedisTimeout})
	id := leases.NewID()
	require.NoError(t, r.Put(t.Context(), tenant, id, []byte("subject user_42"), time.Minute))
	keys, err := c.Keys(t.Context(), "w{*}lease").Result()
	require.NoError(t, err)
	require.Len(t, keys, 1)
	for _, key := range keys {
		value, err := c.Get(t.Context(), key).Result()
		require.NoError(t, err)
		require.NotContains(t, key, id)
		require.NotContains(t, value, "user_42")
		left, err := c.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		require.Positive(t, left)
		require.LessOrEqual(t, left, time.Minute+leases.Grace)
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	away := leases.New(leases.Options{Client: testenv.RedisClient(t), Away: func(string) bool { return true }})
	require.ErrorIs(t, away.Put(t.Context(), tenant, "x", nil, time.Second), leases.ErrUnavailable)
	_, err := away.Take(t.Context(), tenant, "x", leases.NewToken())
	require.ErrorIs(t, err, leases.ErrUnavailable)
	closed := testenv.RedisClient(t)
	require.NoError(t, closed.Close())
	r := leases.New(leases.Options{Client: closed})
	require.ErrorIs(t, r.Put(t.Context(), tenant, "x", nil, time.Second), leases.ErrUnavailable)
	_, err = r.Take(t.Context(), tenant, "x", leases.NewToken())
	require.ErrorIs(t, err, leases.ErrUnavailable)
}

// A tenant with many leases at once waits for its own turns, and other tenants do not.
func TestTurnsOfATenant(t *testing.T) {
	t.Parallel()
	turns := records.NewTurns()
	r := leases.New(leases.Options{Timeout: time.Second, Turns: turns})
	let := make(chan struct{})
	var held sync.WaitGroup
	for turns.Do(t.Context(), tenant, 0, func() {}) == nil {
		has := make(chan struct{})
		held.Go(func() { _ = turns.Do(t.Context(), tenant, time.Minute, func() { close(has); <-let }) })
		<-has
	}
	require.ErrorIs(t, r.Turn(t.Context(), tenant, func() { t.Error("it had no turn") }), records.ErrBusy)
	require.NoError(t, r.Turn(t.Context(), other, func() {}))
	close(let)
	held.Wait()
	require.NoError(t, r.Turn(t.Context(), tenant, func() {}))
}
