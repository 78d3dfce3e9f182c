package check

import (
	"sync"

	"github.com/dchest/siphash"

	"weir/internal/engine"
	"weir/internal/limit"
)

// A tenant with several partitions has as many hash tags, so that its counters can be on several
// servers of a Redis Cluster. places says which counter has which tag:
//
//   - of a rule that counts by the subject, alone or among other values: by a hash of the subject,
//     so that such rules share a script call
//   - of another rule that counts by values: by a hash of these values
//   - of a rule that counts by nothing: the first tag, which is that of a tenant with one partition
//
// Example: a tenant has 4 partitions. The rules "by subject" and "by subject and resource" have
// their counters of the subject ada at tag 2. The rule "by resource" has that of the resource api
// at tag 1.
type places struct {
	keys     Keys
	tenant   limit.TenantID
	prefixes []string // of keys, for each tag
	only     string   // the prefix if there is one and it does not change, else ""
	// While the number of partitions changes, before has the places that the counters had.
	before    *places
	changedMS int64 // when it was changed, ms since 1970
	settledMS int64 // when the change ends for all rules
}

// A counter whose place changes is counted at both places for as long as a unit can count, so that
// no count is lost and no counter has to be moved:
//
//  1. The old place decides, and the new one counts what it allowed. An instance that does not know
//     of the change, because it is cut off from Postgres, counts at the old place only. Since that
//     still has everything, all instances together keep to the limit.
//  2. After the longest time for which a unit of the rule counts, the new place has everything.
//     Both decide for a while, so that instances whose clocks differ agree.
//  3. The new place decides alone. The counters at the old one expire.
//
// Example: the number changes at 12:00. A rule by the subject has a fixed window of an hour, and
// the subject ada goes to another tag. The old counter decides until 13:01, both do until 13:02,
// and then the new one.
const (
	// learnMS is how long an instance that can reach Postgres may take to learn of a change, and
	// skewMS by how much the clocks of instances may differ.
	learnMS = 60_000
	skewMS  = 60_000
)

// placesOf returns the places of the data's tenant.
func (k Keys) placesOf(tenant limit.TenantID, data *PolicyData) *places {
	p := k.places(tenant, data.Partitions)
	if data.PartitionsBefore > 0 && data.PartitionsBefore != max(1, data.Partitions) {
		p.before, p.changedMS, p.only = k.places(tenant, data.PartitionsBefore), data.PartitionsChanged.UnixMilli(), ""
		p.settledMS = PartitionsSettled(data).UnixMilli()
	}
	return p
}

// completeMS returns when the new place has everything that counts of a counter with these numbers,
// if its place changes.
func completeMS(changedMS int64, n *limit.Numbers) int64 { return changedMS + learnMS + n.LifeMS() }

// moving adds the second counter of a counter whose place changes, and puts the counter itself at
// the old place while that decides. A call that counts nothing only reads the counter itself.
//
// While both decide, the credits of a counter can be at one place only, and the other one would
// deny what they pay for. So the new place alone decides then on a counter with credits, and the
// old one counts what it allowed, for instances whose clocks are behind.
func (e *evaluation) moving(counter *engine.Counter, credits bool, nowMS int64) {
	at := e.policy.places
	// The bucket of an override may refill more slowly than those of the rule and the plans.
	complete := min(completeMS(at.changedMS, &counter.Numbers), at.settledMS-skewMS)
	if nowMS >= complete+skewMS {
		return
	}
	old := engine.Retag(counter.Key, e.keys.from)
	moved := credits && nowMS >= complete
	if !e.call.DryRun {
		next := *counter
		if moved {
			next.Key = old
		}
		// The old place begins a penalty, and only that denies during an outage.
		next.OnUnavailable, next.Numbers.PenaltyMS = limit.Allow, 0
		next.Shadow, next.Second = next.Shadow || moved || nowMS < complete, true
		e.next, e.nextOf = append(e.next, next), append(e.nextOf, len(e.counted))
	}
	if !moved {
		counter.Key = old
	}
}

// takeNext gives a rule the verdict of its second counter, if only that denies.
func (*evaluation) takeNext(r *RuleDecision, call *engine.Call, next int, nowMS int64) {
	if r.Allowed && !call.Outcome.Verdicts[next].Allowed && !call.Counters[next].Shadow {
		r.take(call, next, nowMS)
	}
}

// places returns the places of a tenant's counters.
func (k Keys) places(tenant limit.TenantID, partitions int) *places {
	p := &places{keys: k, tenant: tenant, prefixes: []string{k.tenantPrefix(tenant)}}
	if partitions < 2 {
		p.only = p.prefixes[0]
		return p
	}
	h, _ := siphash.Hash128(k.k0, k.k1, append([]byte("partitions"), tenant[:]...))
	home := slotOf(p.prefixes[0][len(engine.KeyPrefix):][:tagBytes])
	for i := 1; i < partitions; i++ {
		// The golden ratio keeps any number of slots evenly spread, so that servers with equal
		// ranges of slots get about equal numbers of tags.
		slot := (home + uint16(uint32(i)*goldenStep)) % slots // below 2^20
		p.prefixes = append(p.prefixes, engine.KeyPrefix+tagOf(slot, h)+"}")
	}
	return p
}

const (
	tagBytes   = 2
	slots      = 16384 // of a Redis Cluster
	goldenStep = 10126 // slots divided by the golden ratio
)

// spread reports whether the counters of a call have different tags.
func (p *places) spread(c *engine.Call) bool { return p.only == "" && c.SeveralTags() }

// of returns the beginning of the keys whose values have this hash. It is stable: with one more
// partition, one in so many hashes changes its place. This is the jump consistent hash of Lamping
// and Veach (2014).
func (p *places) of(hash uint64) string {
	place, next := int64(-1), int64(0)
	for next < int64(len(p.prefixes)) {
		place = next
		hash = hash*2862933555777941757 + 1
		next = int64(float64(place+1) * (float64(int64(1)<<31) / float64((hash>>33)+1)))
	}
	return p.prefixes[place]
}

// ofSubject returns the beginning of the keys of counters that count by the subject.
func (p *places) ofSubject(subject string) string {
	if len(p.prefixes) == 1 {
		return p.prefixes[0]
	}
	b := append([]byte("subject"), p.tenant[:]...)
	h, _ := siphash.Hash128(p.keys.k0, p.keys.k1, append(b, subject...))
	return p.of(h)
}

// ofValues returns the beginning of the keys of counters that count by these values.
func (p *places) ofValues(values engine.KeyName) string { return p.of(values.High<<40 | values.Low) }

// slotOf returns the slot of a hash tag: its CRC16 (XMODEM).
func slotOf(tag string) uint16 {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slots
}

// tagOf returns one of the tags of a slot. Every slot has two at least.
func tagOf(slot uint16, hash uint64) string {
	tags := tagsOfSlots()[slot]
	return tags[hash%uint64(len(tags))]
}

var tagsOfSlots = sync.OnceValue(func() (tags [slots][]string) {
	for first := range 255 {
		for second := range 255 {
			tag := string([]byte{tagByte(uint64(first)), tagByte(uint64(second))})
			tags[slotOf(tag)] = append(tags[slotOf(tag)], tag)
		}
	}
	return tags
})
