package recent

import (
	"slices"
	"time"

	"weir/internal/check"
)

// denials has the last denials, oldest first.
type denials struct {
	entries []*keptDecision
	each    map[denialKey]int // entries
}

// denialKey identifies equal denials.
type denialKey struct {
	subject, resource, rule string
	code                    check.Code
}

func (k *keptDecision) key() denialKey { return denialKey{k.Subject, k.Resource, k.Rule, k.Code} }

// put adds an entry and returns the one that made way for it, or nil. If there are too many equal
// ones, two of them become one. Otherwise one of the most frequent denials leaves a full list.
func (d *denials) put(k *keptDecision) (gone *keptDecision) {
	if d.each == nil {
		d.each = map[denialKey]int{}
	}
	key := k.key()
	switch {
	case d.each[key] >= recentDeniedEach:
		gone = d.combine(key, k.At.UnixMilli())
	case len(d.entries) >= recentDenied:
		gone = d.drop(d.mostFrequent())
	}
	d.entries = append(d.entries, k)
	d.each[key]++
	return gone
}

// combine adds an entry to the one before, if both are in the same minute and get no repeats any
// more. If there are no such entries, it removes the oldest one.
func (d *denials) combine(key denialKey, nowMS int64) *keptDecision {
	first, before := -1, -1
	for i, k := range d.entries {
		if k.key() != key {
			continue
		}
		if first < 0 {
			first = i
		}
		if before >= 0 && nowMS >= k.untilMS {
			b := d.entries[before]
			if b.At.Truncate(time.Minute).Equal(k.At.Truncate(time.Minute)) {
				b.repeats.Add(1 + k.repeats.Load())
				b.spanMS = max(b.spanMS, k.At.Sub(b.At).Milliseconds()+k.spanMS)
				return d.drop(i)
			}
		}
		before = i
	}
	return d.drop(first)
}

// mostFrequent returns the oldest entry of the denials with the most entries.
func (d *denials) mostFrequent() int {
	most := 0
	for _, n := range d.each {
		most = max(most, n)
	}
	return slices.IndexFunc(d.entries, func(k *keptDecision) bool { return d.each[k.key()] == most })
}

// drop removes and returns an entry.
func (d *denials) drop(i int) *keptDecision {
	gone := d.entries[i]
	d.entries = slices.Delete(d.entries, i, i+1)
	if key := gone.key(); d.each[key] > 1 {
		d.each[key]--
	} else {
		delete(d.each, key)
	}
	return gone
}
