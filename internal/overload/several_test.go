package overload

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// Requests of two tenants are noticed at the end of their Interval, and for a second after the
// last.
func TestSeveralTenantsAreNoticed(t *testing.T) {
	b := New(1000, 2, time.Second)
	one, other := limit.TenantID{1}, limit.TenantID{2}
	interval := func(tenants ...limit.TenantID) bool {
		for _, tenant := range tenants {
			b.Note(tenant)
		}
		b.Adjust(Signals{InFlight: 1})
		return b.Several()
	}
	require.False(t, interval())
	require.False(t, interval(one, one))
	require.False(t, interval(other), "one after the other")
	require.True(t, interval(one, one, other, one))
	for range severalFor - 1 {
		require.True(t, interval(one))
	}
	require.False(t, interval(one))
	require.Zero(t, testing.AllocsPerRun(10, func() { b.Note(one) }))
}
