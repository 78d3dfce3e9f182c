package api

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/leases"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// stalledRedis makes a client lose the next commands, which Redis does not execute, or the answers
// of the next ones that it executes.
type stalledRedis struct{ commands, answers atomic.Int64 }

func (*stalledRedis) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*stalledRedis) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *stalledRedis) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if s.commands.Add(-1) >= 0 {
			cmd.SetErr(context.DeadlineExceeded)
			return context.DeadlineExceeded
		}
		err := next(ctx, cmd)
		if err == nil && s.answers.Add(-1) >= 0 {
			cmd.SetErr(context.DeadlineExceeded)
			return context.DeadlineExceeded
		}
		return err
	}
}

// stalledStack returns a leaseStack whose records of leases are in a Redis that can stall.
func stalledStack(t *testing.T) (*checkStack, *reports, *stalledRedis) {
	t.Helper()
	return stalledStackWith(t, func(*LateReturns, *stalledRedis) {})
}

// stalledStackWith is stalledStack with changed LateReturns.
func stalledStackWith(t *testing.T, change func(*LateReturns, *stalledRedis)) (*checkStack, *reports, *stalledRedis) {
	t.Helper()
	s, seen := leaseStack(t)
	client, stalled := testenv.RedisClient(t), &stalledRedis{}
	client.AddHook(stalled)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	deps.Leases = leases.New(leases.Options{Client: client, Timeout: testenv.RedisTimeout})
	deps.Late = NewLateReturns(deps.Metrics, deps.Logger)
	change(deps.Late, stalled)
	s.serve(Config{}, deps)
	return s, seen, stalled
}

// A return whose lease was taken in Redis without an answer is completed, exactly once, whether the
// client repeats it or not, and whether Redis executed the first command or not.
func TestReturnWithoutAnAnswer(t *testing.T) {
	s, seen, stalled := stalledStack(t)
	unanswered := s.lane.server.Load().late.places
	const body = `{"units":40,"allowed":55}`
	for subject, c := range map[string]struct {
		commands, answers int64
		repeat            bool
	}{
		"repeated":     {answers: 1, repeat: true},
		"not-repeated": {answers: 1},
		"twice":        {answers: 2},
		"not-executed": {commands: 1, repeat: true},
		"never-sent":   {commands: 1},
	} {
		l := s.post(leasesPath, `{"subject":"`+subject+`","resource":"long","units":100}`).lease()
		stalled.commands.Store(c.commands)
		stalled.answers.Store(c.answers)
		require.Equal(t, http.StatusServiceUnavailable, s.giveBack(l.Lease, body).status, subject)
		if c.repeat {
			require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, body).status, subject)
		}
		require.Eventually(t, func() bool { return unanswered.Held(s.actor.TenantID()) == 0 }, time.Minute, time.Millisecond)
		require.EqualValues(t, 1000-100+40, s.remaining(subject, "long"), subject)
		require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, body).status, subject)
		require.EqualValues(t, 1000-100+40, s.remaining(subject, "long"), subject)
		used := 0
		for _, r := range seen.of(subject) {
			if r.checks == 55 {
				require.Equal(t, reported{subject, true, 55, 60, 1}, r)
				used++
			}
		}
		require.Equal(t, 1, used, "%s: the used units are reported once", subject)
	}
}

// A tenant with very many returns without an answer leaves places for those of others, and a return
// of too many units uses all of them also then.
func TestReturnsWithoutAnAnswerAreBounded(t *testing.T) {
	s, seen, stalled := stalledStack(t)
	unanswered := s.lane.server.Load().late.places

	l := s.post(leasesPath, `{"subject":"much","resource":"long","units":100}`).lease()
	stalled.answers.Store(1)
	require.Equal(t, http.StatusServiceUnavailable, s.giveBack(l.Lease, `{"units":101}`).status)
	require.Eventually(t, func() bool { return unanswered.Held(s.actor.TenantID()) == 0 }, time.Minute, time.Millisecond)
	require.EqualValues(t, 900, s.remaining("much", "long"))
	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":100}`).status, "the lease is over")
	require.EqualValues(t, 900, s.remaining("much", "long"))
	require.Len(t, seen.of("much"), 3, "what remained, twice, and the units of the lease")

	held := takeAll(unanswered, s.actor.TenantID(), maxUnanswered)
	require.Less(t, len(held), maxUnanswered/4)
	l = s.post(leasesPath, `{"subject":"many","resource":"long","units":100}`).lease()
	stalled.commands.Store(1)
	require.Equal(t, http.StatusServiceUnavailable, s.giveBack(l.Lease, `{"units":100}`).status)
	require.Equal(t, len(held), unanswered.Held(s.actor.TenantID()), "no further place is taken")
	for _, leave := range held {
		leave()
	}
	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":100}`).status, "the client repeats it")
	require.EqualValues(t, 1000, s.remaining("many", "long"))
}

// stall is how a test replaces the pauses of LateReturns: no time passes, and Redis is unavailable
// until the pauses together are as long as the stall.
func stall(length time.Duration) func(*LateReturns, *stalledRedis) {
	return func(late *LateReturns, stalled *stalledRedis) {
		waited := time.Duration(0)
		late.after = func(pause time.Duration) <-chan time.Time {
			stalled.commands.Store(1)
			if waited += pause; waited > length {
				stalled.commands.Store(0)
			}
			now := make(chan time.Time, 1)
			now <- time.Time{}
			return now
		}
	}
}

// stalledReturn returns 40 of 100 units of a lease, which Redis executes without an answer.
func (s *checkStack) stalledReturn(stalled *stalledRedis) {
	s.t.Helper()
	l := s.post(leasesPath, `{"subject":"a","resource":"long","units":100}`).lease()
	stalled.answers.Store(1)
	require.Equal(s.t, http.StatusServiceUnavailable, s.giveBack(l.Lease, `{"units":40,"allowed":55}`).status)
}

// completed reports whether the return of stalledReturn was settled.
func (r *reports) completed() bool {
	return slices.Contains(r.of("a"), reported{"a", true, 55, 60, 1})
}

// A return is completed after a stall of Redis that is as long as a lease can have a record. After
// a longer one, it is counted as lost.
func TestReturnAfterALongStall(t *testing.T) {
	for stalls, lost := range map[time.Duration]bool{
		8 * time.Second: false, 10 * time.Second: false, time.Duration(limit.MaxLeaseMS)*time.Millisecond + leases.Grace - lastPause: false, time.Hour: true,
	} {
		t.Run(stalls.String(), func(t *testing.T) {
			s, seen, stalled := stalledStackWith(t, stall(stalls))
			late := s.lane.server.Load().late
			s.stalledReturn(stalled)
			late.End(t.Context())
			require.Equal(t, !lost, seen.completed())
			require.EqualValues(t, bit(lost), testutil.ToFloat64(late.metrics.lostReturns))
			stalled.commands.Store(0)
			want := int64(1000 - 100)
			if !lost {
				want += 40
			}
			require.EqualValues(t, want, s.remaining("a", "long"))
			require.Equal(t, lost, strings.Contains(s.log.String(), "a return of a lease is lost"))
		})
	}
}

// An instance that stops completes its returns first, without the long pauses. What it cannot
// complete until then is lost, as are later ones.
func TestReturnsOfAnInstanceThatStops(t *testing.T) {
	for name, answers := range map[string]bool{"completed": true, "lost": false} {
		t.Run(name, func(t *testing.T) {
			var pauses atomic.Int64
			s, seen, stalled := stalledStackWith(t, func(late *LateReturns, stalled *stalledRedis) {
				late.after = func(time.Duration) <-chan time.Time {
					if pauses.Add(1); !answers {
						return nil // this pause never ends
					}
					select {
					case <-late.ending:
					default:
						return nil
					}
					now := make(chan time.Time, 1)
					now <- time.Time{}
					return now
				}
			})
			late := s.lane.server.Load().late
			s.stalledReturn(stalled)
			require.False(t, seen.completed())
			ctx, end := context.WithCancel(t.Context())
			if !answers {
				end()
			}
			late.End(ctx)
			end()
			require.Equal(t, answers, seen.completed())
			require.EqualValues(t, bit(!answers), testutil.ToFloat64(late.metrics.lostReturns))
			s.stalledReturn(stalled)
			require.EqualValues(t, bit(!answers)+1, testutil.ToFloat64(late.metrics.lostReturns))
		})
	}
}

// refusingEngine refuses some refunds, as a circuit does that is not closed yet.
type refusingEngine struct {
	*redisengine.Engine
	refuse atomic.Int64
}

// Refund implements engine.Engine.
func (e *refusingEngine) Refund(ctx context.Context, refunds ...*engine.Refund) {
	if e.refuse.Add(-1) < 0 {
		e.Engine.Refund(ctx, refunds...)
		return
	}
	for _, r := range refunds {
		r.Err = engine.ErrNotSent
	}
}

// Units of a return that the counters certainly do not have are returned later, exactly once, also
// those of a lease without a record.
func TestUnitsThatWereNotReturned(t *testing.T) {
	s, seen := leaseStack(t)
	client, stalled := testenv.RedisClient(t), &stalledRedis{}
	client.AddHook(stalled)
	e := &refusingEngine{Engine: redisengine.New(testenv.RedisClient(t), redisengine.Options{Deadline: testenv.RedisTimeout})}
	s.registry = prometheusRegistry()
	deps := s.newDeps(t, e)
	deps.Leases = leases.New(leases.Options{Client: client, Timeout: testenv.RedisTimeout})
	deps.Late = NewLateReturns(deps.Metrics, deps.Logger)
	s.serve(Config{}, deps)
	settled := func() {
		t.Helper()
		require.Eventually(t, func() bool { return deps.Late.places.Held(s.actor.TenantID()) == 0 }, time.Minute, time.Millisecond)
	}
	l := s.post(leasesPath, `{"subject":"a","resource":"long","units":100}`).lease()
	e.refuse.Store(2)
	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":40,"allowed":55}`).status)
	settled()
	require.EqualValues(t, 1000-100+40, s.remaining("a", "long"))
	require.True(t, seen.completed())
	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":40,"allowed":55}`).status)
	require.EqualValues(t, 1000-100+40, s.remaining("a", "long"))

	stalled.commands.Store(1)
	e.refuse.Store(1)
	require.Equal(t, http.StatusServiceUnavailable, s.post(leasesPath, `{"subject":"b","resource":"long","units":100}`).status)
	settled()
	require.EqualValues(t, 1000, s.remaining("b", "long"))
	require.Zero(t, testutil.ToFloat64(deps.Metrics.lostReturns))
}

// A return that was refused because Redis is known to be unavailable is completed when it is back,
// whether the client repeats it or not.
func TestReturnWhileRedisIsAway(t *testing.T) {
	s, seen := leaseStack(t)
	var away atomic.Bool
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	deps.Leases = leases.New(leases.Options{
		Client: testenv.RedisClient(t), Timeout: testenv.RedisTimeout, Away: func(string) bool { return away.Load() },
	})
	deps.Late = NewLateReturns(deps.Metrics, deps.Logger)
	s.serve(Config{}, deps)
	l := s.post(leasesPath, `{"subject":"a","resource":"long","units":100}`).lease()
	away.Store(true)
	require.Equal(t, http.StatusServiceUnavailable, s.giveBack(l.Lease, `{"units":40,"allowed":55}`).status)
	away.Store(false)
	require.Eventually(t, func() bool { return deps.Late.places.Held(s.actor.TenantID()) == 0 }, time.Minute, time.Millisecond)
	require.True(t, seen.completed())
	require.EqualValues(t, 1000-100+40, s.remaining("a", "long"))
	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":40,"allowed":55}`).status)
	require.EqualValues(t, 1000-100+40, s.remaining("a", "long"))
}
