package usage

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"weir/internal/limit"
)

// usageBuffer has counts that are not delivered yet. Counts with the same key are added, so the
// memory depends on the number of keys and not on the number of checks.
//
// The memory is shared by all tenants. Each has a line of its own, and the lines take turns, so
// that the rows of a tenant wait for few of another's. When the memory is full, the tenants with
// the most rows lose detail.
type usageBuffer struct {
	lines map[limit.TenantID]*usageLine
	turns []*usageLine // those with rows, in the order of their turns
	last  *usageLine   // that of the row that was added last
	spare []*usageLine // empty, for new tenants
	count int          // rows
	bytes int64        // roughly
}

// The size of an entry without its texts: itself, and its part of the index.
const (
	bytesPerRow     = 240
	bytesPerSubject = 96
)

// Lines that have left are kept for the next tenants: so many, with memory for so many rows each.
const (
	spareLines    = 1024
	spareLineRows = 64
)

func newUsageBuffer() usageBuffer { return usageBuffer{lines: map[limit.TenantID]*usageLine{}} }

func (k *Key) bytes() int64 { return bytesPerRow + int64(len(k.Resource)) }

func (t *TopSubjects) bytes() int64 {
	n := int64(bytesPerRow)
	for _, list := range []SubjectList{t.Checks, t.Denied} {
		for i := range list {
			n += bytesPerSubject + int64(len(list[i].Subject))
		}
	}
	return n
}

func (b *usageBuffer) add(row *Row) { b.change(b.line(row.Tenant), func(l *usageLine) { l.add(row) }) }

func (b *usageBuffer) addSubjects(s *Subjects) {
	b.change(b.line(s.Tenant), func(l *usageLine) { l.addSubjects(s) })
}

// line returns the line of a tenant, a new one if it has none.
func (b *usageBuffer) line(tenant limit.TenantID) *usageLine {
	if b.last != nil && b.last.tenant == tenant {
		return b.last
	}
	l := b.lines[tenant]
	if l == nil {
		if n := len(b.spare); n > 0 {
			l, b.spare = b.spare[n-1], b.spare[:n-1]
		} else {
			l = new(usageLine)
		}
		l.tenant = tenant
		b.lines[tenant] = l
	}
	b.last = l
	return l
}

// change changes a line, and counts what it has then. A line without entries leaves.
func (b *usageBuffer) change(l *usageLine, f func(*usageLine)) {
	count, size := l.count(), l.bytes
	f(l)
	b.count += l.count() - count
	b.bytes += l.bytes - size
	switch {
	case l.count() > 0 && !l.waits:
		l.waits = true
		b.turns = append(b.turns, l)
	case l.count() == 0 && len(l.tops) == 0:
		b.end(l)
	}
}

// end removes an empty line.
func (b *usageBuffer) end(l *usageLine) {
	delete(b.lines, l.tenant)
	if b.last == l {
		b.last = nil
	}
	if l.waits { // its turn ends it
		return
	}
	if len(b.spare) < spareLines && cap(l.rows) <= spareLineRows {
		*l = usageLine{rows: l.rows[:0]}
		b.spare = append(b.spare, l)
	}
}

// cut removes and returns up to n rows. Those of each tenant are its oldest ones, and as many as of
// every other tenant that has so many.
func (b *usageBuffer) cut(n int) (rows []Row) {
	for len(rows) < n && len(b.turns) > 0 {
		part := max((n-len(rows))/len(b.turns), 1)
		for range min(len(b.turns), n-len(rows)) {
			l := b.turns[0]
			b.turns = b.turns[1:]
			l.waits = false
			if l.count() > 0 {
				b.change(l, func(l *usageLine) { rows = l.cut(rows, part) })
			}
		}
	}
	return rows
}

// cutSubjects removes and returns the lists with these keys.
func (b *usageBuffer) cutSubjects(keys []Key) (lists []Subjects) {
	for _, key := range keys {
		if l := b.lines[key.Tenant]; l != nil { // or shrink has dropped it
			b.change(l, func(l *usageLine) { lists = l.cutSubjects(lists, key) })
		}
	}
	return lists
}

// repack frees the memory of removed entries, which a map would keep.
func (b *usageBuffer) repack() {
	lines := make(map[limit.TenantID]*usageLine, len(b.lines))
	maps.Copy(lines, b.lines)
	b.lines, b.turns = lines, slices.Clone(b.turns)
}

// oldest returns the start of the oldest rows.
func (b *usageBuffer) oldest() (start time.Time, some bool) {
	ms := int64(math.MaxInt64)
	for _, l := range b.turns {
		for i := l.head; i < len(l.rows); i++ {
			ms = min(ms, l.rows[i].StartMS)
		}
	}
	return time.UnixMilli(ms), b.count > 0
}

// checks returns the number of buffered checks.
func (b *usageBuffer) checks() (n int64) {
	for _, l := range b.turns {
		n += checksOf(l.rows[l.head:])
	}
	return n
}

// shrink reduces the buffer to a limit: the lines of those tenants that have more than their share,
// the largest first, and only as many as necessary. First their minutes become hours, then their
// hours keep only the sum, and only then hours are dropped; the oldest ones first. It returns the
// number of rows that now tell less, and the number of dropped checks.
func (b *usageBuffer) shrink(limit int64) (coarsened int, lost int64) {
	if b.bytes <= limit {
		return 0, 0
	}
	for _, step := range []shrinkStep{(*usageLine).coarsen, (*usageLine).fold, (*usageLine).drop} {
		share := b.share(limit)
		for _, l := range b.largest() {
			for some := true; some && b.bytes > limit && l.bytes > share; {
				b.change(l, func(l *usageLine) {
					var rows int
					var checks int64
					rows, checks, some = step(l)
					coarsened += rows
					lost += checks
				})
			}
		}
	}
	b.repack()
	return coarsened, lost
}

// shrinkStep reduces the oldest hours of a line for which it can, if there are some.
type shrinkStep = func(*usageLine) (coarsened int, lost int64, some bool)

// share returns how much each tenant may have: if it were the maximum for each, all of them
// together would have no more than a limit.
func (b *usageBuffer) share(limit int64) int64 {
	sizes := make([]int64, 0, len(b.lines))
	for _, l := range b.lines {
		sizes = append(sizes, l.bytes)
	}
	slices.Sort(sizes)
	for i, size := range sizes {
		if each := limit / int64(len(sizes)-i); size > each {
			return each
		}
		limit -= size
	}
	return math.MaxInt64
}

// largest returns the lines, the largest first.
func (b *usageBuffer) largest() []*usageLine {
	return slices.SortedFunc(maps.Values(b.lines), func(a, b *usageLine) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), bytes.Compare(a.tenant[:], b.tenant[:]))
	})
}
