package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

func requestsOf(tenant byte, count int, work int64) (reqs []*request) {
	for range count {
		r := requestOf(1)
		r.tenant, r.work = limit.TenantID{tenant}, work
		reqs = append(reqs, r)
	}
	return reqs
}

// drain returns the number of the pipeline, from 1, that each request is in.
func drain(t *testing.T, f *fairness, waiting []*request, most int) map[*request]int {
	t.Helper()
	pipelines := map[*request]int{}
	for number := 1; len(waiting) > 0; number++ {
		require.Less(t, number, 10_000, "requests wait for ever")
		var b batch
		waiting = f.pick(&b, waiting, most)
		require.NotEmpty(t, b.reqs)
		for _, r := range b.reqs {
			require.NotContains(t, pipelines, r, "sent twice")
			pipelines[r] = number
		}
	}
	require.Empty(t, f.flows)
	require.Empty(t, f.active)
	return pipelines
}

// A call of a tenant is in the next pipeline, however many calls and however expensive calls of
// other tenants wait. Before, it waited for all of them.
func TestNeighbourIsNotDelayed(t *testing.T) {
	var f fairness
	loud := requestsOf(1, 500, 100)
	quiet := requestsOf(2, 1, 1)
	other := requestsOf(3, 3, 2)
	waiting := append(append(append([]*request(nil), loud...), quiet...), other...)
	pipelines := drain(t, &f, waiting, 128)
	require.Equal(t, 1, pipelines[quiet[0]])
	for _, r := range other {
		require.Equal(t, 1, pipelines[r])
	}
	require.Len(t, pipelines, 504)
	require.Equal(t, 250, pipelines[loud[499]], "two of 100 units in each pipeline")
	for i := range 499 {
		require.LessOrEqual(t, pipelines[loud[i]], pipelines[loud[i+1]], "calls of a tenant stay in order")
	}
}

// Tenants whose calls always wait get the same amount of work, not the same number of calls.
func TestTenantsShareWork(t *testing.T) {
	var f fairness
	expensive, cheap := requestsOf(1, 400, 32), requestsOf(2, 4000, 1)
	waiting := append(append([]*request(nil), expensive...), cheap...)
	sent := map[byte]int64{}
	for range 20 {
		var b batch
		waiting = f.pick(&b, waiting, 1000)
		total := int64(0)
		for _, r := range b.reqs {
			sent[r.tenant[0]] += r.work
			total += r.work
		}
		require.LessOrEqual(t, total, int64(maxBatchWork))
	}
	require.InDelta(t, sent[1], sent[2], float64(maxBatchWork))
}

// A request above the work of a pipeline is sent alone, and a request whose caller has left is not.
func TestFairnessBounds(t *testing.T) {
	var f fairness
	huge := requestsOf(1, 3, 10*maxBatchWork)
	huge[1].abandon()
	pipelines := drain(t, &f, append([]*request(nil), huge...), 128)
	require.Len(t, pipelines, 2)
	require.NotEqual(t, pipelines[huge[0]], pipelines[huge[2]])
}

// While everything fits into one pipeline, requests stay in order, and fairness costs nothing.
func TestFairnessWithoutContention(t *testing.T) {
	var f fairness
	mixed := append(requestsOf(1, 20, 2), requestsOf(2, 20, 2)...)
	waiting, b := make([]*request, len(mixed)), &batch{}
	cost := testing.AllocsPerRun(100, func() {
		copy(waiting, mixed)
		for _, r := range mixed {
			r.state.Store(waitingState)
		}
		b.reqs = b.reqs[:0]
		f.pick(b, waiting, 128)
	})
	require.Zero(t, cost)
	require.Equal(t, mixed, b.reqs)
	require.Nil(t, f.flows)
}

// The wait of a pipeline is that of its oldest call, and the smallest one of an interval counts: a
// single late pipeline is no queue.
func TestWaits(t *testing.T) {
	var w waits
	require.Zero(t, w.read())
	now := engine.Awake()
	aged := func(ages ...time.Duration) *batch {
		b := &batch{}
		for _, age := range ages {
			r := requestOf(1)
			r.began = now - age
			b.reqs = append(b.reqs, r)
		}
		return b
	}
	w.note(aged(time.Second, 2*time.Second))
	w.note(aged(0, time.Minute))
	w.note(aged(time.Hour))
	wait := w.read()
	require.GreaterOrEqual(t, wait, 2*time.Second)
	require.Less(t, wait, time.Minute)
	require.Zero(t, w.read())
}

// The work of a call grows with its counters, and with the price of their algorithms.
func TestWorkOfACall(t *testing.T) {
	work := func(algorithm limit.Algorithm, limits int64, counters int) int64 {
		call := engine.Call{Tenant: limit.TenantID{9}, Cost: 1}
		for range counters {
			call.Counters = append(call.Counters, engine.Counter{
				Key:     "w{tag}" + time.Duration(len(call.Counters)).String(),
				Numbers: limit.Numbers{Algorithm: algorithm, Limit: limits, WindowMS: 60_000, PrecisionMS: 1000},
			})
		}
		r := newRequest()
		r.add(&call)
		require.Equal(t, limit.TenantID{9}, r.tenant)
		return r.work
	}
	require.EqualValues(t, 1, work(limit.FixedWindow, 10, 1))
	require.EqualValues(t, 3, work(limit.FixedWindow, 10, 3))
	require.EqualValues(t, 4, work(limit.SlidingWindowLog, 10, 1))
	require.EqualValues(t, 256, work(limit.SlidingWindowLog, 10_000, 32))
}
