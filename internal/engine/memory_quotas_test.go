package engine

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// quotaRig is an instance in an outage that serves many tenants, whose quotas are counters of one
// tenant, the platform.
type quotaRig struct {
	t        *testing.T
	now      int64
	engine   *Memory
	platform limit.TenantID
}

func newQuotaRig(t *testing.T, o MemoryOptions) *quotaRig {
	r := &quotaRig{t: t, now: engineStart, platform: uuid.New()}
	o.Clock = func() int64 { return r.now }
	r.engine = NewMemory(o)
	return r
}

func (r *quotaRig) ask(tenant int, kind string, n limit.Numbers, cost int64) Outcome {
	c := &Call{Tenant: r.platform, Space: QuotaSpace, Cost: cost, Counters: []Counter{{Key: fmt.Sprint("w{p}", kind, tenant), Numbers: n}}}
	r.engine.Evaluate(context.Background(), c)
	require.NoError(r.t, c.Err)
	return c.Outcome
}

// While Redis is unavailable, the quotas of a tenant count what it uses itself, however many
// tenants an instance serves, and whatever counters others have there. Before, quotas shared
// counters, of different tenants and of checks and work: a tenant with 5 of 33 checks a second was
// denied.
func TestQuotasShareNoCounters(t *testing.T) {
	second := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 33, WindowMS: 1_000}
	work := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 333, WindowMS: 1_000}
	month := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 333_333, WindowMS: 31 * 86_400_000}
	for _, test := range []struct{ attackers, tenants int }{{0, 1_200}, {20, 600}} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			r := newQuotaRig(t, MemoryOptions{MaxCounters: 20_000})
			for range test.attackers {
				attacker := uuid.New()
				for i := range 2_500 {
					r.engine.Evaluate(context.Background(), &Call{Tenant: attacker, Cost: 1, Counters: []Counter{{
						Key: fmt.Sprint("w{a}", attacker, i), Numbers: hourly,
					}}})
				}
			}
			held := r.engine.Len()
			denied := map[int]bool{}
			for range 3 {
				r.now += 1_000
				for tenant := range test.tenants {
					for range 5 {
						if !r.ask(tenant, "w", work, 4).Allowed || !r.ask(tenant, "s", second, 1).Allowed || !r.ask(tenant, "m", month, 1).Allowed {
							denied[tenant] = true
						}
					}
				}
			}
			require.Empty(t, denied)
			require.Equal(t, held+3*test.tenants, r.engine.Len())
			for range 28 {
				require.True(t, r.ask(0, "s", second, 1).Allowed)
			}
			require.False(t, r.ask(0, "s", second, 1).Allowed, "its own quota holds")
			require.True(t, r.ask(1, "s", second, 1).Allowed)
			counters, _, overflow := r.engine.held(r.platform)
			require.Zero(t, counters+overflow, "the operator's own checks have their part")
		})
	}
}

// Every layer tells the next one of quotas. After an outage, they are settled like others.
func TestQuotasThroughAnOutage(t *testing.T) {
	r := newOutageRig(t, 0)
	local := r.stacks[0].fallback.local.(*Memory)
	ask := func() {
		call := &Call{Space: QuotaSpace, Spread: true, Cost: 1, Started: r.stacks[0].Now(), Counters: []Counter{
			{Key: "w{t}key", Numbers: hourly, OnUnavailable: limit.Local}, {Key: "w{t2}key", Numbers: hourly, OnUnavailable: limit.Local},
		}}
		r.stacks[0].Evaluate(context.Background(), call)
		require.NoError(t, call.Err)
		require.True(t, call.Outcome.Allowed)
		for _, part := range newSplitCall(call).parts {
			require.True(t, part.call.Space == QuotaSpace)
		}
	}
	ask()
	r.fails()
	ask()
	require.EqualValues(t, 2, local.apart[QuotaSpace].Load())
	r.recovers()
	require.Zero(t, local.apart[QuotaSpace].Load())
	require.Equal(t, hourly.Limit-2, r.remaining("w{t}key"))
	require.Equal(t, hourly.Limit-2, r.remaining("w{t2}key"))
}

// The quotas in memory are bounded. One for which there is no space passes: it must not deny a
// tenant that is within its quota. What has expired makes space.
func TestQuotasAreBounded(t *testing.T) {
	r := newQuotaRig(t, MemoryOptions{MaxCounters: 1_000, MaxQuotas: 50})
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 2, WindowMS: 60_000}
	for tenant := range 100 {
		for range 2 {
			require.True(t, r.ask(tenant, "s", n, 1).Allowed)
		}
		out := r.ask(tenant, "s", n, 1)
		require.Equal(t, tenant >= 50, out.Allowed)
		require.Equal(t, tenant >= 50, out.Verdicts[0].Uncounted)
	}
	require.Equal(t, 50, r.engine.Len())
	require.EqualValues(t, 0, r.engine.overflow.Load())

	// A call whose counters exceed the bound together is counted as it was judged.
	r.engine.most.apart[QuotaSpace] = 51
	call := &Call{Tenant: r.platform, Space: QuotaSpace, Cost: 2, Counters: []Counter{{Key: "a", Numbers: n}, {Key: "b", Numbers: n}}}
	for _, allowed := range []bool{true, false} {
		r.engine.Evaluate(context.Background(), call)
		require.Equal(t, allowed, call.Outcome.Allowed)
	}
	require.Equal(t, 52, r.engine.Len())

	r.now += n.WindowMS + expirySlackMS
	for range memoryShards {
		r.engine.tidy(func(string) bool { return false })
	}
	require.Zero(t, r.engine.Len())
	require.Empty(t, r.engine.tenants)
	require.False(t, r.ask(99, "s", n, 1).Verdicts[0].Uncounted)
}
