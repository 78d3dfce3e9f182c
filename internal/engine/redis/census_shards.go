package redis

import (
	"context"
	"slices"

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

// serversOf returns the masters of the tenant's places, which has its list on one of them.
func (c *Census) serversOf(ctx context.Context, t *tenantCounters, list *redis.Client) []*redis.Client {
	var places []string
	if c.o.Places != nil {
		places = c.o.Places(t.tenant)
	}
	if list == nil || len(places) < 2 {
		return []*redis.Client{list}
	}
	on := make([]*redis.Client, len(places))
	for i, place := range places {
		server, err := c.o.Client.(*redis.ClusterClient).MasterForKey(ctx, place)
		if err != nil {
			server = list
		}
		on[i] = server
	}
	return on
}

// findAgain finds the masters of a tenant again if one of them is silent: another one may have
// taken its place. Of a tenant without calls, nothing else would notice.
func (c *Census) findAgain(ctx context.Context, t *tenantCounters) {
	if !slices.ContainsFunc(t.on, func(server *redis.Client) bool { return c.silent[server] }) {
		return
	}
	if server := c.serverOf(ctx, t); server != nil {
		t.on = c.serversOf(ctx, t, server)
	}
}

// serverLists are tenants whose lists are on one server.
type serverLists struct {
	due     []*tenantCounters
	created []int64           // of each
	failed  []*tenantCounters // of a look
}

// byServer divides tenants by the servers of their lists. In one pipeline, a server that does not
// answer would also cost the answers of the others: the client waits before it asks again, the time
// ends, and then all commands have failed. The parts are read at the same time, so the waits for
// several such servers do not add up. If there is no slot map, each question for a server would ask
// for it, so there is only one.
func (c *Census) byServer(ctx context.Context, due []*tenantCounters, created []int64) []*serverLists {
	if _, ok := c.o.Client.(*redis.ClusterClient); !ok {
		return []*serverLists{{due: due, created: created}}
	}
	var parts []*serverLists
	at := map[*redis.Client]int{}
	for i, t := range due {
		var server *redis.Client
		if _, unknown := at[nil]; !unknown {
			server = c.serverOf(ctx, t)
			t.on = c.serversOf(ctx, t, server)
			t.memory = c.limitOf(t) // the one of before may be that of no known server
		}
		n, known := at[server]
		if !known {
			n, at[server] = len(parts), len(parts)
			parts = append(parts, &serverLists{})
		}
		parts[n].due, parts[n].created = append(parts[n].due, t), append(parts[n].created, created[i])
	}
	return parts
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
