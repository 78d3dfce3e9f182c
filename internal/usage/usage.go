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

// Counts are the decisions of a period. A check is either allowed or denied; the next two counts
// are of the same checks.
type Counts struct {
	Allowed      int64
	Denied       int64
	ShadowDenied int64 // a rule in shadow mode would have denied it
	Degraded     int64 // answered, at least in part, by a rule's OnUnavailable
	CostAllowed  int64 // units; stops at the largest int64
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

// addUnits adds two numbers that are not negative. The sum stops at the largest int64, which ten
// thousand checks of the largest cost exceed.
func addUnits(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// count counts a verdict on a number of checks with this cost in total.
func (c *Counts) count(checks int64, allowed, shadowDenied, degraded bool, cost int64) {
	if allowed {
		c.Allowed += checks
		c.CostAllowed = addUnits(c.CostAllowed, cost)
	} else {
		c.Denied += checks
		c.CostDenied = addUnits(c.CostDenied, cost)
	}
	if shadowDenied {
		c.ShadowDenied += checks
	}
	if degraded {
		c.Degraded += checks
	}
}

// Grain is the length of the periods by which usage is counted.
type Grain uint8

// The grains.
const (
	Minute Grain = iota
	Hour
	Day
)

// Grains lists the grains, finest first.
var Grains = []Grain{Minute, Hour, Day}

// String returns "minute", "hour" or "day".
func (g Grain) String() string { return [...]string{"minute", "hour", "day"}[g] }

// Duration returns the length of one period. Days are those of UTC.
func (g Grain) Duration() time.Duration {
	return [...]time.Duration{time.Minute, time.Hour, 24 * time.Hour}[g]
}

// start returns the start of the period that contains an instant; both in milliseconds since 1970.
func (g Grain) start(ms int64) int64 { return ms - ms%g.Duration().Milliseconds() }

// Key says what counts are about.
type Key struct {
	Tenant  limit.TenantID
	StartMS int64 // milliseconds since 1970, a whole Grain
	Grain   Grain // the finest grain of these counts; they are part of all coarser ones
	// Rule is a slug, for the verdicts of that rule. "": the answers to checks.
	Rule     string
	Plan     string // slug; "" where the tenant has no plans
	Resource string // "": all those that have no line of their own
}

// Row is counts with their key.
type Row struct {
	Key
	Counts
}

// Subjects are the busiest subjects of one tenant in one period.
type Subjects struct {
	Tenant  limit.TenantID
	StartMS int64
	Grain   Grain
	TopSubjects
}

// Batch is a part of the counts of one process.
type Batch struct {
	Writer   uuid.UUID // the process
	ID       uuid.UUID // of version 7: the batches of a writer are in the order of their ids
	Rows     []Row
	Subjects []Subjects
	// CompleteUntil is an instant: when this batch is written, everything that the writer decided
	// before it is written too.
	CompleteUntil time.Time
	Last          bool // the writer ends with this batch
}

// ErrRefused is the error for a batch that will never be accepted.
var ErrRefused = errors.New("the usage store refuses the batch")

// Sink stores counts.
type Sink interface {
	// WriteUsage adds a batch to the stored counts, all of it or nothing. It may be called again
	// with a batch whose outcome is unknown: if the batch was written before, it does not count
	// again. A writer writes its batches in order, each only after the previous one was written or
	// refused. After ErrRefused its rows are sent again in smaller batches, until one that is
	// refused has a single row, which is dropped. After any other error the batch is retried.
	WriteUsage(ctx context.Context, batch *Batch) error
}

// Options are the parts and settings of a Recorder. Sink and Registerer are required.
type Options struct {
	Sink        Sink
	Registerer  prometheus.Registerer
	Logger      *slog.Logger     // nil: none
	Clock       func() time.Time // nil: time.Now
	BufferBytes int64            // approximate memory for counts that cannot be delivered; 0: 64 MiB
	// Writer is the name of this process; uuid.Nil: a new one.
	Writer uuid.UUID
	// Looked returns the tenants that somebody looks at now, whose counts are written every second.
	// nil: none.
	Looked func() []limit.TenantID
}

const defaultUsageBuffer = 64 << 20

// Recorder counts decisions in this process, and passes the counts to a Sink every second, or less
// often if there are many tenants. A check adds to counters in memory, under a lock that it shares
// with some of the tenants. It never waits for the sink. All methods are safe for concurrent use.
type Recorder struct {
	seed   maphash.Seed
	shards [usageShards]usageShard
	*delivery
}

const usageShards = 64 // a power of two

type usageShard struct {
	mu      sync.Mutex
	tenants map[limit.TenantID]*tenantUsage
	dirty   []*tenantUsage // those with new counts since the shard was drained completely
	urgent  []*tenantUsage // those of them that are drained in the next second
	held    ended          // counts of minutes that have ended since then
	soon    ended          // those of tenants that are drained every second
	// heldSinceMS is the time of the first count since the shard was drained completely, in
	// milliseconds since 1970; 0: there is none.
	heldSinceMS int64
	_           [64]byte // keeps the locks of neighbours on different cache lines
}

// New returns a Recorder; Run delivers its counts.
func New(o Options) *Recorder {
	u := &Recorder{seed: maphash.MakeSeed(), delivery: newDelivery(o)}
	for i := range u.shards {
		u.shards[i].tenants = map[limit.TenantID]*tenantUsage{}
	}
	return u
}

// Decided implements check.Observer. It counts the decision on a request at an instant of this
// process's clock, so that the clock of another machine cannot move it to another day. A dry run is
// not counted. A nil Recorder counts nothing.
func (u *Recorder) Decided(tenant limit.TenantID, req *check.Request, d *check.Decision, now time.Time) {
	if req.DryRun {
		return
	}
	minute := now.UnixMilli() / time.Minute.Milliseconds()
	hash := maphash.String(u.seed, d.Subject)
	s := &u.shards[shardOf(tenant)]
	s.mu.Lock()
	t := s.tenants[tenant]
	if t == nil {
		t = newTenantUsage(tenant)
		s.tenants[tenant] = t
	}
	// Checks that began at the end of a minute may arrive after the first ones of the next. They
	// count in the next minute, because otherwise the two minutes would alternate.
	if minute > t.minute || minute < t.minute-1 {
		to := &s.held
		if t.frequent {
			to = &s.soon
		}
		t.closeMinute(to)
		t.turn(minute)
	}
	if !t.dirty {
		t.dirty = true
		s.dirty = append(s.dirty, t)
		if s.heldSinceMS == 0 {
			s.heldSinceMS = now.UnixMilli()
		}
	}
	if t.checksHeld += d.Checks(); t.checksHeld >= busyChecks {
		s.hurry(t)
	}
	shadowDenied := t.cell(d.Plan, d.Resource).count(t, d)
	t.checks.count(hash, d, shadowDenied)
	if !d.Allowed {
		t.denied.count(hash, d, shadowDenied)
	}
	s.mu.Unlock()
}

// shardOf returns the shard of a tenant. The ids of tenants end in random bits.
func shardOf(tenant limit.TenantID) int { return int(tenant[len(tenant)-1] & (usageShards - 1)) }

// usageIdle is how long the counters of an idle tenant or cell are kept.
const usageIdle = 5 * time.Minute

// closeMinute moves the counts of t.
func (t *tenantUsage) closeMinute(to *ended) {
	start := t.minute * time.Minute.Milliseconds()
	for _, c := range t.changed {
		if c.key.resource != "" {
			t.resources[c.key.resource] += c.total.Allowed + c.total.Denied
		}
		to.rows = c.take(to.rows, Key{Tenant: t.tenant, StartMS: start, Plan: c.key.plan, Resource: c.key.resource})
	}
	t.changed = t.changed[:0]
	if top := (TopSubjects{Checks: t.checks.take(), Denied: t.denied.take()}); len(top.Checks) > 0 {
		to.tops = append(to.tops, Subjects{Tenant: t.tenant, StartMS: start, TopSubjects: top})
	}
}

// Limits for the number of counters of one tenant.
const (
	maxUsageResources = 128 // that have their own rows, within an hour
	maxUsageCells     = 1024
)

// tenantUsage has the counts of one tenant since the last drain, in one minute.
type tenantUsage struct {
	tenant limit.TenantID
	minute int64 // since 1970; 0 before the first check
	dirty  bool  // listed in its shard
	urgent bool  // listed in its shard as urgent
	// frequent reports whether it was urgent since its shard was drained completely.
	frequent bool
	// checksHeld is how many checks were counted since the last drain, in all minutes.
	checksHeld int64
	cells      map[cellKey]*usageCell
	last       *usageCell // the last one used, which the next check usually needs too
	changed    []*usageCell
	// resources are those with their own rows, with their checks in this hour. New resources get a
	// row until the maximum is reached. At the end of each hour, only the busier half stays. A
	// client that invents resources can therefore not create rows without end, nor displace
	// important ones for long.
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
	total      Counts
	rules      []usageRule
}

type usageRule struct {
	rule   *limit.Rule // as last seen: a new policy has new rules with the same slugs
	slug   string
	counts Counts
}

func newTenantUsage(tenant limit.TenantID) *tenantUsage {
	return &tenantUsage{tenant: tenant, cells: map[cellKey]*usageCell{}, resources: map[string]int64{}}
}

// turn begins a minute. It removes cells that have been idle and, at the beginning of an hour, the
// resources with the fewest checks.
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

// count counts a decision, and reports whether a rule in shadow mode would have denied it.
func (c *usageCell) count(t *tenantUsage, d *check.Decision) (shadowDenied bool) {
	if !c.changed {
		c.changed, c.lastMinute = true, t.minute
		t.changed = append(t.changed, c)
	}
	checks := d.Checks()
	for i := range d.Rules {
		r := &d.Rules[i]
		if i >= len(c.rules) || c.rules[i].rule != r.Rule {
			c.bring(r.Rule, i)
		}
		inShadow := r.Mode == limit.Shadow && !r.Allowed
		shadowDenied = shadowDenied || inShadow
		c.rules[i].counts.count(checks, r.Allowed || inShadow, inShadow, r.Degraded, d.Cost)
	}
	c.total.count(checks, d.Allowed, shadowDenied, d.Degraded, d.Cost)
	return shadowDenied
}

// bring moves the counts of a rule to index i, where the next check of this kind finds them without
// a search. i is at most the number of rules.
func (c *usageCell) bring(rule *limit.Rule, i int) {
	at := slices.IndexFunc(c.rules, func(r usageRule) bool { return r.slug == rule.Slug })
	if at < 0 {
		at = len(c.rules)
		c.rules = append(c.rules, usageRule{slug: rule.Slug})
	}
	c.rules[at].rule = rule
	c.rules[i], c.rules[at] = c.rules[at], c.rules[i]
}

// take appends the counts as rows, and resets them to zero.
func (c *usageCell) take(to []Row, key Key) []Row {
	to = append(to, Row{key, c.total})
	c.changed, c.total = false, Counts{}
	for i := range c.rules {
		if r := &c.rules[i]; r.counts != (Counts{}) {
			key.Rule = r.slug
			to = append(to, Row{key, r.counts})
			r.counts = Counts{}
		}
	}
	return to
}
