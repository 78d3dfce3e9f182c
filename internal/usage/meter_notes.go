package usage

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// MeterNote says that a writer may have units that the sink has not got.
type MeterNote struct {
	Writer uuid.UUID
	Since  time.Time // the writer metered nothing before
	At     time.Time // when the writer wrote the note
	// Ended: the writer has ended, and the sink has all of its units if it knows the batch with
	// this number, or a later one.
	Ended        bool
	Acknowledged int64
}

// MeterNotes keeps notes beside the sink, for days. A writer that could never write is unknown to
// the sink: without a note, nobody would miss the units of a process that ended before.
type MeterNotes interface {
	// Note keeps a note, in place of an older one of its writer.
	Note(ctx context.Context, n MeterNote) error
}

const (
	meterNoteTimeout = time.Second
	// MeterNoteLife is how long a note stands for what its writer meters after it. A writer that is
	// cut off from the sink writes one every five seconds, or after an attempt that takes ten.
	MeterNoteLife = meterAliveEvery + usageWriteTimeout
)

// remember keeps a note while the sink does not know the writer, or cannot be written to. The first
// one comes before the first batch: the sink may take long to fail, and checks are decided
// meanwhile.
func (m *Meter) remember(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.acked > 0 && m.failures == 0 {
		return
	}
	if now := m.clock(); now.Sub(m.tried) >= meterAliveEvery {
		m.keepNote(ctx, MeterNote{At: now})
	}
}

// keepNote keeps a note of the writer.
func (m *Meter) keepNote(ctx context.Context, n MeterNote) {
	if m.notes == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, meterNoteTimeout)
	defer cancel()
	m.tried = n.At
	n.Writer, n.Since = m.writer, m.since
	if err := m.notes.Note(ctx, n); err != nil {
		m.log.Debug("a note about metered units was not kept", "error", err)
		return
	}
	m.noted = n.At
}

// giveUp reports what could not be written before the process ended.
func (m *Meter) giveUp(ctx context.Context, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock()
	m.drain(now) // what was metered during the last attempt
	lost := m.waiting.units()
	for _, rows := range m.refused {
		lost = addUnits(lost, unitsOf(rows))
	}
	if m.unacked != nil {
		lost = addUnits(lost, unitsOf(m.unacked.Rows))
	}
	if lost == 0 {
		// Without this note, a gap is reported in which nothing is missing. An older note is not
		// just removed: another instance has passed it to the sink within seconds.
		m.keepNote(ctx, MeterNote{At: now, Ended: true, Acknowledged: m.acked})
		m.log.Warn("the end of metering could not be written before the process ended; no unit is lost", "error", why)
		return
	}
	m.keepNote(ctx, MeterNote{At: now})
	m.metrics.lost.Add(float64(lost))
	const message = "metered units are lost: they could not be written before the process ended"
	if m.acked == 0 && m.noted.IsZero() {
		m.log.Error(message+"; no export reports it: neither Postgres nor Redis knows that this process metered", "units", lost, "error", why)
		return
	}
	m.log.Error(message+"; exports report the gap", "units", lost, "error", why)
}
