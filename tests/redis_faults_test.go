package tests

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

const localLimit = 40

// faulty is an installation with its own Redis, one rule for each on_unavailable, and clients that
// send checks under all of them continuously.
type faulty struct {
	t      *testing.T
	redis  *testenv.Redis
	server *instance
	tenant *client
}

func newFaulty(t *testing.T) *faulty {
	f := &faulty{t: t, redis: testenv.StartRedis(t)}
	s := newSettings(t).With(settings{"WEIR_REDIS_URL": f.redis.URL})
	delete(s, "WEIR_REDIS_TIMEOUT")
	f.server = start(t, s).AwaitReady()
	f.tenant = newTenant(t, s, f.server)
	for _, policy := range []string{"allow", "deny", "local"} {
		f.tenant.putRule(policy, fmt.Sprintf(`{"resource":%q,"algorithm":"fixed_window_first_hit","limit":%d,"window":"1h","on_unavailable":%q}`,
			policy, localLimit, policy), f.server)
	}
	return f
}

// ask sends one check under the rule with this on_unavailable.
func (f *faulty) ask(policy, subject string) (answer, decision, error) {
	return f.tenant.check(f.server.URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":%q}`, subject, policy))
}

func (f *faulty) mustAsk(policy, subject string) (answer, decision) {
	f.t.Helper()
	got, d, err := f.ask(policy, subject)
	require.NoError(f.t, err)
	return got, d
}

// load sends checks under all rules from several clients until the returned function is called.
// Every response must be a decision.
func (f *faulty) load() (stop func()) {
	var wg sync.WaitGroup
	var asked atomic.Int64
	done := make(chan struct{})
	for n := range 6 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				got, _, err := f.ask([]string{"allow", "deny", "local"}[n%3], fmt.Sprintf("load-%d", asked.Add(1)%50))
				if err != nil || got.status != http.StatusOK && got.status != http.StatusTooManyRequests {
					f.t.Errorf("%v %d %s", err, got.status, got.body)
					return
				}
			}
		})
	}
	stopped := sync.OnceFunc(func() {
		close(done)
		wg.Wait()
		require.NotZero(f.t, asked.Load())
	})
	f.t.Cleanup(stopped)
	return stopped
}

// awaitDegraded returns when decisions are degraded, or with want false, when they are not.
func (f *faulty) awaitDegraded(want bool) {
	f.t.Helper()
	n := 0
	require.Eventually(f.t, func() bool {
		n++
		_, d := f.mustAsk("allow", fmt.Sprintf("await-%d", n))
		return d.Degraded == want
	}, patience, tick, "degraded does not become %v", want)
}

// requirePolicies verifies each rule's decisions while Redis is unavailable. subject must be new.
func (f *faulty) requirePolicies(subject string) {
	f.t.Helper()
	for range localLimit + 5 {
		got, d := f.mustAsk("allow", subject)
		require.Equal(f.t, http.StatusOK, got.status, "%s", got.body)
		require.True(f.t, d.Degraded)
	}
	got, d := f.mustAsk("deny", subject)
	require.Equal(f.t, http.StatusTooManyRequests, got.status, "%s", got.body)
	require.True(f.t, d.Degraded)
	require.Equal(f.t, "COUNTERS_UNAVAILABLE", d.Error.Code)
	require.NotEmpty(f.t, got.header.Get("Retry-After"))

	// With one instance, its share is the full limit.
	for n := range localLimit + 5 {
		got, d := f.mustAsk("local", subject)
		want := http.StatusOK
		if n >= localLimit {
			want = http.StatusTooManyRequests
		}
		require.Equal(f.t, want, got.status, "check %d: %s", n+1, got.body)
		require.True(f.t, d.Degraded)
	}
}

// requireNoWait verifies that the circuit breaker is open: checks are answered, and none of them
// waits for Redis until the timeout.
func (f *faulty) requireNoWait() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		sent := f.sentToRedis()
		for n := range 20 {
			_, d, err := f.ask("allow", fmt.Sprintf("fast-%d", n))
			if err != nil || !d.Degraded {
				return false
			}
		}
		return f.sentToRedis() == sent && strings.Contains(f.server.Metrics(), "weir_degraded 1")
	}, patience, tick)
}

// sentToRedis returns the number of calls to Redis, with or without a timeout.
func (f *faulty) sentToRedis() string {
	return regexp.MustCompile(`weir_redis_seconds_count (\d+)`).FindString(f.server.Metrics())
}

// requireRecovered verifies that decisions are not degraded any more.
func (f *faulty) requireRecovered(subject string) {
	f.t.Helper()
	f.awaitDegraded(false)
	require.Eventually(f.t, func() bool { // calls return to Redis gradually
		_, d := f.mustAsk("deny", subject)
		return !d.Degraded && d.Remaining != nil
	}, patience, tick)
	require.Equal(f.t, http.StatusOK, status(f.server.URL()+"/readyz"))
}

func TestRedisKilledUnderLoad(t *testing.T) {
	f := newFaulty(t)
	f.requireRecovered("before")
	stop := f.load()
	f.redis.Kill()
	f.awaitDegraded(true)
	f.requireNoWait()
	f.requirePolicies("user_42")
	require.Equal(t, http.StatusOK, status(f.server.URL()+"/readyz"), "checks are answered, so the instance stays in the load balancer")
	f.server.AwaitLog("redis is unavailable")
	f.redis.Start()
	f.requireRecovered("after")
	f.server.AwaitLog("redis is available again")
	stop()
	require.Zero(t, f.server.Stop())
}

// A paused Redis is worse than a dead one: its sockets stay open, no call fails by itself, and it
// answers late, after the timeout. If such an answer were read for another call, a subject would
// get another subject's verdict.
func TestRedisPausedUnderLoad(t *testing.T) {
	f := newFaulty(t)
	f.tenant.putRule("many", `{"resource":"many","algorithm":"fixed_window_first_hit","limit":1000000,"window":"1h","on_unavailable":"allow"}`, f.server)
	f.requireRecovered("before")

	// Each subject has a different usage, far from that of all others.
	const subjects, apart = 12, 10_000
	var names [subjects]string
	for n := range subjects {
		require.Eventually(t, func() bool { // on a busy machine a check may time out, and its cost may or may not be counted
			names[n] = fmt.Sprintf("own-%d-%s", n, rand.Text())
			_, d, err := f.tenant.check(f.server.URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":"many","cost":%d}`, names[n], (n+1)*apart))
			return err == nil && !d.Degraded
		}, patience, tick)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for n := range subjects {
		wg.Go(func() {
			sent, counted := int64(0), int64(0)
			for {
				select {
				case <-done:
					if counted == 0 {
						t.Error("nothing was counted")
					}
					return
				default:
				}
				sent++
				got, d, err := f.tenant.check(f.server.URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":"many"}`, names[n]))
				if err != nil || got.status != http.StatusOK {
					t.Errorf("%v %d %s", err, got.status, got.body)
					return
				}
				if d.Degraded {
					continue // unknown whether it was sent to Redis
				}
				counted++
				used := 1_000_000 - *d.Remaining - int64((n+1)*apart)
				if used < counted || used > sent || sent >= apart {
					t.Errorf("%s: %d used, of %d sent and %d known to be counted", names[n], used, sent, counted)
					return
				}
			}
		})
	}
	finish := sync.OnceFunc(func() { close(done); wg.Wait() })
	defer finish()

	stop := f.load()
	for round := range 3 {
		f.redis.Pause()
		f.awaitDegraded(true)
		f.requireNoWait()
		f.requirePolicies(fmt.Sprintf("user-%d", round))
		f.redis.Resume()
		f.requireRecovered(fmt.Sprintf("after-%d", round))
	}
	stop()
	finish()
	require.Zero(t, f.server.Stop())
}

// If Redis is unavailable at startup, the service starts: it can answer most rules without it.
func TestRedisDownAtStart(t *testing.T) {
	redis := testenv.StartRedis(t)
	redis.Kill()
	s := newSettings(t).With(settings{"WEIR_REDIS_URL": redis.URL})
	i := start(t, s).AwaitReady()
	f := &faulty{t: t, redis: redis, server: i, tenant: newTenant(t, s, i)}
	for _, policy := range []string{"allow", "deny", "local"} {
		f.tenant.putRule(policy, fmt.Sprintf(`{"resource":%q,"algorithm":"fixed_window_first_hit","limit":%d,"window":"1h","on_unavailable":%q}`,
			policy, localLimit, policy), i)
	}
	f.awaitDegraded(true)
	f.requirePolicies("user_42")
	redis.Start()
	f.requireRecovered("after")
	require.Zero(t, i.Stop())
}
