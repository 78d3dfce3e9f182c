package usage

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/limit"
)

const (
	usageFlushEvery    = time.Second
	usageSubjectsEvery = 10 * time.Second // they cost the sink more, and are approximate in any case
	usageRepackEvery   = time.Minute
	usageAliveEvery    = 5 * time.Second  // an idle process still reports up to when it is complete
	usageWriteTimeout  = 10 * time.Second // limits the wait for a sink that hangs
	usageLastFlush     = 5 * time.Second  // to deliver the rest when the process ends, and
	usageLongestFlush  = 20 * time.Second // for this at most if there are more rows than
	usageFlushedRows   = 10_000           // in a second

	maxBatchRows     = 5000
	maxBatchSubjects = 200 // lists
)

// delivery passes counts to the sink, each exactly once.
type delivery struct {
	sink    Sink
	log     *slog.Logger
	clock   func() time.Time
	limit   int64
	looked  func() []limit.TenantID
	metrics usageMetrics

	mu       sync.Mutex // guards the fields below; held while the sink writes, never by a check
	writer   uuid.UUID
	waiting  usageBuffer
	unacked  *Batch    // passed to the sink, and perhaps written: it must not change
	refused  []refused // parts of a batch that the sink has refused as a whole
	tops     time.Time // when the subjects of all tenants, or of those that are looked at, were last delivered
	due      []Key     // lists of subjects that are to be delivered now
	repacked time.Time // when the buffer last freed memory
	told     time.Time // when the sink last accepted a batch
	failures int       // in a row
	hold     hold
}

// refused is a part of a refused batch, to be sent alone.
type refused struct {
	rows     []Row
	subjects []Subjects
}

type usageMetrics struct {
	lost      prometheus.Counter
	coarsened prometheus.Counter
	failures  prometheus.Counter
	bytes     prometheus.Gauge
}

func newDelivery(o Options) *delivery {
	d := &delivery{sink: o.Sink, log: o.Logger, clock: o.Clock, limit: o.BufferBytes, looked: o.Looked,
		writer: o.Writer, waiting: newUsageBuffer(), hold: hold{seconds: 1}}
	if d.writer == uuid.Nil {
		d.writer = uuid.New()
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.clock == nil {
		d.clock = time.Now
	}
	if d.limit == 0 {
		d.limit = defaultUsageBuffer
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		o.Registerer.MustRegister(c)
		return c
	}
	d.metrics = usageMetrics{
		lost:      counter("weir_usage_lost_checks_total", "Checks that were answered but are missing from usage, because the buffer was full or the store refused them."),
		coarsened: counter("weir_usage_coarsened_rows_total", "Rows of usage kept per hour instead of per minute, or only as a sum, because the buffer was full."),
		failures:  counter("weir_usage_write_errors_total", "Failed writes of usage; they are retried."),
		bytes:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_usage_buffer_bytes", Help: "Approximate size of usage that waits to be written."}),
	}
	o.Registerer.MustRegister(d.metrics.bytes)
	return d
}

// Run delivers new counts every second until ctx ends, and then the rest, which takes at most five
// seconds, or twenty if there are many tenants. While the sink fails, counts are buffered: per
// minute first. If they exceed the buffer, those of the tenants with the most rows are kept per
// hour, then only as a sum per hour, and only then the oldest are dropped.
func (u *Recorder) Run(ctx context.Context) {
	ticks := time.NewTicker(usageFlushEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			u.finish(context.WithoutCancel(ctx))
			return
		case <-ticks.C:
			u.note(u.flush(ctx, false))
		}
	}
}

// finish delivers the rest and ends the writer.
func (u *Recorder) finish(ctx context.Context) {
	u.mu.Lock()
	u.drain(u.clock(), true, nil, &u.waiting)
	rows := u.waiting.count
	u.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, min(usageLastFlush+time.Duration(rows)*time.Second/usageFlushedRows, usageLongestFlush))
	defer cancel()
	for {
		err := u.flush(ctx, true)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			u.mu.Lock()
			defer u.mu.Unlock()
			lost := u.waiting.checks()
			if u.unacked != nil {
				lost += checksOf(u.unacked.Rows)
			}
			for _, part := range u.refused {
				lost += checksOf(part.rows)
			}
			u.metrics.lost.Add(float64(lost))
			u.log.Error("usage is lost: it could not be written before the process ended", "checks", lost, "error", err)
			return
		case <-time.After(usageFlushEvery / 4):
		}
	}
}

// note logs when deliveries begin to fail and when they succeed again.
func (u *Recorder) note(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case err != nil:
		u.failures++
		if u.failures == 1 {
			u.log.Warn("usage cannot be written and is buffered", "error", err)
		}
	case u.failures > 0:
		u.log.Info("usage is written again", "failed_attempts", u.failures)
		u.failures = 0
	}
}

// flush delivers what was counted, in batches. It stops at the first one that fails, and the next
// flush continues with it. It also stops after a second: the next flush begins with a drain, so the
// new counts of a tenant do not wait for all old ones of another. If last is true, it delivers
// everything, and the writer ends when it succeeds.
func (u *Recorder) flush(ctx context.Context, last bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	// A check that is being decided now may be recorded after the drain.
	now := u.clock()
	complete := now.Add(-time.Second)
	looked := u.lookedAt()
	if since := u.drain(now, last, looked, &u.waiting); since > 0 && since < complete.UnixMilli() {
		complete = time.UnixMilli(since)
	}
	coarsened, lost := u.waiting.shrink(u.limit)
	u.metrics.coarsened.Add(float64(coarsened))
	u.metrics.lost.Add(float64(lost))
	if last || len(u.due) == 0 {
		u.due = u.dueSubjects(now, last, looked)
	}
	for {
		if u.unacked == nil {
			u.unacked = u.next(complete, last, now)
		}
		u.metrics.bytes.Set(float64(u.waiting.bytes))
		if u.unacked == nil {
			if now.Sub(u.repacked) >= usageRepackEvery {
				u.repacked = now
				u.waiting.repack() // almost nothing is left, even after a long outage
			}
			return nil
		}
		err := u.write(ctx)
		if err != nil {
			u.metrics.failures.Inc()
			return err
		}
		ended := u.unacked.Last
		u.unacked, u.told = nil, now
		if ended && len(u.refused) == 0 || !last && u.clock().Sub(now) >= usageFlushEvery {
			return nil
		}
	}
}

// next returns the next batch of the buffer, or nil if there is nothing to send.
func (u *Recorder) next(complete time.Time, last bool, now time.Time) *Batch {
	b := &Batch{Writer: u.writer, ID: uuid.Must(uuid.NewV7())}
	if n := len(u.refused); n > 0 {
		b.Rows, b.Subjects, u.refused = u.refused[n-1].rows, u.refused[n-1].subjects, u.refused[:n-1]
	} else {
		b.Rows = u.waiting.cut(maxBatchRows)
		if !last || u.waiting.count == 0 { // rows first: the time to end may be short
			n := min(len(u.due), maxBatchSubjects)
			b.Subjects = u.waiting.cutSubjects(u.due[:n])
			u.due = u.due[n:]
		}
	}
	rest := u.waiting.count+len(u.due)+len(u.refused) > 0
	if len(b.Rows) == 0 && len(b.Subjects) == 0 && !last && now.Sub(u.told) < usageAliveEvery {
		return nil
	}
	b.CompleteUntil = complete
	if oldest, some := u.waiting.oldest(); some && oldest.Before(complete) {
		b.CompleteUntil = oldest
	}
	for _, part := range u.refused {
		for i := range part.rows {
			if start := time.UnixMilli(part.rows[i].StartMS); start.Before(b.CompleteUntil) {
				b.CompleteUntil = start
			}
		}
	}
	b.Last = last && !rest
	return b
}

// write passes the batch to the sink. Of a batch that is refused, the rows are sent again in
// smaller parts, until the refused row is alone: the usage of other tenants must not be lost with
// it.
func (u *Recorder) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, usageWriteTimeout)
	defer cancel()
	err := u.sink.WriteUsage(ctx, u.unacked)
	if !errors.Is(err, ErrRefused) {
		return err
	}
	rows, subjects := u.unacked.Rows, u.unacked.Subjects
	switch halfRows, halfSubjects := len(rows)/2, len(subjects)/2; {
	case len(rows) > 0 && len(subjects) > 0:
		u.refused = append(u.refused, refused{subjects: subjects}, refused{rows: rows})
	case len(rows) > 1:
		u.refused = append(u.refused, refused{rows: rows[halfRows:]}, refused{rows: rows[:halfRows]})
	case len(subjects) > 1:
		u.refused = append(u.refused, refused{subjects: subjects[halfSubjects:]}, refused{subjects: subjects[:halfSubjects]})
	default:
		lost := checksOf(rows)
		u.metrics.lost.Add(float64(lost))
		u.log.Error("usage is lost: the store refuses it", "checks", lost, "lists", len(subjects), "error", err)
	}
	return nil
}

// checksOf returns the number of checks in rows. It counts only rows without a rule, because those
// of rules are of the same checks.
func checksOf(rows []Row) (n int64) {
	for i := range rows {
		if rows[i].Rule == "" {
			n += rows[i].Allowed + rows[i].Denied
		}
	}
	return n
}
