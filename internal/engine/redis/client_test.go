package redis

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// testPatience is the timeout of waits and calls that end soon unless the machine stalls.
const testPatience = time.Minute

func TestNewRedisClient(t *testing.T) {
	for url, want := range map[string]any{
		"redis://localhost:6379/3":                                                   &redis.Client{},
		"rediss://user:pass@localhost:6379":                                          &redis.Client{},
		"redis://localhost:7000?addr=localhost:7001":                                 &redis.ClusterClient{},
		"redis://localhost:26379/0?master_name=weir&addr=localhost:26380":            &redis.Client{},
		"rediss://localhost:26379/0?master_name=weir&addr=localhost:26380&db=1":      &redis.Client{},
		"rediss://u:p@localhost:7000?addr=localhost:7001&addr=localhost:7002&tls=no": nil,
	} {
		client, err := NewClient(url)
		if want == nil {
			require.Error(t, err, url)
			continue
		}
		require.NoError(t, err, url)
		require.IsType(t, want, client, url)
		if single, ok := client.(*redis.Client); ok {
			o := single.Options()
			require.Zero(t, o.MaxRetries, "go-redis's form of none")
			require.True(t, o.ContextTimeoutEnabled)
			require.Equal(t, redisPoolTimeout, o.PoolTimeout)
			require.Equal(t, strings.HasPrefix(url, "rediss"), o.TLSConfig != nil)
		}
		require.NoError(t, client.Close())
	}
}

// A check that may wait long for Redis does not fail earlier because its connection does, while a
// short wait leaves connections their own time to open.
func TestConnectionsWaitAsLongAsChecks(t *testing.T) {
	for check, want := range map[time.Duration][2]time.Duration{
		5 * time.Millisecond: {redisDialTimeout, redisIOTimeout},
		10 * time.Second:     {10 * time.Second, 10 * time.Second},
	} {
		for _, url := range []string{"redis://localhost", "redis://localhost:26379/0?master_name=weir&addr=localhost:26380"} {
			client, err := NewClient(url, WithTimeout(check))
			require.NoError(t, err)
			o := client.(*redis.Client).Options()
			require.Equal(t, want, [2]time.Duration{o.DialTimeout, o.ReadTimeout}, "%s, %s", check, url)
			require.Equal(t, o.ReadTimeout, o.WriteTimeout)
			require.NoError(t, client.Close())
		}
	}
}

// An invalid address gives an error of one line, which does not contain the password.
func TestNewRedisClientErrors(t *testing.T) {
	for _, url := range []string{
		"", "localhost:6379", "http://:geheim@localhost", "redis://:geheim@localhost:6379/x", "redis://:geheim@localhost:port",
		"redis://:geheim@localhost/0?nonsense=geheim", "redis://:geh%zzeim@localhost", "redis://user:geheim@localhost\x7f",
		"redis://:geheim@localhost/0?pool_size=geheim",
	} {
		_, err := NewClient(url)
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "geheim")
		require.NotContains(t, err.Error(), "\n")
		require.Contains(t, err.Error(), "redis")
	}
	_, err := NewClient("redis://localhost:6379", WithPoolSize(0))
	require.Error(t, err)
}

// After a failover, the old primary is a replica that refuses to write. All connections to it must
// be closed. Otherwise every check that uses one fails until the process is restarted.
func TestReadOnlyClosesConnections(t *testing.T) {
	ctx := context.Background()
	primary, other := testenv.StartRedis(t), testenv.StartRedis(t)
	client, err := NewClient(primary.URL, WithPoolSize(4), WithTimeout(testPatience))
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	options, err := redis.ParseURL(other.URL)
	require.NoError(t, err)
	host, port, _ := strings.Cut(options.Addr, ":")
	counters := New(client, Options{Deadline: testPatience})
	calls := []*engine.Call{
		{Cost: 1, Counters: []engine.Counter{{Key: "w{t}a", Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 5, WindowMS: 1_000}}}},
		{Cost: 1, Counters: []engine.Counter{{Key: "w{t}b", Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 5, WindowMS: 1_000}}}},
	}
	counters.Evaluate(ctx, calls...)
	require.NoError(t, calls[0].Err)

	dials := client.PoolStats().Misses
	require.NoError(t, client.SlaveOf(ctx, host, port).Err())
	for range 3 {
		counters.Evaluate(ctx, calls...)
		require.True(t, readOnly(calls[0].Err), "%v", calls[0].Err)
		counters.Evaluate(ctx, calls[0])
		require.True(t, readOnly(calls[0].Err), "%v", calls[0].Err)
	}
	require.Greater(t, client.PoolStats().Misses, dials, "dialed again")
	require.NoError(t, client.SlaveOf(ctx, "NO", "ONE").Err())
	counters.Evaluate(ctx, calls...)
	require.NoError(t, calls[1].Err)
}
