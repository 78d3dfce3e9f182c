package tenants

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"

	"weir/internal/places"
)

// exportPlaces are the places for exports. A tenant without an export that is refused waits in a
// line, and the next places are kept for it. So tenants that begin
// a new export as soon as one has ended do not keep out another one.
//
// An example, with 3 places, of which a tenant may have 2: a has 2 exports, and b has 1. c is
// refused. When an export of a ends, a cannot begin another one, and c can.
type exportPlaces struct {
	most, each int
	now        func() time.Time

	mu    sync.Mutex
	taken int
	held  map[uuid.UUID]int // by tenant
	line  *places.Line[uuid.UUID]
}

const (
	// exportWait is how long a place is kept for a tenant that was refused: clients are told to ask
	// again earlier.
	exportWait = 15 * time.Second
	// exportQueue is how many tenants wait at most.
	exportQueue = 1000
)

// newExports returns the places for exports. Each uses a connection until its client has read the
// file, so exports use at most three of eight connections, and those of a tenant two.
func newExports(connections int, now func() time.Time) *exportPlaces {
	return &exportPlaces{
		most: max(1, connections*3/8), each: max(1, connections/4), now: now, held: map[uuid.UUID]int{},
		line: places.NewLine[uuid.UUID](exportQueue, exportWait, now),
	}
}

// take takes a place, or returns false. If it returns true, the caller must call leave once. A
// tenant that has an export does not wait.
func (e *exportPlaces) take(tenant uuid.UUID) (leave func(), ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held[tenant] >= e.each || e.taken+e.line.Before(tenant) >= e.most {
		if e.held[tenant] == 0 {
			e.line.Join(tenant)
		}
		return nil, false
	}
	e.line.Leave(tenant)
	e.taken++
	e.held[tenant]++
	return func() { e.leave(tenant) }, true
}

func (e *exportPlaces) leave(tenant uuid.UUID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken--
	if e.held[tenant]--; e.held[tenant] == 0 {
		delete(e.held, tenant)
	}
}

// wanted reports whether more tenants wait than there are free places, so that an export must end.
func (e *exportPlaces) wanted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.line.Len() > e.most-e.taken
}

const (
	// Both are shorter than the minute for which Postgres waits.
	exportPatience     = 30 * time.Second // for one piece
	exportBusyPatience = 5 * time.Second  // the same while another tenant waits for the place
	// From when another tenant waits for the place, a client may take this time for all pieces, and
	// a second more for each exportBusyRate bytes.
	exportGrace    = 30 * time.Second
	exportBusyRate = 256 << 10
)

// errSlowExport is the error of an export whose client reads too slowly while another tenant waits.
var errSlowExport = errors.New("another tenant waits for the place of this slow export")

// ExportPace writes an export to its client, and measures how fast that reads. The time in which
// the export waits for the database does not count. Use Store.ExportPace.
type ExportPace struct {
	w       io.Writer
	exports *exportPlaces
	spent   time.Duration // on writing
	written int64         // bytes
	// What they were when another tenant was seen to wait for the first time.
	busy        bool
	busySpent   time.Duration
	busyWritten int64
}

// ExportPace returns the pace of an export whose client reads what is written to w.
func (s *Store) ExportPace(w io.Writer) *ExportPace { return &ExportPace{w: w, exports: s.exports} }

// Next calls deadline with the time that the client has for the next piece. It returns an error
// instead if the export must end, because the client has read too slowly and another tenant waits.
func (p *ExportPace) Next(deadline func(within time.Duration)) error {
	patience := exportPatience
	if p.exports.wanted() {
		if !p.busy {
			p.busy, p.busySpent, p.busyWritten = true, p.spent, p.written
		}
		paid := exportGrace + time.Duration(p.written-p.busyWritten)*(time.Second/exportBusyRate)
		if patience = min(exportBusyPatience, paid-(p.spent-p.busySpent)); patience <= 0 {
			return errSlowExport
		}
	}
	deadline(patience)
	return nil
}

// Write writes a part of a piece.
func (p *ExportPace) Write(b []byte) (int, error) {
	begun := p.exports.now()
	n, err := p.w.Write(b)
	p.spent += p.exports.now().Sub(begun)
	p.written += int64(n)
	return n, err
}
