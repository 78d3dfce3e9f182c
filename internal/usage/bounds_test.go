package usage

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/limit"
)

// flood has the checks of one tenant with as many plans and rules as it may have.
type flood struct {
	*crowd
	rules []*limit.Rule
	sent  int
}

func newFlood(t *testing.T, rules int) *flood {
	f := &flood{crowd: newCrowd(t)}
	for i := range rules {
		rule := checktest.Minute(fmt.Sprint("rule-", i), 10)
		f.rules = append(f.rules, &rule)
	}
	return f
}

// mostMatching is how many rules a check of the flood matches.
const mostMatching = 32

// send counts a check under a plan, whose rules begin with the one of this number. Each third one
// is denied, by its first rule.
func (f *flood) send(plan, resource string, first int) (rules []string) {
	d := check.Decision{Allowed: f.sent%3 > 0, Subject: "user_1", Plan: plan, Resource: resource, Cost: 2}
	for i := range mostMatching {
		rule := f.rules[(first+i)%len(f.rules)]
		d.Rules = append(d.Rules, check.RuleDecision{Rule: rule, Mode: limit.Enforce, Allowed: d.Allowed || i > 0})
		rules = append(rules, rule.Slug)
	}
	f.sent++
	f.u.Decided(member(1), &check.Request{}, &d, f.now)
	return rules
}

// sums returns the checks of the rows with and without a rule, by a part of the key.
func (f *flood) sums(of func(Key) string, ofRules bool) map[string]int64 {
	sums := map[string]int64{}
	for key, counts := range f.ledger.rows {
		if (key.Rule != "") == ofRules {
			sums[of(key)] += counts.Allowed + counts.Denied
		}
	}
	return sums
}

func (f *flood) perStart() map[int64]int {
	n := map[int64]int{}
	for key := range f.ledger.rows {
		n[key.StartMS]++
	}
	return n
}

// A tenant with a thousand plans and rules has a bounded number of rows each minute, also in a
// minute in which other plans and rules are used than before. Its sums are exact, and so are those
// of each plan and each rule.
func TestUsageRowsAreBounded(t *testing.T) {
	f := newFlood(t, 992)
	plans, verdicts := map[string]int64{}, map[string]int64{}
	for minute := range 3 {
		for i := range 3000 {
			plan := fmt.Sprint("plan-", (i+300*minute)%1000)
			plans[plan]++
			for _, rule := range f.send(plan, fmt.Sprint("resource-", i%7), i*31) {
				verdicts[rule]++
			}
			if i%1100 == 0 {
				f.second()
			}
		}
		f.now = f.now.Add(time.Minute)
	}
	require.NoError(t, f.u.flush(context.Background(), true))

	for start, rows := range f.perStart() {
		require.LessOrEqual(t, rows, maxTenantRows, start)
		require.Greater(t, rows, 3000, start)
	}
	require.Len(t, f.perStart(), 3)
	require.EqualValues(t, f.sent, f.ledger.checks())
	require.Equal(t, plans, f.sums(func(k Key) string { return k.Plan }, false), "each plan has its own sum")
	require.Equal(t, verdicts, f.sums(func(k Key) string { return k.Rule }, true), "each rule has its own sum")
	var all Counts
	for key, counts := range f.ledger.rows {
		if key.Rule == "" {
			all.Add(counts)
		}
	}
	denied := int64((f.sent + 2) / 3)
	require.Equal(t, Counts{Allowed: int64(f.sent) - denied, Denied: denied, CostAllowed: 2 * (int64(f.sent) - denied), CostDenied: 2 * denied}, all)
	require.Zero(t, testutil.ToFloat64(f.u.metrics.lost))
}

// Plans and rules that are created and deleted again and again have no rows without end either.
// Beyond the limit, they count as other plans, or only in the sums of the checks.
func TestUsageBoundsPlansAndRules(t *testing.T) {
	f := newFlood(t, 4*maxUsageRules)
	const plans = 4 * maxUsagePlans
	for i := range plans {
		f.send(fmt.Sprint("plan-", i), "orders", i*mostMatching)
	}
	f.second()
	require.LessOrEqual(t, len(f.ledger.rows), maxTenantRows)
	require.EqualValues(t, plans, f.ledger.checks())
	byPlan := f.sums(func(k Key) string { return k.Plan }, false)
	require.Len(t, byPlan, maxUsageCells+maxUsagePlans+1)
	require.EqualValues(t, plans-maxUsageCells-maxUsagePlans, byPlan[OtherPlans])
	require.False(t, limit.ValidSlug(OtherPlans), "no plan can have this name")

	// A new hour begins with free rows.
	f.now = f.now.Add(time.Hour)
	f.send("pro", "orders", 0)
	f.second()
	_, own := f.ledger.rows[Key{Tenant: member(1), StartMS: Minute.start(f.now.UnixMilli()), Rule: "rule-0", Plan: "pro", Resource: "orders"}]
	require.True(t, own)
}

// Rules that alternate are found without a search through all of them.
func TestRulesThatAlternate(t *testing.T) {
	f := newFlood(t, 992)
	verdicts := map[string]int64{}
	for i := range 500 {
		for _, rule := range f.send("pro", "orders", i*mostMatching) {
			verdicts[rule]++
		}
	}
	cell := f.u.shards[shardOf(member(1))].tenants[member(1)].last
	require.Len(t, cell.rules, mostMatching, "the rules of the last check only: others are found by their slug")
	f.second()
	require.Equal(t, verdicts, f.sums(func(k Key) string { return k.Rule }, true))
}

// The checks of other tenants wait for the lock of a shard, so rows are built without it, and
// taking the counts of a tenant moves none of them.
func TestRowsAreBuiltWithoutTheLock(t *testing.T) {
	f := newFlood(t, 992)
	shard := &f.u.shards[shardOf(member(1))]
	built := 0
	f.u.building = func(i int) {
		require.True(t, f.u.shards[i].mu.TryLock(), "the shard is locked while its rows are built")
		f.u.shards[i].mu.Unlock()
		built++
	}
	for i := range 2000 {
		f.send(fmt.Sprint("plan-", i), "orders", i)
	}
	counter := &shard.tenants[member(1)].counts[0]
	f.now = f.now.Add(time.Minute)
	f.send("pro", "orders", 0) // ends the minute, in a check
	require.Len(t, shard.held, 1)
	require.Same(t, counter, &shard.held[0].counts[0], "a check must not build the rows of the minute before")
	f.second()
	require.Equal(t, 1, built)
	require.EqualValues(t, 2001, f.ledger.checks())

	counter = &shard.tenants[member(1)].counts[0]
	f.send("pro", "orders", 0)
	shard.mu.Lock()
	taken := shard.takeAll(f.now)
	shard.mu.Unlock()
	require.Same(t, counter, &taken[0].counts[0])
}

// While Postgres is unavailable, a tenant with very many rows loses detail, and no other tenant
// does. Its sums stay exact as long as its sum of an hour has room.
func TestUsageBufferShares(t *testing.T) {
	f := newFlood(t, 992)
	f.u.limit = 2 << 20 // fewer than two minutes of the flood
	f.ledger.away = errAway
	small := map[int64]int64{}
	for minute := range 8 {
		for i := range 1500 {
			f.send(fmt.Sprint("plan-", i%1000), "orders", i*31)
		}
		f.crowd.check(2, 5)
		small[Minute.start(f.now.UnixMilli())] += 5
		require.Error(t, f.u.flush(context.Background(), false))
		require.LessOrEqual(t, f.u.waiting.bytes, f.u.limit, minute)
		f.now = f.now.Add(time.Minute)
	}
	f.ledger.away = nil
	require.NoError(t, f.u.flush(context.Background(), false))
	for start, checks := range small {
		require.EqualValues(t, checks, f.ledger.rows[Key{Tenant: member(2), StartMS: start, Resource: "r"}].Allowed, "a minute of the small tenant")
	}
	require.EqualValues(t, f.sent+len(f.decided), f.ledger.checks())
	require.Zero(t, testutil.ToFloat64(f.u.metrics.lost))
	require.Positive(t, testutil.ToFloat64(f.u.metrics.coarsened))
}

// If even the sums do not fit, hours of the tenant with the most rows are dropped first.
func TestUsageBufferDropsTheLargest(t *testing.T) {
	b := newUsageBuffer()
	const hours = 200
	for hour := range hours {
		b.add(&Row{Key{Tenant: member(1), StartMS: int64(hour) * 3_600_000, Resource: "r"}, Counts{Allowed: 1}})
	}
	b.add(&Row{Key{Tenant: member(2), StartMS: 0, Rule: "", Resource: "r"}, Counts{Allowed: 7}})
	b.addSubjects(&Subjects{Tenant: member(2), TopSubjects: TopSubjects{Checks: SubjectList{{Subject: "user_1"}}}})
	coarsened, lost := b.shrink(100 * bytesPerRow)
	require.Equal(t, 2*hours, coarsened, "to hours, and to sums")
	require.Positive(t, lost)
	require.LessOrEqual(t, b.bytes, int64(100*bytesPerRow))
	require.EqualValues(t, hours+7, b.checks()+lost)
	require.Len(t, b.lines[member(2)].tops, 1)
	rows := b.cut(hours)
	require.Contains(t, rows, Row{Key{Tenant: member(2), Resource: "r"}, Counts{Allowed: 7}})
	require.Contains(t, rows, Row{Key{Tenant: member(1), Grain: Hour, StartMS: (hours - 1) * 3_600_000, Plan: OtherPlans}, Counts{Allowed: 1}}, "the newest hour")
	require.NotContains(t, rows, Row{Key{Tenant: member(1), Grain: Hour, Plan: OtherPlans}, Counts{Allowed: 1}}, "the oldest hour")

	b.cutSubjects([]Key{{Tenant: member(2)}, {Tenant: member(1)}})
	require.Zero(t, b.bytes)
	require.Zero(t, b.count)
	require.Empty(t, b.lines)
}

// The rows of a tenant with few are written before the rest of those of a tenant with many, and a
// flush that takes long ends after a second, so that new counts do not wait for it.
func TestUsageTurns(t *testing.T) {
	f := newFlood(t, 992)
	f.u.sink = slowSink{f.ledger, func() { f.now = f.now.Add(usageFlushEvery) }}
	for i := range 5000 {
		f.send(fmt.Sprint("plan-", i%1000), "orders", i*31)
	}
	f.crowd.check(2, 1)
	require.NoError(t, f.u.flush(context.Background(), false))
	require.Equal(t, maxBatchRows, f.ledger.received)
	require.EqualValues(t, 1, f.written(2), "with the first batch")
	require.Less(t, f.ledger.complete, time.UnixMilli(checktest.Start+1), "the rest of the minute is not written")
	f.crowd.check(3, 1)
	require.NoError(t, f.u.flush(context.Background(), false))
	require.EqualValues(t, 1, f.written(3))
	f.crowd.check(3, 1)
	f.now = f.now.Add(time.Minute)
	for i := range 5000 {
		f.send(fmt.Sprint("plan-", i%1000), "orders", i*31)
	}
	require.NoError(t, f.u.flush(context.Background(), true))
	require.EqualValues(t, 2, f.written(3))
	require.EqualValues(t, f.sent+3, f.ledger.checks())
	require.True(t, f.ledger.ended)
	require.Len(t, f.ledger.subjects, 4)
}

// Lists of subjects that were due when a flush ended are delivered by the next one.
func TestListsWaitForTheNextFlush(t *testing.T) {
	c := newCrowd(t)
	c.u.sink = slowSink{c.ledger, func() { c.now = c.now.Add(usageFlushEvery) }}
	const tenants = maxBatchSubjects + 50
	for n := range tenants {
		c.check(n, 1)
	}
	require.NoError(t, c.u.flush(context.Background(), false))
	require.Len(t, c.ledger.subjects, maxBatchSubjects)
	require.NoError(t, c.u.flush(context.Background(), false))
	require.Len(t, c.ledger.subjects, tenants)
}

type slowSink struct {
	*ledger
	wait func()
}

func (s slowSink) WriteUsage(ctx context.Context, b *Batch) error {
	s.wait()
	return s.ledger.WriteUsage(ctx, b)
}

// BenchmarkUsageRules measures the cost of counting checks that alternate between many rules.
func BenchmarkUsageRules(b *testing.B) {
	u := New(Options{Sink: newLedger(), Registerer: prometheus.NewRegistry()})
	decisions := make([]check.Decision, 31)
	for i := range decisions {
		decisions[i] = check.Decision{Allowed: true, Subject: "user_1", Resource: "orders:create", Plan: "pro", Cost: 1}
		for k := range mostMatching {
			rule := checktest.Minute(fmt.Sprint("rule-", i*mostMatching+k), 10)
			decisions[i].Rules = append(decisions[i].Rules, check.RuleDecision{Rule: &rule, Allowed: true})
		}
	}
	now, i := time.Now(), 0
	b.ReportAllocs()
	for b.Loop() {
		u.Decided(member(1), &check.Request{}, &decisions[i%len(decisions)], now)
		i++
	}
}
