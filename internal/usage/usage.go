package usage

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/check"
	"weir/internal/limit"
)

// UsageCounts are what was decided in some stretch of time. A check is either allowed or denied;
// the next two counts are of these same checks.
type Counts struct {
	Allowed      int64
	Denied       int64
	ShadowDenied int64 // a rule in shadow would have denied it
	Degraded     int64 // answered in part at least by a rule's OnUnavailable
	CostAllowed  int64 // units; stays at the largest int64 once there
	CostDenied   int64
}

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	c.Allowed += o.Allowed
	c.Denied += o.Denied
	c.ShadowDenied += o.ShadowDenied
	c.Degraded += o.Degraded
	c.CostAllowed = addUnits(c.CostAllowed, o.CostAllowed)
	c.CostDenied = addUnits(c.CostDenied, o.CostDenied)
}

// addUnits adds numbers that are not negative. Ten thousand checks of the largest cost are more
// than an int64 holds.
func addUnits(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// count counts one verdict.
func (c *Counts) count(allowed, shadowDenied, degraded bool, cost int64) {
	if allowed {
		c.Allowed++
		c.CostAllowed = addUnits(c.CostAllowed, cost)
	} else {
		c.Denied++
		c.CostDenied = addUnits(c.CostDenied, cost)
	}
	if shadowDenied {
		c.ShadowDenied++
	}
	if degraded {
		c.Degraded++
	}
}

// UsageGrain is the length of the stretches of time that usage is counted by.
type Grain uint8

// The grains.
const (
	Minute Grain = iota
	Hour
	Day
)

// UsageGrains lists the grains, the finest first.
var Grains = []Grain{Minute, Hour, Day}

// String returns "minute", "hour" or "day".
func (g Grain) String() string { return [...]string{"minute", "hour", "day"}[g] }

// Duration is the length of one stretch. Days are those of UTC.
func (g Grain) Duration() time.Duration {
	return [...]time.Duration{time.Minute, time.Hour, 24 * time.Hour}[g]
}

// start returns when the stretch that an instant lies in began; both in milliseconds since 1970.
func (g Grain) start(ms int64) int64 { return ms - ms%g.Duration().Milliseconds() }

// UsageKey says what counts are of.
type Key struct {
	Tenant  limit.TenantID
	StartMS int64 // milliseconds since 1970, a whole Grain
	Grain   Grain // the finest at which these are known; they count at all coarser ones too
	// Rule is a slug: the verdicts of that rule alone. "": the answers to whole checks.
	Rule     string
	Plan     string // slug; "" where the tenant has no plans
	Resource string // "": all those that have no line of their own
}

// UsageRow is counts and what they are of.
type Row struct {
	Key
	Counts
}

// UsageSubjects are the busiest subjects of one tenant in one stretch of time.
type Subjects struct {
	Tenant  limit.TenantID
	StartMS int64
	Grain   Grain
	TopSubjects
}

// UsageBatch is a part of what one process has counted.
type Batch struct {
	Writer   uuid.UUID // the process
	ID       uuid.UUID // of version 7: a writer's batches are in the order of their ids
	Rows     []Row
	Subjects []Subjects
	// CompleteUntil is an instant: once this batch is written, so is all that the writer
	// decided before it.
	CompleteUntil time.Time
	Last          bool // the writer ends with this batch
}

// ErrUsageRefused is the error for a batch that will never be taken, however often it is tried.
var ErrRefused = errors.New("the usage store refuses the batch")

// UsageSink keeps what was counted.
type Sink interface {
	// WriteUsage adds a batch to what is there, all of it or nothing. It may be called again with
	// a batch whose fate is unknown: what was written before then counts no second time. A writer
	// gives its batches one after the other, the next only when one was written or refused.
	// Errors: ErrUsageRefused; any other means to try again.
	WriteUsage(ctx context.Context, batch *Batch) error
}

// UsageOptions are what Usage is made of. Sink and Registerer are required.
type Options struct {
	Sink        Sink
	Registerer  prometheus.Registerer
	Logger      *slog.Logger     // nil: none
	Clock       func() time.Time // nil: time.Now
	BufferBytes int64            // memory for what cannot be delivered now, roughly; 0: 64 MiB
}

const defaultUsageBuffer = 64 << 20

// Usage counts decisions in this process, and hands the counts to a UsageSink every second. A
// check adds to counters in memory, under a lock that it shares with a part of all tenants only,
// and never waits for the sink. All methods may be called from many goroutines at once.
type Recorder struct {
	seed   maphash.Seed
	shards [usageShards]usageShard
	*delivery
}

const usageShards = 64 // a power of two

type usageShard struct {
	mu      sync.Mutex
	tenants map[limit.TenantID]*tenantUsage
	dirty   []*tenantUsage // those that counted something since the last drain
	rows    []Row          // of minutes that ended since then
	tops    []Subjects
	_       [64]byte // keeps the locks of neighbours on different cache lines
}

// NewUsage returns a Usage; Run delivers what it counts.
func New(o Options) *Recorder {
	u := &Recorder{seed: maphash.MakeSeed(), delivery: newDelivery(o)}
	for i := range u.shards {
		u.shards[i].tenants = map[limit.TenantID]*tenantUsage{}
	}
	return u
}

// Decided is part of Observer. It counts the decision on a request at an instant of this process's
// clock, so that no other machine's clock can move it to another day. A dry run is not usage. A nil
// Usage counts nothing.
func (u *Recorder) Decided(tenant limit.TenantID, req *check.Request, d *check.Decision, now time.Time) {
	if req.DryRun {
		return
	}
	minute := now.UnixMilli() / time.Minute.Milliseconds()
	hash := maphash.String(u.seed, d.Subject)
	// Ids of tenants end in random bits.
	s := &u.shards[tenant[len(tenant)-1]&(usageShards-1)]
	s.mu.Lock()
	t := s.tenants[tenant]
	if t == nil {
		t = newTenantUsage(tenant)
		s.tenants[tenant] = t
	}
	// Checks that began at the end of a minute may come after the first ones of the next: those
	// count in the next, or the two minutes would take turns.
	if minute > t.minute || minute < t.minute-1 {
		s.closeMinute(t)
		t.turn(minute)
	}
	if !t.dirty {
		t.dirty = true
		s.dirty = append(s.dirty, t)
	}
	shadowDenied := t.cell(d.Plan, d.Resource).count(t, d)
	t.checks.count(hash, d, shadowDenied)
	if !d.Allowed {
		t.denied.count(hash, d, shadowDenied)
	}
	s.mu.Unlock()
}

// drain takes out all that was counted, and forgets tenants that have been idle for long.
func (u *Recorder) drain(now time.Time, to *usageBuffer) {
	oldest := now.Add(-usageIdle).UnixMilli() / time.Minute.Milliseconds()
	for i := range u.shards {
		s := &u.shards[i]
		s.mu.Lock()
		for _, t := range s.dirty {
			s.closeMinute(t)
		}
		s.dirty = s.dirty[:0]
		rows, tops := s.rows, s.tops
		s.rows, s.tops = nil, nil
		for id, t := range s.tenants {
			if t.minute < oldest {
				delete(s.tenants, id)
			}
		}
		s.mu.Unlock()
		for i := range rows {
			to.add(&rows[i])
		}
		for i := range tops {
			to.addSubjects(&tops[i])
		}
	}
}

// usageIdle is for how long what has no traffic keeps its counters.
const usageIdle = 5 * time.Minute

// closeMinute moves what t has counted to the shard's ended minutes.
func (s *usageShard) closeMinute(t *tenantUsage) {
	start := t.minute * time.Minute.Milliseconds()
	for _, c := range t.changed {
		if c.key.resource != "" {
			t.resources[c.key.resource] += c.whole.Allowed + c.whole.Denied
		}
		s.rows = c.take(s.rows, Key{Tenant: t.tenant, StartMS: start, Plan: c.key.plan, Resource: c.key.resource})
	}
	t.changed = t.changed[:0]
	if top := (TopSubjects{Checks: t.checks.take(), Denied: t.denied.take()}); len(top.Checks) > 0 {
		s.tops = append(s.tops, Subjects{Tenant: t.tenant, StartMS: start, TopSubjects: top})
	}
	t.dirty = false
}

// Bounds on what one tenant may spread its counts over.
const (
	maxUsageResources = 128 // that have lines of their own, within an hour
	maxUsageCells     = 1024
)

// tenantUsage is what one tenant has counted since the last drain, in one minute.
type tenantUsage struct {
	tenant  limit.TenantID
	minute  int64 // since 1970; 0 before the first check
	dirty   bool  // listed in its shard
	cells   map[cellKey]*usageCell
	last    *usageCell // the one counted in last: mostly the next check's, too
	changed []*usageCell
	// resources have lines of their own, with their checks in this hour. The first ones to come
	// get a line, and with each hour the busier half of them keeps it: so a caller that makes up
	// resources cannot make lines without end, nor push out for long those that matter.
	resources map[string]int64
	checks    subjectSketch
	denied    subjectSketch
}

type cellKey struct{ plan, resource string }

// usageCell counts the checks of one plan and resource.
type usageCell struct {
	key        cellKey
	changed    bool // listed in its tenant
	lastMinute int64
	whole      Counts
	rules      []usageRule
}

type usageRule struct {
	rule   *limit.Rule // as last seen: a policy that is swapped brings new ones with the same slugs
	slug   string
	counts Counts
}

func newTenantUsage(tenant limit.TenantID) *tenantUsage {
	return &tenantUsage{tenant: tenant, cells: map[cellKey]*usageCell{}, resources: map[string]int64{}}
}

// turn begins a minute: cells that have been idle are forgotten, and with a new hour the
// resources that the tenant asks for least.
func (t *tenantUsage) turn(minute int64) {
	const idle = int64(usageIdle / time.Minute)
	newHour := minute/60 != t.minute/60
	if newHour {
		t.keepBusiest(maxUsageResources / 2)
	}
	for key, c := range t.cells {
		_, named := t.resources[key.resource]
		if c.lastMinute < minute-idle || newHour && !named {
			delete(t.cells, key)
		}
	}
	t.last, t.minute = nil, minute
}

func (t *tenantUsage) keepBusiest(n int) {
	names := make([]string, 0, len(t.resources))
	for name := range t.resources {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(t.resources[b], t.resources[a]) })
	for i, name := range names {
		if i < n {
			t.resources[name] = 0
		} else {
			delete(t.resources, name)
		}
	}
}

// cell returns the counters of a plan and a resource.
func (t *tenantUsage) cell(plan, resource string) *usageCell {
	key := cellKey{plan, resource}
	if t.last != nil && t.last.key == key {
		return t.last
	}
	c := t.cells[key]
	if c == nil {
		if _, named := t.resources[resource]; !named && len(t.resources) >= maxUsageResources || len(t.cells) >= maxUsageCells {
			key.resource = ""
			c = t.cells[key]
		}
	}
	if c == nil {
		// A copy: the request's strings are parts of a larger text.
		key = cellKey{strings.Clone(key.plan), strings.Clone(key.resource)}
		c = &usageCell{key: key}
		t.cells[key] = c
		if _, named := t.resources[key.resource]; !named && key.resource != "" {
			t.resources[key.resource] = 0
		}
	}
	t.last = c
	return c
}

// count counts a decision, and reports whether some rule in shadow would have denied it.
func (c *usageCell) count(t *tenantUsage, d *check.Decision) (shadowDenied bool) {
	if !c.changed {
		c.changed, c.lastMinute = true, t.minute
		t.changed = append(t.changed, c)
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		if i >= len(c.rules) || c.rules[i].rule != r.Rule {
			c.bring(r.Rule, i)
		}
		inShadow := r.Mode == limit.Shadow && !r.Allowed
		shadowDenied = shadowDenied || inShadow
		c.rules[i].counts.count(r.Allowed || inShadow, inShadow, r.Degraded, d.Cost)
	}
	c.whole.count(d.Allowed, shadowDenied, d.Degraded, d.Cost)
	return shadowDenied
}

// bring puts the counts of a rule at place i, where the next check of this kind finds them
// without a search. i is at most the number of rules.
func (c *usageCell) bring(rule *limit.Rule, i int) {
	at := slices.IndexFunc(c.rules, func(r usageRule) bool { return r.slug == rule.Slug })
	if at < 0 {
		at = len(c.rules)
		c.rules = append(c.rules, usageRule{slug: rule.Slug})
	}
	c.rules[at].rule = rule
	c.rules[i], c.rules[at] = c.rules[at], c.rules[i]
}

// take appends the counts as rows, and begins at zero again.
func (c *usageCell) take(to []Row, key Key) []Row {
	to = append(to, Row{key, c.whole})
	c.changed, c.whole = false, Counts{}
	for i := range c.rules {
		if r := &c.rules[i]; r.counts != (Counts{}) {
			key.Rule = r.slug
			to = append(to, Row{key, r.counts})
			r.counts = Counts{}
		}
	}
	return to
}
