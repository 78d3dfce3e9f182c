package tenants_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// exportClock is the time of exports, and a client: each write takes it some time to read.
type exportClock struct {
	now  time.Time
	took time.Duration
}

func (c *exportClock) Write(b []byte) (int, error) {
	c.now = c.now.Add(c.took)
	return len(b), nil
}

// exportPlaces are three places, of which a tenant may have two.
func exportPlaces() (*tenants.ExportPlaces, *exportClock) {
	clock := &exportClock{now: time.Unix(1_800_000_000, 0)}
	return tenants.NewExportPlaces(8, func() time.Time { return clock.now }), clock
}

// Two tenants that begin another export as soon as one has ended do not keep out others, which get
// the next places in the order in which they were refused.
func TestExportsTakeTurns(t *testing.T) {
	t.Parallel()
	p, clock := exportPlaces()
	a, b, c, d := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	take := func(tenant uuid.UUID) func() {
		leave, ok := p.Take(tenant)
		require.True(t, ok)
		return leave
	}
	refused := func(tenants ...uuid.UUID) {
		for _, tenant := range tenants {
			_, ok := p.Take(tenant)
			require.False(t, ok)
		}
	}
	first, second, third := take(a), take(a), take(b)
	refused(c, d, c)
	first()
	refused(a, d)
	first = take(c)
	second()
	refused(a, b)
	take(d)()
	second = take(a)
	first() // of c
	third() // of b
	third = take(b)
	first = take(a)
	refused(c)
	clock.now = clock.now.Add(15 * time.Second)
	first()
	take(a)() // c has given up
	second()
	third()
	for range 2 {
		take(a)
	}
	refused(a)
	take(b)
}

// While a tenant waits for a place, a client that reads slowly has half a minute from then on, and
// one with a sufficient rate may read for as long as it wants. While no other waits, each may.
func TestSlowExportsEndForOthers(t *testing.T) {
	t.Parallel()
	p, clock := exportPlaces()
	slow, fast := p.Pace(clock), p.Pace(clock)
	var within time.Duration
	next := func(pace *tenants.ExportPace) error {
		return pace.Next(func(d time.Duration) { within = d })
	}
	read := func(pace *tenants.ExportPace, size int, took time.Duration) {
		clock.took = took
		n, err := pace.Write(make([]byte, size))
		require.NoError(t, err)
		require.Equal(t, size, n)
	}
	for range 20 {
		require.NoError(t, next(slow))
		require.Equal(t, 30*time.Second, within, "no other waits")
		read(slow, 100, 20*time.Second)
		require.NoError(t, next(fast))
		read(fast, 10<<20, 10*time.Second)
	}
	var leave func()
	for range 3 {
		leave, _ = p.Take(uuid.New())
	}
	require.NoError(t, next(slow), "all places are taken, but no other waits")
	waits := uuid.New()
	_, ok := p.Take(waits)
	require.False(t, ok)
	for range 6 {
		require.NoError(t, next(slow), "for half a minute from now on")
		require.Equal(t, 5*time.Second, within)
		read(slow, 100, 5*time.Second)
		require.NoError(t, next(fast))
		read(fast, 2<<20, 5*time.Second)
		_, ok = p.Take(waits)
		require.False(t, ok)
	}
	read(slow, 100, time.Second)
	require.Error(t, next(slow))
	require.NoError(t, next(fast))
	leave()
	require.NoError(t, next(slow), "there is a place for the other one")

	begun, other := p.Pace(clock), uuid.New()
	_, ok = p.Take(waits)
	require.True(t, ok)
	for range 6 {
		_, ok = p.Take(other)
		require.False(t, ok)
		require.NoError(t, next(begun))
		clock.now = clock.now.Add(time.Second) // of the database, which does not count
		read(begun, 100, 5*time.Second)
	}
	require.NoError(t, next(begun))
	require.Less(t, within, 3*time.Millisecond, "for the bytes that were read")
	read(begun, 100, within)
	require.NoError(t, next(begun))
	read(begun, 100, time.Second)
	require.Error(t, next(begun))
}
