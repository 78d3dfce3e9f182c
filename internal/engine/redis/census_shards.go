package redis

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// mostLookErrors is after how many errors of a server a look leaves its other lists to the next
// one: the server is unavailable. The lists of other servers of a Cluster are still read.
const mostLookErrors = 3

// lookErrors counts the errors of a look by server; nil: the only one, or one that is not known.
type lookErrors map[*redis.Client]int

// serverOf returns the master of the tenant's list. The slot map is in memory when a list was read.
func (c *Census) serverOf(ctx context.Context, t *tenantCounters) *redis.Client {
	cluster, ok := c.o.Client.(*redis.ClusterClient)
	if !ok {
		return nil
	}
	master, err := cluster.MasterForKey(ctx, c.o.Prefix(t.tenant))
	if err != nil {
		return nil
	}
	return master
}

// note counts the errors of some tenants, and reports whether a server is now unavailable. If there
// is no slot map, each question for a server would ask for it.
func (e lookErrors) note(ctx context.Context, c *Census, failed []*tenantCounters) (unavailable bool) {
	for _, t := range failed {
		server := c.serverOf(ctx, t)
		e[server]++
		unavailable = unavailable || e[server] == mostLookErrors
		if e[nil] == mostLookErrors {
			break
		}
	}
	return unavailable
}

// without returns the tenants whose server is available. The others are left to the next look.
func (e lookErrors) without(ctx context.Context, c *Census, due []*tenantCounters, created []int64) ([]*tenantCounters, []int64) {
	n := 0
	for i, t := range due {
		if e[nil] >= mostLookErrors || e[c.serverOf(ctx, t)] >= mostLookErrors {
			t.again()
			continue
		}
		due[n], created[n] = t, created[i]
		n++
	}
	return due[:n], created[:n]
}

// again makes a later look read the list of a tenant that could not be read.
func (t *tenantCounters) again() {
	t.pending = t.pending[:min(len(t.pending), touchQueue)] // do not grow for ever
	t.active.Store(true)
}
