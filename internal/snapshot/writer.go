package snapshot

import (
	"bufio"
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
	// errFull: another tenant would make the file too large.
	errFull = errors.New("the snapshot is full")
	// errChanged: what was read of a tenant is not of one version. The next file has it.
	errChanged = errors.New("the tenant has changed")
)

// Store is what a Writer needs of tenants.Store.
type Store interface {
	check.PolicySource
	History() int64
	TenantsByUse(ctx context.Context) ([]tenants.Change, error)
	StoredKeys(ctx context.Context, tenant limit.TenantID) (keys []tenants.StoredKey, version int64, err error)
}

// WriterOptions are the settings of a Writer. All are required.
type WriterOptions struct {
	Path       string // in a directory in which a file can be replaced
	MaxBytes   int64
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
	last    *File // the present file; nil: it was not written by this process
	history int64 // of the store, when last was written
	full    bool  // not all tenants fit
	retry   bool  // some tenants changed while they were read
	failing bool
	written prometheus.Gauge
	omitted prometheus.Gauge
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
	}
	o.Registerer.MustRegister(w.written, w.omitted)
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
	w.retry = false
	f, err := w.fill(ctx, file, list, now)
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

// current reports whether the present file has these versions.
func (w *Writer) current(list []tenants.Change, now time.Time) bool {
	if w.last == nil || w.retry || w.full || len(list) != len(w.last.blocks) || now.Sub(w.last.TakenAt) >= writeLatest {
		return false
	}
	for _, c := range list {
		if w.last.blocks[c.Tenant].head != headOf(c) {
			return false
		}
	}
	return true
}

func headOf(c tenants.Change) head {
	return head{ID: c.Tenant, Policy: c.PolicyVersion, Subjects: c.SubjectsVersion, Keys: c.KeysVersion}
}

// fill writes all lines.
func (w *Writer) fill(ctx context.Context, file *os.File, list []tenants.Change, now time.Time) (*File, error) {
	f := &File{Deployment: w.Deployment, TakenAt: now, file: file, blocks: make(map[limit.TenantID]block, len(list))}
	secrets, err := json.Marshal(w.Deployment)
	if err != nil {
		return nil, err
	}
	first := header{Format: formatName, Shape: shape, TakenAt: now}
	if first.Sealed, err = w.Ring.Seal(secrets, place); err != nil {
		return nil, err
	}
	out := &output{to: bufio.NewWriterSize(file, 1<<20), most: w.MaxBytes - trailerBytes}
	if err := out.add(first); err != nil {
		return nil, err
	}
	omitted := 0
	for _, c := range list {
		begin := out.at
		err := w.tenant(ctx, out, headOf(c))
		switch {
		case err == nil:
			f.blocks[c.Tenant] = block{head: headOf(c), begin: begin, end: out.at}
			f.Tenants = append(f.Tenants, c.Tenant)
			continue
		case errors.Is(err, errFull):
			omitted++
		case errors.Is(err, check.ErrUnknownTenant), errors.Is(err, tenants.ErrNotFound), errors.Is(err, errChanged):
			w.retry = true // it was deleted, suspended or changed in the meantime
		default:
			return nil, err
		}
		if err := out.backTo(file, begin); err != nil {
			return nil, err
		}
	}
	if omitted > 0 && !w.full {
		w.Logger.WarnContext(ctx, "not all tenants fit into WEIR_SNAPSHOT_FILE; increase WEIR_SNAPSHOT_SIZE", "omitted", omitted)
	}
	w.full = omitted > 0
	w.omitted.Set(float64(omitted))
	if err := out.to.Flush(); err != nil {
		return nil, err
	}
	return f, seal256(file)
}

// tenant writes the lines of a tenant. They are copied if the present file has the same versions.
func (w *Writer) tenant(ctx context.Context, out *output, h head) error {
	if w.last != nil {
		if b, found := w.last.blocks[h.ID]; found && b.head == h {
			return out.copy(io.NewSectionReader(w.last.file, b.begin, b.end-b.begin), b.end-b.begin)
		}
	}
	if err := out.add(line{Tenant: &h}); err != nil {
		return err
	}
	keys, version, err := w.Store.StoredKeys(ctx, h.ID)
	if err != nil {
		return err
	}
	for i := range keys {
		if err := out.add(line{Key: &keys[i]}); err != nil {
			return err
		}
	}
	policy, err := w.Store.LoadPolicy(ctx, h.ID)
	if err != nil {
		return err
	}
	if err := out.add(line{Policy: &policy}); err != nil {
		return err
	}
	subjects, err := w.subjects(ctx, out, h.ID)
	if err != nil {
		return err
	}
	if version != h.Keys || policy.Version != h.Policy || subjects != h.Subjects {
		return errChanged
	}
	return nil
}

// subjects writes the registered subjects of a tenant, and returns their version.
func (w *Writer) subjects(ctx context.Context, out *output, tenant limit.TenantID) (version int64, err error) {
	for after, more := "", true; more; {
		var failed error
		var read int64
		read, more, err = w.Store.ListSubjects(ctx, tenant, after, func(d check.SubjectData) {
			if after = d.Subject; failed == nil {
				failed = out.add(line{Subject: &d})
			}
		})
		if err = errors.Join(err, failed); err != nil {
			return 0, err
		}
		if version != 0 && read != version {
			return 0, errChanged
		}
		version = read
	}
	return version, nil
}

// output writes lines and knows how long the file is.
type output struct {
	to       *bufio.Writer
	at, most int64 // bytes
}

func (o *output) add(l any) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if o.at+int64(len(text))+1 > o.most {
		return errFull
	}
	o.at += int64(len(text)) + 1
	_, err = o.to.Write(append(text, '\n'))
	return err
}

func (o *output) copy(from io.Reader, bytes int64) error {
	if o.at+bytes > o.most {
		return errFull
	}
	o.at += bytes
	_, err := io.Copy(o.to, from)
	return err
}

// backTo removes what was written from a place on.
func (o *output) backTo(file *os.File, at int64) error {
	err := o.to.Flush()
	if err == nil {
		err = file.Truncate(at)
	}
	if err == nil {
		_, err = file.Seek(at, io.SeekStart)
	}
	o.at = at
	return err
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
