package redis_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
)

const creditEntry = 29 // bytes of a grant in a value of credits.lua

// grantID returns the id of grant n.
func grantID(n int) (id limit.GrantID) {
	id[0] = 1
	binary.BigEndian.PutUint32(id[12:], uint32(n))
	return id
}

// creditCounter returns a counter without units in its window, whose subject has a grant.
func creditCounter(units int64) engine.Counter {
	key := enginetest.Prefix() + "k"
	return engine.Counter{
		Key: key, Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 1, WindowMS: 3_600_000},
		Credits: &engine.Credits{Key: key + "credits", Outbox: key + "outbox", Grants: []limit.Grant{{ID: grantID(0), Units: units}}},
	}
}

func spendCredits(t *testing.T, eng *redisengine.Engine, c engine.Counter, cost int64) limit.Verdict {
	t.Helper()
	call := &engine.Call{Cost: cost, Counters: []engine.Counter{c}}
	eng.Evaluate(t.Context(), call)
	require.NoError(t, call.Err)
	return call.Outcome.Verdicts[0]
}

// The value of a subject that gets and finishes grants for ever stays small, so each of its checks
// stays cheap for all who share its Redis.
func TestCreditsStaySmall(t *testing.T) {
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	c := creditCounter(1_000_000)
	spent := int64(0)
	for round := range 40 { // 2000 grants
		o := engine.Opening{
			Key: c.Credits.Key, Outbox: c.Credits.Outbox, Whole: true, AskedUS: int64(1000 + 10*round), ReadUS: int64(1005 + 10*round),
			Grants: []limit.Spent{{ID: grantID(0)}},
		}
		for n := range limit.MaxGrants {
			o.Grants = append(o.Grants, limit.Spent{ID: grantID(1 + limit.MaxGrants*round + n), Units: 1})
		}
		_, err := eng.OpenCredits(t.Context(), &o)
		require.NoError(t, err)
		spent += spendCredits(t, eng, c, 7).CreditsSpent
		size, err := client.StrLen(t.Context(), c.Credits.Key).Result()
		require.NoError(t, err)
		require.LessOrEqual(t, size, int64(1+creditEntry*(limit.MostKeptGrants+1)))
	}
	require.EqualValues(t, 40*7-1, spent, "the window has one unit")
	require.EqualValues(t, 1_000_000-spent, spendCredits(t, eng, c, 0).Credits)
}

// A value that earlier versions left with very many grants is not searched by checks. They report
// the grants as not open, and the opening keeps what was spent of those that matter.
func TestLongCreditsShrink(t *testing.T) {
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	c := creditCounter(100)
	value := []byte{26}
	for n := range 20_000 {
		id := grantID(20_000 - n - 1) // the live one is the last
		value = append(value, id[:]...)
		value = append(value, 30, 0, 0, 0, 0, 0, 0 /* spent */, 0, 0, 0, 0, 0, 0)
	}
	require.NoError(t, client.Set(t.Context(), c.Credits.Key, value, 0).Err())
	v := spendCredits(t, eng, c, 2)
	require.Equal(t, []any{false, true, limit.OpenedWithinMS}, []any{v.Allowed, v.Unopened, v.RetryAfterMS})
	opened, err := eng.OpenCredits(t.Context(), &engine.Opening{
		Key: c.Credits.Key, Outbox: c.Credits.Outbox, Whole: true, AskedUS: 1, ReadUS: 2, Grants: []limit.Spent{{ID: grantID(0), Units: 10}},
	})
	require.NoError(t, err)
	require.Zero(t, opened, "it was there")
	require.EqualValues(t, 70, spendCredits(t, eng, c, 0).Credits, "a total is never reduced")
	size, err := client.StrLen(t.Context(), c.Credits.Key).Result()
	require.NoError(t, err)
	require.EqualValues(t, 1+2*creditEntry, size)
}

// What was spent of a grant does not come back when the server returns with an older dump: from the
// moment at which the loss is seen, a check cannot spend until Postgres has told the totals.
func TestCreditsOfAnOlderDump(t *testing.T) {
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	c := creditCounter(100)
	open := func(asked, spent int64) int {
		opened, err := eng.OpenCredits(t.Context(), &engine.Opening{
			Key: c.Credits.Key, Outbox: c.Credits.Outbox, Whole: true, AskedUS: asked, ReadUS: asked + 1, Grants: []limit.Spent{{ID: grantID(0), Units: spent}},
		})
		require.NoError(t, err)
		return opened
	}
	require.Equal(t, 1, open(10, 0))
	require.EqualValues(t, 20, spendCredits(t, eng, c, 21).CreditsSpent)
	dump := client.Dump(t.Context(), c.Credits.Key).Val()
	require.EqualValues(t, 40, spendCredits(t, eng, c, 40).CreditsSpent)
	restore := func() {
		require.NoError(t, client.RestoreReplace(t.Context(), c.Credits.Key, 0, dump).Err())
	}

	restore()
	server := eng.Only()
	server.Lost(client.Time(t.Context()).Val().UnixMilli())
	v := spendCredits(t, eng, c, 60)
	require.Equal(t, []any{false, true, int64(0), limit.OpenedWithinMS}, []any{v.Allowed, v.Unopened, v.Credits, v.RetryAfterMS})
	require.Equal(t, 1, open(20, 60), "the total of Postgres is greater")
	v = spendCredits(t, eng, c, 60)
	require.Equal(t, []any{false, false, int64(40)}, []any{v.Allowed, v.Unopened, v.Credits})
	require.EqualValues(t, 40, spendCredits(t, eng, c, 40).CreditsSpent)
	require.Zero(t, open(30, 60), "nothing was lost since")

	// Each loss counts, also if the clock steps back.
	restore()
	server.Lost(1)
	require.True(t, spendCredits(t, eng, c, 1).Unopened)
	require.Equal(t, 1, open(5, 100), "read before the last opening: totals are raised")
	v = spendCredits(t, eng, c, 1)
	require.Equal(t, []any{false, false, int64(0)}, []any{v.Allowed, v.Unopened, v.Credits})

	// A clock that stepped back does not close grants for good.
	server.Lost(client.Time(t.Context()).Val().Add(time.Hour).UnixMilli())
	require.True(t, spendCredits(t, eng, c, 1).Unopened)
	require.Zero(t, open(40, 100))
	require.False(t, spendCredits(t, eng, c, 1).Unopened)
}

// Credits that were never at a place are closed there only for as long as an opening can be on its
// way: their subjects are all those that a change of partitions moves. What was spent is kept.
func TestClosedCreditsExpire(t *testing.T) {
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	const kept, onItsWay = 30 * 24 * time.Hour, 20 * time.Minute
	require.Greater(t, onItsWay, time.Duration(engine.SteppedUS)*time.Microsecond)
	for _, held := range []bool{true, false} {
		c := creditCounter(100)
		opening := func(asked int64) *engine.Opening {
			return &engine.Opening{
				Key: c.Credits.Key, Outbox: c.Credits.Outbox, AskedUS: asked, ReadUS: asked + 5, Grants: []limit.Spent{{ID: grantID(0)}},
			}
		}
		life := kept
		if held {
			_, err := eng.OpenCredits(t.Context(), opening(1000))
			require.NoError(t, err)
		} else {
			life = onItsWay
		}
		expires := func() {
			t.Helper()
			// Nothing here waits for minutes, so that more than half of the life is left.
			left := client.PTTL(t.Context(), c.Credits.Key).Val()
			require.LessOrEqual(t, left, life)
			require.Greater(t, left, life/2)
		}
		require.Equal(t, []error{nil}, eng.CloseCredits(t.Context(), opening(2000)))
		expires()
		_, err := eng.OpenCredits(t.Context(), opening(1500))
		require.ErrorIs(t, err, engine.ErrOpenedSince)
		expires()
		require.Equal(t, []error{nil}, eng.CloseCredits(t.Context(), opening(3000)))
		expires()
		life = kept
		opened, err := eng.OpenCredits(t.Context(), opening(4000))
		require.NoError(t, err)
		require.Equal(t, 1, opened)
		expires()
	}
}

// What was spent is kept in Redis for a day longer than the grants of which it was, and for 30 days
// if they never expire or much later. Otherwise a tenant that grants a unit for a minute to ever
// new subjects fills Redis.
func TestCreditsLiveAsLongAsTheirGrants(t *testing.T) {
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	const day = 24 * time.Hour
	const idle, onItsWay = 30 * day, 20 * time.Minute
	for _, of := range []struct {
		name         string
		grants       []time.Duration // until they expire, in order; 0: never
		lives, since time.Duration   // at most, and more than
	}{
		{"a minute", []time.Duration{time.Minute}, day + time.Minute, day - time.Hour},
		{"the last grant counts", []time.Duration{time.Minute, 3 * day}, 4 * day, 4*day - time.Hour},
		{"a year", []time.Duration{time.Minute, 365 * day}, idle, idle - time.Hour},
		{"never", []time.Duration{time.Minute, 0}, idle, idle - time.Hour},
		{"expired", []time.Duration{-time.Hour}, day, onItsWay},
	} {
		t.Run(of.name, func(t *testing.T) {
			c := creditCounter(0)
			c.Credits.Grants = nil
			now := client.Time(t.Context()).Val()
			opening := func(asked int64) *engine.Opening {
				o := &engine.Opening{Key: c.Credits.Key, Outbox: c.Credits.Outbox, Whole: true, AskedUS: asked, ReadUS: asked + 5}
				for _, g := range c.Credits.Grants {
					o.Grants = append(o.Grants, limit.Spent{ID: g.ID, ExpiresMS: g.ExpiresMS})
				}
				return o
			}
			for n, left := range of.grants {
				g := limit.Grant{ID: grantID(n), Units: 10}
				if left != 0 {
					g.ExpiresMS = now.Add(left).UnixMilli()
				}
				c.Credits.Grants = append(c.Credits.Grants, g)
			}
			lives := func() {
				t.Helper()
				left := client.PTTL(t.Context(), c.Credits.Key).Val()
				require.LessOrEqual(t, left, of.lives)
				require.Greater(t, left, of.since)
			}
			_, err := eng.OpenCredits(t.Context(), opening(1000))
			require.NoError(t, err)
			lives()
			if v := spendCredits(t, eng, c, 3); v.Allowed {
				require.EqualValues(t, 2, v.CreditsSpent)
				lives()
				outbox := client.PTTL(t.Context(), c.Credits.Outbox).Val()
				require.Greater(t, outbox, idle, "it has the totals for longer")
			}
			older := opening(500)
			older.Grants = older.Grants[:1]
			_, err = eng.OpenCredits(t.Context(), older)
			require.NoError(t, err)
			lives()
			_, err = eng.OpenCredits(t.Context(), opening(2000))
			require.NoError(t, err)
			lives()
		})
	}
}

// When Redis has forgotten what was spent, it is opened again with what Postgres has, and with what
// the outbox has if Postgres does not have it yet.
func TestForgottenCreditsKeepWhatWasSpent(t *testing.T) {
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	c := creditCounter(100)
	open := func(asked, stored int64) {
		t.Helper()
		opened, err := eng.OpenCredits(t.Context(), &engine.Opening{
			Key: c.Credits.Key, Outbox: c.Credits.Outbox, Whole: true, AskedUS: asked, ReadUS: asked + 1, Grants: []limit.Spent{{ID: grantID(0), Units: stored}},
		})
		require.NoError(t, err)
		require.Equal(t, 1, opened)
	}
	forget := func() {
		t.Helper()
		require.NoError(t, client.PExpireAt(t.Context(), c.Credits.Key, time.UnixMilli(1)).Err())
		v := spendCredits(t, eng, c, 1)
		require.Equal(t, []any{false, true, limit.OpenedWithinMS}, []any{v.Allowed, v.Unopened, v.RetryAfterMS})
	}
	open(10, 0)
	require.EqualValues(t, 20, spendCredits(t, eng, c, 21).CreditsSpent)
	forget()
	open(20, 0)
	require.EqualValues(t, 80, spendCredits(t, eng, c, 0).Credits, "of the outbox")
	require.NoError(t, eng.SettleCredits(t.Context(), c.Credits.Outbox, []limit.Spent{{ID: grantID(0), Units: 20}}))
	forget()
	open(30, 20)
	require.EqualValues(t, 80, spendCredits(t, eng, c, 80).CreditsSpent, "of Postgres")
	require.False(t, spendCredits(t, eng, c, 1).Allowed)
}
