package redis_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// endWindows makes the windows of all counters of a tenant end: it deletes the counters, also from
// the list of those that are alive. It returns how many marks of penalties are left.
func (s *censusStack) endWindows(client redis.UniversalClient, tenant limit.TenantID) (marks int) {
	s.t.Helper()
	ctx := s.t.Context()
	for _, key := range allKeys(s.t.(*testing.T), client, "w{") {
		switch {
		case !strings.HasPrefix(key, s.keys.Prefix(tenant)):
		case strings.HasSuffix(key, ":p"):
			marks++
		case strings.HasPrefix(key, s.keys.Prefix(tenant)+"n"+string(tenant[:])):
			soon := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
			require.NoError(s.t, client.ZRemRangeByScore(ctx, key, "-inf", soon).Err())
		default:
			require.NoError(s.t, client.Del(ctx, key).Err())
		}
	}
	return marks
}

// The mark of a penalty may live much longer than its counter: two checks of a new subject under a
// window of a second leave a mark for a month. Marks therefore count as counters, and a tenant that
// is full gets no more of them.
func TestCensusBoundsPenalties(t *testing.T) {
	for _, bound := range []int64{1_000, 10_000} {
		s := newCensusStack(t)
		i := s.instance()
		tenant := s.tenant(bound)
		client := clientOf(t, s.server.URL)
		short := limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: 1, WindowMS: 1_000, PenaltyMS: limit.MaxPenaltyMS}
		marks, part := 0, int(bound)/4
		for round := range 10 {
			s.flood(i, tenant, round*part, part, short) // allowed
			s.flood(i, tenant, round*part, part, short) // denied: the penalties begin
			i.census.Look(t.Context())
			marks = s.endWindows(client, tenant)
			i.census.Look(t.Context())
		}
		require.LessOrEqual(t, marks, int(bound), "of %d penalties", 10*part)
		require.Greater(t, marks, int(bound)/2, "the bound can be used")
		alive, err := i.census.Alive(t.Context(), tenant, bound)
		require.NoError(t, err)
		require.InDelta(t, marks, alive, float64(bound)/10)
	}
}
