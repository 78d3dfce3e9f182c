package recent

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// From the moment that somebody watches a subject, every decision about it is counted, by the
// minute, also those that repeat.
func TestWatchCountsEveryDecision(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 2)}})
	tenant := r.Policy.Tenant()
	ask := func(subject string) { r.Check(check.Request{Subject: subject, Resource: "r", Cost: 1}) }
	ask("ada") // nobody watches yet
	got := r.log.Watch(t.Context(), tenant, "ada")
	require.Empty(t, got.Minutes)
	require.Equal(t, time.UnixMilli(checktest.Start), got.Since)
	require.Equal(t, 1, got.Answered)

	for range 300 { // one more is allowed
		ask("ada")
	}
	ask("bob")
	start := checktest.Start - checktest.Start%60_000
	require.Equal(t, []WatchedMinute{{start, 1, 299}}, r.log.Watch(t.Context(), tenant, "ada").Minutes)
	require.Empty(t, r.log.Watch(t.Context(), uuid.New(), "ada").Minutes, "another tenant's subject of that name")

	r.Move(time.Minute)
	ask("ada")
	require.ElementsMatch(t, []WatchedMinute{{start, 1, 299}, {start + 60_000, 1, 0}}, r.log.Watch(t.Context(), tenant, "ada").Minutes)
	r.Move(WatchedMinutes * time.Minute)
	ask("ada")
	require.Len(t, r.log.Watch(t.Context(), tenant, "ada").Minutes, 1, "its slot counts another minute now, the other minute is over")
}

// An instance counts a subject only while somebody looks, and a limited number of subjects.
func TestWatchEnds(t *testing.T) {
	r := newRig(t, check.PolicyData{})
	tenant := r.Policy.Tenant()
	for n := range mostWatchedEach {
		require.False(t, r.log.Watch(t.Context(), tenant, fmt.Sprint("user_", n)).Since.IsZero())
	}
	require.True(t, r.log.Watch(t.Context(), tenant, "one too many").Since.IsZero(), "the page says that it is not known")
	for range mostWatched - mostWatchedEach {
		require.False(t, r.log.Watch(t.Context(), uuid.New(), "ada").Since.IsZero(), "of another tenant")
	}
	require.True(t, r.log.Watch(t.Context(), uuid.New(), "ada").Since.IsZero())
	r.Move(watchedFor / 2)
	r.log.Watch(t.Context(), tenant, "user_1")
	r.Move(watchedFor / 2)
	r.log.forgetWatched()
	require.Len(t, *r.log.watches.Load(), 1, "only user_1 was asked for since then")
	r.Move(watchedFor)
	r.log.forgetWatched()
	require.Nil(t, r.log.watches.Load())
}

// The counts of all instances are summed up, and the page knows whether all of them answered.
func TestWatchOfAllInstances(t *testing.T) {
	server := testenv.StartRedis(t)
	a, b := instance(t, server.URL, 1), instance(t, server.URL, 1)
	policy, err := check.CompilePolicy(check.NewKeys([16]byte{1}), uuid.New(), check.PolicyData{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		got := a.Watch(t.Context(), policy.Tenant(), "ada")
		return got.Instances == 2 && got.Answered == 2 && !got.Since.IsZero()
	}, time.Minute, time.Millisecond)
	for _, c := range []member{a, b, b} {
		_, err := c.Check(t.Context(), policy, []check.Request{{Subject: "ada", Resource: "r", Cost: 1}})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		sum := int64(0)
		for _, m := range a.Watch(t.Context(), policy.Tenant(), "ada").Minutes {
			sum += m.Allowed
		}
		return sum == 3
	}, time.Minute, time.Millisecond)

	server.Kill()
	require.True(t, a.Watch(t.Context(), policy.Tenant(), "ada").Since.IsZero(), "not known without the other instance")
}
