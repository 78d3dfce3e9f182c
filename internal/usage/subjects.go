package usage

import (
	"cmp"
	"slices"

	"weir/internal/check"
)

// topSubjects is the maximum number of subjects in a SubjectList.
const topSubjects = 100

// TopSubjects has lists of the busiest subjects.
type TopSubjects struct {
	Checks SubjectList // by checks, allowed or denied
	Denied SubjectList // by denied checks; it counts only these
}

// SubjectList is an approximate list of the busiest subjects, in no order. Of N checks, it has
// every subject with more than N/100 of them. It is computed by the Space-Saving algorithm: a
// subject that is not in the list replaces the least busy one, and may have had as many checks
// before as that one.
type SubjectList []Subject

// Subject is one subject of a list.
type Subject struct {
	Subject string
	// Error is the maximum number of checks that the subject may have had in addition to the
	// counted ones. It is at most a hundredth of all checks. The counts are never too large.
	Error int64
	Counts
}

func (s *Subject) weight() int64 { return s.Error + s.Allowed + s.Denied }

// Merge returns the list for the checks of both lists, which must be of different checks.
func (l SubjectList) Merge(o SubjectList) SubjectList {
	// A subject that is missing from a list may have had as many checks as its last one.
	missingL, missingO := l.missing(), o.missing()
	at := make(map[string]int, len(l))
	merged := make(SubjectList, len(l), len(l)+len(o))
	for i, s := range l {
		at[s.Subject] = i
		s.Error += missingO
		merged[i] = s
	}
	for _, s := range o {
		if i, both := at[s.Subject]; both {
			merged[i].Error += s.Error - missingO
			merged[i].Add(s.Counts)
		} else {
			s.Error += missingL
			merged = append(merged, s)
		}
	}
	if len(merged) > topSubjects {
		slices.SortFunc(merged, func(a, b Subject) int {
			return cmp.Or(cmp.Compare(b.weight(), a.weight()), cmp.Compare(a.Subject, b.Subject))
		})
		merged = slices.Clone(merged[:topSubjects])
	}
	return merged
}

// missing returns the maximum number of checks of a subject that is not in the list.
func (l SubjectList) missing() int64 {
	if len(l) < topSubjects {
		return 0
	}
	least := l[0].weight()
	for i := range l {
		least = min(least, l[i].weight())
	}
	return least
}

// Find returns what the list knows of a subject, and whether it is listed. Of another one it knows
// only Error, the maximum number of checks that it may have had; 0 means that it had none.
func (l SubjectList) Find(subject string) (s Subject, listed bool) {
	for i := range l {
		if l[i].Subject == subject {
			return l[i], true
		}
	}
	return Subject{Subject: subject, Error: l.missing()}, false
}

// Merge returns the lists of the checks of both.
func (t TopSubjects) Merge(o TopSubjects) TopSubjects {
	return TopSubjects{Checks: t.Checks.Merge(o.Checks), Denied: t.Denied.Merge(o.Denied)}
}

// subjectSketch creates a SubjectList, one check at a time. It allocates nothing, because slots and
// their texts are reused. The zero value is ready to use.
type subjectSketch struct {
	places  []sketchPlace
	weights []int64 // of the slots, in a separate array for a fast search
	// table finds a slot by hash, with open addressing. Each entry is a slot + 1. It is two and a
	// half times as large as the number of slots.
	table [256]uint8
	least int64 // the minimum of the weights
	hand  int   // where to search for the next slot with that weight
}

type sketchPlace struct {
	hash    uint64
	subject []byte
	error   int64
	counts  Counts
}

// count counts the decision for its subject, which has this hash.
func (k *subjectSketch) count(hash uint64, d *check.Decision, shadowDenied bool) {
	i, found := k.find(hash, d.Subject)
	if !found {
		i = k.enter(hash, d.Subject)
	}
	k.weights[i] += d.Checks()
	k.places[i].counts.count(d.Checks(), d.Allowed, shadowDenied, d.Degraded, d.Cost)
}

func (k *subjectSketch) find(hash uint64, subject string) (place int, found bool) {
	for at := uint8(hash); k.table[at] != 0; at++ { // the low byte is intended
		p := &k.places[k.table[at]-1]
		if p.hash == hash && string(p.subject) == subject {
			return int(k.table[at]) - 1, true
		}
	}
	return 0, false
}

// enter gives a new subject a slot: a free one, or that of the least busy subject.
func (k *subjectSketch) enter(hash uint64, subject string) int {
	i := len(k.weights)
	if i < topSubjects {
		if i == len(k.places) {
			k.places = append(k.places, sketchPlace{})
		}
		k.weights = append(k.weights, 0)
	} else {
		i = k.leastBusy()
		k.drop(i)
	}
	p := &k.places[i]
	p.hash, p.subject, p.error, p.counts = hash, append(p.subject[:0], subject...), k.weights[i], Counts{}
	at := uint8(hash) // the low byte is intended
	for k.table[at] != 0 {
		at++
	}
	k.table[at] = uint8(i + 1) // at most topSubjects
	return i
}

// leastBusy returns the slot with the smallest weight. Weights only grow, so slots with the minimum
// are used one after the other, and all slots are searched only when none is left.
func (k *subjectSketch) leastBusy() int {
	for ; k.hand < len(k.weights); k.hand++ {
		if k.weights[k.hand] == k.least {
			return k.hand
		}
	}
	k.least = slices.Min(k.weights)
	k.hand = slices.Index(k.weights, k.least)
	return k.hand
}

// drop removes a slot from the table and closes the gap.
func (k *subjectSketch) drop(i int) {
	gap := uint8(k.places[i].hash)   // the low byte is intended
	for k.table[gap] != uint8(i+1) { // at most topSubjects
		gap++
	}
	for at := gap + 1; k.table[at] != 0; at++ {
		home := uint8(k.places[k.table[at]-1].hash) // the low byte is intended
		if at-home >= at-gap {                      // its search path contains the gap
			k.table[gap], gap = k.table[at], at
		}
	}
	k.table[gap] = 0
}

// take returns the list and starts an empty one.
func (k *subjectSketch) take() SubjectList {
	list := make(SubjectList, len(k.weights))
	for i := range list {
		p := &k.places[i]
		list[i] = Subject{Subject: string(p.subject), Error: p.error, Counts: p.counts}
	}
	k.weights, k.table, k.least, k.hand = k.weights[:0], [256]uint8{}, 0, 0
	return list
}

// empty reports whether nothing was counted since the list was last taken.
func (k *subjectSketch) empty() bool { return len(k.weights) == 0 }
