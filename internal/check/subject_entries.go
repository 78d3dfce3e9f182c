package check

import (
	"hash/maphash"
	"math/bits"
	"slices"
)

// entryIndex knows how many subjects have each entry, and finds the entries that subjects share.
// Only writers use it: a check reads an entry by its number.
//
// An entry that no subject has any more stays until the table is rebuilt, because a check may be
// reading it. Until then, a subject that gets its values shares it again.
type entryIndex struct {
	// slots is a hash table with open addressing, of the entries that can be shared: the number of
	// an entry plus 1. An empty slot is 0.
	slots  []uint32
	shared int      // slots that are not empty
	uses   []uint32 // by the number of an entry: how many subjects have it
	dead   int      // entries that no subject has
	plans  []string // slugs in order, so that entries share their bytes
	bytes  int      // of all entries and plans
}

// sharedValues are the values of an entry that subjects can share.
type sharedValues struct {
	plan        string
	planVersion int32
	state       SubjectState
	multiplier  int64
}

func (v *sharedValues) hash() uint64 { return maphash.Comparable(subjectSeed, *v) }

func (e *subjectEntry) values() sharedValues {
	return sharedValues{e.plan, e.planVersion, e.state, e.multiplier}
}

// search returns the slot of the entry with these values, or the free one for it. There is at least
// one that is free.
func (x *entryIndex) search(entries []*subjectEntry, v sharedValues) int {
	high, _ := bits.Mul64(v.hash(), uint64(len(x.slots)))
	i := int(high) // below len
	for x.slots[i] != 0 && entries[x.slots[i]-1].values() != v {
		if i++; i == len(x.slots) {
			i = 0
		}
	}
	return i
}

// find returns the number of the entry with these values that subjects can share.
func (x *entryIndex) find(entries []*subjectEntry, v sharedValues) (uint32, bool) {
	if len(x.slots) == 0 {
		return 0, false
	}
	n := x.slots[x.search(entries, v)]
	return n - 1, n != 0
}

// add adds the newest entry, which no subject has yet. If it can be shared, no other one has its
// values.
func (x *entryIndex) add(entries []*subjectEntry) {
	last := len(entries) - 1
	e := entries[last]
	x.uses = append(extend(x.uses, 1), 0)
	x.dead++
	x.bytes += e.bytes()
	if e.own() {
		return
	}
	if 5*(x.shared+1) > 4*len(x.slots) {
		x.resize(entries, 4+x.shared*15/8)
	}
	x.slots[x.search(entries, e.values())] = uint32(last + 1) // at most maxEntries
	x.shared++
}

// resize changes the number of slots.
func (x *entryIndex) resize(entries []*subjectEntry, slots int) {
	old := x.slots
	x.slots = make([]uint32, slots)
	for _, n := range old {
		if n != 0 {
			x.slots[x.search(entries, entries[n-1].values())] = n
		}
	}
}

// use records that a subject has entry i.
func (x *entryIndex) use(i uint32) {
	if x.uses[i] == 0 {
		x.dead--
	}
	x.uses[i]++
}

// drop records that a subject no longer has entry i.
func (x *entryIndex) drop(i uint32) {
	if x.uses[i]--; x.uses[i] == 0 {
		x.dead++
	}
}

// plan returns a slug that shares its bytes with those of other entries.
func (x *entryIndex) plan(slug string) string {
	at, known := slices.BinarySearch(x.plans, slug)
	if !known {
		x.plans = slices.Insert(x.plans, at, slug)
		x.bytes += 2*sizeOf[string]() + len(slug)
	}
	return x.plans[at]
}

// size returns the bytes of the index and of all entries.
func (x *entryIndex) size() int { return x.bytes + 4*len(x.slots) + 4*cap(x.uses) }
