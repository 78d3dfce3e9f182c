package usage

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// meterDelivery passes metered units to the sink, each exactly once.
type meterDelivery struct {
	sink    MeterSink
	notes   MeterNotes // nil: none
	log     *slog.Logger
	clock   func() time.Time
	metrics meterMetrics
	writer  uuid.UUID
	since   time.Time // nothing was metered before

	mu       sync.Mutex // guards the fields below; held while the sink writes, never by a check
	sequence int64
	acked    int64 // the sequence of the last batch that was written; 0: the sink does not know the writer
	waiting  meterQueue
	refused  [][]MeterRow // parts of a batch that was refused
	unacked  *MeterBatch  // passed to the sink, and perhaps written: it must not change
	told     time.Time    // when the sink last accepted a batch
	warned   time.Time    // when units without a subject were last logged
	failures int          // in a row
	noted    time.Time    // when notes last accepted a note
	tried    time.Time    // when it last got one
}

type meterMetrics struct {
	unattributed prometheus.Counter
	failures     prometheus.Counter
	lost         prometheus.Counter
	bytes        prometheus.Gauge
}

func newMeterDelivery(o MeterOptions) *meterDelivery {
	d := &meterDelivery{sink: o.Sink, notes: o.Notes, log: o.Logger, clock: o.Clock, writer: uuid.New()}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.clock == nil {
		d.clock = time.Now
	}
	d.since = d.clock()
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		o.Registerer.MustRegister(c)
		return c
	}
	d.metrics = meterMetrics{
		unattributed: counter("weir_metering_unattributed_units_total", "Metered units whose subject was not recorded, because their tenant had used its share of the buffer or had too many subjects in the hour, or the store refused the row."),
		lost:         counter("weir_metering_lost_units_total", "Metered units that could not be written before the process ended."),
		failures:     counter("weir_metering_write_errors_total", "Failed writes of metered units; they are retried."),
		bytes:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_metering_buffer_bytes", Help: "Approximate size of metered units that wait to be written."}),
	}
	o.Registerer.MustRegister(d.metrics.bytes)
	return d
}

// Run writes new units every second until ctx ends, and then the rest, which takes at most fifteen
// seconds. While the sink fails, units are kept in memory, within MeterOptions.MaxBytes.
func (m *Meter) Run(ctx context.Context) {
	ticks := time.NewTicker(usageFlushEvery)
	defer ticks.Stop()
	m.remember(ctx)
	m.note(m.flush(ctx, false)) // announces the writer, so that no hour is sealed without it
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), meterLastFlush)
			defer cancel()
			m.finish(last)
			return
		case <-ticks.C:
			m.remember(ctx)
			m.note(m.flush(ctx, false))
		}
	}
}

// finish writes the rest and ends the writer.
func (m *Meter) finish(ctx context.Context) {
	for {
		err := m.flush(ctx, true)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			m.giveUp(context.WithoutCancel(ctx), err)
			return
		case <-time.After(usageFlushEvery / 4):
		}
	}
}

func unitsOf(rows []MeterRow) (n int64) {
	for i := range rows {
		n = addUnits(n, rows[i].Units)
	}
	return n
}

// note logs when writes begin to fail and when they succeed again.
func (m *Meter) note(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil:
		m.failures++
		if m.failures == 1 {
			m.log.Warn("metered units cannot be written and are kept in memory", "error", err)
		}
	case m.failures > 0:
		m.log.Info("metered units are written again", "failed_attempts", m.failures)
		m.failures = 0
	}
}

// flush writes what was metered, in batches. It stops at the first one that fails, and the next
// flush continues with it. It also stops after a second, since the next flush begins with a drain:
// the shards have little room, and rows have their turn only in the queue. If last is true, it
// writes everything, and the writer ends when it succeeds.
func (m *Meter) flush(ctx context.Context, last bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock()
	m.drain(now)
	for {
		if m.unacked == nil {
			m.unacked = m.next(now, last)
		}
		m.metrics.bytes.Set(float64(m.bytes()))
		if m.unacked == nil {
			return nil
		}
		ended := m.unacked.Last
		if err := m.write(ctx, m.unacked); err != nil {
			m.metrics.failures.Inc()
			return err
		}
		m.unacked, m.told = nil, now
		if ended && len(m.refused) == 0 || !last && m.clock().Sub(now) >= usageFlushEvery {
			return nil
		}
	}
}

// next returns the next batch, or nil if there is nothing to send.
func (m *Meter) next(now time.Time, last bool) *MeterBatch {
	b := &MeterBatch{Writer: m.writer, Sequence: m.sequence + 1, Since: m.since, Acknowledged: m.acked}
	if n := len(m.refused); n > 0 {
		b.Rows, m.refused = m.refused[n-1], m.refused[:n-1]
	} else {
		b.Rows = m.waiting.cut(maxBatchRows)
	}
	if len(b.Rows) == 0 && !last && now.Sub(m.told) < meterAliveEvery {
		return nil
	}
	m.sequence++
	if len(m.refused) > 0 {
		return b
	}
	if complete := m.waiting.completeUntil(); !complete.IsZero() {
		// A check that is being decided now may be recorded after the drain.
		b.CompleteUntil = complete.Add(-time.Second)
	}
	b.Last = last && len(m.waiting.turns) == 0
	return b
}

// write passes a batch to the sink. Of a batch that is refused, the rows are sent again in smaller
// parts, until the refused row is alone. Its units are then recorded without the subject.
func (m *Meter) write(ctx context.Context, b *MeterBatch) error {
	ctx, cancel := context.WithTimeout(ctx, usageWriteTimeout)
	defer cancel()
	err := m.sink.WriteMetered(ctx, b)
	switch {
	case !errors.Is(err, ErrRefused):
		if err == nil {
			m.acked = b.Sequence
			if !b.LostSince.IsZero() {
				m.log.Error("the store has lost metered units that it had written, as after a failover or the restore of a backup; exports report the gap", "since", b.LostSince)
			}
			m.release(b.Rows)
			for i := range b.Beyond {
				m.noteUnattributed(&b.Beyond[i], "the tenant has too many subjects in the hour")
			}
		}
		return err
	case len(b.Rows) > 1:
		half := len(b.Rows) / 2
		m.refused = append(m.refused, b.Rows[half:], b.Rows[:half])
	case len(b.Rows) == 1 && b.Rows[0].Subject != "":
		row := b.Rows[0]
		m.log.Error("metered units are recorded without their subject: the store refuses the row", "units", row.Units, "error", err)
		m.waiting.pool.add(row.Tenant, -int64(len(row.Subject)))
		row.Subject = ""
		m.refused = append(m.refused, []MeterRow{row})
		return nil
	default:
		m.metrics.lost.Add(float64(unitsOf(b.Rows)))
		m.log.Error("metered units are lost: the store refuses them", "units", unitsOf(b.Rows), "error", err)
		m.release(b.Rows)
	}
	return nil
}

// release frees the memory of rows that were written.
func (m *Meter) release(rows []MeterRow) {
	for i := range rows {
		row := &rows[i]
		m.waiting.pool.add(row.Tenant, -row.bytes())
		if row.Subject == "" {
			m.noteUnattributed(row, "the tenant had used its share of the buffer, or the store refused the row")
		}
	}
}

// noteUnattributed counts a row that was recorded without its subject, and logs one in an hour.
func (m *Meter) noteUnattributed(row *MeterRow, why string) {
	m.metrics.unattributed.Add(float64(row.Units))
	if now := m.clock(); now.Sub(m.warned) >= meterWarnEvery {
		m.warned = now
		m.log.Warn("metered units are recorded without their subject; more of them are only counted for an hour", "tenant", row.Tenant, "rule", row.Rule, "units", row.Units, "reason", why)
	}
}
