package engine

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// A tenant with an unlimited number of subjects must not use up the memory of all tenants, nor
// exceed its limits.
func TestMemoryEngineIsBounded(t *testing.T) {
	ctx := context.Background()
	now := int64(1_704_672_000_000)
	e := NewMemory(MemoryOptions{Clock: func() int64 { return now }, MaxCounters: 10_000})
	numbers := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 3, WindowMS: 60_000}
	greedy, modest := uuid.New(), uuid.New()
	ask := func(tenant limit.TenantID, subject int, n limit.Numbers) bool {
		call := &Call{Tenant: tenant, Cost: 1, Counters: []Counter{{Key: fmt.Sprint(tenant, subject, n.WindowMS), Numbers: n}}}
		e.Evaluate(ctx, call)
		require.NoError(t, call.Err)
		return call.Outcome.Allowed
	}
	denied := 0
	for subject := range 50_000 {
		if !ask(greedy, subject, numbers) {
			denied++
		}
	}
	require.Equal(t, 1_000, e.Len(), "a tenth")
	require.Positive(t, denied, "the shared counters are used up")
	shared := 0
	for i := range e.shards {
		shared += len(e.shards[i].overflow)
	}
	require.LessOrEqual(t, shared, overflowSlots)
	for subject := range 900 {
		require.True(t, ask(modest, subject, numbers))
	}
	require.True(t, ask(greedy, 0, numbers), "existing counters are kept")
	require.True(t, ask(greedy, 0, numbers))
	require.False(t, ask(greedy, 0, numbers))
	longer := numbers
	longer.WindowMS *= 2
	require.True(t, ask(greedy, 49_999, longer), "windows of different lengths are not mixed")

	now += 10 * 60_000
	for subject := range 50_000 {
		ask(modest, 1_000_000+subject, numbers)
	}
	require.LessOrEqual(t, e.Len(), 2_000)
	for subject := range 2_000 {
		ask(greedy, 2_000_000+subject, numbers)
	}
	held := func(tenant limit.TenantID) int64 {
		counters, _, _ := e.held(tenant)
		return counters
	}
	require.LessOrEqual(t, held(greedy), int64(1_000))
	require.Equal(t, int64(1_000), held(modest))
}

// Expired counters are removed even if nothing uses them again.
func TestMemoryEngineForgets(t *testing.T) {
	now := int64(1_704_672_000_000)
	e := NewMemory(MemoryOptions{Clock: func() int64 { return now }})
	tenant := uuid.New()
	for i := range 100_000 {
		now += 10
		call := &Call{Tenant: tenant, Cost: 1, Counters: []Counter{{
			Key: fmt.Sprint(i), Numbers: limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: 1, WindowMS: 1_000},
		}}}
		e.Evaluate(context.Background(), call)
		require.True(t, call.Outcome.Allowed)
	}
	// 200 are live for their two seconds; the others were not swept yet.
	require.Less(t, e.Len(), 1_000)
}

// Two counters of one call may share an overflow counter.
func TestMemoryEngineSharesWithinACall(t *testing.T) {
	e := NewMemory(MemoryOptions{MaxPerTenant: 1})
	numbers := limit.Numbers{Algorithm: limit.TokenBucket, Limit: 1_000, Burst: 1_000, WindowMS: 3_600_000}
	taken := &Call{Cost: 1, Counters: []Counter{{Key: "own", Numbers: numbers}}}
	e.Evaluate(context.Background(), taken)
	many := &Call{NowMS: 1_704_672_000_000, Cost: 1}
	for i := range 400 {
		many.Counters = append(many.Counters, Counter{Key: fmt.Sprint(i), Numbers: numbers})
	}
	e.Evaluate(context.Background(), many)
	require.NoError(t, many.Err)
	require.True(t, many.Outcome.Allowed)
	used := int64(0)
	for i := range e.shards {
		for _, c := range e.shards[i].overflow {
			used += numbers.Burst - c.state.Remaining(&numbers, 1_704_672_000_000)
		}
	}
	require.EqualValues(t, 400, used, "each is counted")
}

// A tenant whose counters grow must not use up the memory of all tenants: beyond its bound of
// entries they become coarse. They never allow more than their limit, and others stay exact.
func TestMemoryEngineBoundsEntries(t *testing.T) {
	now := int64(1_704_672_000_000)
	e := NewMemory(MemoryOptions{Clock: func() int64 { return now }, MaxCounters: 10_000})
	const perTenant = 10 * 1_000
	logs := limit.Numbers{Algorithm: limit.SlidingWindowLog, Limit: limit.MaxLogLimit, WindowMS: 100_000_000}
	greedy, modest := uuid.New(), uuid.New()
	ask := func(tenant limit.TenantID, subject int) *Call {
		call := &Call{Tenant: tenant, Cost: 1, Counters: []Counter{{Key: fmt.Sprint(tenant, subject), Numbers: logs}}}
		e.Evaluate(context.Background(), call)
		require.NoError(t, call.Err)
		return call
	}
	for i := range 9_000 {
		now += 10
		for subject := range 10 {
			v := ask(greedy, subject).Outcome.Verdicts[0]
			require.True(t, v.Allowed)
			require.EqualValues(t, logs.Limit-int64(i)-1, v.Remaining, "each request is counted")
		}
		if i < 100 {
			ask(modest, 0)
		}
	}
	held := int64(0)
	for i := range e.shards {
		for _, c := range e.shards[i].all {
			if c.ofTenant == e.tenants[greedy] {
				held += c.state.(limit.Growing).Entries()
			}
		}
	}
	require.LessOrEqual(t, held, int64(2*perTenant), "the last one of each counter may double its memory")
	require.GreaterOrEqual(t, held, int64(perTenant))
	require.EqualValues(t, held-10*entriesOfCounter, e.tenants[greedy].entries.Load())
	for range 100 {
		now++
		ask(modest, 0)
	}
	require.Positive(t, e.tenants[modest].entries.Load())
	require.Less(t, e.tenants[modest].entries.Load(), int64(perTenant))
	others := e.tenants[greedy]

	now += 2 * logs.WindowMS
	for subject := range 2_000 {
		ask(modest, 100+subject)
	}
	require.Zero(t, others.entries.Load(), "they have expired")
}
