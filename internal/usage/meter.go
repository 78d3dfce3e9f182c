package usage

import (
	"cmp"
	"context"
	"hash/maphash"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/check"
	"weir/internal/limit"
)

// MeterKey says what metered units are about.
type MeterKey struct {
	Tenant  limit.TenantID
	StartMS int64 // of the hour, milliseconds since 1970
	// Subject is "" for units that are not attributed: the tenant had used its share of the memory,
	// or the sink refused the row. The sink may have a bound, too (MeterBatch.Beyond).
	Subject string
	Rule    string // slug
}

// Metered are the metered units of an hour.
type Metered struct {
	Units   int64 // of allowed checks; stops at the largest int64
	Overage int64 // of Units: those beyond the limit
	// Free and Billed are of the units within the limit: those of plans that invoice only units
	// beyond it, and those of plans that invoice all. Others are invoiced as the rule says.
	Free, Billed int64
	Checks       int64 // allowed checks with a cost
}

// Add adds o to m.
func (m *Metered) Add(o Metered) {
	m.Units = addUnits(m.Units, o.Units)
	m.Overage = addUnits(m.Overage, o.Overage)
	m.Free = addUnits(m.Free, o.Free)
	m.Billed = addUnits(m.Billed, o.Billed)
	m.Checks += o.Checks
}

// MeterRow is metered units with their key.
type MeterRow struct {
	MeterKey
	Metered
}

// MeterBatch is a part of the metered units of one process.
type MeterBatch struct {
	Writer   uuid.UUID // the process
	Sequence int64     // the batches of a writer are numbered from 1
	Since    time.Time // the writer metered nothing before
	// Acknowledged is the sequence of the writer's last batch that the sink has said it wrote; 0:
	// none. A sink that knows only older ones has lost some.
	Acknowledged int64
	Rows         []MeterRow
	// CompleteUntil is an instant: when this batch is written, all units that the writer metered
	// before it are written too. It is zero as long as that is not known.
	CompleteUntil time.Time
	Last          bool // the writer ends with this batch
	// Beyond is set by the sink: rows that it recorded without their subject, because the tenant
	// has too many in the hour.
	Beyond []MeterRow
	// LostSince is set by the sink that has lost batches: the units that the writer metered since
	// then may be missing. Otherwise it is zero.
	LostSince time.Time
}

// MeterSink stores metered units.
type MeterSink interface {
	// WriteMetered adds a batch, all of it or nothing. It may be called again with a batch whose
	// outcome is unknown: a batch that was written before does not count again. A writer writes its
	// batches in order, each only after the previous one was written or refused. After ErrRefused
	// nothing was written.
	WriteMetered(ctx context.Context, batch *MeterBatch) error
}

// MeterOptions are the parts and settings of a Meter. Sink and Registerer are required.
type MeterOptions struct {
	Sink       MeterSink
	Registerer prometheus.Registerer
	Logger     *slog.Logger     // nil: none
	Clock      func() time.Time // nil: time.Now
	// Notes keeps that this process meters, while the sink does not know it; nil: nothing does.
	Notes MeterNotes
	// MaxBytes is the approximate memory for units that are not written yet; 0: 256 MiB. A tenant
	// has a share of it. Units of its further subjects are then counted without the subject. For
	// tenants with less than a 256th of it, there are two fifths more.
	MaxBytes int64
}

// Meter records the units of metered rules exactly, by subject and hour. It passes them to a
// MeterSink every second. A check adds to counters in memory, under a lock that it shares with few
// subjects, and only if one of its rules is metered. It never waits for the sink.
//
// The memory is shared by all tenants, and the sink may be slow. Therefore, each tenant has a share
// of the memory (meterPool), and the tenants take turns (meterQueue): a tenant with very many new
// subjects loses those beyond its share, and no other tenant does.
//
// What is metered is decided here: the cost of checks that were allowed, for each rule that was
// enforced and is metered, by the subject's plan or else by itself. This includes checks answered
// in degraded mode, from prefetched units, and under an unlimited plan, because the customer got
// the units. A dry run, a denied check, a rule in shadow mode and an exempt subject, whose rules
// act as in shadow mode, are not metered. A repeated check with an Idempotency-Key is not decided
// again, so it is not metered again.
type Meter struct {
	seed   maphash.Seed
	shards [usageShards]meterShard
	*meterDelivery
}

type meterShard struct {
	mu    sync.Mutex
	table meterTable
	pool  meterPool  // of the memory of table
	spare meterTable // empty, for the next drain
	_     [64]byte   // keeps the locks of neighbours on different cache lines
}

// meterTable is rows with an index. The zero value is ready to use.
type meterTable struct {
	index map[MeterKey]int
	rows  []MeterRow
	names *strings.Builder // has the subjects of the newest rows
}

// namesBytes is the memory that is allocated for subjects at once.
const namesBytes = 4096

// keep returns a copy of a subject: those of requests are parts of a larger text. Many copies share
// one allocation.
func (t *meterTable) keep(subject string) string {
	if t.names == nil || t.names.Cap()-t.names.Len() < len(subject) {
		t.names = new(strings.Builder)
		t.names.Grow(max(namesBytes, len(subject)))
	}
	from := t.names.Len()
	t.names.WriteString(subject)
	return t.names.String()[from:]
}

// at returns the row of a key, or nil.
func (t *meterTable) at(key *MeterKey) *MeterRow {
	if i, there := t.index[*key]; there {
		return &t.rows[i]
	}
	return nil
}

// insert adds an empty row for a key that has none.
func (t *meterTable) insert(key MeterKey) *MeterRow {
	if t.index == nil {
		t.index = map[MeterKey]int{}
	}
	t.index[key] = len(t.rows)
	t.rows = append(t.rows, MeterRow{MeterKey: key})
	return &t.rows[len(t.rows)-1]
}

// reset removes all rows. A table that was large does not keep its memory.
func (t *meterTable) reset() {
	if len(t.rows) > maxBatchRows {
		*t = meterTable{}
		return
	}
	clear(t.index)
	clear(t.rows)
	t.rows = t.rows[:0]
}

// bytes returns the approximate size of a row: itself, its part of the index, and its subject.
func (k *MeterKey) bytes() int64 { return bytesPerRow + int64(len(k.Subject)) }

const (
	meterAliveEvery  = 5 * time.Second  // an idle process still reports up to when it is complete
	meterLastFlush   = 15 * time.Second // to write the rest when the process ends
	meterWarnEvery   = time.Hour        // about units without a subject
	defaultMeterSize = 256 << 20
)

// NewMeter returns a Meter; Run writes its units.
func NewMeter(o MeterOptions) *Meter {
	m := &Meter{seed: maphash.MakeSeed(), meterDelivery: newMeterDelivery(o)}
	most := cmp.Or(o.MaxBytes, defaultMeterSize)
	fresh := most / 5 // in the shards, for the time in which the sink writes
	m.waiting = meterQueue{pool: newMeterPool(most-fresh, fresh, most/256), lines: map[limit.TenantID]*meterLine{}}
	for i := range m.shards {
		// Subjects are spread over the shards, but those of a tenant with few not evenly, so it may
		// have twice as much: by default 32 KiB, which two subjects under 32 rules fit into.
		m.shards[i].pool = newMeterPool(fresh/usageShards, fresh/usageShards, most/128/usageShards)
	}
	return m
}

// Decided implements check.Observer.
func (m *Meter) Decided(tenant limit.TenantID, req *check.Request, d *check.Decision, at time.Time) {
	if !d.Allowed || req.DryRun || d.Cost == 0 {
		return
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		if r.Metering == limit.MeterAsRule && r.Rule.Metering == limit.MeterNone || r.Metering == limit.PlanMeterNone || r.Mode != limit.Enforce {
			continue
		}
		metered := Metered{Units: d.Cost, Overage: r.ExcessCost, Checks: d.Checks()}
		switch r.Metering {
		case limit.PlanMeterUnits:
			metered.Billed = d.Cost - r.ExcessCost
		case limit.PlanMeterOverage:
			metered.Free = d.Cost - r.ExcessCost
		}
		m.Add(tenant, d.Subject, r.Rule.Slug, metered, at)
	}
}

// Add records units of a subject under a rule, decided at an instant of this process's clock. The
// slug is that of a policy, and is kept.
func (m *Meter) Add(tenant limit.TenantID, subject, rule string, units Metered, at time.Time) {
	key := MeterKey{Tenant: tenant, StartMS: Hour.start(at.UnixMilli()), Subject: subject, Rule: rule}
	s := &m.shards[maphash.String(m.seed, subject)&(usageShards-1)]
	s.mu.Lock()
	row := s.table.at(&key)
	if row == nil {
		row = s.insert(key)
	}
	row.Add(units)
	s.mu.Unlock()
}

// insert adds a row to the table of a shard. If its tenant has its share of the memory, it is the
// row of all subjects that do not fit: rules are few, so these rows need no bound.
func (s *meterShard) insert(key MeterKey) *MeterRow {
	if !s.pool.take(key.Tenant, key.bytes()) {
		key.Subject = ""
		if row := s.table.at(&key); row != nil {
			return row
		}
		s.pool.add(key.Tenant, key.bytes())
	}
	key.Subject = s.table.keep(key.Subject)
	return s.table.insert(key)
}

// drain moves the rows of all shards to waiting. If a tenant has its share of the memory there, its
// new subjects have no place, and known ones are still counted.
func (m *Meter) drain(now time.Time) {
	m.waiting.begin(now)
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		full := s.table
		s.table, s.spare = s.spare, meterTable{}
		s.pool.reset()
		s.mu.Unlock()
		for i := range full.rows {
			m.waiting.add(&full.rows[i])
		}
		full.reset()
		s.mu.Lock()
		s.spare = full
		s.mu.Unlock()
	}
}

// bytes returns the approximate size of the rows that are not written.
func (m *Meter) bytes() int64 {
	n := m.waiting.pool.taken
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		n += s.pool.taken
		s.mu.Unlock()
	}
	return n
}
