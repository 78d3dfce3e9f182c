package faults

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// A history is what a load has recorded.
type history struct {
	load    *load
	records []record
}

// failures returns how many checks got no decision, and an example of each reason.
func (h *history) failures() (count int, why string) {
	reasons := map[string]int{}
	for i := range h.records {
		if r := &h.records[i]; r.failure != "" {
			count++
			reasons[fmt.Sprintf("instance %d: %s", r.node, r.failure)]++
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		why += fmt.Sprintf("%d x %s\n", reasons[reason], reason)
	}
	return count, why
}

// between returns the records that were due in a period.
func (h *history) between(from, to time.Duration) *history {
	return h.where(func(r *record) bool { return from <= r.at && r.at < to })
}

func (h *history) stream(s int) *history {
	return h.where(func(r *record) bool { return r.stream == s })
}

func (h *history) node(n int) *history {
	return h.where(func(r *record) bool { return r.node == n })
}

func (h *history) where(holds func(*record) bool) *history {
	some := &history{load: h.load}
	for i := range h.records {
		if holds(&h.records[i]) {
			some.records = append(some.records, h.records[i])
		}
	}
	return some
}

func (h *history) count(holds func(*record) bool) (n int) {
	for i := range h.records {
		if holds(&h.records[i]) {
			n++
		}
	}
	return n
}

// quantile returns a quantile of the latencies, such as 0.99.
func (h *history) quantile(q float64) time.Duration {
	if len(h.records) == 0 {
		return 0
	}
	var all []time.Duration
	for i := range h.records {
		all = append(all, h.records[i].took)
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

func (h *history) p99() time.Duration { return h.quantile(0.99) }

// noWait is the latency below which a degraded answer has not waited for Redis: half of the
// timeout.
const noWait = 25 * time.Millisecond

// detected returns how long after the fault each of the instances began to answer in degraded mode
// without waiting, which is the first of five such answers in a row. It returns the slowest.
func (h *history) detected(fault time.Duration, nodes ...int) time.Duration {
	return h.changed(fault, nodes, 5, func(r *record) bool { return r.degraded && r.took < noWait })
}

// recovered returns how long after the repair each of the instances began to answer from Redis,
// which is the first of many such answers in a row. It returns the slowest.
func (h *history) recovered(repair time.Duration, nodes ...int) time.Duration {
	return h.changed(repair, nodes, settled, func(r *record) bool { return !r.degraded })
}

func (h *history) changed(from time.Duration, nodes []int, turns int, is func(*record) bool) (slowest time.Duration) {
	if nodes == nil {
		nodes = []int{0, 1, 2}
	}
	for _, n := range nodes {
		records := h.node(n).where(func(r *record) bool { return r.failure == "" && r.done() >= from }).records
		slices.SortFunc(records, func(a, b record) int { return int(a.done() - b.done()) })
		first, inRow := time.Duration(0), 0
		for i := range records {
			if !is(&records[i]) {
				inRow = 0
				continue
			}
			if inRow == 0 {
				first = records[i].done()
			}
			if inRow++; inRow == turns {
				break
			}
		}
		if inRow < turns {
			return never
		}
		slowest = max(slowest, first-from)
	}
	return slowest
}

// longestDegraded returns the longest time for which an instance answered in degraded mode. Five
// other answers in a row end it.
func (h *history) longestDegraded() (longest time.Duration) {
	for n := range instances {
		records := h.node(n).records
		slices.SortFunc(records, func(a, b record) int { return int(a.done() - b.done()) })
		first, last, others := time.Duration(-1), time.Duration(-1), 0
		for i := range records {
			r := &records[i]
			if !r.degraded {
				if others++; others == 5 {
					first = -1
				}
				continue
			}
			if others = 0; first < 0 {
				first = r.at
			}
			last = r.done()
			longest = max(longest, last-first)
		}
	}
	return longest
}

// never stands for a change that did not happen during the run.
const never = time.Hour

// certain is how many degraded answers without a wait an instance gives before it is certain that
// it does not ask Redis.
const certain = 5

// uncertain returns the checks of the probe tenant of which Redis may or may not have counted the
// units: those without a decision, and those with a degraded answer, unless their instance did not
// ask Redis then. It did not if it answered at once, and its last answers before the check was sent
// were degraded too.
func (h *history) uncertain() (some []*record) {
	for n := range instances {
		records := h.node(n).where(func(r *record) bool { return r.stream <= tallyStream }).records
		answered := slices.Clone(records)
		slices.SortFunc(answered, func(a, b record) int { return int(a.done() - b.done()) })
		for i := range records {
			r := &records[i]
			switch {
			case r.failure == "" && !r.degraded:
			case r.failure != "" || r.done()-r.sent >= noWait || !degradedBefore(answered, r.sent):
				some = append(some, r)
			}
		}
	}
	return some
}

// degradedBefore reports whether the last answers before a time were degraded. The answers are in
// the order in which they arrived.
func degradedBefore(answered []record, at time.Duration) bool {
	end, _ := slices.BinarySearchFunc(answered, at, func(r record, at time.Duration) int { return int(r.done() - at) })
	return end >= certain && !slices.ContainsFunc(answered[end-certain:end], func(r record) bool { return !r.degraded })
}

// A window is what one subject was allowed in one window of a rule.
type window struct {
	begins, ends    time.Duration // since the load began
	allowed, denied int
	degraded        [instances]int // degraded answers of each instance
	vague           bool           // whether some answer may belong to this window or to another
}

// exact reports whether Redis gave all answers of the window.
func (w window) exact() bool { return w.degraded == [instances]int{} }

// clockError is how much the estimate of the clock of Redis, by which an instance counts in memory,
// may differ.
const clockError = 150 * time.Millisecond

// windows returns the windows of all subjects of a stream with a rule of a fixed window. The window
// of an answer is the one that ends between the time at which the check was sent and the time at
// which it was answered, both plus reset_after_ms.
func (h *history) windows(length time.Duration) []window {
	type name struct{ subject, end int64 }
	found := map[name]*window{}
	get := func(subject, end int64) *window {
		w := found[name{subject, end}]
		if w == nil {
			ends := time.Unix(0, end*int64(length)).Sub(h.load.began)
			w = &window{begins: ends - length, ends: ends}
			found[name{subject, end}] = w
		}
		return w
	}
	for i := range h.records {
		r := &h.records[i]
		if r.failure != "" || r.reset == 0 {
			continue
		}
		began, subject := h.load.began, int64(r.subject)
		first := began.Add(r.sent + r.reset - clockError).UnixNano()
		last := began.Add(r.done()+r.reset+clockError).UnixNano() / int64(length)
		if first = (first + int64(length) - 1) / int64(length); first > last {
			first = last
		}
		for end := first; end <= last; end++ {
			w := get(subject, end)
			w.vague = w.vague || first != last
			if r.degraded {
				w.degraded[r.node]++
			}
			if r.allowed {
				w.allowed++
			} else {
				w.denied++
			}
		}
	}
	var all []window
	for _, w := range found {
		if !w.vague {
			all = append(all, *w)
		}
	}
	return all
}

// over returns by how many units of the limit the worst of the windows exceeds it.
func over(windows []window, limit int) (most int) {
	for _, w := range windows {
		most = max(most, w.allowed-limit)
	}
	return most
}

// under returns how many checks were denied in windows that were not full.
func under(windows []window, limit int) (units int) {
	for _, w := range windows {
		units += min(w.denied, max(0, limit-w.allowed))
	}
	return units
}

func filter(windows []window, holds func(window) bool) (some []window) {
	for _, w := range windows {
		if holds(w) {
			some = append(some, w)
		}
	}
	return some
}

// exactWindows returns the windows of the stream localStream in which Redis gave all answers.
func (h *history) exactWindows() []window {
	end := h.load.ended
	_, _, outside := outage(h.stream(localStream).windows(probeWindow), incident{end, end, end, end}, end)
	return outside
}

// outage splits windows by an outage: those inside it, those that contain its start or its end, and
// those outside that no degraded answer belongs to. Windows that the load saw only in part are in
// no group.
func outage(windows []window, i incident, end time.Duration) (inside, edges, outside []window) {
	for _, w := range windows {
		switch {
		case w.begins < 0 || w.ends > end:
		case w.begins >= i.degraded && w.ends <= i.repair:
			inside = append(inside, w)
		case w.ends <= i.fault || w.begins >= i.healthy:
			if w.exact() {
				outside = append(outside, w)
			}
		default:
			edges = append(edges, w)
		}
	}
	return inside, edges, outside
}
