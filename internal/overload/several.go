package overload

import (
	"encoding/binary"
	"sync/atomic"

	"weir/internal/limit"
)

// severalFor is for how many intervals a tenant counts after its last request.
const severalFor = 10

// several notes whether the requests of the last second are of several tenants. Almost every
// request only reads.
type several struct {
	last     atomic.Uint64 // the tenant of the first request of this Interval; 0: none yet
	now      atomic.Bool   // another one has sent one since
	recently atomic.Bool
	left     int // intervals for which recently stays; for Adjust alone
}

func (s *several) note(tenant limit.TenantID) {
	if s.now.Load() {
		return
	}
	id := binary.BigEndian.Uint64(tenant[:]) | 1
	if last := s.last.Load(); last == id || last == 0 && s.last.CompareAndSwap(0, id) {
		return
	}
	s.now.Store(true)
}

// adjust begins the next Interval.
func (s *several) adjust() {
	if s.now.Load() {
		s.left = severalFor
	} else if s.left > 0 {
		s.left--
	}
	s.recently.Store(s.left > 0)
	s.last.Store(0)
	s.now.Store(false)
}

// Note notes a request of a tenant.
func (b *Bound) Note(tenant limit.TenantID) { b.several.note(tenant) }

// Several reports whether several tenants have sent requests in the last second.
func (b *Bound) Several() bool { return b.several.recently.Load() }
