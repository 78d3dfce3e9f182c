package check_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/testenv"
)

func redisClient(tb testing.TB) redis.UniversalClient {
	client, err := check.NewRedisClient(testenv.RedisURL(tb))
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, client.Close()) })
	return client
}

const patience = 5 * time.Second

// A loaded machine may take longer than a service would wait.
func redisOptions() check.RedisOptions { return check.RedisOptions{Deadline: patience} }

func TestRedisEngine(t *testing.T) {
	checktest.Suite(t, check.NewRedisEngine(redisClient(t), redisOptions()))
}
