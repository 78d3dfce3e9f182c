package redis

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// clusterRig is a stack of engines on a Cluster.
type clusterRig struct {
	t       *testing.T
	cluster *testenv.Cluster
	engine  *Engine
	stack   *engine.Stack
}

func newClusterRig(t *testing.T, masters, replicasEach int, nodeTimeout, patience time.Duration) *clusterRig {
	r := &clusterRig{t: t, cluster: testenv.StartCluster(t, masters, replicasEach, nodeTimeout)}
	client, err := NewClient(r.cluster.URL, WithTimeout(patience))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	r.engine = New(client, Options{Deadline: patience})
	r.stack = engine.NewStack(engine.StackOptions{
		Shared: r.engine, Local: engine.NewMemory(engine.MemoryOptions{}), Metrics: engine.NewMetrics(prometheus.NewRegistry()),
		Share: func() engine.Share { return engine.Share{Count: 1} },
	})
	t.Cleanup(r.stack.Close)
	require.Eventually(t, r.engine.mapped.Load, testPatience, time.Millisecond)
	return r
}

func tenantKey(tenant int) string { return fmt.Sprintf("w{%03d}counter", tenant) }

// ask charges one unit of the counter of a tenant.
func (r *clusterRig) ask(tenant int) engine.Outcome {
	r.t.Helper()
	call := r.charge(tenant)
	require.NoError(r.t, call.Err)
	return call.Outcome
}

// charge is ask for other goroutines than that of the test.
func (r *clusterRig) charge(tenant int) *engine.Call {
	call := &engine.Call{Cost: 1, Started: r.stack.Now(), Counters: []engine.Counter{{
		Key: tenantKey(tenant), OnUnavailable: limit.Allow,
		Numbers: limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: 1_000_000, WindowMS: 3_600_000},
	}}}
	r.stack.Evaluate(context.Background(), call)
	return call
}

// A master that is gone must degrade the tenants that it holds, and nobody else: not by the circuit
// breaker, and not by the wait for a pipeline that others share. When its replica has taken its
// place, its tenants are served by that at once.
func TestMasterKilledDegradesWhatItHolds(t *testing.T) {
	r := newClusterRig(t, 3, 1, time.Hour, testenv.RedisTimeout) // the replica waits until the test has looked
	const tenants = 30
	gone := r.cluster.MasterOf(tenantKey(0))
	lost := map[int]bool{}
	for n := range tenants {
		lost[n] = r.cluster.MasterOf(tenantKey(n)) == gone
		require.Eventually(t, func() bool { return !r.ask(n).Degraded }, testPatience, time.Millisecond)
	}
	gone.Kill()
	require.Eventually(t, func() bool { return r.ask(0).Degraded && r.stack.Away(tenantKey(0)) }, testPatience, time.Millisecond)
	require.False(t, r.stack.DegradedSince().IsZero())
	for n := range tenants {
		require.Equal(t, lost[n], r.stack.Away(tenantKey(n)))
		if !lost[n] {
			require.False(t, r.ask(n).Degraded, "tenant %d lives on another master", n)
		}
	}
	r.cluster.TakeOver(gone)
	require.Eventually(t, func() bool { return !r.ask(0).Degraded }, testPatience, time.Millisecond)
	require.Eventually(t, func() bool { return r.cluster.MasterOf(tenantKey(0)) != gone }, testPatience, 10*time.Millisecond)
	for n := range tenants {
		require.False(t, r.ask(n).Degraded, "tenant %d", n)
	}
	require.Eventually(t, func() bool { return r.stack.DegradedSince().IsZero() }, testPatience, time.Millisecond,
		"the server that holds no keys any more is forgotten")
}

// A master that is frozen, with nobody to take its place, must be waited for by those whom it holds
// alone.
func TestFrozenMasterDelaysNoOtherServer(t *testing.T) {
	r := newClusterRig(t, 2, 0, time.Hour, 10*time.Second) // a stall of the machine is shorter
	frozen := r.cluster.MasterOf(tenantKey(0))
	other := 1
	for r.cluster.MasterOf(tenantKey(other)) == frozen {
		other++
	}
	for _, n := range []int{0, other} {
		require.Eventually(t, func() bool { return !r.ask(n).Degraded }, testPatience, time.Millisecond)
	}
	frozen.Pause()
	done := make(chan struct{})
	var waiting sync.WaitGroup
	for range 8 { // many calls wait for the frozen one
		waiting.Go(func() {
			for !r.stack.Away(tenantKey(0)) {
				r.charge(0)
			}
		})
	}
	go func() {
		defer close(done)
		waiting.Wait()
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
			require.False(t, r.ask(other).Degraded)
		}
	}
	frozen.Resume()
	require.Eventually(t, func() bool { return !r.ask(0).Degraded }, testPatience, time.Millisecond)
}

// Spent credits on a master that does not answer do not keep those on others from being read.
func TestFrozenMasterHidesNoSpentCredits(t *testing.T) {
	r := newClusterRig(t, 2, 0, time.Hour, 4*time.Second)
	frozen := r.cluster.MasterOf(tenantKey(0))
	other := 1
	for r.cluster.MasterOf(tenantKey(other)) == frozen {
		other++
	}
	boxes := []string{tenantKey(0), tenantKey(other)}
	read := func() []error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, errs := r.engine.SpentCredits(ctx, boxes, 1)
		return errs
	}
	require.Equal(t, []error{nil, nil}, read())
	frozen.Pause()
	errs := read()
	require.Error(t, errs[0])
	require.NoError(t, errs[1])
	frozen.Resume()
}

// Openings and readings of credits on a master that does not answer end long before the time of
// the caller, and keep none of those on others. Connections of the second round are new: the client
// asks such a server for its version four times, whatever the command says about repetitions.
func TestFrozenMasterKeepsNoCreditsOfOthers(t *testing.T) {
	r := newClusterRig(t, 2, 0, time.Hour, 2*time.Second)
	frozen := r.cluster.MasterOf(tenantKey(0))
	other := 1
	for r.cluster.MasterOf(tenantKey(other)) == frozen {
		other++
	}
	round := func() (openings []*engine.Opening) {
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second) // less than four times the patience
		defer cancel()
		for _, n := range []int{0, other} {
			openings = append(openings, &engine.Opening{
				Key: tenantKey(n), Outbox: tenantKey(n) + "box", Grants: []limit.Spent{{ID: limit.GrantID{1}, Units: 1}}, AskedUS: 1, ReadUS: 2, Whole: true,
			})
		}
		_, _ = r.engine.OpenCredits(ctx, openings...)
		require.NoError(t, ctx.Err())
		return openings
	}
	for _, o := range round() {
		require.NoError(t, o.Err)
	}
	frozen.Pause()
	for range 2 {
		openings := round()
		require.Error(t, openings[0].Err)
		require.NoError(t, openings[1].Err)
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		_, errs := r.engine.SpentCredits(ctx, []string{tenantKey(0) + "box", tenantKey(other) + "box"}, 1)
		require.NoError(t, ctx.Err())
		cancel()
		require.Error(t, errs[0])
		require.NoError(t, errs[1])
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	errs := r.engine.CloseCredits(ctx, round()...)
	require.NoError(t, ctx.Err())
	require.Error(t, errs[0])
	require.NotErrorIs(t, errs[0], engine.ErrOpenedSince)
	require.ErrorIs(t, errs[1], engine.ErrOpenedSince, "the server has answered")
	frozen.Resume()
}

// The suite of all engines holds on a Cluster, whose slots it uses as they come.
func TestMovedSlotsAreFollowed(t *testing.T) {
	r := newClusterRig(t, 2, 1, time.Minute, testenv.RedisTimeout)
	before := r.cluster.MasterOf(tenantKey(0))
	require.Eventually(t, func() bool { return !r.ask(0).Degraded }, testPatience, time.Millisecond)
	left := r.ask(0).Verdicts[0].Remaining
	r.cluster.Failover(before)
	for r.cluster.MasterOf(tenantKey(0)) == before {
		require.False(t, r.stack.Away(tenantKey(0)))
		r.ask(0)
	}
	require.Eventually(t, func() bool { return !r.ask(0).Degraded }, testPatience, time.Millisecond)
	require.Less(t, r.ask(0).Verdicts[0].Remaining, left)
	require.Zero(t, r.stack.Health().Losses)
}
