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
		waiting, _ = f.pick(&b, waiting, most)
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

// While a heavy request is in flight, others of any tenant wait, and keep their turns. Light ones
// of other tenants do not. Before, each pipeline had one, and a call waited for two of them.
func TestOneHeavyRequestIsInFlight(t *testing.T) {
	f := fairness{light: true}
	first, second, quiet := requestsOf(1, 2, maxBatchWork), requestsOf(2, 1, heavyWork), requestsOf(3, 2, heavyWork-1)
	behind := requestsOf(1, 1, 1)
	waiting := append(append(append(append([]*request(nil), first...), behind...), second...), quiet...)
	var b batch
	waiting, _ = f.pick(&b, waiting, 128)
	require.Equal(t, quiet, b.reqs)
	require.False(t, b.heavy)
	require.Empty(t, f.held)
	b = batch{}
	waiting, _ = f.pick(&b, waiting, 128)
	require.Empty(t, b.reqs)
	f.light = false
	pipelines := drain(t, &f, waiting, 128)
	require.Equal(t, map[*request]int{second[0]: 1, first[0]: 2, first[1]: 3, behind[0]: 4}, pipelines)

	g := newGate()
	q := g.sender(time.Minute, 128, 2)
	done := make(chan error)
	send := func(r *request) { go func() { done <- q.send(t.Context(), r) }() }
	first, second, quiet = requestsOf(1, 1, maxBatchWork), requestsOf(2, 1, maxBatchWork), requestsOf(3, 1, 1)
	send(first[0])
	require.Equal(t, first, <-g.batches)
	send(second[0])
	waitQueued(t, q, 1)
	send(quiet[0])
	require.Equal(t, quiet, <-g.batches)
	g.through <- true // of one of the two
	g.through <- true
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Equal(t, second, <-g.batches)
	g.through <- true
	require.NoError(t, <-done)
}

// Tenants whose calls always wait get the same amount of work, not the same number of calls.
func TestTenantsShareWork(t *testing.T) {
	var f fairness
	expensive, cheap := requestsOf(1, 400, 32), requestsOf(2, 4000, 1)
	waiting := append(append([]*request(nil), expensive...), cheap...)
	sent := map[byte]int64{}
	for range 20 {
		var b batch
		waiting, _ = f.pick(&b, waiting, 1000)
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

// The smallest wait of an interval counts: a single late pipeline is no queue.
func TestWaits(t *testing.T) {
	var w waits
	require.Zero(t, w.read())
	w.note(2 * time.Second)
	w.note(time.Minute)
	require.Equal(t, 2*time.Second, w.read())
	require.Zero(t, w.read())
	w.note(time.Hour)
	w.note(0)
	require.Zero(t, w.read())
}

// aged are requests of a tenant that have waited for these times.
func aged(tenant byte, work int64, ages ...time.Duration) []*request {
	reqs := requestsOf(tenant, len(ages), work)
	for i, age := range ages {
		reqs[i].began = engine.Awake() - age
	}
	return reqs
}

// The wait of a pipeline is that of its oldest call. If not everything fits, the tenants whose
// calls are left are told, each with its own wait, so that a tenant with many calls gets a bound.
func TestWaitOfAPipeline(t *testing.T) {
	const second = time.Second
	q := &queue{maxBatch: 128}
	q.answered.Store(true)
	standing := func() (tenants []limit.TenantID, waits []time.Duration) {
		q.standing(func(tenant limit.TenantID, wait time.Duration, requests, _ int64) {
			require.Positive(t, requests)
			tenants, waits = append(tenants, tenant), append(waits, wait)
		})
		return tenants, waits
	}
	var b batch
	left, wait := q.fair.pick(&b, append(aged(1, 1, second), aged(2, 1, 3*second)...), q.maxBatch)
	require.Empty(t, left)
	require.GreaterOrEqual(t, wait, 3*second)
	tenants, _ := standing()
	require.Empty(t, tenants, "no call waits behind another one of its tenant")

	loud, quiet := aged(1, 100, 9*second, 8*second, 7*second, 6*second), aged(2, 1, second)
	b = batch{}
	left, wait = q.fair.pick(&b, append(loud, quiet...), q.maxBatch)
	require.Len(t, left, 2)
	require.GreaterOrEqual(t, wait, 9*second)
	tenants, waits := standing()
	require.Equal(t, []limit.TenantID{{1}}, tenants)
	require.GreaterOrEqual(t, waits[0], 9*second)
	require.Less(t, waits[0], 10*second)
	tenants, _ = standing()
	require.Empty(t, tenants, "nothing was sent since")

	// The calls of a silent server wait for its answer, and not for their turn.
	q.answered.Store(false)
	q.fair.pick(&b, append(left, aged(1, 200, second, second)...), q.maxBatch)
	tenants, _ = standing()
	require.Empty(t, tenants)
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

	r := newRequest()
	r.add(&engine.Call{Cost: 1, Counters: []engine.Counter{{
		Key: "w{tag}k", Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 10, WindowMS: 60_000},
		Credits: &engine.Credits{Key: "w{tag}c", Outbox: "w{tag}o", Grants: make([]limit.Grant, limit.MaxGrants)},
	}}})
	require.EqualValues(t, 14, r.work, "each grant is searched")
}

// The shortest round trip of some seconds counts, and is forgotten after these: the connection may
// go to another server then.
func TestShortestTrip(t *testing.T) {
	t.Parallel()
	var of trips
	require.Zero(t, of.read())
	note := func(reads int, trip time.Duration) (last time.Duration) {
		for range reads {
			of.note(trip + time.Millisecond)
			of.note(trip)
			last = of.read()
		}
		return last
	}
	require.Equal(t, 80*time.Millisecond, note(1, 80*time.Millisecond))
	require.Equal(t, 80*time.Millisecond, note(tripReads/2, 200*time.Millisecond))
	require.Equal(t, 3*time.Millisecond, note(1, 3*time.Millisecond))
	require.Equal(t, 3*time.Millisecond, note(tripReads, 200*time.Millisecond))
	require.Equal(t, 200*time.Millisecond, note(tripReads, 200*time.Millisecond))
	for range 3 * tripReads { // nothing is sent
		require.Equal(t, 200*time.Millisecond, of.read())
	}
}

// The requests of a tenant in pipelines are counted, so that its bound leaves enough to fill them.
func TestRequestsUnderway(t *testing.T) {
	t.Parallel()
	q := &queue{maxBatch: 128}
	q.answered.Store(true)
	var b batch
	left, _ := q.fair.pick(&b, append(aged(1, 100, time.Second, time.Second, time.Second, time.Second), aged(2, 1, time.Second)...), q.maxBatch)
	q.waiting, q.underway = left, []*batch{&b, {reqs: aged(1, 1, 0)}}
	told := 0
	q.standing(func(tenant limit.TenantID, _ time.Duration, requests, underway int64) {
		told++
		require.Equal(t, limit.TenantID{1}, tenant)
		require.EqualValues(t, len(left), requests)
		require.EqualValues(t, 4-len(left)+1, underway)
	})
	require.Equal(t, 1, told)
}
