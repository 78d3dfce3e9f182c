package budget_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/budget"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// fleet has instances that share a Redis.
type fleet struct {
	client redis.UniversalClient
	n      int
	bound  int64
	now    atomic.Int64 // nanoseconds since begun
	begun  time.Time
}

func newFleet(t *testing.T, bound int64) *fleet {
	return &fleet{client: testenv.RedisClient(t), n: 1, bound: bound, begun: time.Now()}
}

func (f *fleet) instance() *budget.Budget {
	return budget.New(budget.Options{
		Client: f.client, Prefix: func(limit.TenantID) string { return "w{ab}" }, Instances: func() int { return f.n },
		Bound: func(limit.TenantID) (int64, bool) { return f.bound, true },
		Now:   func() time.Time { return f.begun.Add(time.Duration(f.now.Load())) },
	})
}

const kilobyte = 1000

// write writes records of a kilobyte until the budget refuses one, and returns how many.
func write(t *testing.T, b *budget.Budget, tenant limit.TenantID, most int) (n int) {
	t.Helper()
	for ; n < most; n++ {
		hold, err := b.Reserve(tenant, kilobyte)
		if full := (*budget.FullError)(nil); errors.As(err, &full) {
			require.Positive(t, full.Wait)
			require.LessOrEqual(t, full.Wait, 68*time.Second)
			return n
		}
		require.NoError(t, err)
		hold.Wrote(kilobyte, time.Minute)
	}
	return n
}

// A tenant may have records up to its bound, until they expire. Other tenants are not affected.
func TestRecordsOfATenantAreBounded(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 100*kilobyte)
	b := f.instance()
	tenant, other := uuid.New(), uuid.New()
	require.Equal(t, 50, write(t, b, tenant, 1000), "a part, until the first look")
	b.Look(t.Context())
	require.Equal(t, 50, write(t, b, tenant, 1000))
	b.Look(t.Context())
	require.Zero(t, write(t, b, tenant, 1000))
	require.EqualValues(t, 3, b.Refused())
	require.Equal(t, 50, write(t, b, other, 1000), "another tenant")

	bytes, full := b.Alive()
	require.EqualValues(t, 150*kilobyte, bytes)
	require.Equal(t, 2, full)

	f.now.Add(int64(50 * time.Second))
	b.Look(t.Context())
	require.Zero(t, write(t, b, tenant, 1000), "nothing has expired")
	f.now.Add(int64(18 * time.Second)) // in all, the minute and two periods
	require.Equal(t, 100, write(t, b, tenant, 1000), "without another look")
}

// All instances together stay within the bound, and nearly reach it, also if one has most of the
// requests. An instance that has just started learns what the others have written.
func TestInstancesShareTheBudget(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1000*kilobyte)
	f.n = 3
	a, b := f.instance(), f.instance()
	tenant := uuid.New()
	sum := 0
	for range 40 {
		sum += write(t, a, tenant, 1000)
		a.Look(t.Context())
		sum += write(t, b, tenant, 3)
		b.Look(t.Context())
		f.now.Add(int64(time.Second))
		require.LessOrEqual(t, sum, 1000)
	}
	require.Greater(t, sum, 950)
	c := f.instance()
	_ = write(t, c, tenant, 1) // it does not know the tenant before
	c.Look(t.Context())
	require.LessOrEqual(t, write(t, c, tenant, 1000), 10)
}

// Many requests at the same time do not exceed the bound, and what they do not write is returned.
func TestReservations(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 100*kilobyte)
	b := f.instance()
	tenant := uuid.New()
	_ = write(t, b, tenant, 1)
	b.Look(t.Context())
	var all sync.WaitGroup
	var written atomic.Int64
	for i := range 8 {
		all.Go(func() {
			for n := range 200 {
				hold, err := b.Reserve(tenant, kilobyte)
				if err != nil {
					continue
				}
				if (n+i)%2 == 0 {
					hold.Cancel()
					hold.Cancel()
					continue
				}
				hold.Wrote(kilobyte, time.Minute)
				hold.Cancel() // as a deferred call does
				written.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 99, written.Load(), "all of the bound, and no more")
}

// Many requests at the same time, whose records are long, do not exceed the bound, also after some
// were refused, and whatever the tenant wrote before. Each reserved what the last records took, and
// less after each refusal.
func TestReservationsOfLongRecords(t *testing.T) {
	t.Parallel()
	const long = 40 * kilobyte
	f := newFleet(t, 100*long)
	b := f.instance()
	tenant := uuid.New()
	_ = write(t, b, tenant, 10)
	b.Look(t.Context())
	var holds []budget.Hold
	for range 200 {
		if hold, err := b.Reserve(tenant, long); err == nil {
			holds = append(holds, hold)
		}
	}
	require.Len(t, holds, 99)
	hold, err := b.Reserve(tenant, 10*kilobyte)
	require.NoError(t, err, "a shorter one fits")
	for _, hold := range append(holds, hold) {
		hold.Cancel()
	}
	again, err := b.Reserve(tenant, 99*long)
	require.NoError(t, err, "what was not written is returned")
	again.Cancel()
}

// Without a bound, and without a budget, nothing is refused.
func TestUnbounded(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	b := f.instance()
	tenant := uuid.New()
	for range 3 {
		require.Equal(t, 1000, write(t, b, tenant, 1000))
		b.Look(t.Context())
	}
	require.Equal(t, 10, write(t, nil, tenant, 10))
	f.bound = 10 * kilobyte // the tier has changed
	f.now.Add(int64(time.Second))
	b.Look(t.Context())
	require.Zero(t, write(t, b, tenant, 10))
}

// A tenant without records is forgotten, and begins again.
func TestIdleTenantsAreForgotten(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 100*kilobyte)
	b := f.instance()
	tenant := uuid.New()
	_ = write(t, b, tenant, 50)
	b.Look(t.Context())
	require.Equal(t, 1, b.Tenants())
	f.now.Add(int64(3 * time.Minute))
	b.Look(t.Context())
	require.Zero(t, b.Tenants())
	require.Equal(t, 50, write(t, b, tenant, 1000))
}

// The script counts what is alive by the clock of Redis, and ignores what cannot be right.
func TestRecordsOfOthers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 100*kilobyte)
	b := f.instance()
	tenant := uuid.New()
	key := "w{ab}r" + string(tenant[:])
	now, err := f.client.Time(t.Context()).Result()
	require.NoError(t, err)
	soon := now.Add(time.Minute).UnixMilli()
	require.NoError(t, f.client.HSet(t.Context(), key, map[string]string{
		"alive": fmt.Sprintf("1 500000 %d 30000 %d 20000", soon, soon+1), "ended": fmt.Sprintf("%d 90000", now.UnixMilli()-1),
		"never": fmt.Sprintf("%d 90000", soon+1e9), "huge": fmt.Sprintf("%d 99999999999999999999", soon), "text": "none",
	}).Err())
	_ = write(t, b, tenant, 1)
	b.Look(t.Context())
	require.Equal(t, 49, write(t, b, tenant, 1000), "50 KB belong to others, and 1 was written")
	b.Look(t.Context())
	fields, err := f.client.HKeys(t.Context(), key).Result()
	require.NoError(t, err)
	require.Len(t, fields, 2, "ended fields are removed")
	left, err := f.client.PTTL(t.Context(), key).Result()
	require.NoError(t, err)
	require.Positive(t, left)
	require.LessOrEqual(t, left, 68*time.Second)
}

// A record is counted with at least the memory that Redis reports for it.
func TestSizeOfRecords(t *testing.T) {
	t.Parallel()
	client := testenv.RedisClient(t)
	for _, n := range []int{1, 50, 300, 1000, 1500, 5000, 16_000, 60_000} {
		key := "w{" + strings.Repeat("0", 32) + "}size" + fmt.Sprint(n)
		require.NoError(t, client.Set(t.Context(), key, strings.Repeat("x", n), time.Minute).Err())
		used, err := client.MemoryUsage(t.Context(), key).Result()
		require.NoError(t, err)
		require.GreaterOrEqual(t, budget.Size(len(key), n), used, "%d bytes", n)
	}
}

// A record that is larger than the part of an instance is written after the next look, if the bound
// of the tenant allows it: it would be refused for ever.
func TestRecordLargerThanAPart(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1000*kilobyte)
	f.n = 8
	b, tenant := f.instance(), uuid.New()
	const large = 400 * kilobyte
	reserve := func() error {
		hold, err := b.Reserve(tenant, large)
		if err == nil {
			hold.Wrote(large, time.Minute)
		}
		return err
	}
	require.Error(t, reserve())
	b.Look(t.Context())
	require.NoError(t, reserve())
	require.Error(t, reserve())
	b.Look(t.Context())
	require.Error(t, reserve(), "other instances may write as much")
}
