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
	return tenants.ExportPlacesOf(8, func() time.Time { return clock.now }), clock
}

// Two tenants that begin another export as soon as one has ended do not keep out others, which get
// the next places in the order in which they were refused.
func TestExportsTakeTurns(t *testing.T) {
	t.Parallel()
	p, clock := exportPlaces()
	a, b, c, d := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	take := func(tenant uuid.UUID) func() {
		place, err := p.Take(tenant)
		require.NoError(t, err)
		return place.Leave
	}
	refused := func(all ...uuid.UUID) {
		for _, tenant := range all {
			_, err := p.Take(tenant)
			require.ErrorIs(t, err, tenants.ErrTooManyExports)
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
	take := func() *tenants.ExportPlace {
		place, err := p.Take(uuid.New())
		require.NoError(t, err)
		return place
	}
	slowPlace := take()
	slow, fast := slowPlace.Pace(clock), take().Pace(clock)
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
	third := take().Pace(clock)
	require.NoError(t, next(slow), "all places are taken, but no other waits")
	waits := uuid.New()
	refused := func(tenant uuid.UUID) {
		_, err := p.Take(tenant)
		require.ErrorIs(t, err, tenants.ErrTooManyExports)
	}
	refused(waits)
	for range 6 {
		require.NoError(t, next(slow), "for half a minute from now on")
		require.Equal(t, 5*time.Second, within)
		read(slow, 100, 5*time.Second)
		require.NoError(t, next(fast))
		read(fast, 2<<20, 5*time.Second)
		refused(waits)
	}
	read(slow, 100, time.Second)
	require.Error(t, next(slow))
	require.NoError(t, next(fast))
	slowPlace.Leave()
	require.NoError(t, next(third), "there is a place for the other one")
	require.Equal(t, 30*time.Second, within)

	place, err := p.Take(waits)
	require.NoError(t, err)
	begun, other := place.Pace(clock), uuid.New()
	for range 6 {
		refused(other)
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

// A client that reads at the sufficient rate has five minutes while tenants wait.
func TestExportsEndForOthersInTime(t *testing.T) {
	t.Parallel()
	p, clock := exportPlaces()
	var pace *tenants.ExportPace
	for range 3 {
		place, err := p.Take(uuid.New())
		require.NoError(t, err)
		pace = place.Pace(clock)
	}
	waits := uuid.New()
	clock.took = 2 * time.Second
	read := func(waiting bool) error {
		if waiting {
			_, err := p.Take(waits)
			require.ErrorIs(t, err, tenants.ErrTooManyExports)
		}
		if err := pace.Next(func(time.Duration) {}); err != nil {
			return err
		}
		_, err := pace.Write(make([]byte, 1<<20))
		require.NoError(t, err)
		return nil
	}
	for range 60 {
		require.NoError(t, read(true))
	}
	clock.now = clock.now.Add(time.Minute) // the other one has given up
	for range 1000 {
		require.NoError(t, read(false))
	}
	for range 90 {
		require.NoError(t, read(true))
	}
	require.NoError(t, read(true), "after just five minutes")
	require.Error(t, read(true))
}

// The last piece has a deadline only: all others were sent already.
func TestLastPieceOfAnExport(t *testing.T) {
	t.Parallel()
	p, clock := exportPlaces()
	var paces []*tenants.ExportPace
	a := uuid.New()
	for _, tenant := range []uuid.UUID{a, a, uuid.New()} {
		place, err := p.Take(tenant)
		require.NoError(t, err)
		paces = append(paces, place.Pace(clock))
	}
	var within time.Duration
	deadline := func(d time.Duration) { within = d }
	for _, pace := range paces {
		pace.Last(deadline)
		require.Equal(t, 30*time.Second, within)
	}
	for range 3 {
		_, err := p.Take(uuid.New())
		require.ErrorIs(t, err, tenants.ErrTooManyExports)
		require.NoError(t, paces[0].Next(deadline))
		clock.took = 12 * time.Second
		_, err = paces[0].Write([]byte{1})
		require.NoError(t, err)
	}
	paces[0].Last(deadline)
	require.Equal(t, 5*time.Second, within)
	require.Error(t, paces[0].Next(deadline))
}

// The second export of a tenant ends before the only one of another tenant, however fast it is
// read, half a minute after somebody has begun to wait. If the first one has left by then, it is
// the only one.
func TestSecondExportsEndFirst(t *testing.T) {
	t.Parallel()
	for _, firstLeaves := range []bool{false, true} {
		p, clock := exportPlaces()
		a, waits := uuid.New(), uuid.New()
		var all []*tenants.ExportPlace
		var paces []*tenants.ExportPace
		for _, tenant := range []uuid.UUID{a, a, uuid.New()} {
			place, err := p.Take(tenant)
			require.NoError(t, err)
			all, paces = append(all, place), append(paces, place.Pace(clock))
		}
		clock.took = time.Second
		read := func() (ended []int) {
			_, err := p.Take(waits)
			require.ErrorIs(t, err, tenants.ErrTooManyExports)
			for i, pace := range paces {
				if pace.Next(func(time.Duration) {}) != nil {
					ended = append(ended, i)
					continue
				}
				_, err := pace.Write(make([]byte, 1<<20))
				require.NoError(t, err)
			}
			return ended
		}
		for range 10 { // of three seconds
			require.Empty(t, read())
		}
		if !firstLeaves {
			require.Equal(t, []int{1}, read())
			continue
		}
		all[0].Leave()
		place, err := p.Take(waits)
		require.NoError(t, err)
		paces = append(paces[1:], place.Pace(clock))
		waits = uuid.New()
		for range 2 {
			require.Empty(t, read(), "it is the only one now")
		}
	}
}

// For one tenant that waits, one export ends, and not all that may end at this time: neither by
// their deadlines nor because the one that ends still has its place.
func TestOneExportEndsForOneTenant(t *testing.T) {
	t.Parallel()
	clock := &exportClock{now: time.Unix(1_800_000_000, 0)}
	p := tenants.NewExportPlaces(4, 2, func() time.Time { return clock.now })
	a, b, waits := uuid.New(), uuid.New(), uuid.New()
	var all []*tenants.ExportPlace
	var paces []*tenants.ExportPace
	for _, tenant := range []uuid.UUID{a, a, b, b} {
		place, err := p.Take(tenant)
		require.NoError(t, err)
		all, paces = append(all, place), append(paces, place.Pace(clock))
	}
	refused := func() {
		_, err := p.Take(waits)
		require.ErrorIs(t, err, tenants.ErrTooManyExports)
	}
	next := func(i int) (within time.Duration, err error) {
		err = paces[i].Next(func(d time.Duration) { within = d })
		return within, err
	}
	for _, after := range []time.Duration{0, 10 * time.Second, 10 * time.Second, 9 * time.Second} {
		clock.now = clock.now.Add(after)
		refused()
		for i := range paces {
			within, err := next(i)
			require.NoError(t, err)
			require.Equal(t, 5*time.Second, within)
		}
	}
	clock.now = clock.now.Add(time.Second)
	_, err := next(1)
	require.ErrorIs(t, err, tenants.ErrExportEnds)
	for range 2 {
		within, err := next(3)
		require.NoError(t, err, "another one ends")
		require.Equal(t, 30*time.Second, within)
		if all[1] != nil {
			all[1].Leave()
			all[1] = nil
		}
	}
	_, err = p.Take(waits)
	require.NoError(t, err)
	waits = uuid.New()
	refused()
	_, err = next(3)
	require.NoError(t, err)
	clock.now = clock.now.Add(time.Second)
	_, err = next(3)
	require.Error(t, err, "this one ends for the next one that waits")
}

// The time in which a client reads slowly counts from when a tenant waits, again for each time.
func TestSlowExportsOfEachTime(t *testing.T) {
	t.Parallel()
	clock := &exportClock{now: time.Unix(1_800_000_000, 0)}
	p := tenants.NewExportPlaces(2, 2, func() time.Time { return clock.now })
	place, err := p.Take(uuid.New())
	require.NoError(t, err)
	other, err := p.Take(uuid.New())
	require.NoError(t, err)
	pace := place.Pace(clock)
	read := func(within time.Duration) {
		require.NoError(t, pace.Next(func(d time.Duration) { require.Equal(t, within, d) }))
		clock.took = 4 * time.Second
		_, err := pace.Write([]byte{1})
		require.NoError(t, err)
	}
	for range 2 {
		waits := uuid.New()
		for range 5 {
			_, err = p.Take(waits)
			require.ErrorIs(t, err, tenants.ErrTooManyExports)
			read(5 * time.Second)
		}
		other.Leave()
		other, err = p.Take(waits)
		require.NoError(t, err)
		for range 10 {
			read(30 * time.Second)
		}
	}
}

// SendPages sends all pages. It ends when a slow client keeps out another tenant, but not when only
// the last page is left.
func TestSendPages(t *testing.T) {
	t.Parallel()
	clock := &exportClock{now: time.Unix(1_800_000_000, 0)}
	p := tenants.NewExportPlaces(1, 1, func() time.Time { return clock.now })
	send := func(pages int) (sent int, err error) {
		place, err := p.Take(uuid.New())
		require.NoError(t, err)
		defer place.Leave()
		pace, waits, reads := place.Pace(clock), uuid.New(), 1
		next := func() string {
			if reads == pages {
				return ""
			}
			return "more"
		}
		err = tenants.SendPages(pace, func(time.Duration) {}, []int{1, 1}, next(), func(rows []int) error {
			_, err := p.Take(waits)
			require.ErrorIs(t, err, tenants.ErrTooManyExports)
			sent += len(rows)
			_, err = pace.Write([]byte{1})
			return err
		}, func(page tenants.Page) ([]int, string, error) {
			require.Equal(t, "more", page.After)
			require.Equal(t, 4, page.Limit, "twice as many")
			reads++
			return []int{1, 1}, next(), nil
		})
		return sent, err
	}
	clock.took = 12 * time.Second // three of them are more than the client may take
	sent, err := send(4)
	require.NoError(t, err)
	require.Equal(t, 8, sent)
	clock.now = clock.now.Add(time.Minute)
	sent, err = send(6)
	require.ErrorIs(t, err, tenants.ErrExportUnread)
	require.Equal(t, 8, sent)
}

// An export of the database that also has a place among files that are sent ends for tenants that
// wait for either. If some wait for both, one export ends for both.
func TestExportsEndForThoseWhoWaitForFiles(t *testing.T) {
	t.Parallel()
	clock := &exportClock{now: time.Unix(1_800_000_000, 0)}
	places := func(most int) *tenants.ExportPlaces {
		return tenants.NewExportPlaces(most, 2, func() time.Time { return clock.now })
	}
	begin := func(tenant uuid.UUID, base, files *tenants.ExportPlaces) *tenants.ExportPace {
		file, err := files.Take(tenant)
		require.NoError(t, err)
		place, err := base.Take(tenant)
		require.NoError(t, err)
		return place.Pace(clock).Beside(file)
	}
	refused := func(tenant uuid.UUID, all ...*tenants.ExportPlaces) {
		for _, p := range all {
			_, err := p.Take(tenant)
			require.ErrorIs(t, err, tenants.ErrTooManyExports)
		}
	}
	next := func(pace *tenants.ExportPace, want time.Duration) {
		t.Helper()
		require.NoError(t, pace.Next(func(within time.Duration) { require.Equal(t, want, within) }))
		pace.Last(func(within time.Duration) { require.Equal(t, want, within) })
	}
	ends := func(pace *tenants.ExportPace) {
		t.Helper()
		require.ErrorIs(t, pace.Next(func(time.Duration) {}), tenants.ErrExportEnds)
	}
	const long, short = 30 * time.Second, 5 * time.Second

	base, files := places(3), places(2)
	a, waits := uuid.New(), uuid.New()
	first, second := begin(a, base, files), begin(a, base, files)
	next(second, long)
	for range 3 {
		refused(waits, files)
		next(first, short)
		next(second, short)
		clock.now = clock.now.Add(10 * time.Second)
	}
	refused(waits, files)
	next(first, short)
	ends(second)
	next(first, long)

	base, files = places(2), places(2)
	first, second = begin(a, base, files), begin(uuid.New(), base, files)
	for range 30 {
		refused(waits, base, files)
		next(first, short)
		next(second, short)
		clock.now = clock.now.Add(10 * time.Second)
	}
	refused(waits, base, files)
	ends(first)
	next(second, long)
	waits = uuid.New()
	refused(waits, files)
	next(second, short)
	clock.now = clock.now.Add(10 * time.Second)
	refused(waits, files)
	ends(second)
}
