package budget

import (
	"weir/internal/limit"
	"weir/internal/waterlevel"
)

// The bounds of all tenants together may be more than the memory of Redis. So each time it is read
// (Measured), the tenants with the most bytes of records are bounded sooner, if it is nearly full:
// with a water level L, a tenant writes no further records from L bytes on, as at its own bound.
//
//	L    the largest one with: the sum of min(bytes, L) of all tenants, and L, is at most T
//	T    at 80 % of the memory as many bytes as 80 %, at 90 % none, linear between, and 4 % at least
//
// So L is left for one more tenant. T falls faster than the memory fills, so records do not fill
// it beyond 90 %, also if each instance knows other tenants. Counters end at 91 %. The rest is for
// what they must not keep out: until 95 %, records of 4 % of the memory in all, and until 97 %,
// those of a tenant that has few bytes.
//
// Between two readings, an instance writes a part of what is left below 90 % only, besides small
// records, and a tenant gets a part of that each time its hash is read. Half of it is for tenants
// that have less than half of L, so those with the most do not use it up.
//
// Example: 1000 MB, of which 860 MB are in use. T is 320 MB. One tenant has 400 MB of records, and
// others have 20 MB. L is 150 MB, so the large tenant gets no further ones until 250 MB of its own
// have expired. All others may write 20 MB until the memory is read again.

const (
	mostFull  = 0.90 // for records
	ownFull   = 0.95 // for records of ownPart
	smallFull = 0.97 // for small records
	// ownPart is the part of the memory that records may have until ownFull, also if counters use
	// the rest.
	ownPart = 0.04
	// steep is how much faster T falls than the memory fills.
	steep = 8
	// tenantShare is the part of what an instance may write that a tenant is granted at once.
	tenantShare = 8
	// small is how many bytes a tenant may have alive until smallFull.
	small = 100 << 10
)

// Measured bounds tenants by the memory of the fullest one of so many servers of Redis; most is 0
// if no maximum is known. What was written before is part of what is in use.
func (b *Budget) Measured(used, most int64, servers int) {
	if most == 0 {
		b.setLeft(unbounded, unbounded)
		return
	}
	if float64(used) >= smallFull*float64(most) {
		b.setLeft(0, 0)
		return
	}
	n := int64(max(servers, 1))
	tenants, own := b.bytesOfTenants(), n*int64(ownPart*float64(most))
	var records int64
	for _, bytes := range tenants {
		records += bytes
	}
	left := n * (int64(mostFull*float64(most)) - used)
	level := max(waterlevel.Of(append(tenants, waterlevel.None), max(steep*left, own)), small)
	part := min(own-records, n*(int64(ownFull*float64(most))-used))
	// Half of it: some of what was written when the memory was read is not in use yet.
	b.setLeft(level, max(left, part, 0)/int64(2*max(b.o.Instances(), 1)))
}

func (b *Budget) setLeft(level, allowance int64) {
	b.level.Store(level)
	b.kept.Store(allowance / 2)
	b.allowance.Store(allowance)
}

// bytesOfTenants returns how many bytes each tenant has alive, on all instances.
func (b *Budget) bytesOfTenants() []int64 {
	at := b.periodOf(b.o.Now())
	bytes := make([]int64, 0, b.tenants.Size())
	b.tenants.Range(func(_ limit.TenantID, t *tenant) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.clean(at)
		bytes = append(bytes, t.alive+t.others)
		return true
	})
	return bytes
}

// share returns how many bytes a tenant is granted at most.
func (b *Budget) share() int64 { return max(b.allowance.Load()/tenantShare, small) }

// fits reports whether the memory of Redis allows further bytes of a tenant. The caller holds the
// lock of the tenant.
func (b *Budget) fits(t *tenant, bytes int64) bool {
	all, level, allowance := t.others+t.alive+t.reserved+bytes, b.level.Load(), b.allowance.Load()
	if all > level/2 {
		allowance -= b.kept.Load()
	}
	return all <= level && (all <= small || bytes <= allowance)
}
