package usage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/limit"
)

// meterLedger is a MeterSink in memory that fails like a network.
type meterLedger struct {
	mu       sync.Mutex
	away     error
	loseAcks int    // this many writes succeed but return an error
	poison   string // batches with this subject are refused
	last     map[uuid.UUID]int64
	rows     map[MeterKey]Metered
	complete time.Time
	ended    bool
}

func newMeterLedger() *meterLedger {
	return &meterLedger{last: map[uuid.UUID]int64{}, rows: map[MeterKey]Metered{}}
}

func (l *meterLedger) WriteMetered(_ context.Context, b *MeterBatch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away != nil {
		return l.away
	}
	for _, row := range b.Rows {
		if l.poison != "" && row.Subject == l.poison {
			return fmt.Errorf("%w: why", ErrRefused)
		}
	}
	if b.Sequence > l.last[b.Writer] {
		l.last[b.Writer] = b.Sequence
		for _, row := range b.Rows {
			sum := l.rows[row.MeterKey]
			sum.Add(row.Metered)
			l.rows[row.MeterKey] = sum
		}
		if !b.CompleteUntil.IsZero() {
			l.complete = b.CompleteUntil
		}
		l.ended = b.Last
	}
	if l.loseAcks > 0 {
		l.loseAcks--
		return context.DeadlineExceeded
	}
	return nil
}

func (l *meterLedger) units() (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, row := range l.rows {
		n += row.Units
	}
	return n
}

type meterRig struct {
	*checktest.Rig
	meter  *Meter
	ledger *meterLedger
}

// lateMeter passes decisions to a meter that is created after its checker.
type lateMeter struct{ *Meter }

func newMeterRig(t *testing.T, o MeterOptions, data check.PolicyData, subjects ...check.SubjectData) *meterRig {
	t.Helper()
	r := &meterRig{ledger: newMeterLedger()}
	var meter lateMeter
	r.Rig = checktest.NewRig(t, data, []check.Observer{&meter}, subjects...)
	o.Sink, o.Registerer, o.Clock = r.ledger, prometheus.NewRegistry(), r.Clock
	r.meter = NewMeter(o)
	meter.Meter = r.meter
	return r
}

func (r *meterRig) flush() {
	r.T.Helper()
	require.NoError(r.T, r.meter.flush(context.Background(), false))
}

func (r *meterRig) row(subject, rule string) Metered {
	return r.ledger.rows[MeterKey{Tenant: r.Policy.Tenant(), StartMS: Hour.start(r.Now.Load()), Subject: subject, Rule: rule}]
}

func metered(slug string, units int64) limit.Rule {
	r := checktest.Minute(slug, units)
	r.Metering = limit.MeterUnits
	return r
}

// The units of a subject are those of its allowed checks, under each metered rule that was
// enforced.
func TestMeterCountsWhatWasAllowed(t *testing.T) {
	shadow := metered("watch", 100)
	shadow.Mode = limit.Shadow
	r := newMeterRig(t, MeterOptions{}, check.PolicyData{
		Rules: []limit.Rule{metered("api", 10), metered("other", 100), checktest.Minute("plain", 100), shadow},
		Plans: []check.PlanData{{Slug: "free", Default: true}, {Slug: "all", Limits: map[string]limit.Limit{"api": {Unlimited: true}, "other": {Unlimited: true}, "plain": {Unlimited: true}}}},
	}, check.SubjectData{Subject: "free of charge", State: check.Exempt}, check.SubjectData{Subject: "bad", State: check.Blocked},
		check.SubjectData{Subject: "large", Plan: "all"})

	require.True(t, r.Check(check.Request{Subject: "ada", Cost: 7}).Allowed)
	require.True(t, r.Check(check.Request{Subject: "ada", Cost: 3}).Allowed)
	require.True(t, r.Check(check.Request{Subject: "ada", Cost: 0}).Allowed, "reads the state")
	require.False(t, r.Check(check.Request{Subject: "ada", Cost: 1}).Allowed)
	require.True(t, r.Check(check.Request{Subject: "bob", Cost: 1, DryRun: true}).Allowed)
	require.True(t, r.Check(check.Request{Subject: "free of charge", Cost: 1}).Allowed)
	require.False(t, r.Check(check.Request{Subject: "bad", Cost: 1}).Allowed)
	require.True(t, r.Check(check.Request{Subject: "large", Cost: 1000}).Allowed)
	r.flush()
	require.Equal(t, Metered{Units: 10, Checks: 2}, r.row("ada", "api"))
	require.Equal(t, Metered{Units: 10, Checks: 2}, r.row("ada", "other"))
	require.Equal(t, Metered{Units: 1000, Checks: 1}, r.row("large", "api"), "an unlimited plan is metered, too")
	require.Len(t, r.ledger.rows, 4)

	r.Now.Add(time.Hour.Milliseconds())
	require.True(t, r.Check(check.Request{Subject: "ada", Cost: 1}).Allowed)
	r.Store.Fail.Store(true)
	require.True(t, r.Check(check.Request{Subject: "eve", Cost: 2}).Degraded, "a customer who got the units pays for them")
	r.flush()
	require.Equal(t, Metered{Units: 1, Checks: 1}, r.row("ada", "api"), "another hour")
	require.Equal(t, Metered{Units: 2, Checks: 1}, r.row("eve", "api"))
}

// Units beyond a limit that allows them are counted by themselves, too.
func TestMeterCountsOverage(t *testing.T) {
	rule := metered("api", 10)
	rule.Metering, rule.Overage = limit.MeterOverage, limit.OverageAllow
	r := newMeterRig(t, MeterOptions{}, check.PolicyData{Rules: []limit.Rule{rule}})
	for range 3 {
		require.True(t, r.Check(check.Request{Subject: "ada", Cost: 7}).Allowed)
	}
	r.flush()
	require.Equal(t, Metered{Units: 21, Overage: 11, Checks: 3}, r.row("ada", "api"))
}

// The plan of a subject says whether and how it is metered, and else the rule: a free plan costs no
// rows. An override of the limit leaves that to the plan.
func TestMeterByPlan(t *testing.T) {
	of := func(m limit.PlanMetering) map[string]limit.Limit {
		return map[string]limit.Limit{
			"api":   {Limit: 10, Overage: limit.OverageAllow, Metering: m},
			"plain": {Limit: 10, Overage: limit.OverageAllow, Metering: m}, "open": {Unlimited: true, Metering: m},
		}
	}
	raised := check.SubjectData{Subject: "raised", Plan: "free"}
	raised.Overrides = []check.OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 100}}}
	r := newMeterRig(t, MeterOptions{}, check.PolicyData{
		Rules: []limit.Rule{metered("api", 10), checktest.Minute("plain", 10), metered("open", 10)},
		Plans: []check.PlanData{
			{Slug: "default", Default: true, Limits: of(limit.MeterAsRule)}, {Slug: "free", Limits: of(limit.PlanMeterNone)},
			{Slug: "all", Limits: of(limit.PlanMeterUnits)}, {Slug: "beyond", Limits: of(limit.PlanMeterOverage)},
		},
	}, raised, check.SubjectData{Subject: "ann", Plan: "free"}, check.SubjectData{Subject: "bob", Plan: "all"}, check.SubjectData{Subject: "cyd", Plan: "beyond"})
	for _, subject := range []string{"ann", "raised", "bob", "cyd", "dan"} {
		require.True(t, r.Check(check.Request{Subject: subject, Cost: 15}).Allowed)
	}
	r.flush()
	require.Equal(t, map[string]Metered{
		"bob api": {Units: 15, Overage: 5, Billed: 10, Checks: 1}, "bob plain": {Units: 15, Overage: 5, Billed: 10, Checks: 1}, "bob open": {Units: 15, Billed: 15, Checks: 1},
		"cyd api": {Units: 15, Overage: 5, Free: 10, Checks: 1}, "cyd plain": {Units: 15, Overage: 5, Free: 10, Checks: 1}, "cyd open": {Units: 15, Free: 15, Checks: 1},
		"dan api": {Units: 15, Overage: 5, Checks: 1}, "dan open": {Units: 15, Checks: 1},
	}, r.byName())
}

func (r *meterRig) byName() map[string]Metered {
	out := map[string]Metered{}
	for key, row := range r.ledger.rows {
		out[key.Subject+" "+key.Rule] = row
	}
	return out
}

// Of several checks that are decided as one, all are metered or none.
func TestMeterCountsTogether(t *testing.T) {
	r := newMeterRig(t, MeterOptions{}, check.PolicyData{Rules: []limit.Rule{metered("api", 10)}})
	ask := func(costs ...int64) {
		var reqs []check.Request
		for i, cost := range costs {
			reqs = append(reqs, check.Request{Subject: fmt.Sprint("s", i), Resource: "r", Cost: cost})
		}
		_, err := r.Checker.CheckTogetherInTurns(context.Background(), r.Policy, reqs, new(check.Scratch), nil)
		require.NoError(t, err)
	}
	ask(1, 2)
	ask(3, 20)
	r.flush()
	require.EqualValues(t, 3, r.ledger.units())
}

// Lost answers, an outage and refused rows neither lose units nor count them twice.
func TestMeterDelivery(t *testing.T) {
	r := newMeterRig(t, MeterOptions{}, check.PolicyData{})
	random := rand.New(rand.NewPCG(1, 2))
	tenant := r.Policy.Tenant()
	want := int64(0)
	for round := range 200 {
		for range random.IntN(50) {
			units := random.Int64N(1000)
			want += units
			r.meter.Add(tenant, fmt.Sprint("s", random.IntN(30)), "api", Metered{Units: units, Checks: 1}, r.Clock())
		}
		r.ledger.loseAcks, r.ledger.away = random.IntN(2), nil
		if round%5 == 0 {
			r.ledger.away = errAway
		}
		_ = r.meter.flush(context.Background(), false)
		r.Now.Add(1000)
	}
	r.ledger.away, r.ledger.loseAcks = nil, 0
	r.flush()
	require.Equal(t, want, r.ledger.units())
	require.WithinDuration(t, r.Clock(), r.ledger.complete, meterAliveEvery+time.Second)
	require.Zero(t, r.meter.bytes(), "no memory is held")
}

// A row that the store refuses loses only its subject, and holds up no other.
func TestMeterRefused(t *testing.T) {
	r := newMeterRig(t, MeterOptions{}, check.PolicyData{})
	tenant := r.Policy.Tenant()
	for i := range 100 {
		r.meter.Add(tenant, fmt.Sprint("s", i), "api", Metered{Units: 1, Checks: 1}, r.Clock())
	}
	r.ledger.poison = "s42"
	require.NoError(t, r.meter.flush(context.Background(), true))
	require.EqualValues(t, 100, r.ledger.units())
	require.Equal(t, Metered{Units: 1, Checks: 1}, r.row("", "api"))
	require.Equal(t, Metered{Units: 1, Checks: 1}, r.row("s41", "api"))
	require.True(t, r.ledger.ended)
	require.EqualValues(t, 1, testutil.ToFloat64(r.meter.metrics.unattributed))
	require.Zero(t, r.meter.bytes())
}

// If a tenant has its share of the memory, its known subjects are still counted, and new ones
// without their names.
func TestMeterBoundsMemory(t *testing.T) {
	const most = 4 << 20
	r := newMeterRig(t, MeterOptions{MaxBytes: most}, check.PolicyData{})
	tenant := r.Policy.Tenant()
	r.ledger.away = errAway
	for range 3 {
		for i := range 30_000 {
			r.meter.Add(tenant, fmt.Sprintf("s%05d", i), "api", Metered{Units: 1, Checks: 1}, r.Clock())
			if i%1000 == 999 {
				require.Error(t, r.meter.flush(context.Background(), false))
			}
		}
	}
	require.InDelta(t, most*4/5*3/4, r.meter.bytes(), 20*bytesPerRow, "three quarters of the memory behind the shards")
	r.ledger.away = nil
	r.flush()
	require.EqualValues(t, 90_000, r.ledger.units(), "no unit is lost")
	require.Equal(t, Metered{Units: 3, Checks: 3}, r.row("s01500", "api"))
	require.InDelta(t, 90_000-(3*most*3/5/(bytesPerRow+6)-2*1000), r.row("", "api").Units, 30, "the first thousand were passed to the sink")
	require.Zero(t, r.meter.bytes())
	require.Empty(t, r.meter.waiting.pool.held)
}

// Units are written within about a second while the process runs, and the rest when it ends.
func TestMeterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMeterLedger()
		m := NewMeter(MeterOptions{Sink: l, Registerer: prometheus.NewRegistry()})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { m.Run(ctx); close(done) }()
		synctest.Wait()
		require.Len(t, l.last, 1, "the writer is known before it meters anything")
		add := func() { m.Add(uuid.UUID{1}, "a", "api", Metered{Units: 1, Checks: 1}, time.Now()) }
		add()
		time.Sleep(usageFlushEvery) // of the bubble's clock, which takes no time
		synctest.Wait()
		require.EqualValues(t, 1, l.units())

		l.mu.Lock()
		l.away = errAway
		l.mu.Unlock()
		add()
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		synctest.Wait()
		l.mu.Lock()
		l.away = nil
		l.mu.Unlock()
		<-done
		require.EqualValues(t, 2, l.units())
		require.True(t, l.ended)
	})
}

// A process that must end without the store reports what is lost, and ends.
func TestMeterRunEndsWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMeterLedger()
		l.away = errAway
		m := NewMeter(MeterOptions{Sink: l, Registerer: prometheus.NewRegistry()})
		m.Add(uuid.UUID{1}, "a", "api", Metered{Units: 5, Checks: 1}, time.Now())
		ctx, stop := context.WithCancel(t.Context())
		stop()
		start := time.Now()
		m.Run(ctx)
		require.LessOrEqual(t, time.Since(start), meterLastFlush+usageFlushEvery)
		require.EqualValues(t, 5, testutil.ToFloat64(m.metrics.lost))
	})
}

// Concurrent checks and flushes count each unit once.
func TestMeterConcurrent(t *testing.T) {
	r := newMeterRig(t, MeterOptions{}, check.PolicyData{Rules: []limit.Rule{metered("api", 1_000_000)}})
	var checks sync.WaitGroup
	for worker := range 8 {
		checks.Go(func() {
			for i := range 500 {
				r.Check(check.Request{Subject: fmt.Sprint("s", (worker+i)%20), Cost: 1})
			}
		})
	}
	done := make(chan struct{})
	go func() { checks.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		r.flush()
	}
	require.EqualValues(t, 4000, r.ledger.units())
}

// A check of a tenant without metered rules costs nothing, and one of a known subject allocates
// nothing.
func TestMeterAllocations(t *testing.T) {
	m := NewMeter(MeterOptions{Sink: newMeterLedger(), Registerer: prometheus.NewRegistry()})
	plain, billed := checktest.Minute("plain", 1), metered("api", 1)
	now := time.Now()
	for _, rule := range []*limit.Rule{&plain, &billed} {
		d := check.Decision{Allowed: true, Subject: "ada", Cost: 1, Rules: []check.RuleDecision{{Rule: rule}}}
		req := check.Request{}
		m.Decided(uuid.UUID{1}, &req, &d, now)
		require.Zero(t, testing.AllocsPerRun(100, func() { m.Decided(uuid.UUID{1}, &req, &d, now) }), rule.Slug)
	}
}

// Neither does one of a new subject, apart from memory that many of them share.
func TestMeterAllocationsOfNewSubjects(t *testing.T) {
	m := NewMeter(MeterOptions{Sink: newMeterLedger(), Registerer: prometheus.NewRegistry()})
	billed := metered("api", 1)
	now := time.Now()
	d := check.Decision{Allowed: true, Cost: 1, Rules: []check.RuleDecision{{Rule: &billed}}}
	req := check.Request{}
	subjects := make([]string, 10_000)
	for i := range subjects {
		subjects[i] = fmt.Sprint("user_", i)
	}
	second := func() {
		for _, d.Subject = range subjects {
			m.Decided(uuid.UUID{1}, &req, &d, now)
		}
		m.drain(now)
		for batch := m.next(now, false); batch != nil && len(batch.Rows) > 0; batch = m.next(now, false) {
			m.release(batch.Rows)
		}
	}
	second()
	require.Less(t, testing.AllocsPerRun(10, second)/float64(len(subjects)), 0.5)
}

func BenchmarkMeterDecided(b *testing.B) {
	plain, billed := checktest.Minute("plain", 1), metered("api", 1)
	for _, rule := range []*limit.Rule{&plain, &billed} {
		b.Run(rule.Slug, func(b *testing.B) {
			m := NewMeter(MeterOptions{Sink: newMeterLedger(), Registerer: prometheus.NewRegistry()})
			now := time.Now()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				d := check.Decision{Allowed: true, Cost: 1, Rules: []check.RuleDecision{{Rule: rule}}}
				req := check.Request{}
				subjects := make([]string, 1000)
				for i := range subjects {
					subjects[i] = fmt.Sprint("user_", i)
				}
				for i := 0; pb.Next(); i++ {
					d.Subject = subjects[i%len(subjects)]
					m.Decided(uuid.UUID{1}, &req, &d, now)
				}
			})
		})
	}
}

// BenchmarkMeterNewSubjects meters subjects that have no row yet, as in the first second of many
// subjects, and moves the rows to the batches that are written.
func BenchmarkMeterNewSubjects(b *testing.B) {
	billed := metered("api", 1)
	m := NewMeter(MeterOptions{Sink: newMeterLedger(), Registerer: prometheus.NewRegistry()})
	now := time.Now()
	d := check.Decision{Allowed: true, Cost: 1, Rules: []check.RuleDecision{{Rule: &billed}}}
	req := check.Request{}
	subjects := make([]string, 20_000)
	for i := range subjects {
		subjects[i] = fmt.Sprint("user_", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		d.Subject = subjects[i%len(subjects)]
		m.Decided(uuid.UUID{1}, &req, &d, now)
		if i%len(subjects) == len(subjects)-1 {
			m.drain(now)
			for batch := m.next(now, false); batch != nil && len(batch.Rows) > 0; batch = m.next(now, false) {
				m.release(batch.Rows)
			}
		}
	}
}
