package api

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/leases"
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
	s, seen := leaseStack(t)
	client, stalled := testenv.RedisClient(t), &stalledRedis{}
	client.AddHook(stalled)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	deps.Leases = leases.New(leases.Options{Client: client, Timeout: testenv.RedisTimeout})
	s.serve(Config{}, deps)
	return s, seen, stalled
}

// A return whose lease was taken in Redis without an answer is completed, exactly once, whether the
// client repeats it or not, and whether Redis executed the first command or not.
func TestReturnWithoutAnAnswer(t *testing.T) {
	s, seen, stalled := stalledStack(t)
	unanswered := s.lane.server.Load().capacity.unanswered
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
// of too many units changes nothing also then.
func TestReturnsWithoutAnAnswerAreBounded(t *testing.T) {
	s, seen, stalled := stalledStack(t)
	unanswered := s.lane.server.Load().capacity.unanswered

	l := s.post(leasesPath, `{"subject":"much","resource":"long","units":100}`).lease()
	stalled.answers.Store(1)
	require.Equal(t, http.StatusServiceUnavailable, s.giveBack(l.Lease, `{"units":101}`).status)
	require.Eventually(t, func() bool { return unanswered.Held(s.actor.TenantID()) == 0 }, time.Minute, time.Millisecond)
	require.EqualValues(t, 900, s.remaining("much", "long"))
	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":100}`).status, "the lease is over")
	require.EqualValues(t, 900, s.remaining("much", "long"))
	require.Len(t, seen.of("much"), 2, "what remained, twice")

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
