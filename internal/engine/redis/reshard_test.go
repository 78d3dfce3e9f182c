package redis

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// newShards returns an engine on a Cluster whose nodes run scripts across slots.
func newShards(t *testing.T, masters, replicasEach int) (*testenv.Cluster, *Engine) {
	t.Helper()
	cluster := testenv.StartCluster(t, masters, replicasEach, time.Minute)
	client, err := NewClient(cluster.URL, WithTimeout(clusterPatience))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	e := New(client, Options{Deadline: clusterPatience})
	e.awaitAcross(t, masters)
	return cluster, e
}

// clusterPatience is how long a call may take while a Cluster changes.
const clusterPatience = 2 * time.Minute

// awaitAcross waits until so many nodes are known to run scripts across slots.
func (e *Engine) awaitAcross(t testing.TB, nodes int) {
	t.Helper()
	require.Eventually(t, func() bool {
		e.All(context.Background())
		known := 0
		e.servers.Range(func(_ *redis.Client, s *server) bool {
			if s.across.known() {
				known++
			}
			return true
		})
		return known == nodes
	}, clusterPatience, 10*time.Millisecond)
}

func counterOf(key string, lim int64) engine.Counter {
	return engine.Counter{Key: key, Numbers: limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: lim, WindowMS: 3_600_000}}
}

func charge(t *testing.T, e *Engine, counters ...engine.Counter) *engine.Call {
	t.Helper()
	call := &engine.Call{Cost: 1, Counters: counters}
	e.Evaluate(t.Context(), call)
	require.NoError(t, call.Err)
	return call
}

// scriptCalls returns how many scripts all nodes have run.
func scriptCalls(t *testing.T, e *Engine) (calls int64) {
	t.Helper()
	e.servers.Range(func(master *redis.Client, _ *server) bool {
		stats, err := master.InfoMap(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		for _, section := range stats {
			for _, name := range []string{"cmdstat_evalsha", "cmdstat_eval"} {
				var n int64
				if _, err := fmt.Sscanf(section[name], "calls=%d,", &n); err == nil {
					calls += n
				}
			}
		}
		return true
	})
	return calls
}

// Calls of many tenants on a node are one run of a script.
func TestTenantsOfANodeShareARun(t *testing.T) {
	_, e := newShards(t, 1, 0)
	var calls []*engine.Call
	for n := range 64 {
		calls = append(calls, &engine.Call{Cost: 1, Counters: []engine.Counter{counterOf(tenantKey(n), 10)}})
	}
	e.Evaluate(t.Context(), calls...) // the server learns the script
	before := scriptCalls(t, e)
	e.Evaluate(t.Context(), calls...)
	require.EqualValues(t, 1, scriptCalls(t, e)-before)
	for _, c := range calls {
		require.NoError(t, c.Err)
		require.EqualValues(t, 8, c.Outcome.Verdicts[0].Remaining)
	}
}

// While a slot is being moved, a call is decided where its counter is, and a new counter is created
// where it will be. Other tenants in the same run notice nothing.
func TestCallsOfASlotThatIsBeingMoved(t *testing.T) {
	cluster, e := newShards(t, 2, 0)
	key := func(n int) string { return fmt.Sprintf("%s%d", tenantKey(0), n) }
	for n := range 4 {
		charge(t, e, counterOf(key(n), 10))
	}
	from := cluster.MasterOf(key(0))
	to, other := cluster.MasterOf(tenantKey(1)), 2
	for n := 1; to == from; n++ {
		to = cluster.MasterOf(tenantKey(n))
	}
	for cluster.MasterOf(tenantKey(other)) != from {
		other++
	}
	move := cluster.BeginMove(key(0), to)
	move.Key(key(1))

	calls := []*engine.Call{
		{Cost: 1, Counters: []engine.Counter{counterOf(tenantKey(other), 10)}},
		{Cost: 1, Counters: []engine.Counter{counterOf(key(0), 10)}}, // not moved yet
		{Cost: 1, Counters: []engine.Counter{counterOf(key(1), 10)}}, // moved
		{Cost: 1, Counters: []engine.Counter{counterOf(key(9), 10)}}, // new
		{Cost: 1, Counters: []engine.Counter{counterOf(key(8), 10), counterOf(key(7), 10)}},
		{Cost: 1, Counters: []engine.Counter{counterOf(key(0), 10), counterOf(key(2), 10)}},
	}
	logs := []engine.Counter{counterOf(key(5), 10), counterOf(key(6), 10)}
	for i := range logs {
		logs[i].Numbers.Algorithm, logs[i].Numbers.PenaltyMS = limit.SlidingWindowLog, 1_000
	}
	calls = append(calls, &engine.Call{Cost: 1, Counters: logs}) // new, with four keys
	for round := range 3 {
		e.Evaluate(t.Context(), calls...)
		for i, used := range []int{1, 2, 2, 1, 1, 3, 1} {
			require.NoError(t, calls[i].Err, i)
			if i == 5 || i == 1 {
				used += round // two calls charge the first counter
			}
			require.EqualValues(t, 10-used-round, calls[i].Outcome.Verdicts[0].Remaining, "call %d", i)
		}
	}
	client := e.serverOf(key(0)).client
	require.Equal(t, from.URL, "redis://"+client.(*redis.Client).Options().Addr+"/0", "the map has not changed")
	here, err := client.ClusterCountKeysInSlot(t.Context(), int(move.Slot())).Result()
	require.NoError(t, err)
	require.EqualValues(t, 3, here, "no new counter is created here")

	// A call whose counters are in both places waits until they are in one.
	done := make(chan *engine.Call)
	go func() {
		c := &engine.Call{Cost: 1, Counters: []engine.Counter{counterOf(key(0), 10), counterOf(key(1), 10)}}
		e.Evaluate(context.Background(), c)
		done <- c
	}()
	move.Key(key(0))
	split := <-done
	require.NoError(t, split.Err)
	require.EqualValues(t, 10-8, split.Outcome.Verdicts[0].Remaining)
	require.EqualValues(t, 10-5, split.Outcome.Verdicts[1].Remaining)

	move.Finish()
	e.Evaluate(t.Context(), calls...)
	for i, remaining := range []int64{6, 1, 4, 6, 6, 0, 6} {
		require.NoError(t, calls[i].Err, i)
		require.EqualValues(t, remaining, calls[i].Outcome.Verdicts[0].Remaining, "call %d", i)
	}
	require.Eventually(t, func() bool {
		return "redis://"+e.serverOf(key(0)).client.(*redis.Client).Options().Addr+"/0" == to.URL
	}, clusterPatience, time.Millisecond, "the slot map is read again")
}

// A counter that is in the value of its group, or has left it, must be found wherever the slot is
// moved to in the meantime.
func TestGroupsOfASlotThatIsBeingMoved(t *testing.T) {
	cluster, e := newShards(t, 2, 0)
	grouped := func(n int) []engine.Counter {
		var counters []engine.Counter
		for rule := range 3 {
			c := counterOf(fmt.Sprintf("w{%03d}group%04d", 0, n), 10)
			c.ID, c.Grouped = fmt.Sprintf("%04d-rule", rule), true
			counters = append(counters, c)
		}
		return counters
	}
	own := func(n, rule int) engine.Counter {
		c := grouped(n)[rule]
		c.Key, c.Grouped = c.OwnKey(), false
		return c
	}
	charge(t, e, grouped(0)...)
	charge(t, e, own(1, 0))
	charge(t, e, own(2, 1))
	from := cluster.MasterOf("w{000}")
	to := cluster.MasterOf(tenantKey(1))
	for n := 2; to == from; n++ {
		to = cluster.MasterOf(tenantKey(n))
	}
	move := cluster.BeginMove("w{000}", to)

	c := charge(t, e, grouped(0)...)
	require.EqualValues(t, 8, c.Outcome.Verdicts[2].Remaining, "the group is still here")
	c = charge(t, e, own(1, 0))
	require.EqualValues(t, 8, c.Outcome.Verdicts[0].Remaining)

	// Its group is here, and the counter's own key is not: it must not begin at zero elsewhere.
	done := make(chan *engine.Call, 2)
	ask := func(counters ...engine.Counter) {
		call := &engine.Call{Cost: 1, Counters: counters}
		e.Evaluate(context.Background(), call)
		done <- call
	}
	go ask(own(0, 1))
	go ask(grouped(1)...)
	for move.Keys(10) > 0 {
	}
	for range 2 {
		call := <-done
		require.NoError(t, call.Err)
		require.EqualValues(t, 7, call.Outcome.Verdicts[0].Remaining, call.Counters[0].Key)
	}
	c = charge(t, e, grouped(2)...)
	require.EqualValues(t, 8, c.Outcome.Verdicts[1].Remaining, "the counter joins its group at the other node")
	move.Finish()
	c = charge(t, e, own(0, 1))
	require.EqualValues(t, 6, c.Outcome.Verdicts[0].Remaining)
}

// shardLoad charges counters of many tenants from concurrent callers until it is stopped, and then
// proves that each counter allowed exactly its limit, with no error at all.
type shardLoad struct {
	t        *testing.T
	engine   *Engine
	running  context.Context
	stop     context.CancelFunc
	callers  sync.WaitGroup
	allowed  [loadTenants][loadSubjects]atomic.Int64
	asked    [loadTenants][loadSubjects]atomic.Int64
	finished atomic.Int64
}

const (
	loadTenants  = 64
	loadSubjects = 8
	loadCallers  = 16
	loadLimit    = 200
)

func startLoad(t *testing.T, e *Engine) *shardLoad {
	l := &shardLoad{t: t, engine: e}
	l.running, l.stop = context.WithCancel(context.Background())
	for caller := range loadCallers {
		l.callers.Add(1)
		go l.run(caller)
	}
	t.Cleanup(func() {
		l.stop()
		l.callers.Wait()
	})
	return l
}

func (l *shardLoad) run(caller int) {
	defer l.callers.Done()
	for i := caller; l.running.Err() == nil; i += 7 {
		tenant, subject := i%loadTenants, i/loadTenants%loadSubjects
		call := engine.Call{Cost: 1, Counters: []engine.Counter{
			counterOf(fmt.Sprintf("%s-%d", tenantKey(tenant), subject), loadLimit),
		}}
		l.engine.Evaluate(context.Background(), &call)
		if call.Err != nil {
			l.t.Errorf("tenant %d: %v", tenant, call.Err)
			return
		}
		l.asked[tenant][subject].Add(1)
		if call.Outcome.Allowed {
			l.allowed[tenant][subject].Add(1)
		}
		l.finished.Add(1)
	}
}

// pass waits until so many more calls were answered.
func (l *shardLoad) pass(calls int64) {
	l.t.Helper()
	until := l.finished.Load() + calls
	require.Eventually(l.t, func() bool { return l.finished.Load() >= until || l.t.Failed() }, clusterPatience, time.Millisecond)
}

func (l *shardLoad) end() {
	l.t.Helper()
	l.stop()
	l.callers.Wait()
	for tenant := range loadTenants {
		for subject := range loadSubjects {
			want := min(l.asked[tenant][subject].Load(), loadLimit)
			require.Equal(l.t, want, l.allowed[tenant][subject].Load(), "tenant %d, subject %d", tenant, subject)
		}
	}
}

// Slots that are moved with their keys, to and fro, under load: every check is answered, and no
// counter counts twice or is lost.
func TestReshardingLosesNothing(t *testing.T) {
	cluster, e := newShards(t, 3, 0)
	load := startLoad(t, e)
	masters := cluster.Masters()
	for round := range 3 {
		for tenant := range 16 {
			to := masters[(tenant+round)%len(masters)]
			key := tenantKey(4 * tenant)
			if cluster.MasterOf(key) == to {
				continue
			}
			move := cluster.BeginMove(key, to)
			for move.Keys(2) > 0 {
				load.pass(20)
			}
			move.Finish()
		}
	}
	load.end()
	require.NotZero(t, e.Redirects())
}

// Nodes are added and taken away under load.
func TestNodesComeAndGo(t *testing.T) {
	cluster, e := newShards(t, 2, 0)
	load := startLoad(t, e)
	old := cluster.Masters()[0]
	added := cluster.AddMaster()
	for tenant := range loadTenants {
		if cluster.MasterOf(tenantKey(tenant)) == old {
			cluster.BeginMove(tenantKey(tenant), added).Finish()
		}
	}
	load.pass(1000)
	e.awaitAcross(t, 3)
	for tenant := range loadTenants { // and back
		if cluster.MasterOf(tenantKey(tenant)) == added {
			cluster.BeginMove(tenantKey(tenant), old).Finish()
		}
	}
	load.pass(1000)
	cluster.Remove(added)
	load.pass(1000)
	load.end()
}

// The replica of each primary takes its place under load, as for maintenance.
func TestFailoverOfEachPrimaryLosesNothing(t *testing.T) {
	cluster, e := newShards(t, 3, 1)
	load := startLoad(t, e)
	for _, master := range cluster.Masters() {
		load.pass(500)
		cluster.Failover(master)
		require.Eventually(t, func() bool {
			for _, m := range cluster.Masters() {
				if m == master {
					return false
				}
			}
			return len(cluster.Masters()) == 3
		}, clusterPatience, 10*time.Millisecond)
		load.pass(500)
	}
	load.end()
}

// A provider that does not know the flag for scripts across slots is detected, and gets a run for
// each tenant.
func TestFlagRefused(t *testing.T) {
	cluster := testenv.StartCluster(t, 2, 0, time.Minute)
	client, err := NewClient(cluster.URL, WithTimeout(clusterPatience))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	var tried atomic.Int64
	client.(*redis.ClusterClient).OnNewNode(func(node *redis.Client) { node.AddHook(refuseFlag{&tried}) })
	e := New(client, Options{Deadline: clusterPatience})
	require.Eventually(t, func() bool {
		e.All(t.Context())
		nodes, _ := e.RunsBySlot()
		return nodes == 2
	}, clusterPatience, 10*time.Millisecond)
	_, err = e.RunsBySlot()
	require.ErrorContains(t, err, "Unexpected flag in script shebang")
	require.EqualValues(t, 2, tried.Load(), "once for each node")
	load := startLoad(t, e)
	load.pass(2000)
	key := tenantKey(0)
	for _, to := range cluster.Masters() {
		if cluster.MasterOf(key) != to {
			move := cluster.BeginMove(key, to)
			for move.Keys(2) > 0 {
				load.pass(20)
			}
			move.Finish()
		}
	}
	load.end()
	require.EqualValues(t, 2, tried.Load(), "no check tries it")
}

// refuseFlag answers for a server that does not know the flag.
type refuseFlag struct{ tried *atomic.Int64 }

func (refuseFlag) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h refuseFlag) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.refuses(cmd) {
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func (h refuseFlag) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var others []redis.Cmder
		for _, cmd := range cmds {
			if !h.refuses(cmd) {
				others = append(others, cmd)
			}
		}
		return next(ctx, others)
	}
}

func (h refuseFlag) refuses(cmd redis.Cmder) bool {
	args := cmd.Args()
	if len(args) < 3 || args[2] != 0 {
		return false
	}
	if args[0] == "evalsha" {
		cmd.SetErr(spoken("NOSCRIPT No matching script. Please use EVAL."))
	} else {
		h.tried.Add(1)
		cmd.SetErr(spoken("ERR Unexpected flag in script shebang: allow-cross-slot-keys"))
	}
	return true
}
