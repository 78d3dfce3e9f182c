package tests

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

const (
	clientsEach = 64
	exactLimit  = 600
)

// However many instances and clients there are, a limit of 600 allows exactly 600. All of them
// check one subject concurrently, with costs of 1 to 5.
func TestInstancesTogetherAllowExactlyTheLimit(t *testing.T) {
	s := newSettings(t)
	instances := []*instance{start(t, s), start(t, s), start(t, s)}
	for _, i := range instances {
		i.AwaitReady()
	}
	tenant := newTenant(t, s, instances[0])
	window := harness.QuietWindow(time.Now(), 360, 3)

	for algorithm, more := range map[string]string{
		"sliding_window_counter": "",
		"sliding_window_log":     "",
		"sliding_window_buckets": `,"precision":"3d"`,
		"fixed_window":           "",
		"fixed_window_first_hit": "",
		"token_bucket":           "",
		"leaky_bucket":           "",
		"leaky_bucket_queue":     "",
	} {
		t.Run(algorithm, func(t *testing.T) {
			slug := slugOf(algorithm)
			tenant.putRule(slug, fmt.Sprintf(`{"resource":%q,"algorithm":%q,"limit":%d,"window":%q,"on_unavailable":"deny"%s}`,
				slug, algorithm, exactLimit, window, more), instances...)
			var allowed, denied, unknown atomic.Int64
			var wg sync.WaitGroup
			for n := range clientsEach * len(instances) {
				url := instances[n%len(instances)].URL() + "/v1/check"
				wg.Go(func() {
					// Smaller and smaller costs, so that the last units are used one by one.
					for cost := n%5 + 1; cost > 0; {
						got, d, err := tenant.check(url, fmt.Sprintf(`{"subject":"user_42","resource":%q,"cost":%d}`, slug, cost))
						if err != nil {
							t.Error(err)
							return
						}
						if d.Degraded { // on a busy machine: Redis may or may not have counted it
							unknown.Add(int64(cost))
							continue
						}
						switch got.status {
						case http.StatusOK:
							allowed.Add(int64(cost))
						case http.StatusTooManyRequests:
							denied.Add(1)
							cost--
						default:
							t.Errorf("%d %s", got.status, got.body)
							return
						}
					}
				})
			}
			wg.Wait()
			require.NotZero(t, denied.Load())
			require.Less(t, unknown.Load(), int64(exactLimit/10), "Redis was available all the time")
			require.LessOrEqual(t, allowed.Load(), int64(exactLimit))
			require.GreaterOrEqual(t, allowed.Load(), exactLimit-unknown.Load()) // exactly 600 if nothing is unknown
		})
	}
}

func slugOf(algorithm string) string {
	slug := []byte(algorithm)
	for i, c := range slug {
		if c == '_' {
			slug[i] = '-'
		}
	}
	return string(slug)
}
