package limit

import "slices"

// slidingWindowBuckets counts by parts of the window, each PrecisionMS long and aligned to 1970.
// The current part and the n-1 parts before it count in full. The twin is
// sliding_window_buckets.lua.
type slidingWindowBuckets struct {
	immediate
	parts  []subBucket // with a count, oldest first
	coarse bool        // Growing
}

type subBucket struct {
	number int64 // floor(t / PrecisionMS)
	count  int64
}

// at returns the number of the part that contains t, and the parts that count at t.
func (s *slidingWindowBuckets) at(n *Numbers, t int64) (number int64, live []subBucket) {
	number = t / n.PrecisionMS
	if len(s.parts) == 0 {
		return number, nil
	}
	newest := s.parts[len(s.parts)-1].number
	if newest*n.PrecisionMS-t >= horizonMS {
		return number, nil
	}
	number = max(number, newest)
	oldest := number - n.WindowMS/n.PrecisionMS + 1
	first := 0
	for first < len(s.parts) && s.parts[first].number < oldest {
		first++
	}
	return number, s.parts[first:]
}

func total(parts []subBucket) (sum int64) {
	for _, p := range parts {
		sum += p.count
	}
	return sum
}

func (s *slidingWindowBuckets) Remaining(n *Numbers, t int64) int64 {
	_, live := s.at(n, t)
	return max(0, n.Enforced()-total(live))
}

func (s *slidingWindowBuckets) when(n *Numbers, t, m int64) int64 {
	_, live := s.at(n, t)
	at := t
	for used := total(live); used > m; live = live[1:] {
		used -= live[0].count
		at = live[0].number*n.PrecisionMS + n.WindowMS
	}
	return at
}

func (s *slidingWindowBuckets) Charge(n *Numbers, cost, t int64) {
	number, live := s.at(n, t)
	s.parts = slices.Delete(s.parts, 0, len(s.parts)-len(live))
	if last := len(s.parts) - 1; last >= 0 {
		newest := &s.parts[last]
		if newest.number == number || s.coarse && n.merges(last+1, newest.number*n.PrecisionMS, number*n.PrecisionMS) {
			newest.number = number
			newest.count += cost
			return
		}
	}
	s.parts = append(s.parts, subBucket{number: number, count: cost})
}

func (s *slidingWindowBuckets) Clone() State {
	return &slidingWindowBuckets{parts: slices.Clone(s.parts), coarse: s.coarse}
}

func (s *slidingWindowBuckets) Entries() int64 { return int64(cap(s.parts)) }

func (s *slidingWindowBuckets) Coarsen(coarse bool) { s.coarse = coarse }

func (s *slidingWindowBuckets) Refund(_ *Numbers, units, ground int64) bool {
	i := slices.IndexFunc(s.parts, func(p subBucket) bool { return p.number == ground })
	if i < 0 || s.parts[i].count < units {
		return false
	}
	if s.parts[i].count -= units; s.parts[i].count == 0 {
		s.parts = slices.Delete(s.parts, i, i+1)
	}
	return true
}

func (s *slidingWindowBuckets) Idle() bool { return len(s.parts) == 0 }
