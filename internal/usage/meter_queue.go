package usage

import (
	"slices"
	"time"

	"weir/internal/limit"
)

// meterPool bounds the memory of rows, with a share for each tenant. Of 200 MiB, the first tenant
// gets 150, a second one 37 of the rest, and so on. A tenant with less than least gets that in any
// case, until they have all taken most and more.
type meterPool struct {
	most, more, least int64
	taken             int64
	held              map[limit.TenantID]int64
}

func newMeterPool(most, more, least int64) meterPool {
	return meterPool{most: most, more: more, least: least, held: map[limit.TenantID]int64{}}
}

// meterShare says which part is a tenant's share: it may have this many times what it leaves free.
const meterShare = 3

// take counts size bytes for a tenant, or returns false if they are beyond its share.
func (p *meterPool) take(tenant limit.TenantID, size int64) bool {
	own, taken := p.held[tenant]+size, p.taken+size
	if own > meterShare*(p.most-taken) && (own > p.least || taken > p.most+p.more) {
		return false
	}
	p.held[tenant], p.taken = own, taken
	return true
}

// add counts size bytes beyond any bound. A negative size releases bytes.
func (p *meterPool) add(tenant limit.TenantID, size int64) {
	p.taken += size
	own := p.held[tenant] + size
	if own == 0 {
		delete(p.held, tenant)
		return
	}
	p.held[tenant] = own
}

// reset releases all bytes.
func (p *meterPool) reset() {
	p.taken = 0
	if len(p.held) > maxBatchRows {
		p.held = map[limit.TenantID]int64{}
		return
	}
	clear(p.held)
}

// meterQueue has the rows that are drained and not passed to the sink. The tenants take turns, so
// that the rows of one wait for few of another's.
type meterQueue struct {
	pool  meterPool // also of rows that are passed to the sink and not written
	lines map[limit.TenantID]*meterLine
	turns []*meterLine // all lines, in the order of their turns
	last  *meterLine   // that of the row that was added last
	spare *meterLine   // empty, for the next tenant

	drains   []meterDrain // those with rows in the queue, and some without
	first    int          // number of the first one in drains
	complete time.Time    // of the newest drain that had no row left, nor had any before it
}

type meterDrain struct {
	at   time.Time
	rows int // in the queue
}

// meterLine is the rows of a tenant, oldest first, with an index.
type meterLine struct {
	tenant limit.TenantID
	rows   []waitingRow
	head   int              // place in rows of the oldest row; those before it have left
	index  map[MeterKey]int // base plus the place in rows; nil: not made yet
	base   int              // how far rows were moved to the front, in total
	since  int              // the drain that began the line
}

type waitingRow struct {
	MeterRow
	drain int // number of the drain that brought it
}

// begin begins a drain.
func (q *meterQueue) begin(now time.Time) {
	if n := len(q.drains); n > 0 && q.drains[n-1].rows == 0 {
		q.drains[n-1].at = now
		return
	}
	q.drains = append(q.drains, meterDrain{at: now})
}

// newest returns the number of the newest drain.
func (q *meterQueue) newest() int { return q.first + len(q.drains) - 1 }

// completeUntil returns the instant of the newest drain that has no row left, and none of those
// before it has; zero if there was none.
func (q *meterQueue) completeUntil() time.Time {
	for len(q.drains) > 0 && q.drains[0].rows == 0 {
		q.complete = q.drains[0].at
		q.drains = q.drains[1:]
		q.first++
	}
	return q.complete
}

// add adds a row of a shard.
func (q *meterQueue) add(row *MeterRow) {
	l := q.lineOf(row.Tenant)
	// A subject is in one shard, so its row is new in a line that this drain began.
	isNew := l.since == q.newest() && row.Subject != ""
	if !isNew {
		if known := l.at(&row.MeterKey); known != nil {
			known.Add(row.Metered)
			return
		}
	}
	if !q.pool.take(row.Tenant, row.bytes()) {
		row.Subject = ""
		if known := l.at(&row.MeterKey); known != nil {
			known.Add(row.Metered)
			return
		}
		q.pool.add(row.Tenant, row.bytes())
	}
	q.drains[len(q.drains)-1].rows++
	l.push(waitingRow{*row, q.newest()})
}

func (q *meterQueue) lineOf(tenant limit.TenantID) *meterLine {
	if q.last != nil && q.last.tenant == tenant {
		return q.last
	}
	l := q.lines[tenant]
	if l == nil {
		if l, q.spare = q.spare, nil; l == nil {
			l = new(meterLine)
		}
		l.tenant, l.since = tenant, q.newest()
		q.lines[tenant] = l
		q.turns = append(q.turns, l)
	}
	q.last = l
	return l
}

// at returns the row of a key, or nil.
func (l *meterLine) at(key *MeterKey) *MeterRow {
	if l.index == nil {
		l.index = make(map[MeterKey]int, len(l.rows)-l.head)
		for i := l.head; i < len(l.rows); i++ {
			l.index[l.rows[i].MeterKey] = l.base + i
		}
	}
	if n, there := l.index[*key]; there {
		return &l.rows[n-l.base].MeterRow
	}
	return nil
}

// push adds a row whose key is new.
func (l *meterLine) push(row waitingRow) {
	if len(l.rows) == cap(l.rows) && l.head > len(l.rows)/2 {
		left := copy(l.rows, l.rows[l.head:])
		clear(l.rows[left:])
		l.rows, l.base, l.head = l.rows[:left], l.base+l.head, 0
	}
	if l.index != nil {
		l.index[row.MeterKey] = l.base + len(l.rows)
	}
	l.rows = append(l.rows, row)
}

// cut removes up to n of the oldest rows, and calls f for each.
func (l *meterLine) cut(n int, f func(*waitingRow)) {
	oldest := l.rows[l.head:min(l.head+n, len(l.rows))]
	for i := range oldest {
		f(&oldest[i])
		if l.index != nil {
			delete(l.index, oldest[i].MeterKey)
		}
	}
	clear(oldest)
	l.head += len(oldest)
}

// cut removes and returns up to n rows. Those of each tenant are its oldest ones, and as many as of
// every other tenant that has so many.
func (q *meterQueue) cut(n int) (rows []MeterRow) {
	q.last = nil
	for len(rows) < n && len(q.turns) > 0 {
		part := max((n-len(rows))/len(q.turns), 1)
		for range min(len(q.turns), n-len(rows)) {
			l := q.turns[0]
			q.turns = q.turns[1:]
			rows = slices.Grow(rows, min(part, len(l.rows)-l.head))
			l.cut(part, func(row *waitingRow) {
				rows = append(rows, row.MeterRow)
				q.drains[row.drain-q.first].rows--
			})
			if l.head < len(l.rows) {
				q.turns = append(q.turns, l)
			} else {
				q.end(l)
			}
		}
	}
	return rows
}

// end removes a line whose rows have all left. The memory of one that was not large is kept.
func (q *meterQueue) end(l *meterLine) {
	delete(q.lines, l.tenant)
	if cap(l.rows) <= 8*maxBatchRows {
		*l = meterLine{rows: l.rows[:0]}
		q.spare = l
	}
}

// units returns the units of all rows.
func (q *meterQueue) units() (n int64) {
	for _, l := range q.turns {
		for i := l.head; i < len(l.rows); i++ {
			n = addUnits(n, l.rows[i].Units)
		}
	}
	return n
}
