package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisengine "weir/internal/engine/redis"
)

func startTestRedis(t *testing.T) *redis.Client {
	t.Helper()
	s := &stage{dir: t.TempDir()}
	t.Cleanup(s.close)
	require.NoError(t, s.startRedis(t.Context()))
	return s.redis
}

// fill sets n keys with an expiry, over the only connection of the client.
func fill(ctx context.Context, client *redis.Client, n int) error {
	for i := range n {
		if err := client.Set(ctx, fmt.Sprintf("counter:%032d", i), "0123456789abcdef0123456789abcdef", time.Hour).Err(); err != nil {
			return err
		}
	}
	return nil
}

func TestCounterBytesAreMemoryOfRedis(t *testing.T) {
	client := startTestRedis(t)
	const keys = 12_000
	require.NoError(t, fill(t.Context(), client, keys)) // the buffers of the client have their final size now
	require.NoError(t, client.FlushAll(t.Context()).Err())
	before, err := usedMemory(t.Context(), client)
	require.NoError(t, err)
	require.NoError(t, fill(t.Context(), client, keys))
	after, err := usedMemory(t.Context(), client)
	require.NoError(t, err)

	bytes, err := counterBytes(t.Context(), client)
	require.NoError(t, err)
	require.InEpsilon(t, float64(after-before)/keys, bytes, 0.02)
	left, err := client.DBSize(t.Context()).Result()
	require.NoError(t, err)
	require.Zero(t, left)
}

func TestCounterBytesOfAFewAreUnknown(t *testing.T) {
	client := startTestRedis(t)
	require.NoError(t, fill(t.Context(), client, fewCounters-1))
	bytes, err := counterBytes(t.Context(), client)
	require.NoError(t, err)
	require.Zero(t, bytes)
}

// Each round starts new Clusters. The previous one must not interfere, and an instance must reach
// all shards with the address that it is given.
func TestClustersComeAndGo(t *testing.T) {
	s := &stage{dir: t.TempDir()}
	t.Cleanup(s.close)
	for range 2 {
		c, err := s.startCluster(t.Context(), 2)
		require.NoError(t, err)
		client, err := redisengine.NewClient(c.url)
		require.NoError(t, err)
		for i := range 20 {
			require.NoError(t, client.Set(t.Context(), fmt.Sprint("key", i), 1, time.Minute).Err())
		}
		for _, n := range c.nodes {
			keys, err := n.client.DBSize(t.Context()).Result()
			require.NoError(t, err)
			require.Positive(t, keys, "each shard has keys")
		}
		require.NoError(t, client.Close())
		c.stop()
	}
}
