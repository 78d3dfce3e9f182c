package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// A grant is one atomic operation. It allocates nothing, and never grants more than the lease has.
func TestLeaseGrants(t *testing.T) {
	now := time.UnixMilli(engineStart)
	counters := []Counter{{Key: "w{a}k", Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 10_000, WindowMS: 60_000}}}
	call := &Call{Cost: 1_001, Counters: counters, Outcome: Outcome{NowMS: engineStart, Allowed: true, Verdicts: []limit.Verdict{{Allowed: true, Remaining: 8_999, ResetMS: engineStart + 60_000}}}}
	l := newLease(counters, call, 1_000, ownTerms(counters, 1_000, now))
	require.Zero(t, testing.AllocsPerRun(100, func() { l.grant(now, 3) }))
	left := l.left.Load()
	_, ok := l.grant(now, left+1)
	require.False(t, ok)
	rest, ok := l.grant(now, left)
	require.True(t, ok)
	require.Zero(t, rest)
	_, ok = l.end()
	require.True(t, ok)
	_, ok = l.end()
	require.False(t, ok, "the units are returned once")

	older := newLease(counters, call, 5, ownTerms(counters, 5, now))
	l = newLease(counters, call, 10, ownTerms(counters, 10, now))
	l.older.Store(older)
	rest, ok = l.grant(now, 5)
	require.True(t, ok)
	require.EqualValues(t, 10, rest, "the older lease first")
	_, ok = l.grant(now.Add(limit.LeaseHold), 1)
	require.False(t, ok)
}

// A slow reply shortens the lease, because the store's clock is only known relative to the time of
// the call.
func TestLeaseEndsWithItsWindow(t *testing.T) {
	counters := []Counter{{Key: "w{a}k", Numbers: limit.Numbers{Algorithm: limit.SlidingWindowBuckets, Limit: 100, WindowMS: 1_000, PrecisionMS: 100}}}
	call := &Call{Cost: 11, Counters: counters, Outcome: Outcome{NowMS: engineStart + 60, Allowed: true, Verdicts: []limit.Verdict{{Allowed: true, Remaining: 89, ResetMS: engineStart + 1_000}}}}
	sent := time.UnixMilli(engineStart + 50_000) // the clocks may differ
	l := newLease(counters, call, 10, ownTerms(counters, 10, sent))
	require.True(t, l.live(sent.Add(38*time.Millisecond)))
	require.False(t, l.live(sent.Add(39*time.Millisecond)), "40 ms of the part remain, minus the rounding of the store's clock")
	asleep := time.Now()
	l = newLease(counters, call, 10, ownTerms(counters, 10, asleep))
	l.wallMS -= 3_600_000
	require.False(t, l.live(asleep), "the wall clock advanced while the machine was asleep")
}
