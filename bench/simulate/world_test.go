package simulate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func inputs() Inputs { return Inputs{Costs: Measured(), Seed: 1} }

// The same seed gives the same output, to the last digit, and another seed another one.
func TestSeedDeterminesOutput(t *testing.T) {
	row := measuredRow{instances: 2, shards: 3, rules: 1, tenants: 64}
	first := row.simulate(inputs(), reference)
	require.Equal(t, first, row.simulate(inputs(), reference))
	other := inputs()
	other.Seed = 2
	require.NotEqual(t, first, row.simulate(other, reference))
}

// Every request is answered exactly once, also if a shard is lost in the meantime, and if more is
// sent than the machines can decide.
func TestRequestsAreConserved(t *testing.T) {
	for name, c := range map[string]config{
		"a lost shard":  {shards: 3, instances: 3, cores: 2, denials: true, network: sameZone},
		"one Redis":     {instances: 2, cores: 1, network: sameZone},
		"too much load": {instances: 1, cores: 1, network: sameZone, unfair: true},
	} {
		t.Run(name, func(t *testing.T) {
			c.inputs = inputs()
			w := newWorld(c)
			subjects := w.crowd(50, 20, 0)
			for i, s := range subjects {
				s.leased = i%2 == 0
				s.limit, s.window = int64(i%100), time.Second
			}
			rate := 20_000.0
			if name == "too much load" {
				rate = 200_000
			}
			answers := map[*request]int{}
			w.open(rate, 400*time.Millisecond, w.instances, w.uniform(subjects))
			w.clock.after(100*time.Millisecond, w.shards[0].lose)
			w.clock.after(300*time.Millisecond, w.shards[0].restore)
			w.observe = func(r *request) { answers[r]++ }
			w.clock.runUntil(200 * time.Millisecond)
			require.Less(t, w.replied, w.sent, "some are in flight")
			w.clock.runUntil(20 * time.Second)
			require.InDelta(t, rate*0.4, float64(w.sent), rate*0.02)
			require.Equal(t, w.sent, w.replied)
			require.Len(t, answers, int(w.sent))
			for _, times := range answers {
				require.Equal(t, 1, times)
			}
			require.Zero(t, w.instances[0].queues[0].busy, "a pipeline was not released")
		})
	}
}

// In a closed loop, each client has one request in flight.
func TestClosedLoop(t *testing.T) {
	w := newWorld(config{inputs: inputs(), instances: 2, together: true})
	w.closed(64, w.uniform(w.crowd(4, 10, 0)))
	for at := time.Millisecond; at < 50*time.Millisecond; at += time.Millisecond {
		w.clock.runUntil(at)
		require.Equal(t, int64(64), w.sent-w.replied)
	}
	require.Greater(t, w.replied, int64(500))
}

// The pipelines follow the rules of the real queue: at most two in flight, and at most 128 calls in
// each.
func TestPipelines(t *testing.T) {
	w := newWorld(config{inputs: inputs(), instances: 1, cores: 4, network: sameZone})
	w.open(250_000, 300*time.Millisecond, w.instances, w.uniform(w.crowd(20, 10, 0)))
	largest, together := 0, 0
	w.clock.every(7*time.Microsecond, func() bool {
		q := w.instances[0].queues[0]
		require.LessOrEqual(t, q.busy, 2)
		together = max(together, len(q.underway))
		for _, b := range q.underway {
			largest = max(largest, len(b.reqs))
		}
		return w.clock.now < 300*time.Millisecond
	})
	w.clock.runUntil(300 * time.Millisecond)
	require.Equal(t, 2, together)
	require.Equal(t, 128, largest)
}

// In a Cluster, a second pipeline to a node is sent only when 16 requests wait for it, which 15
// clients never do.
func TestSecondPipelineOfANode(t *testing.T) {
	for _, c := range []struct{ shards, clients, want int }{{0, 15, 2}, {1, 15, 1}, {1, 64, 2}} {
		w := newWorld(config{inputs: inputs(), instances: 1, cores: 2, shards: c.shards, network: sameZone})
		w.closed(c.clients, w.uniform(w.crowd(20, 10, 0)))
		together := 0
		w.clock.every(7*time.Microsecond, func() bool {
			together = max(together, len(w.instances[0].queues[0].underway))
			return w.clock.now < 100*time.Millisecond
		})
		w.clock.runUntil(100 * time.Millisecond)
		require.Equal(t, c.want, together, "%d shards, %d clients", c.shards, c.clients)
	}
}

// Without turns, a tenant that sends more than Redis can decide delays all others. With turns it
// delays itself.
func TestTenantsTakeTurns(t *testing.T) {
	wait := map[bool][2]float64{}
	for _, unfair := range []bool{true, false} {
		c := crush{rate: 10 * neighbours, subjects: 100_000, unfair: unfair}
		neighbours, viral := c.run(inputs())
		wait[unfair] = [2]float64{neighbours.all.quantile(50), viral.quantile(50)}
	}
	require.Less(t, 5*wait[false][0], wait[true][0])
	require.Greater(t, wait[false][1], 2*wait[false][0])
}

// Denials that are known to hold, and leased units, need no Redis.
func TestDecisionsInMemory(t *testing.T) {
	denied := crush{rate: 20_000, subjects: 10, limit: 1200}
	_, strict := denied.run(inputs())
	require.Zero(t, strict.memory)
	require.InDelta(t, 0.5, strict.share(strict.denied), 0.06, "all but 1 200 per second")
	denied.denials = true
	_, viral := denied.run(inputs())
	require.Greater(t, viral.share(viral.memory), 0.4)
	require.InDelta(t, strict.share(strict.denied), viral.share(viral.denied), 0.06, "memory denies what Redis would deny")

	leased := crush{rate: 20_000, subjects: 10, leased: true}
	_, viral = leased.run(inputs())
	require.Greater(t, viral.share(viral.memory), 0.9)
	leased.limit = 1200
	_, viral = leased.run(inputs())
	require.Greater(t, viral.share(viral.denied), 0.42, "leases do not exceed the limit")
}

// A lost shard degrades the checks of its tenants only, at most as many as wait for the timeout
// before the circuit breakers open. When it answers again, all checks are strict again.
func TestOutageDegradesOneShard(t *testing.T) {
	w := outage(inputs())
	for phase, p := range outagePhases {
		lost, others := w.stats.of(0, phase), w.stats.of(1, phase)
		require.Zero(t, others.degraded, p.name)
		switch p.name {
		case "before": // some were in flight when the shard was lost
			require.Less(t, lost.share(lost.degraded), 0.01)
		case "later":
			require.Zero(t, lost.degraded)
		case "until it answers again":
			require.Greater(t, lost.share(lost.degraded), 0.99)
			require.Less(t, lost.quantile(99), 2.0, "no check waits while the breaker is open")
		}
	}
	require.Equal(t, int64(4), w.stats.opened, "one circuit of each instance")
	require.Equal(t, w.sent, w.replied)
}
