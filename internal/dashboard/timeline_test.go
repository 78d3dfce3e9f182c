package dashboard

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/internal/limit"
)

func play(t require.TestingT, query string, algorithms ...limit.Algorithm) []*timeline {
	settings, f := readPlay(values(query))
	require.False(t, f.invalid(), f.errors)
	results, err := settings.play(context.Background(), algorithms)
	require.NoError(t, err)
	return results
}

// The charts have the numbers of docs/algorithms.md.
func TestTimelineShowsTheDoubleBurst(t *testing.T) {
	results := play(t, "traffic=edge&limit=10&window=10s", limit.FixedWindow, limit.SlidingWindowCounter, limit.SlidingWindowLog)
	fixed, counter, log := results[0], results[1], results[2]
	require.Equal(t, []int64{20, 20, 0}, []int64{fixed.Asked, fixed.Passed, fixed.Denied})
	require.Equal(t, timelineCrowd{Count: 20, FromMS: 9000, ToMS: 10_900}, fixed.Crowd)
	require.Contains(t, fixed.Said(), "20 allowed within 1.9 seconds: twice the limit of 10 per 10 seconds.")
	_, over := fixed.CrowdBox()
	require.True(t, over)
	require.EqualValues(t, 11, counter.Crowd.Count, "the weight of the full previous window decreases a millisecond after its end")
	require.EqualValues(t, 10, log.Passed)
	require.Contains(t, log.Said(), "Never more than the limit, 10, in any 10 seconds.")
	require.Contains(t, log.Said(), "Longest retry after: 9 seconds.")
	_, over = log.CrowdBox()
	require.False(t, over)

	story := strings.Join(compared(results), " ")
	require.Contains(t, story, "Fixed window allowed 20 within 1.9 seconds, twice the limit.")
	require.Contains(t, story, "Never more than 10 in any 10 seconds: sliding window log.")
	require.Contains(t, story, "fewest with sliding window log (10)")
	require.Equal(t, fixed.Scale, log.Scale, "bars of the same height are comparable")
}

// The lesson of a traffic must be visible in its charts.
func TestLessonsAreTrue(t *testing.T) {
	result := func(query string, a limit.Algorithm) *timeline { return play(t, query, a)[0] }
	bits := func(query string, a limit.Algorithm, from int64) (last string) {
		l := result(query, a)
		for i, h := range l.Hits {
			if h.AtMS >= from {
				return l.PassedBits()[i:]
			}
		}
		return ""
	}

	// steady: blocks, and one in three
	require.Equal(t, "111111111100000", bits("traffic=steady", limit.FixedWindow, 20_000))
	require.Equal(t, "101101101", bits("traffic=steady", limit.TokenBucket, 24_000))

	// spammer: a client that sends more gets no more and no less; with a penalty, less
	require.Equal(t, result("traffic=steady", limit.FixedWindow).Passed, result("traffic=spammer", limit.FixedWindow).Passed)
	require.Less(t, result("traffic=spammer&penalty=30s", limit.TokenBucket).Passed, result("traffic=spammer", limit.TokenBucket).Passed)

	// silence: a burst is saved up, and the even traffic is still allowed
	require.Greater(t, result("traffic=silence&burst=20", limit.TokenBucket).Crowd.Count, result("traffic=silence", limit.TokenBucket).Crowd.Count)
	require.NotContains(t, bits("traffic=silence&burst=20", limit.TokenBucket, 17_000), "0")

	// early: the log is exact where the counter estimates
	require.Zero(t, result("traffic=early", limit.SlidingWindowLog).Denied)
	require.Positive(t, result("traffic=early", limit.SlidingWindowCounter).Denied)

	// ramp: the allowed rate does not grow with the requests
	ramp := result("traffic=ramp", limit.SlidingWindowLog).Slices()
	third := func(n int) (asked, passed int64) {
		for _, s := range ramp[5*n : 5*n+5] {
			asked, passed = asked+s.Asked, passed+s.Passed
		}
		return asked, passed
	}
	asked, passed := third(2)
	require.Greater(t, asked, int64(20))
	_, before := third(1)
	require.LessOrEqual(t, passed, before+1)

	// random: the average is the limit, but some requests are denied
	random := result("traffic=random", limit.SlidingWindowLog)
	require.InDelta(t, 30, random.Asked, 5)
	require.Positive(t, random.Denied)
}

// The remaining units are drawn at every instant, not only at requests.
func TestTimelineDrawsWhatIsLeft(t *testing.T) {
	bucket := play(t, "traffic=own&limit=10&window=10s&burst=5&hits=0,0,0,0,0,0", limit.TokenBucket)[0]
	require.EqualValues(t, 5, bucket.Quota)
	require.EqualValues(t, 5, bucket.Passed)
	require.EqualValues(t, 1, bucket.Denied)
	require.Len(t, bucket.Left, timelineSamples+1)
	require.EqualValues(t, 0, bucket.Left[0])
	require.EqualValues(t, 1, bucket.Left[6], "after a second, one has refilled")
	require.EqualValues(t, 0, bucket.Left[5])
	require.EqualValues(t, 5, bucket.Left[timelineSamples])
	require.Equal(t, "111110", bucket.PassedBits())
}

func TestTimelineOfAQueue(t *testing.T) {
	queue := play(t, "traffic=own&limit=10&window=10s&hits=0,0,0", limit.LeakyBucketQueue)[0]
	require.EqualValues(t, 3, queue.Passed)
	require.Equal(t, timelineCrowd{Count: 3, FromMS: 0, ToMS: 2000}, queue.Crowd, "released one after another")
	require.Contains(t, queue.Said(), "Allowed requests waited up to 2 seconds.")
	require.Equal(t, "M0 46v7M33.3 46v7M66.7 46v7", queue.StartsPath())
}

func TestTimelineOfAPenalty(t *testing.T) {
	shut := play(t, "traffic=own&limit=1&window=1s&penalty=2s&hits=0,100,1500,2200", limit.FixedWindow)[0]
	require.Equal(t, "1001", shut.PassedBits(), "a second later the window is new, but the penalty is still active")
	require.Equal(t, []timelineStretch{{100, 2100}}, shut.Shut)
	require.Contains(t, shut.Said(), "The penalty then denied everything for 2 seconds.")
}

// For all valid settings, the numbers of a chart are consistent.
func TestTimelinesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		query := "traffic=" + rapid.SampledFrom(scenarios).Draw(t, "traffic").Name +
			"&limit=" + itoa(rapid.Int64Range(1, maxPlayLimit).Draw(t, "limit")) +
			"&window=" + itoa(rapid.Int64Range(1, maxPlayWindowMS/1000).Draw(t, "window")) + "s" +
			"&burst=" + itoa(rapid.Int64Range(1, maxPlayBurst).Draw(t, "burst"))
		if rapid.Bool().Draw(t, "penalized") {
			query += "&penalty=" + itoa(rapid.Int64Range(1, 86_400).Draw(t, "penalty")) + "s"
		}
		for _, result := range play(t, query, playOrder...) {
			require.Equal(t, result.Asked, result.Passed+result.Denied)
			require.Len(t, result.PassedBits(), int(result.Asked))
			var asked, passed int64
			for _, s := range result.Slices() {
				asked, passed = asked+s.Asked, passed+s.Passed
				require.LessOrEqual(t, s.Left, result.Quota)
			}
			require.Equal(t, []int64{result.Asked, result.Passed}, []int64{asked, passed}, "the table and the chart agree")
			switch result.Rule.Algorithm {
			case limit.SlidingWindowLog, limit.LeakyBucketQueue:
				require.LessOrEqual(t, result.Crowd.Count, result.Rule.Limit)
			case limit.TokenBucket, limit.LeakyBucket:
				require.LessOrEqual(t, result.Crowd.Count, result.Quota+result.Rule.Limit)
			default:
				require.LessOrEqual(t, result.Crowd.Count, 2*result.Rule.Limit)
			}
			for _, s := range result.Said() {
				require.True(t, strings.HasSuffix(s, "."), s)
			}
		}
	})
}

// A timeline of many subjects has no single quota, but shows what was allowed.
func TestTimelineOfManySubjects(t *testing.T) {
	settings, _ := readPlay(nil)
	ask := trial{Title: "Everybody", Rule: settings.rule(limit.FixedWindow), SpanMS: 30_000}
	for i := range int64(30) {
		ask.Requests = append(ask.Requests, onlyAt("user_"+itoa(i%2), []int64{1000})...)
	}
	got, err := ask.run(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int64{30, 20, 10}, []int64{got.Asked, got.Passed, got.Denied})
	require.Nil(t, got.Left)
	var b bytes.Buffer
	require.NoError(t, timelinePicture(got).Render(t.Context(), &b))
	require.NoError(t, timelineTable(got).Render(t.Context(), &b))
	require.NotContains(t, b.String(), `class="level"`)
	require.Contains(t, b.String(), "Everybody: 30 requests in 30 seconds, 20 allowed, 10 denied.")
}
