package recent

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/peers"
	"weir/internal/testenv"
)

// rig is a checker that a log observes.
type rig struct {
	*checktest.Rig
	log *Log
}

func newRig(t *testing.T, data check.PolicyData, subjects ...check.SubjectData) *rig {
	t.Helper()
	r := &rig{log: New(Options{Keys: check.NewKeys([16]byte{1}), Peers: peers.New(1, nil, prometheus.NewRegistry())})}
	r.Rig = checktest.NewRig(t, data, []check.Observer{r.log}, subjects...)
	r.log.clock, r.log.following = r.Clock, newFollowers(r.Clock)
	return r
}

func (r *rig) recent(q Query) []Decision {
	return r.log.List(context.Background(), r.Policy.Tenant(), q).Decisions
}

// Support needs one line: who was denied, by which rule, until when.
func TestRecentDenial(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 2)}}, check.SubjectData{Subject: "blocked", State: check.Blocked})
	for range 5 {
		r.Check(check.Request{Subject: "ada", Resource: "orders:create", Cost: 1})
	}
	r.Check(check.Request{Subject: "blocked", Cost: 1})
	got := r.recent(Query{Denied: true})
	require.Len(t, got, 2)
	require.Equal(t, Decision{
		At: time.UnixMilli(checktest.Start), Subject: "ada", Resource: "orders:create", Cost: 1, Code: check.RateLimitExceeded, Rule: "api", Source: "rule",
		Quota: 2, WindowMS: 60_000, RetryAfterMS: 60_000, ResetAfterMS: 60_000, Repeats: 2,
	}, got[0], "three denials within a second are one entry")
	require.Equal(t, check.SubjectBlocked, got[1].Code)

	require.Len(t, r.recent(Query{}), 4, "and two that were allowed")
	r.Move(RepeatsWithin)
	r.Check(check.Request{Subject: "ada", Resource: "orders:create", Cost: 1})
	got = r.recent(Query{Denied: true, Subject: "ada"})
	require.Len(t, got, 2)
	require.Equal(t, []int64{0, 2}, []int64{got[0].Repeats, got[1].Repeats}, "newest first")

	r.Check(check.Request{Subject: "dry", Cost: 3, DryRun: true})
	require.Empty(t, r.recent(Query{Subject: "dry"}), "no check was denied")
}

func TestRecentFilters(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 1)}})
	for _, subject := range []string{"user_1", "user_2", "other"} {
		for range 2 {
			r.Check(check.Request{Subject: subject, Resource: "r:" + subject, Cost: 1})
		}
		r.Move(time.Second)
	}
	subjects := func(q Query) (out []string) {
		for _, d := range r.recent(q) {
			out = append(out, d.Subject)
		}
		return out
	}
	require.Equal(t, []string{"other", "user_2", "user_1"}, subjects(Query{Denied: true}))
	require.Equal(t, []string{"user_2", "user_1"}, subjects(Query{Denied: true, Prefix: "user_"}))
	require.Equal(t, []string{"user_2"}, subjects(Query{Denied: true, Resource: "r:user_2"}))
	require.Empty(t, subjects(Query{Rule: "another"}))
	require.Equal(t, []string{"other", "other"}, subjects(Query{Rule: "api", Since: time.UnixMilli(checktest.Start + 2000)}))
	require.Equal(t, []string{"other"}, subjects(Query{Denied: true, Most: 1}))
	require.Empty(t, r.log.List(t.Context(), uuid.New(), Query{}).Decisions, "another tenant's")
}

// A busy subject must not evict the entries that support needs, nor fill the memory.
func TestRecentIsBounded(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 1)}})
	r.Check(check.Request{Subject: "quiet", Cost: 1})
	r.Check(check.Request{Subject: "quiet", Cost: 1})
	for range 100 {
		for range 1000 {
			r.Check(check.Request{Subject: "loud", Cost: 1})
		}
		r.Move(500 * time.Millisecond)
	}
	require.Len(t, r.recent(Query{Denied: true, Subject: "quiet"}), 1)
	var loud int64
	for _, d := range r.recent(Query{Denied: true, Subject: "loud"}) {
		loud += 1 + d.Repeats
	}
	require.Equal(t, int64(99_999), loud, "each denial is counted on an entry")
	for range 600 { // ten minutes later, the quiet one is still there, and each minute of the loud one
		r.Check(check.Request{Subject: "loud", Cost: 1})
		r.Check(check.Request{Subject: "loud", Cost: 2})
		r.Move(time.Second)
	}
	require.Len(t, r.recent(Query{Denied: true, Subject: "quiet"}), 1)
	minutes := map[time.Time]bool{}
	got := r.recent(Query{Denied: true, Subject: "loud"})
	for _, d := range got {
		require.False(t, d.Last().Before(d.At))
		require.LessOrEqual(t, d.Last().Sub(d.At), time.Minute+RepeatsWithin)
		minutes[d.At.Truncate(time.Minute)] = true
	}
	require.LessOrEqual(t, len(got), 2*recentDeniedEach, "of each reason")
	require.GreaterOrEqual(t, len(minutes), 10)

	r.Move(time.Second)
	for i := range 1000 {
		for range 2 {
			r.Check(check.Request{Subject: fmt.Sprint("many ", i), Cost: 1})
		}
	}
	require.Len(t, r.recent(Query{Denied: true, Prefix: "many"}), recentDeniedPerSecond)
	for range 20 {
		r.Move(time.Second)
		for i := range 60 {
			r.Check(check.Request{Subject: fmt.Sprint("more ", i), Cost: 2})
		}
	}
	require.Len(t, r.recent(Query{Denied: true}), recentDenied)
}

// With many tenants, the least recently used are removed first.
func TestRecentForgetsIdleTenants(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 1)}})
	recent := r.log
	recent.budget = 20_000
	var ids []limit.TenantID
	decide := func(id limit.TenantID) {
		d := check.Decision{Subject: strings.Repeat("s", 256), Resource: "r", Code: check.SubjectBlocked, Deciding: -1}
		recent.Decided(id, &check.Request{}, &d, r.Clock())
		require.LessOrEqual(t, recent.bytes, recent.budget)
	}
	for range 100 {
		ids = append(ids, uuid.New())
		decide(ids[len(ids)-1])
		r.Move(time.Second)
		decide(ids[0])
	}
	require.NotEmpty(t, recent.list(ids[0], Query{}), "the tenant was active all the time")
	require.NotEmpty(t, recent.list(ids[99], Query{}))
	require.Empty(t, recent.list(ids[1], Query{}))
	for recent.order.Len() > 0 {
		recent.forget(recent.order.Back())
	}
	require.Zero(t, recent.bytes, "the same number was added and removed")
}

func TestNearLimit(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 10)}})
	use := func(subject string, cost int64) { r.Check(check.Request{Subject: subject, Cost: cost}) }
	for range 20 {
		use("filler", 0)
	}
	use("half", 5)
	use("rising", 9)
	use("rising", 1)
	require.Equal(t, 1.0, r.log.near(r.Policy.Tenant())[0].Used(), "as of the last check, not of the first within a second")
	r.Move(time.Minute)
	use("near", 9)
	use("out", 10)
	use("out", 1)
	near := func() (out []string) {
		for _, n := range r.log.Near(t.Context(), r.Policy.Tenant(), 10).Near {
			out = append(out, fmt.Sprintf("%s %.1f", n.Subject, n.Used()))
		}
		return out
	}
	require.Equal(t, []string{"out 1.0", "near 0.9"}, near())
	r.Move(2 * time.Second)
	use("near", 1)
	require.ElementsMatch(t, []string{"out 1.0", "near 1.0"}, near(), "the latest note")
	r.Move(time.Minute)
	require.Empty(t, near(), "their full quota is available")

	hourly := checktest.Minute("hourly", 10)
	hourly.Window = limit.Window{Duration: limit.Duration{Text: "1h", MS: 3_600_000}}
	r.Policy = r.Compile(check.PolicyData{Rules: []limit.Rule{hourly}})
	for i := range 3 * recentNear {
		r.Move(time.Second)
		use(fmt.Sprint("s", i), 9)
	}
	use("last", 10)
	require.Len(t, near(), 10)
	require.Equal(t, "last 1.0", near()[0])
	require.Len(t, r.log.near(r.Policy.Tenant()), recentNear, "not more than the maximum")
}

// member is one instance of a deployment with a real Redis.
type member struct {
	*check.Checker
	*Log
}

func instance(t *testing.T, url string, secret byte) member {
	t.Helper()
	return instanceAt(t, url, secret, nil)
}

// instanceAt is instance with a clock. Hooks see the commands of its client.
func instanceAt(t *testing.T, url string, secret byte, clock func() time.Time, hooks ...redis.Hook) member {
	t.Helper()
	registry := prometheus.NewRegistry()
	others := peers.New(1, nil, registry)
	client, err := redisengine.NewClient(url, redisengine.WithTimeout(testenv.RedisTimeout))
	require.NoError(t, err)
	for _, hook := range hooks {
		client.AddHook(hook)
	}
	keys := check.NewKeys([16]byte{secret})
	recent := New(Options{
		Keys: keys, Peers: others, Clock: clock, Self: func() Instance { return Instance{Name: fmt.Sprint("of ", secret), ConfigAge: time.Second} },
	})
	c := check.NewChecker(check.CheckerOptions{
		Keys: keys, Engine: engine.NewMemory(engine.MemoryOptions{}), Metrics: check.NewMetrics(registry), Observers: []check.Observer{recent},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { others.Run(ctx, client, slog.New(slog.DiscardHandler)) })
	running.Go(func() { recent.Run(ctx, client, slog.New(slog.DiscardHandler)) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = client.Close()
	})
	return member{c, recent}
}

// A denial by any instance can be found on every instance.
func TestRecentOfAllInstances(t *testing.T) {
	server := testenv.StartRedis(t)
	a, b, other := instance(t, server.URL, 1), instance(t, server.URL, 1), instance(t, server.URL, 2)
	policy, err := check.CompilePolicy(check.NewKeys([16]byte{1}), uuid.New(), check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 1)}})
	require.NoError(t, err)
	deny := func(c member, subject string) {
		_, err := c.Check(t.Context(), policy, []check.Request{{Subject: subject, Resource: "r", Cost: 1}, {Subject: subject, Resource: "r", Cost: 1}})
		require.NoError(t, err)
	}
	deny(a, "of a")
	deny(b, "of b")
	deny(other, "of an unknown sender")
	// An instance that a busy machine does not run for a moment answers the next request.
	var got, near List
	require.Eventually(t, func() bool {
		got = b.List(t.Context(), policy.Tenant(), Query{Denied: true})
		return got.Answered == 2
	}, time.Minute, time.Millisecond, "a does not answer")
	var subjects []string
	for _, d := range got.Decisions {
		subjects = append(subjects, d.Subject)
	}
	require.ElementsMatch(t, []string{"of a", "of b"}, subjects, "messages of an instance with another secret are ignored")
	require.Eventually(t, func() bool {
		near = b.Near(t.Context(), policy.Tenant(), 1)
		return near.Answered == 2
	}, time.Minute, time.Millisecond, "a does not answer")
	require.Len(t, near.Near, 1)

	server.Kill()
	require.Eventually(t, func() bool { // the answers from before may still be shared
		got = b.List(t.Context(), policy.Tenant(), Query{Denied: true})
		return got.Answered == 1
	}, time.Minute, time.Millisecond)
	require.Len(t, got.Decisions, 1, "the decisions of this instance are always listed")
}

// The operator sees the state of all instances on any of them. Of an instance of another
// deployment, only its existence is visible.
func TestAllInstances(t *testing.T) {
	server := testenv.StartRedis(t)
	a := instance(t, server.URL, 1)
	instance(t, server.URL, 1)
	instance(t, server.URL, 2)
	var list []Instance
	require.Eventually(t, func() bool {
		var known int
		list, known = a.Instances(t.Context())
		return known == 3 && len(list) == 2
	}, time.Minute, time.Millisecond)
	for _, i := range list {
		require.Equal(t, "of 1", i.Name, "messages of an instance with another secret are ignored")
		require.Equal(t, time.Second, i.ConfigAge)
	}
	require.NotEqual(t, list[0].This, list[1].This, "one of them is this instance")

	server.Kill()
	list, _ = a.Instances(t.Context())
	require.Len(t, list, 1, "this instance is always listed")
	require.True(t, list[0].This)
}

// With concurrent calls, nothing is counted twice or lost.
func TestRecentConcurrently(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 1)}})
	r.Check(check.Request{Subject: "ada", Cost: 1})
	r.Check(check.Request{Subject: "ada", Cost: 1})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				_, _ = r.Checker.Check(context.Background(), r.Policy, []check.Request{{Subject: "ada", Resource: "default", Cost: 1}})
				r.recent(Query{Most: 1})
			}
		})
	}
	all.Wait()
	got := r.recent(Query{Denied: true})
	require.Len(t, got, 1)
	require.Equal(t, int64(4000), got[0].Repeats)
}
