package redis

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/limit"
	"weir/internal/waterlevel"
)

// A full Redis degrades every tenant, for as long as its counters live, and the bounds of tenants
// together may be more than its memory. So each look also reads the memory of the servers, and
// bounds the tenants of one that is nearly full, those with the most counters first: with a water
// level L, a tenant creates no further counters from L on, as at its own bound.
//
//	L    the largest one with: the sum of min(counters, L) of all tenants is at most T
//	T    at 80 % of the memory as many counters as fit in 80 %, at 91 % none, linear between
//
// A tenant with fewer counters than L, or than 1000, is not affected. T falls faster than the
// memory fills, so further tenants get less and less of the rest, and the memory does not fill,
// also if the tenants that used it are forgotten here and only those that are in use count.
//
// Between two looks, a tenant may create a part of what is left of the memory only. If it needs
// more, it causes the next look (reserve), which measures again.
//
// Example: 1000 MB at 200 bytes for a counter. One tenant has 600 MB, and others have 220 MB. At
// 820 MB, T is 655 MB, so L is at least 435 MB: 2.2 million counters. The large tenant gets no
// further ones, and the others do. At 900 MB, T is 73 MB.

const (
	// Above nearlyFull of the maximum, the water level bounds tenants; from halfFull on, what a
	// tenant creates between two looks is bounded.
	nearlyFull = 0.8
	halfFull   = 0.5
	// emptyAgain is where a server is no longer nearly full. From there on, spare counters are few.
	// They begin at zero when their number changes, so it does not change where the water level
	// keeps the memory. It depends on the last reading only, so all instances have the same ones.
	emptyAgain = 0.75
	// mostFull is for counters. The rest is for records (budget), and for the buffers of
	// connections and others.
	mostFull = 0.91
	// leastLevel is as many counters as the least bound that a tier can have.
	leastLevel = 1000
	// portionShare is the part of the rest that a tenant may use between two looks.
	portionShare = 8
	// leastPortion is so little that calls of a tenant below the level can create it anyway.
	leastPortion = 64
	// fullSlots bounds the slots for spare counters of a tenant on a server that is nearly full:
	// there may be many such tenants, each with up to 32 rules.
	fullSlots = 256

	// memoryWait is how long a look waits for the memory of a server, and memoryLatest after how
	// much time what it said is not used any more, unless it was nearly full.
	memoryWait   = 250 * time.Millisecond
	memoryLatest = 10 * time.Second
	// memorySilent is after how much time a server that does not answer has no part in what others
	// are told: it does not answer them either.
	memorySilent = 3 * time.Second

	noLevel = waterlevel.None
)

// memoryLimit is what the memory of its servers lets a tenant have.
type memoryLimit struct {
	level   int64 // counters
	portion int64 // new counters until the next look
	few     bool  // spare counters are few
}

var noLimit = memoryLimit{level: noLevel, portion: noLevel}

func (l memoryLimit) or(o memoryLimit) memoryLimit {
	return memoryLimit{min(l.level, o.level), min(l.portion, o.portion), l.few || o.few}
}

// serverMemory is the memory of one server. Only the goroutine of Run uses it.
type serverMemory struct {
	used, most int64 // bytes; most is 0 if there is no maximum
	counter    int64 // bytes of a counter
	read       time.Time
	limit      memoryLimit // of a tenant that is on this server only
}

// memoryState is what others may read of the memory of the servers.
type memoryState struct {
	lowest memoryLimit // for tenants whose server is not known yet
	used   float64     // the largest part in use; 0: no maximum is known
	full   bool        // it is nearly full, or was and is not much emptier
}

// MemoryUse is how far the memory of the servers is in use.
type MemoryUse struct {
	// Used is the part of its maximum that the fullest one uses, or 0 if no maximum is known.
	Used    float64
	Full    bool // it is nearly full, or was and is not much emptier
	Bounded int  // tenants on such a server that may create no counter
}

// Memory returns how far the memory of the servers is in use.
func (c *Census) Memory() MemoryUse {
	state := c.memory.Load()
	m := MemoryUse{Used: state.used, Full: state.full}
	if !m.Full {
		return m
	}
	c.tenants.Range(func(_ limit.TenantID, t *tenantCounters) bool {
		if t.lowered.Load() && t.left.Load() <= 0 {
			m.Bounded++
		}
		return true
	})
	return m
}

// measure reads the memory of the servers of the tenants, and bounds these by it.
func (c *Census) measure(ctx context.Context, now time.Time) {
	c.readMemory(ctx, now)
	state, before := memoryState{lowest: noLimit}, c.memory.Load()
	counters := c.countersByServer()
	for server, m := range c.servers {
		if m.read.Equal(now) {
			m.limit = m.limitOf(counters[server], c.o.Instances())
		} else if m.limit.portion < noLevel { // it did not answer: until it does, portions add up to one more
			m.limit.portion = max(m.limit.portion/2, leastPortion)
		}
		state.lowest = state.lowest.or(m.limit)
		state.used = max(state.used, m.part())
	}
	state.full = state.used > nearlyFull || before.full && state.used > emptyAgain
	c.memory.Store(&state)
	c.tellMeasured(now)
	if state.lowest == noLimit && before.lowest == noLimit {
		return
	}
	c.tenants.Range(func(_ limit.TenantID, t *tenantCounters) bool {
		t.memory = c.limitOf(t)
		if !t.looked.IsZero() { // its list, which this look reads, is known
			c.setGrant(t, t.seen)
		}
		return true
	})
}

// tellMeasured passes the memory of the fullest server on. What it said before says nothing about
// what was written since. But a master that has failed must not keep what is written to the others
// waiting for its answer, so after memorySilent the fullest of those that answer counts.
func (c *Census) tellMeasured(now time.Time) {
	if c.o.Measured == nil {
		return
	}
	answered, fullest := 0, &serverMemory{}
	for _, m := range c.servers {
		if m.read.Equal(now) {
			answered++
		}
		if now.Sub(m.read) < memorySilent && m.part() > fullest.part() {
			fullest = m
		}
	}
	if len(c.servers) > 0 && answered == 0 || fullest.most > 0 && !fullest.read.Equal(now) {
		return
	}
	c.o.Measured(fullest.used, fullest.most, answered)
}

// readMemory reads the memory of the servers on which there are tenants.
func (c *Census) readMemory(ctx context.Context, now time.Time) {
	found := map[*redis.Client]bool{nil: true}
	c.tenants.Range(func(_ limit.TenantID, t *tenantCounters) bool {
		c.findAgain(ctx, t)
		for _, server := range t.on {
			found[server] = true
		}
		return true
	})
	if _, cluster := c.o.Client.(*redis.ClusterClient); cluster {
		delete(found, nil) // tenants whose server is not known
	}
	type reading struct {
		of     *redis.Client
		memory *serverMemory
	}
	readings := make([]*reading, 0, len(found))
	for server := range found {
		readings = append(readings, &reading{of: server})
	}
	within, cancel := context.WithTimeout(ctx, memoryWait)
	defer cancel()
	atOnce(serversAtOnce, readings, func(r *reading) {
		client := c.o.Client
		if r.of != nil {
			client = r.of
		}
		r.memory, _ = memoryOf(within, client) // an older one is used for some time
	})
	clear(c.silent)
	for _, r := range readings {
		if r.memory == nil {
			c.silent[r.of] = true
			continue
		}
		r.memory.read = now
		c.servers[r.of] = r.memory
	}
	for server, m := range c.servers {
		if !found[server] || now.Sub(m.read) > memoryLatest && !m.uses(nearlyFull) {
			delete(c.servers, server)
		}
	}
}

var errNoMemory = errors.New("the server does not tell its memory")

// memoryOf returns the memory of a server.
func memoryOf(ctx context.Context, client redis.Cmdable) (*serverMemory, error) {
	info, err := client.Info(ctx, "memory", "keyspace").Result()
	if err != nil {
		return nil, err
	}
	m := &serverMemory{used: infoNumber(info, "used_memory"), most: infoNumber(info, "maxmemory")}
	if m.used == 0 {
		return nil, errNoMemory
	}
	// Most keys are counters. Few keys, or large ones of other kinds, say nothing about them.
	const usual, least, most = 230, 100, 500
	m.counter = usual
	if keys := infoKeys(info); keys > 10_000 {
		m.counter = min(max((m.used-infoNumber(info, "used_memory_startup"))/keys, least), most)
	}
	return m, nil
}

// infoNumber returns a number of a reply to INFO, or 0.
func infoNumber(info, name string) int64 {
	_, rest, _ := strings.Cut(info, "\n"+name+":")
	text, _, _ := strings.Cut(rest, "\r")
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// infoKeys returns the number of keys of the databases, by a reply to INFO.
func infoKeys(info string) (keys int64) {
	for line := range strings.Lines(info) {
		if !strings.HasPrefix(line, "db") {
			continue
		}
		_, rest, _ := strings.Cut(line, "keys=")
		text, _, _ := strings.Cut(rest, ",")
		n, _ := strconv.ParseInt(text, 10, 64)
		keys += n
	}
	return keys
}

// countersByServer returns how many counters each tenant has on each server that is nearly full.
func (c *Census) countersByServer() map[*redis.Client][]int64 {
	counters := map[*redis.Client][]int64{}
	for server, m := range c.servers {
		if m.uses(nearlyFull) {
			counters[server] = nil
		}
	}
	if len(counters) == 0 {
		return nil
	}
	c.tenants.Range(func(tenant limit.TenantID, t *tenantCounters) bool {
		if c.isOperator(tenant) {
			return true
		}
		n := t.alive.Load() + max(t.created.Load()-t.seen, 0)
		for i, server := range t.on {
			if of, full := counters[server]; full && slices.Index(t.on, server) == i {
				counters[server] = append(of, n*t.placesOn(server)/int64(len(t.on)))
			}
		}
		return true
	})
	return counters
}

// placesOn returns how many of the tenant's places are on a server.
func (t *tenantCounters) placesOn(server *redis.Client) (n int64) {
	for _, on := range t.on {
		if on == server {
			n++
		}
	}
	return n
}

// part returns the part of the maximum memory that is in use, or 0 if there is no maximum.
func (m *serverMemory) part() float64 {
	if m.most == 0 {
		return 0
	}
	return float64(m.used) / float64(m.most)
}

// uses reports whether more than this part of the maximum memory is in use.
func (m *serverMemory) uses(part float64) bool { return m.part() > part }

// limitOf returns the limit of a tenant on this server, whose tenants have so many counters.
func (m *serverMemory) limitOf(counters []int64, instances int) memoryLimit {
	l := noLimit
	if !m.uses(halfFull) {
		return l
	}
	l.few = m.uses(emptyAgain)
	rest := max(int64(mostFull*float64(m.most))-m.used, 0)
	l.portion = max(rest/m.counter/int64(portionShare*max(instances, 1)), leastPortion)
	if m.uses(nearlyFull) {
		fits := nearlyFull / (mostFull - nearlyFull) * float64(rest) / float64(m.counter)
		l.level = max(waterlevel.Of(counters, int64(fits)), leastLevel)
	}
	return l
}

// isOperator reports whether the counters of a tenant are the quotas of all tenants. Each tenant
// has few of them, and if they were shared, it would use up those of others.
func (c *Census) isOperator(tenant limit.TenantID) bool {
	return tenant == c.o.Operator && tenant != throttles
}

// limitOf returns the limit of a tenant.
func (c *Census) limitOf(t *tenantCounters) memoryLimit {
	l := noLimit
	if c.isOperator(t.tenant) {
		return l
	}
	for _, server := range t.on {
		m := c.servers[server]
		if m == nil || m.limit == noLimit {
			continue
		}
		of, places := m.limit, t.placesOn(server)
		if of.level < noLevel {
			of.level = of.level * int64(len(t.on)) / places
		}
		if of.portion < noLevel {
			of.portion = of.portion * int64(len(t.on)) / places
		}
		l = l.or(of)
	}
	return l
}

// setGrant sets how many counters the tenant may create since it had created so many: what its
// bound and the memory of its servers leave.
func (c *Census) setGrant(t *tenantCounters, created int64) {
	if t.memory.few != t.lowered.Load() {
		t.lowered.Store(t.memory.few)
	}
	granted := max(min(t.usable(), t.memory.level)-t.alive.Load(), 0)
	if n := int64(c.o.Instances()); n > 1 { // others may have created some since, and will
		granted /= 2 * n
	}
	granted = min(granted, max(t.created.Load()-created, 0)+t.memory.portion)
	if more := granted - t.granted + created - t.seen; more != 0 {
		t.left.Add(more)
	}
	t.granted, t.seen = granted, created
}
