package overload

import (
	"time"

	"weir/internal/limit"
)

// Queue is a tenant whose calls wait for their turn behind other calls of the same tenant.
type Queue struct {
	Tenant   limit.TenantID
	Wait     time.Duration // the smallest of the last Interval
	Requests int64         // that wait now
	Underway int64         // that are in a pipeline now
}

// leastBound returns the smallest bound of the tenant. With as many requests waiting as are in
// pipelines, no pipeline goes empty, however far away Redis is.
func (q *Queue) leastBound() int64 { return max(leastOfTenant, 2*q.Underway) }

const (
	// fewTenants is the number of tenants for which bounds of their own are enough, if they have at
	// least half of the requests in flight and leave half of the bound of all requests to others.
	// Otherwise, the bound of all requests falls, too. If it fell for one tenant, that tenant would
	// take all places, and a neighbour that seldom asks would be refused. Redis decides 16 × 64 of
	// the most expensive calls before they have waited for too long.
	fewTenants = 16
	// tenantPart is the part of the target of the wait at which the bound of a tenant falls. It
	// falls before calls of the tenant are decided in process, which may take the processor from
	// Redis.
	tenantPart = 2
	// leastOfTenant is the smallest bound of a tenant. Redis decides 64 of the most expensive calls
	// in about 20 ms.
	leastOfTenant = 64
)

// ofFewTenants reports whether the requests of a few tenants, which wait for longer than target,
// are at least half of those in flight, and whether these tenants leave half of the bound to others
// once their own bounds have fallen.
func ofFewTenants(standing map[limit.TenantID]Queue, target time.Duration, inFlight, bound int64) bool {
	tenants, requests, least := 0, int64(0), int64(0)
	for _, q := range standing {
		if q.Wait > target {
			tenants, requests, least = tenants+1, requests+q.Requests, least+q.leastBound()
		}
	}
	return 0 < tenants && tenants <= fewTenants && 2*requests >= inFlight && 2*least <= bound
}

// together returns each tenant once: with its longest wait, and the requests for all servers.
func together(queues []Queue) map[limit.TenantID]Queue {
	all := make(map[limit.TenantID]Queue, len(queues))
	for _, q := range queues {
		before := all[q.Tenant]
		q.Wait, q.Requests, q.Underway = max(q.Wait, before.Wait), q.Requests+before.Requests, q.Underway+before.Underway
		all[q.Tenant] = q
	}
	return all
}

// tenantBounds are the bounds of tenants whose calls waited for too long. It is not changed once it
// is published.
type tenantBounds map[limit.TenantID]int64

// ShareOf returns the maximum number of concurrent requests of a tenant. It is Share, unless the
// tenant's calls waited for Redis for too long.
//
// An example: 2 000 clients of a tenant send checks of 32 expensive rules. Redis decides 3 000 of
// them per second, so each would wait for 670 ms. The bound of the tenant falls from 5 000 to 1
// 000, and further to 64, where calls wait 20 ms. Calls of other tenants take their turns between
// them.
func (b *Bound) ShareOf(tenant limit.TenantID) int64 {
	share := b.Share()
	if own, bounded := b.Bounded()[tenant]; bounded {
		return min(share, own)
	}
	return share
}

// Bounded returns the tenants with a bound of their own, and their bounds. The map must not be
// changed.
func (b *Bound) Bounded() map[limit.TenantID]int64 {
	if bounds := b.tenants.Load(); bounds != nil {
		return *bounds
	}
	return nil
}

// adjustTenants lowers the bounds of tenants whose calls waited for longer than target, and raises
// the others by a sixteenth. A bound ends when it reaches the share of any tenant.
func (b *Bound) adjustTenants(standing map[limit.TenantID]Queue, target time.Duration) {
	share := b.Share()
	after := tenantBounds{}
	for tenant, bound := range b.Bounded() {
		if bound += bound/16 + 1; bound < share {
			after[tenant] = bound
		}
	}
	for tenant, q := range standing {
		if q.Wait <= target {
			continue
		}
		bound := b.ShareOf(tenant)
		ratio := max(float64(target)/float64(q.Wait), 0.5)
		after[tenant] = min(bound, max(q.leastBound(), int64(ratio*float64(min(bound, q.Requests)))))
	}
	if len(after) == 0 {
		b.tenants.Store(nil)
		return
	}
	b.tenants.Store(&after)
}
