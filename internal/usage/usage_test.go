package usage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/limit"
)

// ledger is a Sink in memory that fails like a network.
type ledger struct {
	mu       sync.Mutex
	away     error // the error of every write, if not nil
	refuse   func(*Batch) bool
	loseAcks int // this many writes succeed but return an error
	last     map[uuid.UUID]string
	rows     map[Key]Counts
	subjects map[Key]TopSubjects
	complete time.Time
	ended    bool
	writes   int
	received int // rows
}

func newLedger() *ledger {
	return &ledger{last: map[uuid.UUID]string{}, rows: map[Key]Counts{}, subjects: map[Key]TopSubjects{}}
}

var errAway = errors.New("away")

func (l *ledger) WriteUsage(_ context.Context, b *Batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away != nil {
		return l.away
	}
	if l.refuse != nil && l.refuse(b) {
		return fmt.Errorf("%w: why", ErrRefused)
	}
	l.writes++
	if id := b.ID.String(); id > l.last[b.Writer] {
		l.last[b.Writer] = id
		l.received += len(b.Rows)
		for _, row := range b.Rows {
			counts := l.rows[row.Key]
			counts.Add(row.Counts)
			l.rows[row.Key] = counts
		}
		for _, s := range b.Subjects {
			key := Key{Tenant: s.Tenant, StartMS: s.StartMS, Grain: s.Grain}
			l.subjects[key] = l.subjects[key].Merge(s.TopSubjects)
		}
		l.complete, l.ended = b.CompleteUntil, b.Last
	}
	if l.loseAcks > 0 {
		l.loseAcks--
		return context.DeadlineExceeded
	}
	return nil
}

// checks returns the sum of checks in all rows without a rule.
func (l *ledger) checks() (n int64) {
	for key, counts := range l.rows {
		if key.Rule == "" {
			n += counts.Allowed + counts.Denied
		}
	}
	return n
}

type usageRig struct {
	*checktest.Rig
	usage  *Recorder
	ledger *ledger
}

// observer passes decisions to a recorder that is created after its checker.
type observer struct{ *Recorder }

func newUsageRig(t *testing.T, o Options, data check.PolicyData, subjects ...check.SubjectData) *usageRig {
	t.Helper()
	r := &usageRig{ledger: newLedger()}
	var recorder observer
	r.Rig = checktest.NewRig(t, data, []check.Observer{&recorder}, subjects...)
	o.Sink, o.Registerer, o.Clock = r.ledger, prometheus.NewRegistry(), r.Clock
	r.usage = New(o)
	recorder.Recorder = r.usage
	return r
}

func (r *usageRig) flush() {
	r.T.Helper()
	require.NoError(r.T, r.usage.flush(context.Background(), false))
}

func (r *usageRig) row(startMS int64, rule, plan, resource string) Counts {
	return r.ledger.rows[Key{Tenant: r.Policy.Tenant(), StartMS: startMS, Rule: rule, Plan: plan, Resource: resource}]
}

// The usage of a tenant is what was answered: by rule and for whole checks.
func TestUsageCountsWhatWasDecided(t *testing.T) {
	shadow := checktest.Minute("watch", 1)
	shadow.Mode = limit.Shadow
	r := newUsageRig(t, Options{}, check.PolicyData{
		Rules: []limit.Rule{checktest.Minute("api", 3), shadow},
		Plans: []check.PlanData{{Slug: "free", Default: true}},
	}, check.SubjectData{Subject: "bad", State: check.Blocked})

	require.True(t, r.Check(check.Request{Subject: "a", Cost: 2}).Allowed)  // exceeds the limit of watch
	require.True(t, r.Check(check.Request{Subject: "a", Cost: 1}).Allowed)  // fits both
	require.False(t, r.Check(check.Request{Subject: "a", Cost: 3}).Allowed) // exceeds both limits
	require.False(t, r.Check(check.Request{Subject: "bad", Cost: 5}).Allowed)
	require.True(t, r.Check(check.Request{Subject: "b", Cost: 1, DryRun: true}).Allowed)
	r.flush()

	require.Equal(t, Counts{Allowed: 2, Denied: 2, ShadowDenied: 2, CostAllowed: 3, CostDenied: 8}, r.row(checktest.Start, "", "free", "default"))
	require.Equal(t, Counts{Allowed: 2, Denied: 1, CostAllowed: 3, CostDenied: 3}, r.row(checktest.Start, "api", "free", "default"))
	require.Equal(t, Counts{Allowed: 3, ShadowDenied: 2, CostAllowed: 6}, r.row(checktest.Start, "watch", "free", "default"))
	require.Len(t, r.ledger.rows, 3, "a dry run is not usage")

	// A minute later, without the counter store.
	r.Store.Fail.Store(true)
	r.Now.Add(60_000)
	require.True(t, r.Check(check.Request{Subject: "a", Cost: 1, Resource: "orders"}).Degraded)
	r.flush()
	require.Equal(t, Counts{Allowed: 1, Degraded: 1, CostAllowed: 1}, r.row(checktest.Start+60_000, "", "free", "orders"))
}

// If a policy is replaced, or rules are sometimes skipped, counts must not move to another rule.
func TestUsageFollowsRules(t *testing.T) {
	byIP := checktest.Minute("by-ip", 100)
	byIP.By = []string{"attributes.ip"}
	r := newUsageRig(t, Options{}, check.PolicyData{Rules: []limit.Rule{byIP, checktest.Minute("per-user", 100)}})
	r.Check(check.Request{Subject: "a", Cost: 1, Attributes: []check.Attribute{{Name: "ip", Value: "x"}}})
	r.Check(check.Request{Subject: "a", Cost: 1})
	r.Policy = r.Compile(check.PolicyData{Rules: []limit.Rule{checktest.Minute("a-first", 100), byIP, checktest.Minute("per-user", 100)}})
	r.Check(check.Request{Subject: "a", Cost: 1, Attributes: []check.Attribute{{Name: "ip", Value: "x"}}})
	r.flush()
	for rule, want := range map[string]int64{"": 3, "by-ip": 2, "per-user": 3, "a-first": 1} {
		require.Equal(t, Counts{Allowed: want, CostAllowed: want}, r.row(checktest.Start, rule, "", "default"), rule)
	}
}

// A client that invents resources must not create rows without end. The sum stays correct, and an
// important resource keeps its row.
func TestUsageBoundsResources(t *testing.T) {
	r := newUsageRig(t, Options{}, check.PolicyData{})
	const hours, perHour = 3, 1000
	for hour := range hours {
		r.Now.Store(checktest.Start + int64(hour)*3_600_000)
		for i := range perHour {
			r.Check(check.Request{Subject: "a", Resource: fmt.Sprintf("made-up-%d-%d", hour, i)})
			r.Check(check.Request{Subject: "a", Resource: "orders"})
		}
		r.flush()
	}
	perStart := map[int64]int{}
	var sum, orders int64
	for key, counts := range r.ledger.rows {
		perStart[key.StartMS]++
		sum += counts.Allowed
		if key.Resource == "orders" {
			orders += counts.Allowed
		}
	}
	require.EqualValues(t, 2*hours*perHour, sum)
	require.EqualValues(t, hours*perHour, orders)
	require.Len(t, perStart, hours)
	for start, rows := range perStart {
		require.LessOrEqual(t, rows, maxUsageResources+1, start)
	}
}

// At the beginning of an hour, checks may end in another order than they began. Important resources
// must keep their rows.
func TestUsageTurnOfHour(t *testing.T) {
	r := newUsageRig(t, Options{}, check.PolicyData{})
	hour := Hour.start(checktest.Start) + 3_600_000
	r.Now.Store(hour - 60_000)
	for i := range maxUsageResources {
		for range 1 + i/(maxUsageResources/2) { // the second half is used twice as often
			r.Check(check.Request{Subject: "a", Resource: fmt.Sprint("r", i)})
		}
	}
	for range 10 {
		r.Now.Store(hour)
		r.Check(check.Request{Subject: "a", Resource: fmt.Sprint("r", maxUsageResources-1)})
		r.Now.Store(hour - 1)
		r.Check(check.Request{Subject: "a", Resource: fmt.Sprint("r", maxUsageResources-1)})
	}
	for i := range maxUsageResources {
		r.Check(check.Request{Subject: "a", Resource: fmt.Sprint("new", i)})
	}
	for i := range maxUsageResources / 2 {
		r.Check(check.Request{Subject: "a", Resource: fmt.Sprint("r", maxUsageResources/2+i)})
	}
	r.flush()
	require.EqualValues(t, 21, r.row(hour, "", "", fmt.Sprint("r", maxUsageResources-1)).Allowed)
	for i := range maxUsageResources / 2 {
		require.Positive(t, r.row(hour, "", "", fmt.Sprint("r", maxUsageResources/2+i)).Allowed, i)
	}
}

// In ten minutes without Postgres, no count is lost.
func TestUsageOutage(t *testing.T) {
	r := newUsageRig(t, Options{}, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 5)}})
	r.Check(check.Request{Subject: "a", Cost: 1})
	r.ledger.away = errAway
	want := map[int64]Counts{checktest.Start: {Allowed: 1, CostAllowed: 1}}
	for second := range 600 {
		r.Now.Add(1000)
		d := r.Check(check.Request{Subject: fmt.Sprint(second % 7), Cost: 1})
		counts := want[Minute.start(r.Now.Load())]
		counts.count(1, d.Allowed, false, false, 1)
		want[Minute.start(r.Now.Load())] = counts
		require.ErrorIs(t, r.usage.flush(context.Background(), false), errAway)
	}
	require.Empty(t, r.ledger.rows)
	r.ledger.away = nil
	r.flush()
	for start, counts := range want {
		require.Equal(t, counts, r.row(start, "", "", "default"))
		require.Equal(t, counts, r.row(start, "api", "", "default"))
	}
	require.EqualValues(t, 601, r.ledger.checks())
	require.Equal(t, r.Now.Load()-1000, r.ledger.complete.UnixMilli())
	require.Zero(t, testutil.ToFloat64(r.usage.metrics.lost))
}

// If an answer is lost, the written counts must not be written twice.
func TestUsageLostAcknowledgement(t *testing.T) {
	r := newUsageRig(t, Options{}, check.PolicyData{})
	for i := range 10 {
		r.Check(check.Request{Subject: "a"})
		r.ledger.loseAcks = i % 3
		for range i % 3 {
			require.Error(t, r.usage.flush(context.Background(), false))
			r.Check(check.Request{Subject: "a"}) // is part of a later batch, not of the one with the unknown outcome
		}
		r.flush()
	}
	require.EqualValues(t, 10+9, r.ledger.checks())
}

// A full buffer loses minutes before it loses counts, and reports what was lost.
func TestUsageBufferFull(t *testing.T) {
	r := newUsageRig(t, Options{BufferBytes: 50_000}, check.PolicyData{})
	r.ledger.away = errAway
	const minutes = 300
	for range minutes {
		r.Check(check.Request{Subject: "a"})
		require.Error(t, r.usage.flush(context.Background(), false))
		r.Now.Add(60_000)
	}
	require.LessOrEqual(t, r.usage.waiting.bytes, int64(50_000))
	r.ledger.away = nil
	r.flush()
	require.EqualValues(t, minutes, r.ledger.checks(), "coarser, but nothing is lost")
	require.EqualValues(t, 60, r.ledger.rows[Key{Tenant: r.Policy.Tenant(), Grain: Hour, StartMS: Hour.start(checktest.Start) + 3_600_000, Resource: "default"}].Allowed)
	require.Positive(t, testutil.ToFloat64(r.usage.metrics.coarsened))

	r.ledger.away = errAway
	for i := range 300 { // one row per hour, many more than fit
		r.Check(check.Request{Subject: "a", Resource: fmt.Sprint("resource-", i%100)})
		require.Error(t, r.usage.flush(context.Background(), false))
		r.Now.Add(3_600_000)
	}
	r.ledger.away = nil
	r.flush()
	lost := int64(testutil.ToFloat64(r.usage.metrics.lost))
	require.Positive(t, lost)
	require.EqualValues(t, minutes+300, r.ledger.checks()+lost)
}

// A batch that the store always refuses must not block the later ones.
func TestUsageRefused(t *testing.T) {
	r := newUsageRig(t, Options{}, check.PolicyData{})
	r.Check(check.Request{Subject: "a"})
	r.ledger.away = fmt.Errorf("%w: why", ErrRefused)
	r.flush()
	r.ledger.away = nil
	r.Check(check.Request{Subject: "a"})
	r.flush()
	require.EqualValues(t, 1, r.ledger.checks())
	require.EqualValues(t, 1, testutil.ToFloat64(r.usage.metrics.lost))
}

// A row that the store refuses is lost alone: not with it the usage of other tenants in its batch,
// nor the lists of subjects.
func TestOneRefusedRow(t *testing.T) {
	for _, ending := range []bool{false, true} {
		c := newCrowd(t)
		const bad, tenants = 17, 300
		c.ledger.refuse = func(b *Batch) bool {
			return slices.ContainsFunc(b.Rows, func(r Row) bool { return r.Tenant == member(bad) })
		}
		for n := range tenants {
			c.check(n, 2)
		}
		c.now = c.now.Add(time.Second)
		require.NoError(t, c.u.flush(context.Background(), ending))
		require.EqualValues(t, 2*(tenants-1), c.ledger.checks())
		require.EqualValues(t, 2, testutil.ToFloat64(c.u.metrics.lost))
		require.Len(t, c.ledger.subjects, tenants)
		require.Equal(t, ending, c.ledger.ended)
		require.Empty(t, c.u.refused)
	}
}

// Usage is delivered within about a second while the process runs, and the rest when it ends.
func TestUsageRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		u := New(Options{Sink: l, Registerer: prometheus.NewRegistry()})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { u.Run(ctx); close(done) }()
		record := func() {
			u.Decided(uuid.UUID{1}, &check.Request{}, &check.Decision{Allowed: true, Subject: "a", Resource: "r"}, time.Now())
		}
		record()
		time.Sleep(usageFlushEvery) // of the bubble's clock, which takes no time
		synctest.Wait()
		require.EqualValues(t, 1, l.checks())

		l.mu.Lock()
		l.away = errAway
		l.mu.Unlock()
		record()
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		synctest.Wait()
		l.mu.Lock()
		l.away = nil
		l.mu.Unlock()
		<-done
		require.EqualValues(t, 2, l.checks())
		require.True(t, l.ended)
		require.Len(t, l.subjects[newestKey(l.subjects)].Checks, 1)
	})
}

func newestKey(m map[Key]TopSubjects) (newest Key) {
	for key := range m {
		if key.StartMS >= newest.StartMS {
			newest = key
		}
	}
	return newest
}

// A process that must end while the store is unavailable reports how much is lost, and ends.
func TestUsageRunEndsWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.away = errAway
		u := New(Options{Sink: l, Registerer: prometheus.NewRegistry()})
		u.Decided(uuid.UUID{1}, &check.Request{}, &check.Decision{Subject: "a", Resource: "r"}, time.Now())
		ctx, stop := context.WithCancel(t.Context())
		stop()
		start := time.Now()
		u.Run(ctx)
		require.LessOrEqual(t, time.Since(start), usageLastFlush+usageFlushEvery)
		require.EqualValues(t, 1, testutil.ToFloat64(u.metrics.lost))
	})
}

// With concurrent checks and flushes, each check counts once.
func TestUsageConcurrent(t *testing.T) {
	r := newUsageRig(t, Options{}, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 1000)}})
	const workers, each = 8, 500
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range each {
				_, err := r.Checker.Check(context.Background(), r.Policy, []check.Request{{Subject: fmt.Sprint(i % 150), Resource: fmt.Sprint("r", w%3), Cost: 1}})
				if err != nil {
					t.Error(err)
				}
				if i%50 == 0 {
					r.Now.Add(1000)
					if err := r.usage.flush(context.Background(), false); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	r.flush()
	require.EqualValues(t, workers*each, r.ledger.checks())
}

// Sums of costs that exceed the range of an int64 must not become negative.
func TestUsageCostStaysInRange(t *testing.T) {
	c := Counts{CostDenied: math.MaxInt64 - 1}
	c.count(1, false, false, false, limit.MaxFixedLimit)
	require.EqualValues(t, math.MaxInt64, c.CostDenied)
}

// The error of the list of the busiest subjects is bounded. A subject had at least the counted
// checks and at most the error more. The error is at most a hundredth of all checks, and every
// subject with more than a hundredth is in the list, however often lists were merged.
func TestSubjectListBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := New(Options{Sink: newLedger(), Registerer: prometheus.NewRegistry()})
		truth, deniedTruth := map[string]int64{}, map[string]int64{}
		var sum TopSubjects
		var n, deniedN int64
		lists := rapid.IntRange(1, 5).Draw(t, "lists")
		for range lists {
			buffer := newUsageBuffer()
			subjects := rapid.IntRange(1, 400).Draw(t, "subjects")
			skew := rapid.IntRange(1, 3).Draw(t, "skew")
			seed := rapid.Uint64().Draw(t, "seed")
			for range rapid.IntRange(0, 3000).Draw(t, "checks") {
				seed = seed*6364136223846793005 + 1442695040888963407
				x := float64(seed>>11) / (1 << 53)
				subject := fmt.Sprint("user-", int(math.Pow(x, float64(skew))*float64(subjects)))
				denied := seed>>60 < 4
				u.Decided(uuid.UUID{1}, &check.Request{}, &check.Decision{Allowed: !denied, Subject: subject, Resource: "r", Cost: 1}, time.UnixMilli(checktest.Start))
				truth[subject]++
				n++
				if denied {
					deniedTruth[subject]++
					deniedN++
				}
			}
			u.drain(time.UnixMilli(checktest.Start), true, nil, &buffer)
			for _, l := range buffer.lines {
				for _, top := range l.tops {
					sum = sum.Merge(top.TopSubjects)
				}
			}
		}
		checkBounds(t, sum.Checks, truth, n)
		checkBounds(t, sum.Denied, deniedTruth, deniedN)
	})
}

func checkBounds(t *rapid.T, list SubjectList, truth map[string]int64, n int64) {
	require.LessOrEqual(t, len(list), topSubjects)
	listed := map[string]bool{}
	for _, s := range list {
		require.False(t, listed[s.Subject], "%s is listed twice", s.Subject)
		listed[s.Subject] = true
		counted := s.Allowed + s.Denied
		require.LessOrEqual(t, counted, truth[s.Subject])
		require.GreaterOrEqual(t, counted+s.Error, truth[s.Subject])
		require.LessOrEqual(t, s.Error, n/topSubjects)
		require.Equal(t, counted, s.CostAllowed+s.CostDenied)
	}
	for subject, count := range truth {
		require.True(t, listed[subject] || count <= n/topSubjects, "%s is missing with %d of %d", subject, count, n)
	}
}

// BenchmarkUsage measures the cost of counting a check; the goal is 100 ns without an allocation.
func BenchmarkUsage(b *testing.B) {
	many := make([]string, 100_000)
	for i := range many {
		many[i] = fmt.Sprint("user_", i)
	}
	for name, subjects := range map[string][]string{"one subject": many[:1], "fifty subjects": many[:50], "many subjects": many} {
		for _, rules := range []int{1, 3, 10} {
			b.Run(fmt.Sprintf("%s/rules=%d", name, rules), func(b *testing.B) {
				u := New(Options{Sink: newLedger(), Registerer: prometheus.NewRegistry()})
				d := check.Decision{Allowed: true, Resource: "orders:create", Plan: "pro", Cost: 1}
				for i := range rules {
					rule := checktest.Minute(fmt.Sprint("rule-", i), 10)
					d.Rules = append(d.Rules, check.RuleDecision{Rule: &rule, Allowed: true})
				}
				tenant, req, now := uuid.New(), &check.Request{}, time.Now()
				for _, d.Subject = range subjects {
					u.Decided(tenant, req, &d, now)
				}
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					d.Subject = subjects[i%len(subjects)]
					i++
					u.Decided(tenant, req, &d, now)
				}
			})
		}
	}
}
