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

// A leased rule never allows more than its limit, while instances are under load, stopped and
// killed. The units of a stopped instance are returned. A killed one loses at most a quarter of the
// limit.
func TestLeasedRuleOverInstances(t *testing.T) {
	const limit = 5_000
	s := newSettings(t)
	instances := []*instance{start(t, s), start(t, s), start(t, s)}
	for _, i := range instances {
		i.AwaitReady()
	}
	tenant := newTenant(t, s, instances[0])
	tenant.putRule("leased", fmt.Sprintf(`{"resource":"leased","algorithm":"fixed_window","limit":%d,"window":%q,"on_unavailable":"deny","consistency":"leased"}`,
		limit, harness.QuietWindow(time.Now(), 360, 3)), instances...)
	ask := func(i *instance, subject string) (allowed bool) {
		got, d, err := tenant.check(i.URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":"leased"}`, subject))
		require.NoError(t, err)
		require.False(t, d.Degraded)
		return got.status == http.StatusOK
	}
	hammer := func(subject string, each int) (allowed int64) {
		var sum atomic.Int64
		var clients sync.WaitGroup
		for n := range clientsEach * len(instances) {
			clients.Go(func() {
				for range each {
					got, d, err := tenant.check(instances[n%len(instances)].URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":"leased"}`, subject))
					if err != nil || d.Degraded {
						t.Error("not decided by Redis", err, got.status)
						return
					}
					if got.status == http.StatusOK {
						sum.Add(1)
					}
				}
			})
		}
		clients.Wait()
		return sum.Load()
	}

	allowed := hammer("s", 20)
	require.Contains(t, instances[0].Metrics(), "weir_lease_takes_total")
	require.NotContains(t, instances[0].Metrics(), "weir_checks_leased_total 0\n", "checks were answered from memory")
	require.Zero(t, instances[0].Stop())
	require.Zero(t, instances[1].Stop())
	// Units may be about to be returned when a check is denied, and denials are remembered for a
	// short time.
	require.Eventually(t, func() bool {
		for ask(instances[2], "s") {
			allowed++
		}
		return allowed >= limit
	}, patience, tick)
	require.False(t, ask(instances[2], "s"))
	require.EqualValues(t, limit, allowed)

	instances = []*instance{start(t, s).AwaitReady(), instances[2]}
	allowed = hammer("k", 20)
	instances[0].Kill()
	for ask(instances[1], "k") {
		allowed++
	}
	require.LessOrEqual(t, allowed, int64(limit))
	require.GreaterOrEqual(t, allowed, int64(limit-limit/4))
}
