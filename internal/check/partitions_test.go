package check_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// spreadTenant is a tenant with partitions on a Redis Cluster, and instances that check for it.
type spreadTenant struct {
	keys      check.Keys
	tenant    limit.TenantID
	instances []*checktest.Parts
}

func newSpreadTenant(t *testing.T, cluster *testenv.Cluster, instances int) *spreadTenant {
	t.Helper()
	s := &spreadTenant{keys: check.NewKeys([16]byte{7}), tenant: uuid.New()}
	for range instances {
		client, err := redis.NewClient(cluster.URL, redis.WithTimeout(time.Minute))
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		s.instances = append(s.instances, checktest.New(t, checktest.Options{
			Keys: s.keys, Shared: redis.New(client, redis.Options{Deadline: time.Minute}), Instances: instances,
		}))
	}
	return s
}

func (s *spreadTenant) policy(t *testing.T, partitions int, rules ...limit.Rule) *check.Policy {
	t.Helper()
	p, err := check.CompilePolicy(s.keys, s.tenant, check.PolicyData{Partitions: partitions, Rules: rules})
	require.NoError(t, err)
	return p
}

func (s *spreadTenant) check(t *testing.T, instance int, p *check.Policy, reqs ...check.Request) []check.Decision {
	t.Helper()
	decisions, err := s.instances[instance].Checker.Check(context.Background(), p, reqs)
	require.NoError(t, err)
	for i := range decisions {
		require.False(t, decisions[i].Degraded)
	}
	return decisions
}

func monthly(slug string, algorithm limit.Algorithm, units int64, by ...string) limit.Rule {
	r := limit.Rule{
		Slug: slug, Resource: "*", Algorithm: algorithm, Limit: units, By: by,
		Window: limit.Window{Duration: limit.Duration{Text: "30d", MS: 30 * 86_400_000}},
	}
	if algorithm.Bucket() {
		r.Burst = units
	}
	if algorithm == limit.SlidingWindowBuckets {
		r.Precision = limit.Duration{Text: "1d", MS: 86_400_000}
	}
	return r
}

// A tenant with partitions is decided as one with a single tag: the same checks are allowed, and
// every rule has the same units left. Each check is alone, so no other one holds units.
func TestPartitionsDecideAsOne(t *testing.T) {
	s := newSpreadTenant(t, testenv.StartCluster(t, 3, 0, time.Minute), 1)
	r := rand.New(rand.NewPCG(16, 3))
	for range 12 {
		s.tenant = uuid.New()
		var rules []limit.Rule
		for i, by := range [][]string{{"subject"}, {"subject", "resource"}, {"resource"}, {}} {
			for n := range r.IntN(3) {
				algorithm := limit.Algorithms[r.IntN(len(limit.Algorithms))]
				rule := monthly(fmt.Sprintf("r%d-%d", i, n), algorithm, 2+r.Int64N(12), by...)
				if r.IntN(6) == 0 {
					rule.Mode = limit.Shadow
				}
				if r.IntN(6) == 0 {
					rule.Penalty = limit.Duration{Text: "1h", MS: 3_600_000}
				}
				rules = append(rules, rule)
			}
		}
		one := checktest.NewRig(t, check.PolicyData{Rules: rules}, nil)
		policy := s.policy(t, 8, rules...)
		for step := range 60 {
			req := check.Request{
				Subject: strconv.Itoa(r.IntN(4)), Resource: strconv.Itoa(r.IntN(3)), Cost: r.Int64N(4), DryRun: r.IntN(8) == 0,
				Explain: true, // no answer from memory: it would name units of a moment ago
			}
			want, got := one.Check(req), s.check(t, 0, policy, req)[0]
			require.Equal(t, want.Allowed, got.Allowed, "step %d: %+v", step, req)
			require.Equal(t, want.Code, got.Code)
			require.Len(t, got.Rules, len(want.Rules))
			for i := range want.Rules {
				w, g := &want.Rules[i], &got.Rules[i]
				require.Equal(t, []any{w.Rule.Slug, w.Allowed, w.Remaining}, []any{g.Rule.Slug, g.Allowed, g.Remaining},
					"step %d: %+v, %s by %v", step, req, w.Rule.Algorithm, w.Rule.By)
			}
		}
	}
}

// Many checks at once, by several instances, with a rule of the whole tenant that is soon used up.
// No limit is exceeded, and whatever was charged was allowed.
func TestPartitionsUnderLoad(t *testing.T) {
	s := newSpreadTenant(t, testenv.StartCluster(t, 3, 0, time.Minute), 3)
	const each, all, subjects = 12, 150, 20
	policy := s.policy(t, 16,
		monthly("each", limit.FixedWindow, each, "subject"), monthly("all", limit.SlidingWindowCounter, all), monthly("of-resource", limit.FixedWindow, all-20, "resource"))
	var allowed [subjects]atomic.Int64
	var total, ofResource atomic.Int64
	ask := func(instance, subject int, resource string, fresh bool) {
		if s.check(t, instance, policy, check.Request{Subject: strconv.Itoa(subject), Resource: resource, Cost: 1, Explain: fresh})[0].Allowed {
			allowed[subject].Add(1)
			total.Add(1)
			if resource == "busy" {
				ofResource.Add(1)
			}
		}
	}
	var work sync.WaitGroup
	for worker := range 12 {
		work.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 60 {
				ask(worker%3, r.IntN(subjects), []string{"busy", "busy", "other"}[r.IntN(3)], false)
			}
		})
	}
	work.Wait()
	// Checks that ran into units of others were denied early. Nothing holds any now.
	for subject := range subjects {
		for range each + 1 {
			ask(0, subject, "other", true)
		}
	}
	require.EqualValues(t, all, total.Load())
	peek := func(subject int, resource string) check.Decision {
		return s.check(t, 1, policy, check.Request{Subject: strconv.Itoa(subject), Resource: resource, Explain: true})[0]
	}
	for subject := range subjects {
		d := peek(subject, "busy")
		require.EqualValues(t, 0, d.Rules[0].Remaining, d.Rules[0].Rule.Slug)
		require.EqualValues(t, each-allowed[subject].Load(), d.Rules[1].Remaining)
		require.EqualValues(t, all-20-ofResource.Load(), d.Rules[2].Remaining)
		live := s.instances[2].Checker.Inspect(t.Context(), policy, check.Request{Subject: strconv.Itoa(subject)})
		require.Len(t, live.Rules, 1)
		require.EqualValues(t, each-allowed[subject].Load(), live.Rules[0].Remaining)
	}
}

// The checks of a batch are decided in order, and a group of checks as one, in all partitions. A
// reset of a subject reaches its partition.
func TestPartitionsOfBatches(t *testing.T) {
	s := newSpreadTenant(t, testenv.StartCluster(t, 3, 0, time.Minute), 1)
	policy := s.policy(t, 16, monthly("each", limit.FixedWindow, 5, "subject"), monthly("all", limit.FixedWindow, 20))
	var reqs []check.Request
	for n := range 30 {
		reqs = append(reqs, check.Request{Subject: strconv.Itoa(n % 5), Resource: "r", Cost: 1})
	}
	for i, d := range s.check(t, 0, policy, reqs...) {
		require.Equal(t, i < 20, d.Allowed, "check %d", i)
	}
	checker := s.instances[0].Checker
	for n := range 5 {
		live := checker.Inspect(t.Context(), policy, check.Request{Subject: strconv.Itoa(n)})
		require.EqualValues(t, 1, live.Rules[0].Remaining, "4 of 5 were allowed")
	}
	_, _, err := checker.Reset(t.Context(), policy, []string{"each"}, check.Request{Subject: "3"})
	require.NoError(t, err)
	require.EqualValues(t, 5, checker.Inspect(t.Context(), policy, check.Request{Subject: "3"}).Rules[0].Remaining)

	more := s.policy(t, 16, monthly("each", limit.FixedWindow, 5, "subject"), monthly("all", limit.FixedWindow, 23))
	together := func(costs ...int64) bool {
		var reqs []check.Request
		for subject, cost := range costs {
			reqs = append(reqs, check.Request{Subject: strconv.Itoa(subject), Resource: "r", Cost: cost})
		}
		decisions, err := checker.CheckTogetherInTurns(t.Context(), more, reqs, new(check.Scratch), nil)
		require.NoError(t, err)
		for i := range decisions {
			if !decisions[i].Allowed {
				return false
			}
		}
		return true
	}
	require.False(t, together(1, 1, 1, 1), "3 are left for all")
	require.False(t, together(1, 2), "1 is left for subject 1")
	require.True(t, together(1, 1, 1))
	require.False(t, together(0, 0, 0, 1))
	for n, left := range []int64{0, 0, 0, 5, 1} {
		require.EqualValues(t, left, checker.Inspect(t.Context(), more, check.Request{Subject: strconv.Itoa(n)}).Rules[0].Remaining, "subject %d", n)
	}
}

// A server that does not answer degrades the rules that it holds. What the other servers hold is
// counted there, and a check that the degraded rule denies is not.
func TestPartitionOnALostServer(t *testing.T) {
	cluster := testenv.StartCluster(t, 3, 0, time.Hour)
	s := newSpreadTenant(t, cluster, 1)
	all := monthly("all", limit.FixedWindow, 100)
	all.OnUnavailable = limit.Deny
	policy := s.policy(t, 16, monthly("each", limit.FixedWindow, 50, "subject"), all)
	lost := cluster.MasterOf(s.keys.Prefix(s.tenant))
	subject := ""
	for n := 0; subject == ""; n++ {
		name := strconv.Itoa(n)
		if s.check(t, 0, policy, check.Request{Subject: name, Resource: "r", Cost: 1}); cluster.MasterOf(s.keys.PrefixOf(s.tenant, 16, name)) != lost {
			subject = name
		}
	}
	lost.Kill()
	ask := func() check.Decision {
		decisions, err := s.instances[0].Checker.Check(t.Context(), policy, []check.Request{{Subject: subject, Resource: "r", Cost: 1}})
		require.NoError(t, err)
		return decisions[0]
	}
	d := ask()
	for ; !d.Degraded; d = ask() {
		require.True(t, d.Allowed)
	}
	require.False(t, d.Allowed)
	require.True(t, d.Rules[0].Uncounted)
	left := d.Rules[1].Remaining
	for range 5 {
		d = ask()
		require.False(t, d.Allowed)
		require.False(t, d.Rules[1].Uncounted)
		require.Equal(t, left, d.Rules[1].Remaining, "nothing is charged")
	}
}

// change returns the policy of a tenant whose partitions have changed some time ago.
func (s *spreadTenant) change(t *testing.T, before, partitions int, ago time.Duration, rules ...limit.Rule) *check.Policy {
	t.Helper()
	p, err := check.CompilePolicy(s.keys, s.tenant, check.PolicyData{
		Partitions: partitions, PartitionsBefore: before, PartitionsChanged: time.Now().Add(-ago), Rules: rules,
	})
	require.NoError(t, err)
	return p
}

// spreadLoad is what was allowed of a load.
type spreadLoad struct {
	subjects []atomic.Int64
	total    atomic.Int64
}

func (l *spreadLoad) ask(t *testing.T, s *spreadTenant, instance int, p *check.Policy, subject int, fresh bool) {
	if s.check(t, instance, p, check.Request{Subject: strconv.Itoa(subject), Resource: "r", Cost: 1, Explain: fresh})[0].Allowed {
		l.subjects[subject].Add(1)
		l.total.Add(1)
	}
}

// during sends checks by all instances. Each of them goes from one policy to the next at another
// time.
func (l *spreadLoad) during(t *testing.T, s *spreadTenant, from, to *check.Policy) {
	var work sync.WaitGroup
	const checks = 60
	for worker := range 2 * len(s.instances) {
		work.Go(func() {
			instance := worker % len(s.instances)
			r := rand.New(rand.NewPCG(uint64(worker), 16))
			for n := range checks {
				p := from
				if n >= checks/(2+instance) {
					p = to
				}
				l.ask(t, s, instance, p, r.IntN(len(l.subjects)), false)
			}
		})
	}
	work.Wait()
}

// counted compares what is left under a policy with what was allowed.
func (l *spreadLoad) counted(t *testing.T, s *spreadTenant, p *check.Policy, each, all int64) {
	t.Helper()
	for subject := range l.subjects {
		d := s.check(t, 1, p, check.Request{Subject: strconv.Itoa(subject), Resource: "r", Explain: true})[0]
		require.EqualValues(t, all-l.total.Load(), d.Rules[0].Remaining, d.Rules[0].Rule.Slug)
		require.EqualValues(t, each-l.subjects[subject].Load(), d.Rules[1].Remaining, "subject %d", subject)
		require.EqualValues(t, 10*all-l.total.Load(), d.Rules[2].Remaining, d.Rules[2].Rule.Slug)
		live := s.instances[0].Checker.Inspect(t.Context(), p, check.Request{Subject: strconv.Itoa(subject)})
		require.EqualValues(t, each-l.subjects[subject].Load(), live.Rules[0].Remaining)
	}
}

// fill uses up what is left, and no more.
func (l *spreadLoad) fill(t *testing.T, s *spreadTenant, p *check.Policy, each, all int64) {
	t.Helper()
	for subject := range l.subjects {
		for range each + 1 {
			l.ask(t, s, 2, p, subject, true)
		}
	}
	require.EqualValues(t, all, l.total.Load())
	l.counted(t, s, p, each, all)
}

// The number of partitions changes under load, and the instances learn of each step at different
// times. No limit is exceeded, and every unit that was allowed is counted after each step.
func TestPartitionsChangeUnderLoad(t *testing.T) {
	cluster := testenv.StartCluster(t, 3, 0, time.Minute)
	const each, all, subjects = 40, 350, 10
	rules := []limit.Rule{
		monthly("each", limit.FixedWindow, each, "subject"), monthly("all", limit.FixedWindow, all), monthly("of-r", limit.SlidingWindowBuckets, 10*all, "resource"),
	}
	life := time.Duration(rules[0].Window.MS+60_000) * time.Millisecond // when the new places have everything
	for _, numbers := range [][2]int{{1, 16}, {16, 3}, {4, 5}} {
		t.Run(fmt.Sprint(numbers), func(t *testing.T) {
			s := newSpreadTenant(t, cluster, 3)
			before, begun := s.policy(t, numbers[0], rules...), s.change(t, numbers[0], numbers[1], 0, rules...)
			l := &spreadLoad{subjects: make([]atomic.Int64, subjects)}
			l.during(t, s, before, begun)
			l.counted(t, s, before, each, all)
			l.counted(t, s, begun, each, all)
			l.fill(t, s, begun, each, all)

			// The later steps begin when the units from before the change count no more. A new
			// tenant has none.
			s.tenant = uuid.New()
			begun = s.change(t, numbers[0], numbers[1], 0, rules...)
			both, ended := s.change(t, numbers[0], numbers[1], life+30*time.Second, rules...), s.change(t, numbers[0], numbers[1], life+time.Hour, rules...)
			l = &spreadLoad{subjects: make([]atomic.Int64, subjects)}
			l.during(t, s, begun, both)
			l.counted(t, s, both, each, all)
			l.during(t, s, both, ended)
			l.counted(t, s, ended, each, all)
			after := s.policy(t, numbers[1], rules...)
			l.counted(t, s, after, each, all)
			l.fill(t, s, after, each, all)
		})
	}
}

// A reset, a changed plan and a group of checks reach both places of a subject while the number
// changes.
func TestPartitionsChangeReachesBothPlaces(t *testing.T) {
	s := newSpreadTenant(t, testenv.StartCluster(t, 3, 0, time.Minute), 1)
	rules := []limit.Rule{monthly("each", limit.FixedWindow, 10, "subject"), monthly("bucket", limit.TokenBucket, 10, "subject")}
	begun, after := s.change(t, 1, 16, 0, rules...), s.policy(t, 16, rules...)
	moving := ""
	for n := 0; moving == ""; n++ {
		if name := strconv.Itoa(n); s.keys.PrefixOf(s.tenant, 16, name) != s.keys.Prefix(s.tenant) {
			moving = name
		}
	}
	checker := s.instances[0].Checker
	left := func(p *check.Policy) []int64 {
		live := checker.Inspect(t.Context(), p, check.Request{Subject: moving})
		return []int64{live.Rules[0].Remaining, live.Rules[1].Remaining}
	}
	charge := func(cost int64) {
		require.True(t, s.check(t, 0, begun, check.Request{Subject: moving, Resource: "r", Cost: cost})[0].Allowed)
	}
	charge(4)
	require.Equal(t, []int64{6, 6}, left(begun))
	require.Equal(t, []int64{6, 6}, left(after))
	_, _, err := checker.Reset(t.Context(), begun, []string{"each"}, check.Request{Subject: moving})
	require.NoError(t, err)
	require.Equal(t, []int64{6, 10}, left(begun))
	require.Equal(t, []int64{6, 10}, left(after))
	decisions, err := checker.CheckTogetherInTurns(t.Context(), begun, []check.Request{
		{Subject: moving, Resource: "r", Cost: 2}, {Subject: moving, Resource: "r", Cost: 1}, {Subject: "other", Resource: "r", Cost: 5},
	}, new(check.Scratch), nil)
	require.NoError(t, err)
	for i := range decisions {
		require.True(t, decisions[i].Allowed)
	}
	require.Equal(t, []int64{3, 7}, left(begun))
	require.Equal(t, []int64{3, 7}, left(after))
	require.NoError(t, checker.Amend(t.Context(), begun, check.CounterChange{ID: 1, Subject: moving, Reset: true}))
	charge(1)
	require.NoError(t, checker.Amend(t.Context(), begun, check.CounterChange{ID: 1, Subject: moving, Reset: true}), "once")
	require.Equal(t, []int64{9, 9}, left(begun))
	require.Equal(t, []int64{9, 9}, left(after))
}
