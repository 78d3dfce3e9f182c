package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An instance answers from Redis, waits for an answer that does not come, and no longer asks then.
func TestUncertain(t *testing.T) {
	const gap = 10 * time.Millisecond
	record := func(n int, took time.Duration, degraded bool) record {
		at := time.Duration(n) * gap
		return record{at: at, sent: at, took: took, allowed: true, degraded: degraded, stream: tallyStream}
	}
	h := &history{}
	for n := range 5 {
		h.records = append(h.records, record(n, time.Millisecond, false))
	}
	h.records = append(h.records, record(5, 50*time.Millisecond, true)) // asked, no answer
	for n := 6; n < 20; n++ {
		h.records = append(h.records, record(n, time.Millisecond, true))
	}
	failed := record(20, time.Millisecond, false)
	failed.failure = "connection reset"
	h.records = append(h.records, failed, record(21, 30*time.Millisecond, true))
	other := record(22, 50*time.Millisecond, true)
	other.stream = tallyStream + 1
	h.records = append(h.records, other)
	var at []int
	for _, r := range h.uncertain() {
		at = append(at, int(r.at/gap))
	}
	// The answers 6 to 10 came at once, but five degraded answers in a row are known only then.
	require.Equal(t, []int{5, 6, 7, 8, 9, 10, 20, 21}, at)
}

func TestLockOut(t *testing.T) {
	h := &history{}
	add := func(subject int, allowed ...bool) {
		for n, a := range allowed {
			h.records = append(h.records, record{subject: subject, at: time.Duration(n) * time.Second, allowed: a})
		}
	}
	add(1, true, false, false, false, true, false)
	longest, open := h.lockOut()
	require.Equal(t, 3*time.Second, longest)
	require.False(t, open)
	add(2, true, false, false, false, false, false)
	longest, open = h.lockOut()
	require.Equal(t, 4*time.Second, longest)
	require.True(t, open, "it lasted until the last record")
}

// A case that has nothing to judge fails, and so does one that exceeds a bound.
func TestMeasurementsFail(t *testing.T) {
	for name, check := range map[string]func(*measurement){
		"no window":        func(m *measurement) { m.limitHeld("", nil) },
		"over":             func(m *measurement) { m.limitHeld("", []window{{allowed: probeLimit + 1}}) },
		"under":            func(m *measurement) { m.limitHeld("", []window{{allowed: probeLimit - 1, denied: 1}}) },
		"nothing occurred": func(m *measurement) { m.some("failovers", 0) },
		"a leak":           func(m *measurement) { m.bounded("goroutines", 101, 10, 100, "") },
	} {
		inner := &testing.T{}
		check(&measurement{T: inner, id: name})
		require.True(t, inner.Failed(), name)
	}
}
