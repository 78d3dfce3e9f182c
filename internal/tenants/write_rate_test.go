package tenants_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// A tenant that writes in a loop is refused, with the time to wait; others are not affected.
func TestWriteRates(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: 1_900_000_000_000}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now, WriteRates: tenants.WriteRates{Writes: 4, Resets: 1}})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	admit := func(who tenants.Actor, kind tenants.WriteKind) time.Duration {
		t.Helper()
		err := d.Store.AdmitWrite(t.Context(), who, kind)
		if err == nil {
			return 0
		}
		var often *tenants.TooOftenError
		require.ErrorAs(t, err, &often)
		require.Positive(t, often.RetryAfter)
		return often.RetryAfter
	}
	for range 10 {
		require.Zero(t, admit(a, tenants.ResetWrite))
	}
	wait := admit(a, tenants.ResetWrite)
	require.Equal(t, time.Second, wait)
	for range 30 {
		require.Zero(t, admit(a, tenants.OrdinaryWrite), "a refused reset does not count as a write")
	}
	require.Equal(t, 250*time.Millisecond, admit(a, tenants.OrdinaryWrite))
	require.Equal(t, time.Second, admit(a, tenants.ResetWrite), "the longer of the two waits")
	require.Zero(t, admit(b, tenants.ResetWrite))
	now.nowMS += 249
	require.NotZero(t, admit(a, tenants.OrdinaryWrite))
	now.nowMS++
	require.Zero(t, admit(a, tenants.OrdinaryWrite), "at the reported time")
	require.NotZero(t, admit(a, tenants.OrdinaryWrite))

	now.nowMS += time.Hour.Milliseconds()
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				if d.Store.AdmitWrite(t.Context(), a, tenants.OrdinaryWrite) == nil {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 40, admitted.Load(), "exact, with any number of concurrent writes")
}

// Without a limit, nothing is counted.
func TestWriteRatesUnbounded(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: 1_900_000_000_000}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now, WriteRates: tenants.WriteRates{Resets: 1}})
	a, _ := d.Tenant("tenant-a")
	for range 1000 {
		require.NoError(t, d.Store.AdmitWrite(t.Context(), a, tenants.OrdinaryWrite))
	}
	for range 10 {
		require.NoError(t, d.Store.AdmitWrite(t.Context(), a, tenants.ResetWrite))
	}
	require.Error(t, d.Store.AdmitWrite(t.Context(), a, tenants.ResetWrite))
}

// A stolen key that writes all the time, also revocations, does not keep others from revoking it,
// and neither do customers keep members from writing.
func TestWritesHoldOffNoRevocation(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: 1_900_000_000_000}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now, WriteRates: tenants.WriteRates{Writes: 4, Resets: 1}})
	a, _ := d.Tenant("tenant-a")
	_, secret, err := d.Store.CreateKey(t.Context(), a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	stolen, owner := d.Actor(secret), asMember(t, d, a, "ann@example.com", tenants.Owner)
	flood := func(who tenants.Actor, kind tenants.WriteKind, want int) {
		t.Helper()
		n := 0
		for d.Store.AdmitWrite(t.Context(), who, kind) == nil {
			n++
			require.LessOrEqual(t, n, want)
		}
		require.Equal(t, want, n)
	}
	flood(stolen, tenants.CustomerWrite, 40)
	require.NoError(t, d.Store.AdmitWrite(t.Context(), owner, tenants.OrdinaryWrite))
	flood(stolen, tenants.OrdinaryWrite, 39)
	flood(stolen, tenants.EndWrite, 10)
	require.Error(t, d.Store.AdmitWrite(t.Context(), owner, tenants.OrdinaryWrite))
	require.NoError(t, d.Store.AdmitWrite(t.Context(), owner, tenants.EndWrite))
	now.nowMS += time.Second.Milliseconds()
	require.NoError(t, d.Store.AdmitWrite(t.Context(), stolen, tenants.EndWrite))
}
