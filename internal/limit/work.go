package limit

// logRead is the number of entries that a log is read with at once. A longer log is searched.
const logRead = 32

// Work estimates the work of one evaluation of a counter for the store. A counter that is stored in
// one small value is 1. The unit is about 5 µs of Redis.
func (n *Numbers) Work() int64 {
	work := int64(1)
	switch n.Algorithm {
	case SlidingWindowLog:
		if work = 4; n.Limit > logRead {
			work = 8
		}
	case SlidingWindowBuckets:
		work = 4
	}
	if n.PenaltyMS > 0 {
		work += 2 // a mark, which is another key
	}
	return work
}

// CreditsWork estimates the work of the credits of a counter beside its own, by the grants that a
// call has: the script searches each of them, and writes those that it spends.
func CreditsWork(grants int) int64 { return 3 + int64(grants)/5 }
