package redis_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
)

// Very many totals of an outbox are removed in several runs, between which Redis serves others.
func TestRedisSettlesManyTotalsInRuns(t *testing.T) {
	client := redisClient(t)
	runs := &amendRuns{}
	client.AddHook(runs)
	eng := redisengine.New(client, redisOptions())
	outbox := enginetest.Prefix() + "outbox"
	var totals []limit.Spent
	for i := range 600 {
		var id limit.GrantID
		binary.BigEndian.PutUint64(id[:], uint64(i))
		totals = append(totals, limit.Spent{ID: id, Units: 5})
		require.NoError(t, client.HSet(t.Context(), outbox, string(id[:]), 5).Err())
	}
	require.NoError(t, client.HSet(t.Context(), outbox, string(totals[599].ID[:]), 6).Err())
	require.NoError(t, eng.SettleCredits(t.Context(), outbox, totals))
	require.Equal(t, 3, runs.runs)
	require.EqualValues(t, 1, client.HLen(t.Context(), outbox).Val(), "units were spent meanwhile")
}
