package limit

import (
	"slices"
	"sort"
)

// slidingWindowLog stores every allowed request of the last window. It is exact but needs more
// memory. With running sums, every lookup is a binary search. The twin is sliding_window_log.lua.
type slidingWindowLog struct {
	immediate
	base    int64 // sum of all dropped costs
	entries []logEntry
	coarse  bool // Growing
}

// logEntry has the cost allowed in one millisecond.
type logEntry struct {
	at  int64
	sum int64 // of all costs up to and including this entry's
}

// at returns the instant that is used for t, and the index of the first entry that counts at it.
func (s *slidingWindowLog) at(n *Numbers, t int64) (now int64, first int) {
	count := len(s.entries)
	if count == 0 {
		return t, 0
	}
	newest := s.entries[count-1].at
	if newest-t >= horizonMS {
		return t, count
	}
	now = max(t, newest)
	return now, sort.Search(count, func(i int) bool { return s.entries[i].at > now-n.WindowMS })
}

// sumBefore returns the sum of all costs before entry i.
func (s *slidingWindowLog) sumBefore(i int) int64 {
	if i == 0 {
		return s.base
	}
	return s.entries[i-1].sum
}

func (s *slidingWindowLog) total() int64 { return s.sumBefore(len(s.entries)) }

func (s *slidingWindowLog) Remaining(n *Numbers, t int64) int64 {
	_, first := s.at(n, t)
	return max(0, n.Limit-(s.total()-s.sumBefore(first)))
}

func (s *slidingWindowLog) when(n *Numbers, t, m int64) int64 {
	_, first := s.at(n, t)
	total := s.total()
	if total-s.sumBefore(first) <= m {
		return t
	}
	// The last entry that must expire is the first one after which at most m is left.
	last := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].sum >= total-m })
	return s.entries[last].at + n.WindowMS
}

func (s *slidingWindowLog) Charge(n *Numbers, cost, t int64) {
	now, first := s.at(n, t)
	live := len(s.entries) - first
	if 2*first > len(s.entries) {
		// Dropping only when most entries have expired makes copying cost one entry per allowed
		// request.
		s.base = s.sumBefore(first)
		s.entries = slices.Delete(s.entries, 0, first)
	}
	if last := len(s.entries) - 1; last >= 0 {
		newest := &s.entries[last]
		if newest.at == now || s.coarse && n.merges(live, newest.at, now) {
			newest.at = now
			newest.sum += cost
			return
		}
	}
	s.entries = append(s.entries, logEntry{at: now, sum: s.total() + cost})
}

func (s *slidingWindowLog) Clone() State {
	return &slidingWindowLog{base: s.base, entries: slices.Clone(s.entries), coarse: s.coarse}
}

func (s *slidingWindowLog) Entries() int64 { return int64(cap(s.entries)) }

func (s *slidingWindowLog) Coarsen(coarse bool) { s.coarse = coarse }
