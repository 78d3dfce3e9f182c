package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Without servers, every test against a real server would fail with an unclear error.
func TestServersAnswer(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), DatabaseURL(t))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var version int
	require.NoError(t, conn.QueryRow(t.Context(), "select current_setting('server_version_num')::int").Scan(&version))
	require.GreaterOrEqual(t, version, 150000)

	options, err := redis.ParseURL(RedisURL(t))
	require.NoError(t, err)
	client := redis.NewClient(options)
	defer client.Close()
	policy, err := client.ConfigGet(t.Context(), "maxmemory-policy").Result()
	require.NoError(t, err)
	require.Equal(t, "noeviction", policy["maxmemory-policy"])
}

// Fault tests depend on this: Kill and Pause must really stop the server.
func TestKillPauseAndRestartOfRedis(t *testing.T) {
	server := StartRedis(t)
	options, err := redis.ParseURL(server.URL)
	require.NoError(t, err)
	options.MaxRetries = -1
	options.ContextTimeoutEnabled = true
	client := redis.NewClient(options)
	defer client.Close()
	require.NoError(t, client.Set(t.Context(), "k", 1, 0).Err())

	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, client.Ping(ctx).Err())
	server.Resume()
	require.NoError(t, client.Ping(t.Context()).Err())

	server.Kill()
	require.Error(t, client.Ping(t.Context()).Err())
	server.Start()
	require.ErrorIs(t, client.Get(t.Context(), "k").Err(), redis.Nil)
}
