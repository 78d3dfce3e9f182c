package leases_test

import (
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
					record, err := instances[n%len(instances)].Take(t.Context(), tenant, id)
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

func TestARecordBelongsToItsTenant(t *testing.T) {
	t.Parallel()
	r := leases.New(leases.Options{Client: testenv.RedisClient(t), Timeout: testenv.RedisTimeout})
	id := leases.NewID()
	require.NoError(t, r.Put(t.Context(), tenant, id, []byte("x"), time.Minute))
	_, err := r.Take(t.Context(), other, id)
	require.ErrorIs(t, err, leases.ErrUnknown)
	_, err = r.Take(t.Context(), tenant, leases.NewID())
	require.ErrorIs(t, err, leases.ErrUnknown)
	_, err = r.Take(t.Context(), tenant, id)
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
	_, err := away.Take(t.Context(), tenant, "x")
	require.ErrorIs(t, err, leases.ErrUnavailable)
	closed := testenv.RedisClient(t)
	require.NoError(t, closed.Close())
	r := leases.New(leases.Options{Client: closed})
	require.ErrorIs(t, r.Put(t.Context(), tenant, "x", nil, time.Second), leases.ErrUnavailable)
	_, err = r.Take(t.Context(), tenant, "x")
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
