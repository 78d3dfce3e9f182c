package tenants

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"weir/internal/places"
)

// ExportPlaces are the places for exports. A tenant without an export that is refused waits in a
// line, and the next places are kept for it. So tenants that begin a new export as soon as one has
// ended do not keep out another one. Use NewExportPlaces.
//
// An example, with 3 places, of which a tenant may have 2: a has 2 exports, and b has 1. c is
// refused. When an export of a ends, a cannot begin another one, and c can.
type ExportPlaces struct {
	most, each int
	now        func() time.Time

	mu     sync.Mutex
	taken  int
	ending int                          // of these, those that end for tenants that wait
	held   map[uuid.UUID][]*ExportPlace // by tenant, in the order of their beginning
	line   *places.Line[uuid.UUID]
}

// ExportPlace is the place of one export.
type ExportPlace struct {
	of     *ExportPlaces
	tenant uuid.UUID
	ends   bool // for a tenant that waits
}

const (
	// exportWait is how long a place is kept for a tenant that was refused: clients are told to ask
	// again earlier.
	exportWait = 15 * time.Second
	// exportQueue is how many tenants wait at most.
	exportQueue = 1000
)

// NewExportPlaces returns most places, of which a tenant may have up to each.
func NewExportPlaces(most, each int, now func() time.Time) *ExportPlaces {
	return &ExportPlaces{
		most: most, each: each, now: now, held: map[uuid.UUID][]*ExportPlace{},
		line: places.NewLine[uuid.UUID](exportQueue, exportWait, now),
	}
}

// newExports returns the places for exports that use a connection until their clients have read the
// files. They use at most three of eight connections, and those of a tenant two.
func newExports(connections int, now func() time.Time) *ExportPlaces {
	return NewExportPlaces(max(1, connections*3/8), max(1, connections/4), now)
}

// Take takes a place. The caller must call Leave once. A tenant that has an export does not wait.
// Error: ErrTooManyExports.
func (e *ExportPlaces) Take(tenant uuid.UUID) (*ExportPlace, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	own := len(e.held[tenant])
	if own >= e.each || e.taken+e.line.Before(tenant) >= e.most {
		if own == 0 {
			e.line.Join(tenant)
		}
		return nil, ErrTooManyExports
	}
	e.line.Leave(tenant)
	e.taken++
	p := &ExportPlace{of: e, tenant: tenant}
	e.held[tenant] = append(e.held[tenant], p)
	return p, nil
}

// Leave leaves the place.
func (p *ExportPlace) Leave() {
	e := p.of
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken--
	if p.ends {
		e.ending--
	}
	left := slices.DeleteFunc(e.held[p.tenant], func(other *ExportPlace) bool { return other == p })
	if e.held[p.tenant] = left; len(left) == 0 {
		delete(e.held, p.tenant)
	}
}

// Taken returns how many places are taken.
func (e *ExportPlaces) Taken() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.taken
}

// wanted reports whether more tenants wait than there are places that are free or about to be, so
// that an export must end.
func (e *ExportPlaces) wanted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.short()
}

// short is wanted. The caller holds the lock.
func (e *ExportPlaces) short() bool { return e.line.Len() > e.most-e.taken+e.ending }

// end notes that the export ends for a tenant that waits, or returns false if others already end
// for all of them. Otherwise, several would end for one that waits, because they ask before the
// first one has left its place.
func (p *ExportPlace) end() bool {
	e := p.of
	e.mu.Lock()
	defer e.mu.Unlock()
	if p.ends {
		return true
	}
	if !e.short() {
		return false
	}
	e.ending++
	p.ends = true
	return true
}

// further reports whether the tenant has an older export.
func (p *ExportPlace) further() bool {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	held := p.of.held[p.tenant]
	return len(held) > 0 && held[0] != p
}

const (
	// Both are shorter than the minute for which Postgres waits.
	exportPatience     = 30 * time.Second // for one piece
	exportBusyPatience = 5 * time.Second  // the same while another tenant waits for the place
	// From when another tenant waits for the place, a client may take this time for all pieces, and
	// a second more for each exportBusyRate bytes.
	exportGrace    = 30 * time.Second
	exportBusyRate = 256 << 10
	// How long other tenants wait at most until an export ends for them, however fast its client
	// reads: one of a tenant that has an older one, too, and the only one of a tenant.
	exportFurtherTime = exportGrace
	exportBusyTime    = 5 * time.Minute
)

// ErrExportEnds is the error of an export that ends because another tenant waits for its place.
var ErrExportEnds = errors.New("another tenant waits for the place of this slow or second export")

// ExportPace writes an export to its client, and measures how fast that reads. The time in which
// the export waits for the database counts only for how long others have waited. Use
// Store.ExportPace or ExportPlace.Pace.
type ExportPace struct {
	w       io.Writer
	exports *ExportPlaces
	place   *ExportPlace  // nil before the export has one
	file    *ExportPlace  // nil: it has no other place
	spent   time.Duration // on writing
	written int64         // bytes
	// What they were when another tenant was seen to wait, after a time in which none did.
	busy        bool
	busySpent   time.Duration
	busyWritten int64

	waited time.Duration // how long other tenants have waited
	since  time.Time     // when one was last seen to wait; zero: none waited then
}

// ExportPace returns the pace of an export whose client reads what is written to w. The export must
// be made with the context that Within returns.
func (s *Store) ExportPace(w io.Writer) *ExportPace { return &ExportPace{w: w, exports: s.exports} }

// Pace returns the pace of the export that has the place. Its client reads what is written to w.
func (p *ExportPlace) Pace(w io.Writer) *ExportPace {
	return &ExportPace{w: w, exports: p.of, place: p}
}

// Beside notes another place that the export has until its client has read the file. The export
// then also ends for tenants that wait for that one.
func (p *ExportPace) Beside(file *ExportPlace) *ExportPace {
	p.file = file
	return p
}

type exportPaceKey struct{}

// Within returns the context for the export that has this pace.
func (p *ExportPace) Within(ctx context.Context) context.Context {
	return context.WithValue(ctx, exportPaceKey{}, p)
}

// Next calls deadline with the time that the client has for the next piece. It returns an error
// instead if another tenant waits and the export must end: because the client has read too slowly,
// or because the other one has waited for too long. The latter is decided only here, and not by the
// deadline: all exports would have the same one, and end at once for one that waits.
func (p *ExportPace) Next(deadline func(within time.Duration)) error {
	here, beside := p.wanted()
	if p.wait(here || beside); !here && !beside {
		p.busy = false
		deadline(exportPatience)
		return nil
	}
	if !p.busy {
		p.busy, p.busySpent, p.busyWritten = true, p.spent, p.written
	}
	most := exportBusyTime
	if here && p.place != nil && p.place.further() || beside && p.file.further() {
		most = exportFurtherTime
	}
	paid := exportGrace + time.Duration(p.written-p.busyWritten)*(time.Second/exportBusyRate)
	left := paid - (p.spent - p.busySpent)
	switch {
	case left > 0 && p.waited < most:
		deadline(min(exportBusyPatience, left))
	case p.end(here, beside):
		return ErrExportEnds
	default: // another one ends
		deadline(exportBusyPatience)
	}
	return nil
}

// Last is Next for the last piece. Only the deadline ends it: the export has left its place, or is
// about to, and without this piece, the others are useless.
func (p *ExportPace) Last(deadline func(within time.Duration)) {
	if here, beside := p.wanted(); here || beside {
		deadline(exportBusyPatience)
	} else {
		deadline(exportPatience)
	}
}

// wanted reports whether another tenant waits for a place like each of the two.
func (p *ExportPace) wanted() (here, beside bool) {
	return p.exports.wanted(), p.file != nil && p.file.of.wanted()
}

// end reports whether the export ends for tenants that wait. It notes that for both of its places.
func (p *ExportPace) end(here, beside bool) (ends bool) {
	if here {
		ends = p.place == nil || p.place.end()
	}
	if beside {
		ends = p.file.end() || ends
	}
	return ends
}

// wait counts the time since another tenant was last seen to wait, if one waits.
func (p *ExportPace) wait(waits bool) {
	if !waits {
		p.since = time.Time{}
		return
	}
	now := p.exports.now()
	if !p.since.IsZero() {
		p.waited += now.Sub(p.since)
	}
	p.since = now
}

// Write writes a part of a piece.
func (p *ExportPace) Write(b []byte) (int, error) {
	begun := p.exports.now()
	n, err := p.w.Write(b)
	p.spent += p.exports.now().Sub(begun)
	p.written += int64(n)
	return n, err
}

// ErrExportUnread is the error of an export whose client has disconnected, or reads too slowly.
var ErrExportUnread = errors.New("the client of an export does not read on")

// SendPages writes all rows of a list at the pace of the client: those of ExportPage, which are
// given with the cursor after them, and the pages that read returns. Errors: ErrExportUnread, and
// those of read.
func SendPages[T any](p *ExportPace, deadline func(within time.Duration), rows []T, next string, write func([]T) error, read func(Page) ([]T, string, error)) (err error) {
	for page := ExportPage(); ; {
		if next == "" {
			p.Last(deadline)
		} else if err := p.Next(deadline); err != nil {
			return errors.Join(ErrExportUnread, err)
		}
		if err := write(rows); err != nil {
			return errors.Join(ErrExportUnread, err)
		}
		if next == "" {
			return nil
		}
		page = page.Following(len(rows), next)
		if rows, next, err = read(page); err != nil {
			return err
		}
	}
}
