package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/seal"
	"weir/internal/tenants"
)

const (
	// writeEvery is how often the Writer looks for changes.
	writeEvery = time.Minute
	// writeLatest is how old a file without changes becomes until it is written again, so that its
	// age says when it was verified.
	writeLatest = time.Hour
)

var (
	// errFull: another tenant would make the file, or its share of it, too large.
	errFull = errors.New("the snapshot is full")
	// errChanged: what was read of a tenant is not of one version.
	errChanged = errors.New("the tenant has changed")
)

// Store is what a Writer needs of tenants.Store.
type Store interface {
	check.PolicySource
	History() int64
	TenantsByUse(ctx context.Context) ([]tenants.Change, error)
	Versions(ctx context.Context, tenant limit.TenantID) (tenants.Change, error)
	StoredKeys(ctx context.Context, tenant limit.TenantID) (keys []tenants.StoredKey, version int64, err error)
}

// WriterOptions are the settings of a Writer. All are required.
type WriterOptions struct {
	Path       string // in a directory in which a file can be replaced
	MaxBytes   int64
	MaxAge     time.Duration // until a tenant that cannot be read loses its part
	Deployment Deployment
	Store      Store
	Ring       *seal.Ring
	Clock      func() time.Time
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Writer keeps the file up to date.
type Writer struct {
	WriterOptions
	last     *File // the present file; nil: it was not written by this process
	history  int64 // of the store, when last was written
	tooLarge map[limit.TenantID]tooLarge
	unread   map[limit.TenantID]unread // at the last pass
	moving   bool                      // some tenants changed at each attempt to read them
	failing  bool
	written  prometheus.Gauge
	omitted  prometheus.Gauge
	changing prometheus.Gauge
	unreads  prometheus.Gauge
}

// tooLarge is a tenant that is not in the present file because it did not fit.
type tooLarge struct {
	head head
	over int64 // it needs more bytes than that
}

// NewWriter returns a Writer. Call Run.
func NewWriter(o WriterOptions) *Writer {
	w := &Writer{
		WriterOptions: o,
		written: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_snapshot_written_timestamp_seconds", Help: "When WEIR_SNAPSHOT_FILE was written last, in seconds since 1970; 0: not yet by this process.",
		}),
		omitted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_snapshot_omitted_tenants", Help: "Tenants that are not in WEIR_SNAPSHOT_FILE, because it would exceed WEIR_SNAPSHOT_SIZE.",
		}),
		changing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_snapshot_changing_tenants", Help: "Tenants in WEIR_SNAPSHOT_FILE that changed at each attempt to read them, so that their parts are of different instants.",
		}),
		unreads: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_snapshot_unread_tenants", Help: "Tenants that could not be read for WEIR_SNAPSHOT_FILE, which has an older part of them or nothing.",
		}),
	}
	o.Registerer.MustRegister(w.written, w.omitted, w.changing, w.unreads)
	return w
}

// Run writes the file when something has changed, until ctx ends.
func (w *Writer) Run(ctx context.Context) {
	wait := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			w.forget()
			return
		case <-time.After(wait):
		}
		wait = writeEvery/2 + rand.N(writeEvery)
		_, err := w.Write(ctx)
		if err != nil && !w.failing && ctx.Err() == nil {
			w.Logger.WarnContext(ctx, "cannot write WEIR_SNAPSHOT_FILE; retrying", "error", err)
		}
		w.failing = err != nil
	}
}

// Write writes the file if something has changed or if it is an hour old, and reports whether it
// did.
func (w *Writer) Write(ctx context.Context) (written bool, err error) {
	list, err := w.Store.TenantsByUse(ctx)
	if err != nil {
		return false, err
	}
	now := w.Clock().UTC()
	if history := w.Store.History(); history != w.history { // equal versions can have other contents
		w.forget()
		w.tooLarge, w.unread = nil, nil
		w.history = history
	}
	if w.current(list, now) {
		return false, nil
	}
	next := w.Path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that was killed
		return false, err
	}
	file, err := os.OpenFile(next, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	f, p, err := w.fill(ctx, file, list, now)
	if err == nil && p.unchanged() {
		w.unread = p.unread
		return false, errors.Join(file.Close(), os.Remove(next))
	}
	if err == nil {
		err = seal256(file)
	}
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = os.Rename(next, w.Path)
	}
	if err != nil {
		_ = file.Close()
		_ = os.Remove(next)
		return false, err
	}
	w.forget()
	w.last = f
	w.report(ctx, p)
	w.written.Set(float64(now.Unix()))
	return true, syncDirectory(filepath.Dir(w.Path))
}

// forget closes the present file, from which nothing is copied any more.
func (w *Writer) forget() {
	if w.last != nil {
		_ = w.last.Close() // it was only read
		w.last = nil
	}
}

// report says what is not in the file as it should be. The log has it when it begins.
func (w *Writer) report(ctx context.Context, p *pass) {
	if len(p.tooLarge) > 0 && len(w.tooLarge) == 0 {
		w.Logger.WarnContext(ctx, "not all tenants fit into WEIR_SNAPSHOT_FILE; increase WEIR_SNAPSHOT_SIZE", "omitted", len(p.tooLarge))
	}
	if p.changing > 0 && !w.moving {
		w.Logger.WarnContext(ctx, "tenants changed at each attempt to read them for WEIR_SNAPSHOT_FILE; their parts in it are of different instants", "tenants", p.changing)
	}
	if len(w.unread) == 0 {
		for _, u := range p.unread {
			w.Logger.WarnContext(ctx, "tenants cannot be read for WEIR_SNAPSHOT_FILE; it has an older part of them or nothing", "tenants", len(p.unread), "error", u.cause)
			break
		}
	}
	w.tooLarge, w.unread, w.moving = p.tooLarge, p.unread, p.changing > 0
	w.unreads.Set(float64(len(p.unread)))
	w.omitted.Set(float64(len(p.tooLarge)))
	w.changing.Set(float64(p.changing))
}

// current reports whether the present file has these versions, except for tenants that do not fit,
// and for those that cannot be read and are not to be tried again yet.
func (w *Writer) current(list []tenants.Change, now time.Time) bool {
	if w.last == nil || now.Sub(w.last.TakenAt) >= writeLatest {
		return false
	}
	var written, large, unread int
	for _, c := range list {
		b, found := w.last.blocks[c.Tenant]
		over, tooLarge := w.tooLarge[c.Tenant]
		u, failed := w.unread[c.Tenant]
		written, large, unread = written+count(found), large+count(tooLarge), unread+count(failed)
		h := headOf(c)
		if !b.is(h) && over.head != h && !(u.holds(c, now) && (!found || w.keeps(b, now))) {
			return false
		}
	}
	// Else, one of them is gone.
	return written == len(w.last.blocks) && large == len(w.tooLarge) && unread == len(w.unread)
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

func headOf(c tenants.Change) head {
	return head{ID: c.Tenant, Policy: c.PolicyVersion, Subjects: c.SubjectsVersion, Keys: c.KeysVersion}
}

// fill writes all lines but the last one.
func (w *Writer) fill(ctx context.Context, file *os.File, list []tenants.Change, now time.Time) (*File, *pass, error) {
	f := &File{Deployment: w.Deployment, TakenAt: now, file: file, blocks: make(map[limit.TenantID]block, len(list))}
	secrets, err := json.Marshal(w.Deployment)
	if err != nil {
		return nil, nil, err
	}
	first := header{Format: formatName, Shape: shape, TakenAt: now}
	if first.Sealed, err = w.Ring.Seal(secrets, place); err != nil {
		return nil, nil, err
	}
	p := &pass{w: w, f: f, out: newOutput(file, w.MaxBytes-trailerBytes), tooLarge: map[limit.TenantID]tooLarge{}, unread: map[limit.TenantID]unread{}}
	defer p.forget()
	if err := p.out.add(first); err != nil {
		return nil, nil, err
	}
	if err := p.all(ctx, list); err != nil {
		return nil, nil, err
	}
	if err := p.out.to.Flush(); err != nil {
		return nil, nil, err
	}
	return f, p, nil
}

// trailerBytes is the length of the last line.
var trailerBytes = int64(len(`{"sha256":""}`) + 2*sha256.Size + 1)

// seal256 appends the last line.
func seal256(file *os.File) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return err
	}
	last, err := json.Marshal(trailer{hex.EncodeToString(sum.Sum(nil))})
	if err != nil {
		return err
	}
	_, err = file.Write(append(last, '\n'))
	return err
}

// syncDirectory makes the new name of a file durable.
func syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
