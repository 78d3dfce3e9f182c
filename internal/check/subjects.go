package check

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unique"

	"weir/internal/limit"
)

// subjects has the registered subjects of a tenant. A tenant may have millions, and nearly all of
// them have only a plan and a state. The structure is therefore compact: 29 bytes for a name of 16,
// and nothing per subject that the garbage collector has to follow.
//
// It is a hash table with open addressing. A slot is one word: the position of the name among all
// names, eight bits of its hash, and the number of its entry. Subjects with the same plan, version,
// multiplier and state, without override, cycle anchor and credits, share their entry. Load takes
// no lock and may run concurrently with everything. store takes a lock. What a reader may have seen
// never changes: names and entries are only added, and unused ones are removed when the table is
// rebuilt.
type subjects struct {
	table atomic.Pointer[subjectTable] // nil: none yet
	size  atomic.Int64                 // bytes

	credits creditKeys // of the tenant

	mu        sync.Mutex // held by writers; guards the fields below
	live      int        // subjects
	used      int        // slots that are not empty: of live or deleted subjects
	deadNames int        // bytes of names that are no longer used
	index     entryIndex // of the entries
	overflow  bool       // something did not fit
}

// subjectTable is replaced when few slots are free. A reader reads a slot first, and then the names
// and entries, which are then as new as the slot or newer.
type subjectTable struct {
	slots   []atomic.Uint64
	names   atomic.Pointer[[]byte] // a byte with length minus 1, then the name; the first byte belongs to no name
	entries atomic.Pointer[[]*subjectEntry]
}

type subjectEntry struct {
	plan        string
	planVersion int32
	state       SubjectState
	overrides   []overrideEntry // in the order of their slugs
	anchorMS    int64           // cycle anchor, milliseconds since 1970; limit.NoAnchor for none
	// multiplier of the plan's limits; 0 or 1: none.
	multiplier int64
	credits    []ruleCredits
}

type overrideEntry struct {
	rule              unique.Handle[string] // slug, shared by all tenants
	limit             limit.Limit
	startsMS, expires int64 // instants, milliseconds since 1970; expires 0: never
}

// A slot: the start of the name in bits 32 to 63, a part of the hash in 24 to 31, the entry in the
// others. An empty slot is 0. No name begins at 0.
const (
	slotDeleted   uint64 = 1
	slotEntryBits        = 24
	maxEntries           = 1 << slotEntryBits
	slotEntryMask uint64 = maxEntries - 1
	slotKeepsName uint64 = ^slotEntryMask
	maxNamesBytes        = 1 << 32
)

// Sizes of the parts that each tenant, and each subject with overrides, has once.
var (
	subjectsBytes = sizeOf[subjects]()
	tableBytes    = sizeOf[subjectTable]() + 2*sizeOf[[]byte]()
	entryBytes    = sizeOf[subjectEntry]()
	overrideBytes = sizeOf[overrideEntry]()
)

// subjectSeed makes it impossible to choose names with the same slot.
var subjectSeed = maphash.MakeSeed()

func slotTag(hash uint64) uint64 { return (hash & 0xff) << slotEntryBits }

// home returns the slot at which the search for a hash begins.
func (t *subjectTable) home(hash uint64) int {
	high, _ := bits.Mul64(hash, uint64(len(t.slots)))
	return int(high) // below len
}

// find returns the slot of a name and its value. If the name does not exist, the value is 0, and
// the slot is free for it.
func (t *subjectTable) find(name string, hash uint64) (slot int, value uint64) {
	free := -1
	for i := t.home(hash); ; i++ {
		if i == len(t.slots) {
			i = 0
		}
		v := t.slots[i].Load()
		switch {
		case v == 0 && free >= 0:
			return free, 0
		case v == 0:
			return i, 0
		case v == slotDeleted:
			if free < 0 {
				free = i
			}
		case v&(0xff<<slotEntryBits) == slotTag(hash) && t.isNamed(v, name):
			return i, v
		}
	}
}

func (t *subjectTable) isNamed(v uint64, name string) bool {
	names := *t.names.Load()
	at := v >> 32
	return int(names[at])+1 == len(name) && string(names[at+1:at+1+uint64(len(name))]) == name
}

func (t *subjectTable) name(v uint64) []byte {
	names := *t.names.Load()
	at := v >> 32
	return names[at+1 : at+2+uint64(names[at])]
}

func (t *subjectTable) entry(v uint64) *subjectEntry {
	return (*t.entries.Load())[v&slotEntryMask]
}

// Load returns a registered subject. If the pointer is the same as before, nothing has changed.
func (s *subjects) Load(name string) (*subjectEntry, bool) {
	t := s.table.Load()
	if t == nil || len(name) == 0 || len(name) > limit.MaxNameBytes {
		return nil, false
	}
	_, v := t.find(name, maphash.String(subjectSeed, name))
	if v == 0 {
		return nil, false
	}
	return t.entry(v), true
}

// store stores one subject, or removes a deleted one.
func (s *subjects) store(d SubjectData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(d.Subject) == 0 || len(d.Subject) > limit.MaxNameBytes {
		return // no check can have this name
	}
	if d.Deleted {
		s.delete(d.Subject)
	} else {
		s.put(d)
	}
	if s.wasteful() {
		s.rebuild(s.live)
	}
	s.measure()
}

// wasteful reports whether the table should be rebuilt. A rebuild visits all subjects, so it is
// worth it only after a number of changes that grows with them.
func (s *subjects) wasteful() bool {
	t := s.table.Load()
	return t != nil && (2*s.index.dead > len(*t.entries.Load())+64+s.live/16 || 2*s.deadNames > len(*t.names.Load())+4096)
}

func (s *subjects) put(d SubjectData) {
	t := s.table.Load()
	// A search ends at an empty slot, so it is short if there are many.
	if t == nil || 5*(s.used+1) > 4*len(t.slots) {
		s.grow()
		t = s.table.Load()
	}
	hash := maphash.String(subjectSeed, d.Subject)
	slot, old := t.find(d.Subject, hash)
	names := *t.names.Load()
	entry, ok := s.entryOf(t, d)
	if !ok || old == 0 && len(names)+1+len(d.Subject) > maxNamesBytes {
		s.overflow = true
		return
	}
	s.index.use(entry)
	if old != 0 {
		s.index.drop(uint32(old & slotEntryMask))
		t.slots[slot].Store(old&slotKeepsName | uint64(entry))
		return
	}
	at := len(names)
	names = append(append(extend(names, 1+len(d.Subject)), byte(len(d.Subject)-1)), d.Subject...)
	t.names.Store(&names)
	if t.slots[slot].Load() == 0 {
		s.used++
	}
	s.live++
	t.slots[slot].Store(uint64(at)<<32 | slotTag(hash) | uint64(entry))
}

func (s *subjects) delete(name string) {
	t := s.table.Load()
	if t == nil {
		return
	}
	slot, old := t.find(name, maphash.String(subjectSeed, name))
	if old == 0 {
		return
	}
	s.index.drop(uint32(old & slotEntryMask))
	s.live--
	s.deadNames += 1 + len(name)
	t.slots[slot].Store(slotDeleted)
}

// entryOf returns the number of an entry with the values of d, and false if there are too many
// entries.
func (s *subjects) entryOf(t *subjectTable, d SubjectData) (uint32, bool) {
	entries := *t.entries.Load()
	if !d.own() {
		if i, ok := s.index.find(entries, sharedValues{d.Plan, int32(d.PlanVersion), d.State, d.Multiplier}); ok {
			return i, true
		}
	}
	if len(entries) == maxEntries {
		return 0, false
	}
	e := newSubjectEntry(d, s.index.plan(d.Plan))
	e.credits = s.credits.of(&d)
	entries = append(extend(entries, 1), e)
	t.entries.Store(&entries)
	s.index.add(entries)
	return uint32(len(entries) - 1), true // below maxEntries
}

// own reports whether a subject has its own entry, because it has overrides, a cycle anchor or
// credits.
func (e *subjectEntry) own() bool {
	return len(e.overrides) > 0 || e.anchorMS != limit.NoAnchor || e.credits != nil
}

// anchor returns the subject's cycle anchor, or NoAnchor for a subject that is not registered.
func (e *subjectEntry) anchor() int64 {
	if e == nil {
		return limit.NoAnchor
	}
	return e.anchorMS
}

// factor returns the subject's multiplier, 1 for a subject that has none.
func (e *subjectEntry) factor() int64 {
	if e == nil {
		return 1
	}
	return max(e.multiplier, 1)
}

func (d *SubjectData) own() bool {
	return len(d.Overrides) > 0 || d.CycleAnchor != nil || len(d.Grants) > 0
}

func newSubjectEntry(d SubjectData, plan string) *subjectEntry {
	e := &subjectEntry{plan: plan, planVersion: int32(d.PlanVersion), state: d.State, anchorMS: limit.NoAnchor, multiplier: d.Multiplier}
	if d.CycleAnchor != nil {
		e.anchorMS = d.CycleAnchor.UnixMilli()
	}
	if len(d.Overrides) > 0 {
		e.overrides = make([]overrideEntry, len(d.Overrides))
	}
	for i, o := range d.Overrides {
		entry := overrideEntry{rule: unique.Make(o.Rule), limit: o.Limit}
		if !o.StartsAt.IsZero() {
			entry.startsMS = o.StartsAt.UnixMilli()
		}
		if !o.ExpiresAt.IsZero() {
			entry.expires = o.ExpiresAt.UnixMilli()
		}
		e.overrides[i] = entry
	}
	slices.SortStableFunc(e.overrides, func(a, b overrideEntry) int { return cmp.Compare(a.rule.Value(), b.rule.Value()) })
	return e
}

// override returns the subject's override of a rule at an instant, or nil. The subject may be nil,
// and can have an override for each of a thousand rules.
func (e *subjectEntry) override(rule string, nowMS int64) *overrideEntry {
	if e == nil || len(e.overrides) == 0 {
		return nil
	}
	i, _ := slices.BinarySearchFunc(e.overrides, rule, func(o overrideEntry, rule string) int { return cmp.Compare(o.rule.Value(), rule) })
	for ; i < len(e.overrides) && e.overrides[i].rule.Value() == rule; i++ {
		if o := &e.overrides[i]; o.startsMS <= nowMS && (o.expires == 0 || nowMS < o.expires) {
			return o
		}
	}
	return nil
}

func (e *subjectEntry) bytes() int {
	n := entryBytes + len(e.overrides)*overrideBytes
	for i := range e.credits {
		n += e.credits[i].bytes()
	}
	return n
}

// extend returns list with capacity for n more. It grows by an eighth, because append would double
// it and leave half of it unused.
func extend[E any](list []E, n int) []E {
	if len(list)+n <= cap(list) {
		return list
	}
	return append(make([]E, 0, len(list)+max(n, len(list)/8)), list...)
}

// grow increases the number of slots by half, and removes those of deleted subjects.
func (s *subjects) grow() {
	old := s.table.Load()
	t := &subjectTable{}
	if old == nil {
		names, entries := []byte{0}, []*subjectEntry(nil)
		t.names.Store(&names)
		t.entries.Store(&entries)
	} else {
		t.names.Store(old.names.Load())
		t.entries.Store(old.entries.Load())
	}
	t.slots = make([]atomic.Uint64, 8+s.live*15/8) // live is at most 4/5 of the previous slots
	old.each(func(v uint64) {
		t.slots[t.findEmpty(maphash.Bytes(subjectSeed, t.name(v)))].Store(v)
	})
	s.used = s.live
	s.table.Store(t)
}

// findEmpty returns a free slot for a name that does not exist, in a table without deleted
// subjects.
func (t *subjectTable) findEmpty(hash uint64) int {
	i := t.home(hash)
	for t.slots[i].Load() != 0 {
		if i++; i == len(t.slots) {
			i = 0
		}
	}
	return i
}

// each yields the slots in use.
func (t *subjectTable) each(f func(v uint64)) {
	if t == nil {
		return
	}
	for i := range t.slots {
		if v := t.slots[i].Load(); v != 0 && v != slotDeleted {
			f(v)
		}
	}
}

// seal makes the table as small as possible, after many subjects were added.
func (s *subjects) seal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.table.Load(); t != nil {
		s.rebuild(s.live)
		s.measure()
	}
}

// rebuild creates the table again, for live subjects and without unused entries.
func (s *subjects) rebuild(live int) {
	old := s.table.Load()
	t := &subjectTable{slots: make([]atomic.Uint64, 4+live*3/2)}
	names := make([]byte, 1, len(*old.names.Load())-s.deadNames)
	entries := make([]*subjectEntry, 0, len(*old.entries.Load())-s.index.dead)
	index := entryIndex{uses: make([]uint32, 0, cap(entries))}
	moved := make([]uint32, len(*old.entries.Load())) // by old number: the new number plus 1
	old.each(func(v uint64) {
		name, i := old.name(v), v&slotEntryMask
		if moved[i] == 0 {
			entries = append(entries, old.entry(v))
			moved[i] = uint32(len(entries)) // at most maxEntries
			index.plan(old.entry(v).plan)
			index.add(entries)
		}
		index.use(moved[i] - 1)
		hash := maphash.Bytes(subjectSeed, name)
		t.slots[t.findEmpty(hash)].Store(uint64(len(names))<<32 | slotTag(hash) | uint64(moved[i]-1))
		names = append(append(names, byte(len(name)-1)), name...)
	})
	t.names.Store(&names)
	t.entries.Store(&entries)
	s.used, s.deadNames, s.index = s.live, 0, index
	s.table.Store(t)
}

// measure updates the size.
func (s *subjects) measure() {
	t := s.table.Load()
	if t == nil {
		return
	}
	s.size.Store(int64(tableBytes + 8*len(t.slots) + cap(*t.names.Load()) + 8*cap(*t.entries.Load()) + s.index.size()))
}

// bytes returns the approximate size of the subjects.
func (s *subjects) bytes() int64 { return int64(subjectsBytes) + s.size.Load() }

// overflown reports whether the table was too small for all subjects: it can hold 4 GiB of names,
// and 16 million subjects with overrides or a cycle anchor.
func (s *subjects) overflown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overflow
}
