package tests

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/limit"
)

// leasedLimits are the rules of one resource of TestClientLeasesAreExact: as numbers of the model,
// and as the body of PUT /v1/rules/SLUG.
type leasedLimits struct {
	resource string
	slugs    []string
	numbers  []limit.Numbers
	bodies   []string
}

func (l *leasedLimits) add(n limit.Numbers, lease string) {
	slug := fmt.Sprintf("%s-%d", l.resource, len(l.slugs)) // putRule checks it as a resource
	body := fmt.Sprintf(`{"resource":%q,"algorithm":%q,"limit":%d,"window":"%dms","on_unavailable":"deny","consistency":"leased","lease":%q`,
		l.resource+"*", n.Algorithm, n.Limit, n.WindowMS, lease)
	if n.Burst > 0 {
		body += fmt.Sprintf(`,"burst":%d`, n.Burst)
	}
	l.slugs, l.numbers, l.bodies = append(l.slugs, slug), append(l.numbers, n), append(l.bodies, body+"}")
}

// Eight processes with 16 callers for each of two resources decide checks of one subject from
// leases that last for up to ten seconds, while windows end, clients and servers are killed, and
// connections are cut. The clocks of the processes are apart by minutes. An exact model allows each
// check at an instant at which it was under way, so not one unit too many was allowed.
func TestClientLeasesAreExact(t *testing.T) {
	windows, sliding := leasedLimits{resource: "windows"}, leasedLimits{resource: "sliding"}
	windows.add(limit.Numbers{Algorithm: limit.FixedWindow, Limit: 3_000, WindowMS: 2_000}, "1s")
	windows.add(limit.Numbers{Algorithm: limit.TokenBucket, Limit: 2_000, WindowMS: 2_000, Burst: 1_500}, "2s")
	sliding.add(limit.Numbers{Algorithm: limit.SlidingWindowCounter, Limit: 4_000, WindowMS: 1_500}, "10s")
	s := newSettings(t)
	servers := []*instance{start(t, s).AwaitReady(), start(t, s).AwaitReady()}
	tenant := newTenant(t, s, servers[0])
	doors := make([]*door, len(servers))
	for i := range doors {
		doors[i] = newDoor(t, servers[i].Address("WEIR_HTTP_ADDR"))
		doors[i].open()
	}
	for _, l := range []leasedLimits{windows, sliding} {
		for i := range l.slugs {
			tenant.putRule(l.slugs[i], l.bodies[i], servers...)
		}
	}
	clients := newLeaseClients(t, tenant.key, windows.resource, sliding.resource)
	skews := []time.Duration{0, 3 * time.Minute, -7 * time.Minute, 90 * time.Second, -time.Hour, 26 * time.Hour, -30 * time.Second, time.Second}
	processes := make([]*leaseProcess, len(skews))
	for i, skew := range skews {
		processes[i] = clients.start("http://"+doors[i%2].addr, "s", skew)
	}
	more := func() { clients.until(clients.allowed.Load() + 800) }
	for round := range 3 {
		more()
		processes[round].kill()
		processes[round] = clients.start("http://"+doors[(round+1)%2].addr, "s", -skews[round])
		more()
		cut := round % 2
		doors[cut].close()
		more() // by the clients of the other one
		if round > 0 {
			servers[cut].Kill()
			servers[cut] = start(t, s).AwaitReady()
			doors[cut].leadTo(servers[cut].Address("WEIR_HTTP_ADDR"))
		}
		doors[cut].open()
	}
	more()
	for _, p := range processes {
		p.stop(t)
	}
	for i, l := range []leasedLimits{windows, sliding} {
		granted := slices.DeleteFunc(slices.Clone(clients.granted), func(g grantedCheck) bool { return g.resource != i })
		leased := 0
		for _, g := range granted {
			if g.leased {
				leased++
			}
		}
		require.Positive(t, leased, "%s: no check was decided by a client", l.resource)
		late := l.replay(granted)
		require.Empty(t, late, "%s: %d checks that the exact model does not allow", l.resource, len(late))
		t.Logf("%s: %d checks, %d of them from leases, within %.1f s", l.resource, len(granted), leased,
			float64(granted[len(granted)-1].to-granted[0].from)/1e6)

		// The replay can fail: it refuses some of the checks if one is repeated often enough.
		require.NotEmpty(t, l.replay(slices.Repeat(granted[:1], 3*int(l.numbers[0].Limit))), l.resource)
	}
}

// replay sends checks to the exact model, and returns those that it does not allow. A check may
// have been decided in any millisecond in which it was under way. The model decides it as soon as
// it can, those that end first before the others: deciding a check earlier never leaves less for
// later ones.
func (l *leasedLimits) replay(granted []grantedCheck) (refused []grantedCheck) {
	sort.Slice(granted, func(i, j int) bool { return granted[i].from < granted[j].from })
	model := enginetest.NewReference()
	send := func(now, cost int64) *engine.Call {
		c := &engine.Call{NowMS: now, Cost: cost}
		for i := range l.numbers {
			c.Counters = append(c.Counters, engine.Counter{Key: l.slugs[i], Numbers: l.numbers[i]})
		}
		model.Evaluate(context.Background(), c)
		return c
	}
	longest := int64(0)
	for i := range l.numbers {
		longest = max(longest, l.numbers[i].WindowMS)
	}
	var waiting []grantedCheck // the first to end comes first
	for next, now := 0, int64(0); next < len(granted) || len(waiting) > 0; now++ {
		if len(waiting) == 0 {
			now = max(now, granted[next].from/1000)
		}
		for ; next < len(granted) && granted[next].from/1000 <= now; next++ {
			at := sort.Search(len(waiting), func(i int) bool { return waiting[i].to > granted[next].to })
			waiting = slices.Insert(waiting, at, granted[next])
		}
		if now%1_000 == 0 {
			model.Forget(now - 2*longest - 1)
		}
		left := int64(len(waiting))
		if all := send(now, left); all.Outcome.Allowed {
			waiting = waiting[:0]
		} else {
			for _, v := range all.Outcome.Verdicts {
				left = min(left, v.Remaining)
			}
			if left > 0 && send(now, left).Outcome.Allowed {
				waiting = waiting[left:]
			}
		}
		for len(waiting) > 0 && waiting[0].to/1000 <= now {
			refused, waiting = append(refused, waiting[0]), waiting[1:]
		}
	}
	return refused
}
