package usage

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"math"
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
	Plan     string // slug; "" where the tenant has no plans; OtherPlans
	Resource string // "": all those that have no line of their own
}

// OtherPlans stands in place of a plan for all those that have no line of their own. It is not a
// slug, so no plan can have this name.
const OtherPlans = "*"

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
	// building is called before the rows of a shard are built; nil: not. For tests.
	building func(shard int)
	*delivery
}

const usageShards = 64 // a power of two

type usageShard struct {
	mu      sync.Mutex
	tenants map[limit.TenantID]*tenantUsage
	dirty   []*tenantUsage // those with new counts since the shard was drained completely
	urgent  []*tenantUsage // those of them that are drained in the next second
	held    []table        // the counts of minutes that have ended since then
	soon    []table        // those of tenants that are drained every second
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
		*to = t.take(*to)
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

// usageIdle is how long the counters of an idle tenant are kept.
const usageIdle = 5 * time.Minute
