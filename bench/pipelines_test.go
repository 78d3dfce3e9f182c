package main

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisengine "weir/internal/engine/redis"
)

// Each sharing decides every check.
func TestSharingsDecideAll(t *testing.T) {
	s := &stage{dir: t.TempDir()}
	t.Cleanup(s.close)
	require.NoError(t, s.startRedis(t.Context()))
	for _, w := range sharings() {
		require.NoError(t, s.store.flush(t.Context()))
		client, err := redisengine.NewClient(s.store.url, redisengine.WithPoolSize(w.pool))
		require.NoError(t, err)
		engine, err := w.engine(client.(*redis.Client))
		require.NoError(t, err)
		seen, err := drive(t.Context(), engine, demand{callers: 8}, 50*time.Millisecond)
		require.NoError(t, err, w.name)
		require.Positive(t, seen.TotalCount(), w.name)
		keys, err := s.redis.DBSize(t.Context()).Result()
		require.NoError(t, err)
		require.Positive(t, keys, w.name)
		require.LessOrEqual(t, keys, seen.TotalCount(), w.name)
		require.NoError(t, client.Close())
	}
}

// A paced demand makes the checks that are due in its time, no more and no fewer.
func TestDriveKeepsItsPace(t *testing.T) {
	s := &stage{dir: t.TempDir()}
	t.Cleanup(s.close)
	require.NoError(t, s.startRedis(t.Context()))
	client, err := redisengine.NewClient(s.store.url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	engine := redisengine.New(client, redisengine.Options{Deadline: patience})
	seen, err := drive(t.Context(), engine, demand{callers: 4, rate: 1000}, 100*time.Millisecond)
	require.NoError(t, err)
	require.EqualValues(t, 100, seen.TotalCount())
}
