package redis

import (
	"encoding/binary"

	"github.com/dchest/siphash"

	"weir/internal/engine"
	"weir/internal/limit"
)

// A bounded call may create no counter (Census). For each of its keys it also has a spare
// key, which lua/spare.lua uses instead if neither the key nor one of its witnesses exists.
// Witnesses are the other keys under which the state of the same counters may be.

// nameBytes is the length of the name at the end of a key.
const nameBytes = 9

// spareKeys are the spare keys and witnesses of a bounded call, for each of its keys.
type spareKeys struct {
	keys      []string
	witnesses []string
	counts    []byte // of witnesses, for each key
	keyOf     []int  // for each counter of the call, its key
}

func (s *spareKeys) add(spare string, witnesses ...string) {
	s.keys = append(s.keys, spare)
	s.counts = append(s.counts, byte(len(witnesses))) // at most one for each of a call's rules
	s.witnesses = append(s.witnesses, witnesses...)
}

func (s *spareKeys) join(other *spareKeys) {
	s.keys = append(s.keys, other.keys...)
	s.witnesses = append(s.witnesses, other.witnesses...)
	s.counts = append(s.counts, other.counts...)
}

// appendKeys appends the spare keys and the witnesses to the keys of a script.
func (s *spareKeys) appendKeys(args []any) []any {
	for _, key := range s.keys {
		args = append(args, key)
	}
	for _, key := range s.witnesses {
		args = append(args, key)
	}
	return args
}

// cut splits a reply into that of the script and a byte for each key: 1 if its spare key was used.
func (s *spareKeys) cut(reply string) (own, used string) {
	at := len(reply) - len(s.counts)
	if at < 0 {
		return "", string(make([]byte, len(s.counts))) // too short: the reply is invalid
	}
	return reply[:at], reply[at:]
}

// spareName returns the name of the spare values that a tenant's new values share, as if they were
// the values of one more subject. Names of counters are keyed hashes, so no tenant can choose its
// slot.
func spareName(tenant limit.TenantID, values engine.KeyName, slots int64, next int) engine.KeyName {
	var b [len(tenant) + 8]byte
	copy(b[:], tenant[:])
	binary.LittleEndian.PutUint64(b[len(tenant):], (values.Low+uint64(next))%uint64(slots))
	return nameOfSpare(b[:])
}

func nameOfSpare(of []byte) engine.KeyName {
	h0, h1 := siphash.Hash128(0x7765697273706172, 0x6573706172656b65, of)
	return engine.KeyName{Low: h0 & (1<<40 - 1), High: (h0>>40 | h1<<24) & (1<<32 - 1)}
}

// spareOf returns the spare key of a counter, or of its group, and the other key of its state.
func spareOf(tenant limit.TenantID, c *engine.Counter, grouped bool, slots int64, next int) string {
	key := c.OwnKey()
	at := len(key) - nameBytes
	if at < 0 {
		return key
	}
	values := engine.ReadName(key[at:])
	var id engine.KeyName
	if c.ID != "" {
		id = engine.ReadName(c.ID)
		values = values.Minus(id)
	}
	name := spareName(tenant, values, slots, next)
	if !grouped {
		name = name.Plus(id)
	}
	return string(name.Append([]byte(key[:at])))
}

// spareOfCounter returns the spare key of a counter that is not in a group. With one that several
// subjects share, the credits of one would be spent for others. So the counters of a subject with
// credits share one of its own, whatever else they count by: a customer can send any number of
// other values. If there is nothing else, the counter has none: subjects with credits are few,
// because somebody grants each of them.
func spareOfCounter(tenant limit.TenantID, c *engine.Counter, slots int64, next int) string {
	at := len(c.OwnKey()) - nameBytes
	switch {
	case c.Credits == nil || at < 0:
		return spareOf(tenant, c, false, slots, next)
	case c.Sole:
		return c.OwnKey()
	}
	b := append(tenant[:], c.Credits.Key...) // the keys of credits do not change with their rule
	b = binary.LittleEndian.AppendUint64(append(b, byte(c.Numbers.Algorithm)), uint64(c.Numbers.WindowMS))
	name := nameOfSpare(binary.LittleEndian.AppendUint64(b, uint64(next)))
	return string(name.Append([]byte(c.OwnKey()[:at])))
}

// sparesOfEntries fills in the spare keys of a call for evaluate_many.lua: one for each entry.
func (r *request) sparesOfEntries(s *sentCall, slots int64) {
	counters := r.countersOf(s)
	s.spare.keyOf = make([]int, len(counters))
	for at, e := range r.entriesOf(s) {
		first := &counters[r.order[e.from]]
		var witnesses []string
		for _, i := range r.order[e.from : e.from+e.count] {
			s.spare.keyOf[i] = at
			if other := counters[i].OtherKey(); other != "" {
				witnesses = append(witnesses, other)
			}
		}
		s.spare.add(spareOf(s.of.tenant, first, e.grouped, slots, 0), witnesses...)
	}
}

// sparesOfCounters fills in the spare keys of a call for evaluate_one.lua: one for each counter,
// and one for the mark of its penalty.
func (r *request) sparesOfCounters(s *sentCall, slots int64) {
	counters := r.countersOf(s)
	used := map[string]bool{}
	for i := range counters {
		c := &counters[i]
		key := c.OwnKey()
		spare := spareOfCounter(s.of.tenant, c, slots, 0)
		for next := 1; used[spare] && next < len(counters); next++ { // of other values of the same rule
			spare = spareOfCounter(s.of.tenant, c, slots, next)
		}
		used[spare] = true
		s.spare.keyOf = append(s.spare.keyOf, len(s.spare.keys))
		var witnesses []string
		if c.ID != "" {
			group := *c
			group.Key, group.Grouped = key, false
			witnesses = append(witnesses, group.OtherKey())
		}
		if c.Numbers.PenaltyMS == 0 {
			s.spare.add(spare, witnesses...)
		} else {
			s.spare.add(spare, append(witnesses, penaltyKey(key))...)
			s.spare.add(penaltyKey(spare), append(witnesses, key)...)
		}
		if c.Credits != nil && engine.CreditsAt(counters, i) == i {
			s.spare.add(c.Credits.Key)
			s.spare.add(c.Credits.Outbox)
		}
	}
}

// usedSpare reports whether a bounded call used a spare counter instead of counter i.
func (s *sentCall) usedSpare(i int) bool {
	return s.spare != nil && (len(s.diverted) != len(s.spare.keys) || s.diverted[s.spare.keyOf[i]] != 0)
}

// usedSpareMark reports the same for the mark of the counter's penalty.
func (s *sentCall) usedSpareMark(i int) bool {
	return s.spare != nil && (len(s.diverted) != len(s.spare.keys) || s.diverted[s.spare.keyOf[i]+1] != 0)
}
