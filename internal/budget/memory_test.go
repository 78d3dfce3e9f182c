package budget_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/budget"
	"weir/internal/limit"
)

const megabyte = 1000 * kilobyte

// writeLarge writes records of 100 kilobytes until the budget refuses one, and returns their bytes.
func writeLarge(t *testing.T, b *budget.Budget, tenant limit.TenantID, most int64) (bytes int64) {
	t.Helper()
	const size = 100 * kilobyte
	for bytes < most {
		hold, err := b.Reserve(tenant, size)
		if err != nil {
			return bytes
		}
		hold.Wrote(size, time.Minute)
		bytes += size
	}
	return bytes
}

// Records do not fill Redis beyond 90 % of its memory, however much tenants may have, also if each
// instance has other tenants, and if they are on several masters. Those with fewer bytes than the
// largest ones get their records.
func TestMemoryBoundsRecords(t *testing.T) {
	t.Parallel()
	const memory, other = 1000 * megabyte, 750 * megabyte
	for _, servers := range []int{1, 3} {
		f := newFleet(t, int64(servers)*memory)
		f.n = 2
		instances := []*budget.Budget{f.instance(), f.instance()}
		large := []limit.TenantID{uuid.New(), uuid.New()}
		fair := uuid.New()
		records, fairBytes := int64(0), int64(0)
		used := func() int64 { return other + records/int64(servers) }
		for range 40 { // seconds
			now := used()
			for _, b := range instances {
				b.Measured(now, memory, servers)
				b.Look(t.Context())
			}
			for i, b := range instances {
				records += writeLarge(t, b, large[i], memory)
			}
			written := writeLarge(t, instances[0], fair, 200*kilobyte)
			records, fairBytes = records+written, fairBytes+written
			require.Less(t, used(), int64(900*megabyte))
			f.now.Add(int64(time.Second))
		}
		require.Greater(t, used(), int64(870*megabyte), "most of the room is used, on %d servers", servers)
		require.EqualValues(t, 40*200*kilobyte, fairBytes, "none of the smaller tenant is refused")
		require.Zero(t, writeLarge(t, instances[0], large[0], memory))
	}
}

// Small records are written until 97 % of the memory are in use, and then none.
func TestMemoryForSmallRecords(t *testing.T) {
	t.Parallel()
	const memory = 1000 * megabyte
	f := newFleet(t, memory)
	b := f.instance()
	known, fresh := uuid.New(), uuid.New()
	b.Measured(500*megabyte, memory, 1)
	for range 2 { // together more than the part of records
		require.Greater(t, writeLarge(t, b, uuid.New(), memory), int64(20*megabyte))
	}
	b.Measured(969*megabyte, memory, 1)
	require.Equal(t, 102, write(t, b, known, 1000))
	b.Look(t.Context())
	require.Zero(t, write(t, b, known, 1000))
	b.Measured(971*megabyte, memory, 1)
	require.Zero(t, write(t, b, fresh, 1000))
	_, full := b.Alive()
	require.Equal(t, 4, full)
	b.Measured(0, 0, 0) // it has no maximum
	f.now.Add(int64(time.Second))
	b.Look(t.Context())
	require.Equal(t, 1000, write(t, b, known, 1000))
	require.Equal(t, 1000, write(t, b, fresh, 1000))
}

// Until the memory is read again, an instance writes half of its share of what is left, besides
// small records, for however many tenants, and however often it reads what the others have written.
// Each tenant is granted a part of that.
func TestRecordsBetweenTwoReadings(t *testing.T) {
	t.Parallel()
	const memory, tenants = 1000 * megabyte, 20
	f := newFleet(t, memory)
	f.n = 2
	b := f.instance()
	b.Measured(500*megabyte, memory, 1) // 400 are left, so 100 of them may be written
	first := writeLarge(t, b, uuid.New(), memory)
	require.InDelta(t, 100*megabyte/8, first, megabyte)
	all := first
	for range tenants {
		tenant := uuid.New()
		for range 10 {
			all += writeLarge(t, b, tenant, memory)
			b.Look(t.Context())
		}
	}
	require.Greater(t, all, int64(95*megabyte))
	require.LessOrEqual(t, all, int64(100*megabyte+tenants*100<<10))
	b.Measured(500*megabyte+all, memory, 1)
	b.Look(t.Context())
	require.Positive(t, writeLarge(t, b, uuid.New(), memory), "after the next reading")
}

// Counters may use more of the memory than records, and do not keep them out: records have a part
// of their own on each master, which tenants share.
func TestRecordsHaveTheirOwnPart(t *testing.T) {
	t.Parallel()
	const memory, counters = 1000 * megabyte, 910 * megabyte
	for _, servers := range []int64{1, 3} {
		f := newFleet(t, memory)
		b := f.instance()
		large := []limit.TenantID{uuid.New(), uuid.New()}
		measure := func() (records int64) {
			records, _ = b.Alive()
			b.Measured(counters+records/servers, memory, int(servers))
			b.Look(t.Context())
			return records
		}
		for range 60 { // seconds, in which nothing expires
			measure()
			for _, tenant := range large {
				writeLarge(t, b, tenant, memory)
			}
		}
		records := measure()
		require.Greater(t, records, servers*20*megabyte)
		require.Less(t, records, servers*30*megabyte)
		require.Positive(t, writeLarge(t, b, uuid.New(), 200*kilobyte), "the largest ones are bounded first")
		b.Measured(971*megabyte, memory, int(servers))
		require.Zero(t, writeLarge(t, b, uuid.New(), memory))
	}
}

// Tenants that write as many records as they can, while counters have all of the memory that they
// may have, keep no record out of others that have less than their share.
func TestLargestTenantsLeaveRecordsToOthers(t *testing.T) {
	t.Parallel()
	const memory, counters = 256 * megabyte, 233 * megabyte
	for attackers, each := range []int{10, 10, 5, 4, 3} { // kilobytes in a quarter of a second
		f := newFleet(t, memory)
		b := f.instance()
		var large []limit.TenantID
		for range attackers {
			large = append(large, uuid.New())
		}
		neighbour := uuid.New()
		for second := range 150 {
			records, _ := b.Alive()
			b.Measured(counters+records, memory, 1)
			require.Less(t, counters+records, int64(memory*96/100))
			for range 4 { // the hashes of tenants that write are read often
				b.Look(t.Context())
				for _, tenant := range large {
					writeLarge(t, b, tenant, memory)
				}
				f.now.Add(int64(time.Second / 4))
				require.Equal(t, each, write(t, b, neighbour, each), "%d attackers, second %d", attackers, second)
			}
			require.Equal(t, 5, write(t, b, uuid.New(), 5), "a new tenant")
		}
	}
}
