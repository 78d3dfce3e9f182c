package usage

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// noteBook is MeterNotes in memory.
type noteBook struct {
	mu      sync.Mutex
	away    error
	written int
	notes   map[uuid.UUID]MeterNote
}

func (b *noteBook) Note(_ context.Context, n MeterNote) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.away == nil {
		b.written++
		b.notes[n.Writer] = n
	}
	return b.away
}

func (b *noteBook) note(t *testing.T) MeterNote {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Len(t, b.notes, 1)
	for _, n := range b.notes {
		return n
	}
	return MeterNote{}
}

// notedMeter runs a meter with notes until end is called.
type notedMeter struct {
	*Meter
	ledger *meterLedger
	book   *noteBook
	log    bytes.Buffer
	end    func()
}

func runNotedMeter(t *testing.T, away error) *notedMeter {
	t.Helper()
	r := &notedMeter{ledger: newMeterLedger(), book: &noteBook{notes: map[uuid.UUID]MeterNote{}}}
	r.ledger.away = away
	r.Meter = NewMeter(MeterOptions{Sink: r.ledger, Notes: r.book, Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(&r.log, nil))})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	r.end = func() { stop(); <-done }
	synctest.Wait()
	return r
}

func (r *notedMeter) reach(err error) {
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	r.ledger.away = err
}

func (r *notedMeter) add() {
	r.Add(uuid.UUID{1}, "a", "api", Metered{Units: 5, Checks: 1}, time.Now())
}

// A process notes that it meters before the store knows it, and while it cannot write.
func TestMeterNotesWhatTheStoreDoesNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := runNotedMeter(t, errAway)
		require.Equal(t, MeterNote{Writer: r.writer, Since: start, At: start}, r.book.note(t))
		time.Sleep(12 * time.Second) // of the bubble's clock
		synctest.Wait()
		require.Equal(t, start.Add(10*time.Second), r.book.note(t).At)
		require.Equal(t, 3, r.book.written)

		r.reach(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 3, r.book.written, "the store knows it")
		r.reach(errAway)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.WithinDuration(t, time.Now(), r.book.note(t).At, 2*meterAliveEvery)
		require.Equal(t, start, r.book.note(t).Since)
		r.reach(nil)
		r.end()
	})
}

// A process that ends with units it could not write says truly whether exports report that.
func TestMeterReportsItsLoss(t *testing.T) {
	for name, c := range map[string]struct {
		known, noted, units bool
		says                string
		kept                int
		ends                bool
		acked               int64
	}{
		"known to the store":      {known: true, units: true, says: "exports report the gap"},
		"noted":                   {noted: true, units: true, says: "exports report the gap", kept: 1},
		"known to nobody":         {units: true, says: "no export reports it"},
		"noted, and without loss": {noted: true, says: "no unit is lost", kept: 1, ends: true},
		"known, and without loss": {known: true, noted: true, says: "no unit is lost", kept: 1, ends: true, acked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				away := errAway
				if c.known {
					away = nil
				}
				r := runNotedMeter(t, away)
				r.reach(errAway)
				if !c.noted {
					r.book.away = errAway
					clear(r.book.notes)
					r.Meter.noted = time.Time{}
				}
				if c.units {
					r.add()
				}
				start := time.Now()
				r.end()
				require.Contains(t, r.log.String(), c.says)
				require.Len(t, r.book.notes, c.kept)
				if c.kept > 0 {
					require.Equal(t, MeterNote{
						Writer: r.writer, Since: r.since, At: start.Add(meterLastFlush), Ended: c.ends, Acknowledged: c.acked,
					}, r.book.note(t), "it metered until its end")
				}
				require.Equal(t, c.units, testutil.ToFloat64(r.metrics.lost) == 5)
			})
		})
	}
}

// What a writer decided before it began is nothing, so its first batch says that much, even if it
// has too many units to say more.
func TestMeterBatchesSayWhenTheirWriterBegan(t *testing.T) {
	l := &sinceLedger{meterLedger: newMeterLedger()}
	begin := time.Unix(1000, 0)
	m := NewMeter(MeterOptions{Sink: l, Registerer: prometheus.NewRegistry(), Clock: func() time.Time { return begin }})
	require.NoError(t, m.flush(t.Context(), false))
	require.Equal(t, begin, l.since)
}

// sinceLedger records what batches say about their writer.
type sinceLedger struct {
	*meterLedger
	since   time.Time
	batches [][2]int64 // sequence, and the last one that was acknowledged
	lost    time.Time
}

func (l *sinceLedger) WriteMetered(ctx context.Context, b *MeterBatch) error {
	l.since, b.LostSince = b.Since, l.lost
	l.batches = append(l.batches, [2]int64{b.Sequence, b.Acknowledged})
	return l.meterLedger.WriteMetered(ctx, b)
}

// A batch says which one was acknowledged last, also after one that was refused or whose answer was
// lost. A store that has lost batches is an error in the log.
func TestMeterBatchesSayWhatWasAcknowledged(t *testing.T) {
	var log bytes.Buffer
	l := &sinceLedger{meterLedger: newMeterLedger()}
	m := NewMeter(MeterOptions{Sink: l, Registerer: prometheus.NewRegistry(), Clock: func() time.Time { return time.Unix(1000, 0) }, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	send := func(subject string) {
		m.Add(uuid.UUID{1}, subject, "api", Metered{Units: 1, Checks: 1}, time.Unix(1000, 0))
		_ = m.flush(t.Context(), false)
	}
	send("a")
	send("b")
	l.loseAcks = 1
	send("c")
	require.Equal(t, [][2]int64{{1, 0}, {2, 1}, {3, 2}}, l.batches)
	send("d")
	l.poison = "e"
	send("e")
	require.Equal(t, [][2]int64{{3, 2}, {4, 3}, {5, 4}, {6, 4}}, l.batches[3:], "5 was refused, and 6 has the row without its subject")
	require.NotContains(t, log.String(), "the store has lost")
	l.lost = time.Unix(500, 0)
	send("f")
	require.Contains(t, log.String(), "the store has lost metered units")
	require.Equal(t, [2]int64{7, 6}, l.batches[len(l.batches)-1])
}
