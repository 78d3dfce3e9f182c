package engine

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

var hourly = limit.Numbers{Algorithm: limit.FixedWindow, Limit: 90, WindowMS: 3_600_000}

// locally lets an instance allow a unit without the store, which is not asked.
func (r *outageRig) locally(instance int, tenant limit.TenantID, key string) {
	call := &Call{Tenant: tenant, Cost: 1, Counters: []Counter{{Key: key, Numbers: hourly, OnUnavailable: limit.Local}}, Err: ErrBreakerOpen}
	r.stacks[instance].fallback.answer(call)
	require.True(r.t, call.Outcome.Allowed)
}

// locallyBy lets an instance decide about a unit by these numbers, without the store.
func (r *outageRig) locallyBy(instance int, key string, n limit.Numbers) (allowed bool) {
	call := &Call{Cost: 1, Counters: []Counter{{Key: key, Numbers: n, OnUnavailable: limit.Local}}, Err: ErrBreakerOpen}
	r.stacks[instance].fallback.answer(call)
	return call.Outcome.Allowed
}

// The limit of a rule may change while Redis is unavailable. All units that were allowed are
// charged afterwards: those under a higher limit, and those of before a lower one.
func TestUnitsUnderChangedNumbersAreCharged(t *testing.T) {
	with := func(lim int64) limit.Numbers {
		n := hourly
		n.Limit, n.PenaltyMS = lim, 1 // a denial with a penalty is kept, too
		return n
	}
	for name, limits := range map[string][]int64{
		"raised": {90, 180}, "raised twice": {30, 90, 180}, "lowered": {180, 90}, "lowered and raised": {90, 30, 180},
	} {
		t.Run(name, func(t *testing.T) {
			r := newOutageRig(t, 0)
			allowed := int64(0)
			for _, lim := range limits {
				for r.locallyBy(0, "w{t}key", with(lim)) {
					allowed++
				}
				r.now.Add(1) // the penalty ends
			}
			require.Equal(t, int64(60), allowed, "a third of the highest limit")
			r.stacks[0].ReturnIdle()
			require.Zero(t, r.stacks[0].fallback.debts.Len())
			peek := &Call{Counters: []Counter{{Key: "w{t}key", Numbers: with(180)}}}
			r.memory.Load().Evaluate(context.Background(), peek)
			require.Equal(t, 180-allowed, peek.Outcome.Verdicts[0].Remaining)
		})
	}
}

// remaining returns what the store says that remains.
func (r *outageRig) remaining(key string) int64 {
	peek := &Call{Counters: []Counter{{Key: key, Numbers: hourly}}}
	r.memory.Load().Evaluate(context.Background(), peek)
	return peek.Outcome.Verdicts[0].Remaining
}

// meet lets each call meet f before the store decides it.
func (r *outageRig) meet(f func(*Call) error) { r.meets.Store(&f) }

// A debt that was not sent must be charged later, or its limit is exceeded. One that may have been
// counted must not be charged again, not even if Redis had lost its counters.
func TestUnsentDebtsStay(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		unsent bool
	}{
		"behind other calls":      {fmt.Errorf("evaluate counters: %w", ErrNotSent), true},
		"given up while it waits": {fmt.Errorf("evaluate counters: %w: %w", ErrNotReached, context.DeadlineExceeded), true},
		"no answer":               {fmt.Errorf("evaluate counters: %w", &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}), false},
		"an error of the script":  {errors.New("ERR"), false},
	} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", counters lost: ", lost), func(t *testing.T) {
				r := newOutageRig(t, 0)
				for range 31 { // 59 remain, of which 20 are for this instance: its counter begins with 10
					require.True(t, r.ask(0, "w{t}key", limit.Local, hourly).Allowed)
				}
				for range 5 {
					r.locally(0, uuid.Nil, "w{t}key")
				}
				if lost {
					r.empty()
					r.stacks[0].fallback.losses = func() int64 { return 1 }
				}
				before := r.remaining("w{t}key")
				tries := 0
				r.meet(func(*Call) error {
					tries++
					return test.err
				})
				r.stacks[0].ReturnIdle()
				require.Equal(t, 1, tries)
				require.Equal(t, before, r.remaining("w{t}key"))
				r.meet(func(*Call) error { return nil })
				r.stacks[0].ReturnIdle()
				require.Zero(t, r.stacks[0].fallback.debts.Len())
				after := r.remaining("w{t}key")
				switch {
				case !test.unsent:
					require.Equal(t, before, after, "it may have been charged")
				case lost:
					require.Equal(t, before-10-5, after, "with what the counter began with")
				default:
					require.Equal(t, before-5, after)
				}
				r.stacks[0].ReturnIdle()
				require.Equal(t, after, r.remaining("w{t}key"), "once")
			})
		}
	}
}

// A debt is kept until it is sent, but no longer than its window.
func TestUnsentDebtsEndWithTheirWindow(t *testing.T) {
	r := newOutageRig(t, 0)
	r.locally(0, uuid.Nil, "w{t}key")
	r.meet(func(*Call) error { return ErrNotSent })
	for range 10 {
		r.stacks[0].ReturnIdle()
	}
	require.Equal(t, 1, r.stacks[0].fallback.debts.Len())
	r.now.Add(hourly.WindowMS + expirySlackMS)
	r.stacks[0].ReturnIdle()
	require.Zero(t, r.stacks[0].fallback.debts.Len())
}

// Checks may be allowed locally while the debt of their counter is on its way. Their units are not
// part of it, and must be charged, too.
func TestUnitsBesideASettlementAreCharged(t *testing.T) {
	for name, outcome := range map[string]error{"paid": nil, "unknown": os.ErrDeadlineExceeded, "not sent": ErrNotSent} {
		t.Run(name, func(t *testing.T) {
			r := newOutageRig(t, 0)
			for range 5 {
				r.locally(0, uuid.Nil, "w{t}key")
			}
			var once sync.Once
			r.meet(func(*Call) (err error) {
				once.Do(func() {
					for range 3 {
						r.locally(0, uuid.Nil, "w{t}key")
					}
					err = outcome
				})
				return err
			})
			for range 3 {
				r.stacks[0].ReturnIdle()
			}
			require.Zero(t, r.stacks[0].fallback.debts.Len())
			used := int64(8)
			if name == "unknown" {
				used = 3
			}
			require.Equal(t, 90-used, r.remaining("w{t}key"))
		})
	}
}

// A tenant with very many debts, or with debts that cannot be charged, must not delay those of
// others until their windows have ended: a limit of theirs would then be exceeded. Each debt is
// charged in the name of its tenant, which the bounds of counters and the turns of calls need.
func TestDebtsOfTenantsTakeTurns(t *testing.T) {
	for name, failure := range map[string]error{"very many": nil, "never charged": os.ErrDeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			r := newOutageRig(t, 0)
			greedy, modest := uuid.New(), uuid.New()
			for i := range 2_000 {
				r.locally(0, greedy, fmt.Sprint("w{g}", i))
			}
			for i := range 100 {
				r.locally(0, modest, fmt.Sprint("w{m}", i))
			}
			var charged, others atomic.Int64
			begun, over := make(chan struct{}), make(chan struct{})
			first := sync.OnceFunc(func() { close(begun) })
			r.meet(func(c *Call) error {
				switch c.Tenant {
				case greedy: // its first call is answered when all of the other tenant's are
					first()
					<-over
					return failure
				case modest:
					<-begun
					if charged.Add(1) == 100 {
						close(over)
					}
				default:
					others.Add(1)
				}
				return nil
			})
			for range 20 {
				r.stacks[0].fallback.settleAll(context.Background())
			}
			require.Zero(t, others.Load(), "each has its tenant")
			require.EqualValues(t, 100, charged.Load())
			require.Equal(t, int64(89), r.remaining("w{m}99"))
			held, _, _ := r.stacks[0].fallback.debts.(*Memory).held(greedy)
			if failure == nil {
				require.Zero(t, held)
				require.Empty(t, r.stacks[0].fallback.debts.(*Memory).debtors.tenants)
			}
		})
	}
}

// A key that shares a counter during an outage must not get what the store said was used up: no
// shared counter holds less than the store said about one of its keys.
func TestOverflowKnowsTheStore(t *testing.T) {
	r := newOutageRig(t, 0)
	local := r.stacks[0].fallback.local.(*Memory)
	local.most.counters.perTenant = 1
	slot := func(key string) uint64 { return maphash.String(local.seed, key) % overflowSlots }
	for range 90 {
		require.True(t, r.ask(0, "w{t}used", limit.Local, hourly).Allowed)
	}
	r.locally(0, uuid.Nil, "w{t}first")
	other := 0 // a key that shares the counter
	for slot(fmt.Sprint("w{t}", other)) != slot("w{t}used") {
		other++
	}
	r.locally(0, uuid.Nil, fmt.Sprint("w{t}", other))
	require.EqualValues(t, 1, local.overflow.Load())
	for _, dry := range []bool{true, false} {
		call := &Call{DryRun: dry, Cost: 1, Counters: []Counter{{Key: "w{t}used", Numbers: hourly, OnUnavailable: limit.Local}}, Err: ErrBreakerOpen}
		r.stacks[0].fallback.answer(call)
		require.False(t, call.Outcome.Allowed)
	}
}

// Tenants get equal shares of what is charged at once, and all their counters have their turn. A
// tenant whose call is on its way has none.
func TestDebtorsTakeTurns(t *testing.T) {
	r := newOutageRig(t, 0)
	d := &r.stacks[0].fallback.local.(*Memory).debtors
	names := map[uuid.UUID]string{uuid.New(): "w{g}", uuid.New(): "w{m}", uuid.New(): "w{away}"}
	for tenant, name := range names {
		for i := range 300 {
			r.locally(0, tenant, fmt.Sprint(name, i))
		}
	}
	seen := map[string]bool{}
	away := func(key string) bool { return HashTag(key) == "away" }
	for range 10 {
		d.begin()
		of := map[string]int{}
		var turns []*memoryTenant
		for {
			tenant, keys := d.pick(away, 90)
			if tenant == nil {
				break
			}
			turns = append(turns, tenant)
			for _, key := range keys {
				require.False(t, seen[key], "each has one turn before any has another")
				seen[key] = true
				of[HashTag(key)]++
			}
		}
		require.Equal(t, map[string]int{"g": 30, "m": 30}, of)
		for _, tenant := range turns {
			d.done(tenant, false)
		}
	}
	require.Len(t, seen, 600)

	pick := func() *memoryTenant {
		tenant, _ := d.pick(away, 90)
		return tenant
	}
	d.begin()
	first, second := pick(), pick()
	require.Nil(t, pick())
	d.done(second, true)
	require.Same(t, second, pick(), "it has been charged, and does not wait for the first one")
	d.done(second, false)
	require.Nil(t, pick(), "nothing could be charged, so it rests")
	d.done(first, true)
	require.Same(t, first, pick())
	d.begin()
	require.Same(t, second, pick())
	require.Nil(t, pick())
	tenant, _ := new(debtors).pick(away, 90)
	require.Nil(t, tenant)
}

// While a server is unavailable, a timer must not inspect all local counters, up to 400 000, 20
// times a second: checks that count locally wait meanwhile. Each time, it looks at some of them,
// and so finds those on other servers.
func TestDebtsAreInspectedInParts(t *testing.T) {
	for name, tenants := range map[string]int{"one tenant": 1, "some": 20, "many": 2_000} {
		t.Run(name, func(t *testing.T) {
			r := newOutageRig(t, 0)
			const counters = 10_000
			for i := range counters {
				key := fmt.Sprint("w{away}", i)
				if i%(counters/tenants) == counters/tenants-1 { // one of each tenant
					key = fmt.Sprint("w{here}", i)
				}
				r.locally(0, limit.TenantID{15: 1, 1: byte(i / (counters / tenants)), 0: byte(i / (counters / tenants) >> 8)}, key)
			}
			f := r.stacks[0].fallback
			looks := 0
			f.away = func(key string) bool {
				looks++
				return HashTag(key) == "away"
			}
			found := func() (n int) {
				f.debts.round()
				for {
					before := looks
					got := f.turn()
					require.LessOrEqual(t, looks-before, 1_000)
					if got.of == nil {
						return n
					}
					for _, d := range got.owed {
						require.Equal(t, "here", HashTag(d.of.key))
					}
					n += len(got.owed)
					for _, d := range got.owed {
						f.debts.settled(d, debtPaid)
					}
					f.debts.done(got, true)
				}
			}
			for left := tenants; left > 0; left -= found() {
				require.LessOrEqual(t, looks, 3*counters)
			}
		})
	}
}

// With one server, nothing is inspected while it is unavailable.
func TestDebtsWaitForTheOnlyServer(t *testing.T) {
	r := newOutageRig(t, 0)
	r.locally(0, uuid.Nil, "w{t}key")
	r.fails()
	f, away := r.stacks[0].fallback, r.stacks[0].fallback.away
	looks := 0
	f.away = func(key string) bool {
		looks++
		return away(key)
	}
	f.settleAll(context.Background())
	require.Zero(t, looks)
	r.recovers()
	require.Positive(t, looks)
	require.Equal(t, hourly.Limit-1, r.remaining("w{t}key"))
}

// A tenant whose charges take long, because its checks do or its server is slow, delays nobody: all
// debts of the others are settled while its first call is on its way. It has one at a time.
func TestSlowSettlementsDelayNobody(t *testing.T) {
	r := newOutageRig(t, 0)
	slow, other := uuid.New(), uuid.New()
	for i := range 1_000 {
		r.locally(0, slow, fmt.Sprint("w{s}", i))
		r.locally(0, other, fmt.Sprint("w{o}", i))
	}
	begun, over, settled := make(chan struct{}), make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(begun) })
	var atOnce, charged atomic.Int64
	r.meet(func(c *Call) error {
		if c.Tenant == slow {
			first()
			require.EqualValues(t, 1, atOnce.Add(1))
			<-over
			atOnce.Add(-1)
			return nil
		}
		<-begun
		if charged.Add(1) == 1_000 {
			close(over)
		}
		return nil
	})
	go func() {
		r.stacks[0].fallback.settleAll(context.Background())
		close(settled)
	}()
	select {
	case <-settled:
	case <-time.After(time.Minute):
		require.Fail(t, "the other tenant waits", "%d are settled", charged.Load())
	}
	require.Zero(t, r.stacks[0].fallback.debts.Len())
	require.Zero(t, r.stacks[0].fallback.settling.Load())
}

// The end of the background work waits for the charges that are on their way. It begins no others.
func TestSettlementsEndWithTheStack(t *testing.T) {
	r := newOutageRig(t, 0)
	for i := range 3 * maxSettled {
		r.locally(0, uuid.Nil, fmt.Sprint("w{t}", i))
	}
	begun, over := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(begun) })
	var charged atomic.Int64
	r.meet(func(*Call) error {
		first()
		<-over
		charged.Add(1)
		return nil
	})
	f, ended := r.stacks[0].fallback, make(chan struct{})
	breaker := NewBreaker(r, f.metrics, awakeClock)
	go func() {
		f.run(breaker)
		close(ended)
	}()
	<-begun
	breaker.Close()
	close(over)
	<-ended
	require.EqualValues(t, maxSettled, charged.Load())
	require.Zero(t, f.settling.Load())
	require.Equal(t, 2*maxSettled, f.debts.Len())
}

// An instance that has settled an outage begins the next one with what the store said then, even if
// no check of the subject reached it in between. What others charge after it, it cannot know. This
// is the only excess, and it does not grow with the number of outages.
func TestOutagesInOneWindowHoldTheLimit(t *testing.T) {
	r := newOutageRig(t, 0)
	for asked := range 60 {
		require.True(t, r.ask(asked%3, "w{t}key", limit.Local, hourly).Allowed)
	}
	allowed := int64(60)
	for outage := range 4 {
		r.fails()
		more := r.flood("w{t}key", hourly)
		r.recovers()
		require.Zero(t, r.remaining("w{t}key"))
		if outage > 1 {
			require.Zero(t, more, "each instance knows that nothing remains")
		}
		allowed += more
	}
	require.LessOrEqual(t, allowed, hourly.Limit+30/2, "half of what remained when the first one began")
}

// A settlement can be the first to find that the store has lost units. This is counted once.
func TestSettlementsSeeRegressions(t *testing.T) {
	for _, leased := range []bool{false, true} {
		r := newOutageRig(t, 0)
		for range 60 {
			require.True(t, r.ask(0, "w{t}key", limit.Local, hourly).Allowed)
		}
		call := &Call{Cost: 1, Leased: leased, Counters: []Counter{{Key: "w{t}key", Numbers: hourly, OnUnavailable: limit.Local}}, Err: ErrBreakerOpen}
		r.stacks[0].fallback.answer(call)
		require.True(t, call.Outcome.Allowed)
		r.empty()
		r.now.Add(1)
		r.stacks[0].ReturnIdle()
		require.Equal(t, hourly.Limit-1, r.remaining("w{t}key"))
		r.now.Add(1)
		r.ask(0, "w{t}key", limit.Local, hourly)
		want := 1.
		if leased {
			want = 0 // its units are returned at times
		}
		require.Equal(t, want, testutil.ToFloat64(r.stacks[0].fallback.metrics.regressions))
	}
}
