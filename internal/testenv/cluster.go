package testenv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Cluster is a Redis Cluster of one test.
type Cluster struct {
	URL string // as in WEIR_REDIS_URL

	tb    testing.TB
	nodes map[string]*Redis // by address
	first string
}

// clusterPatience is the timeout for a Cluster to agree on a state.
const clusterPatience = 2 * time.Minute

// StartCluster starts a Cluster with this many masters, each with this many replicas, on free
// loopback ports, and stops it after the test. A failed master is detected after nodeTimeout. Only
// its slots are unavailable then.
func StartCluster(tb testing.TB, masters, replicasEach int, nodeTimeout time.Duration) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, nodes: map[string]*Redis{}}
	query := url.Values{}
	type member struct {
		*Redis
		client  *redis.Client
		busPort string
	}
	var members []member
	for range masters * (1 + replicasEach) {
		bus := FreePort(tb)
		node := StartRedis(tb, "cluster-enabled yes", "cluster-port "+bus, "cluster-config-file nodes.conf",
			"cluster-node-timeout 500", "cluster-require-full-coverage no", "cluster-replica-validity-factor 0",
			"repl-diskless-sync-delay 0", "cluster-allow-replica-migration no")
		client := adminOf(node.addr())
		defer client.Close()
		c.nodes[node.addr()] = node
		query.Add("addr", node.addr())
		members = append(members, member{node, client, bus})
	}
	c.first = members[0].addr()
	c.URL = "redis://" + c.first + "?" + query.Encode()
	ctx, cancel := context.WithTimeout(context.Background(), clusterPatience)
	defer cancel()
	for i, m := range members[:masters] {
		from, to := i*16_384/masters, (i+1)*16_384/masters-1
		require.NoError(tb, m.client.Do(ctx, "cluster", "addslotsrange", from, to).Err())
		require.NoError(tb, m.client.Do(ctx, "cluster", "set-config-epoch", i+1).Err())
	}
	for _, m := range members[1:] {
		require.NoError(tb, members[0].client.Do(ctx, "cluster", "meet", "127.0.0.1", m.port, m.busPort).Err())
	}
	agree := func(what string, holds func(member) bool) {
		tb.Helper()
		require.Eventually(tb, func() bool {
			for _, m := range members {
				if !holds(m) {
					return false
				}
			}
			return true
		}, clusterPatience, 10*time.Millisecond, what)
	}
	agree("all nodes know each other", func(m member) bool {
		nodes, err := m.client.ClusterNodes(ctx).Result()
		return err == nil && strings.Count(nodes, " connected") == len(members) && !strings.Contains(nodes, "handshake")
	})
	for i, m := range members[masters:] {
		id := members[i%masters].client.Do(ctx, "cluster", "myid").Val()
		require.NoError(tb, m.client.Do(ctx, "cluster", "replicate", id).Err())
	}
	agree("all slots are served, and replicated", func(m member) bool {
		info, err := m.client.ClusterInfo(ctx).Result()
		slots, errSlots := m.client.ClusterSlots(ctx).Result()
		for _, s := range slots {
			if len(s.Nodes) != 1+replicasEach {
				return false
			}
		}
		replication := m.client.Info(ctx, "replication").Val()
		return err == nil && errSlots == nil && strings.Contains(info, "cluster_state:ok") && len(slots) == masters &&
			(strings.Contains(replication, "role:master") || strings.Contains(replication, "master_link_status:up"))
	})
	for _, m := range members { // only now: servers exchange their state at this interval
		require.NoError(tb, m.client.ConfigSet(ctx, "cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10)).Err())
	}
	return c
}

// MasterOf returns the master of a key, as reported by a node that answers.
func (c *Cluster) MasterOf(key string) *Redis {
	c.tb.Helper()
	for addr, node := range c.nodes {
		if node.cmd == nil {
			continue
		}
		client := adminOf(addr)
		defer client.Close()
		slot, err := client.ClusterKeySlot(context.Background(), key).Result()
		require.NoError(c.tb, err)
		slots, err := client.ClusterSlots(context.Background()).Result()
		require.NoError(c.tb, err)
		for _, s := range slots {
			if int64(s.Start) <= slot && slot <= int64(s.End) {
				return c.nodes[s.Nodes[0].Addr]
			}
		}
	}
	require.Fail(c.tb, "no node answers")
	return nil
}

func (r *Redis) addr() string { return "127.0.0.1:" + r.port }

// FreePort returns a port on which nothing listens. It is below those that the kernel gives to
// connections and listeners of other tests, which would take it before the server does, or while a
// test has stopped its server. No port is returned twice in a process, and processes begin at
// different ones.
func FreePort(tb testing.TB) string {
	tb.Helper()
	for range ports {
		port := strconv.Itoa(firstPort + int(lastPort.Add(1)%ports))
		listener, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			require.NoError(tb, listener.Close())
			return port
		}
	}
	require.Fail(tb, "no free port")
	return ""
}

// The ports of the servers of tests.
const (
	firstPort = 10_000
	ports     = 10_000
)

var lastPort = func() *atomic.Uint32 {
	var last atomic.Uint32
	last.Store(rand.Uint32N(ports))
	return &last
}()

// Failover promotes a replica of a master, as an operator does before maintenance. If the others
// take the master for failed for a moment, because it had no processor, it tries again.
func (c *Cluster) Failover(master *Redis) {
	c.tb.Helper()
	require.Eventually(c.tb, func() bool { return c.promote(master) == nil }, clusterPatience, 50*time.Millisecond, "the replica is not promoted")
}

// TakeOver promotes a replica of a master that is gone, as its replicas do after the node timeout.
func (c *Cluster) TakeOver(master *Redis) {
	c.tb.Helper()
	require.NoError(c.tb, c.promote(master, "takeover"))
}

func (c *Cluster) promote(master *Redis, how ...any) error {
	for addr, node := range c.nodes {
		client := adminOf(addr)
		defer client.Close()
		if info := client.Info(context.Background(), "replication").Val(); node != master && strings.Contains(info, "role:slave") && strings.Contains(info, "master_port:"+master.port+"\r") {
			return client.Do(context.Background(), append([]any{"cluster", "failover"}, how...)...).Err()
		}
	}
	return errors.New("the master has no replica")
}

// Move is a slot on its way from one master to another, with its keys, as a resharding moves it.
type Move struct {
	c        *Cluster
	slot     int64
	from, to *Redis
}

// BeginMove begins to move the slot of a key to another master. Until Finish, keys that are not on
// the old master are looked for on the new one.
func (c *Cluster) BeginMove(key string, to *Redis) *Move {
	c.tb.Helper()
	m := &Move{c: c, from: c.MasterOf(key), to: to}
	c.on(to, func(ctx context.Context, client *redis.Client) {
		slot, err := client.ClusterKeySlot(ctx, key).Result()
		require.NoError(c.tb, err)
		m.slot = slot
		require.NoError(c.tb, client.Do(ctx, "cluster", "setslot", slot, "importing", c.id(m.from)).Err())
	})
	c.on(m.from, func(ctx context.Context, client *redis.Client) {
		require.NoError(c.tb, client.Do(ctx, "cluster", "setslot", m.slot, "migrating", c.id(to)).Err())
	})
	return m
}

// Keys moves up to n keys, and returns how many it has moved.
func (m *Move) Keys(n int) (moved int) {
	m.c.tb.Helper()
	m.c.on(m.from, func(ctx context.Context, client *redis.Client) {
		keys, err := client.ClusterGetKeysInSlot(ctx, int(m.slot), n).Result()
		require.NoError(m.c.tb, err)
		for _, key := range keys {
			m.key(ctx, client, key)
		}
		moved = len(keys)
	})
	return moved
}

// Slot is the slot that is moved.
func (m *Move) Slot() int64 { return m.slot }

// Key moves one key.
func (m *Move) Key(key string) {
	m.c.tb.Helper()
	m.c.on(m.from, func(ctx context.Context, client *redis.Client) { m.key(ctx, client, key) })
}

func (m *Move) key(ctx context.Context, client *redis.Client, key string) {
	m.c.tb.Helper()
	require.NoError(m.c.tb, client.Migrate(ctx, "127.0.0.1", m.to.port, key, 0, clusterPatience).Err())
}

// Finish moves the other keys, and then the slot itself.
func (m *Move) Finish() {
	m.c.tb.Helper()
	for m.Keys(100) > 0 {
	}
	to := m.c.id(m.to)
	nodes := []*Redis{m.to, m.from} // first these, so that the slot is never without a master
	for _, node := range m.c.Masters() {
		if node != m.to && node != m.from {
			nodes = append(nodes, node)
		}
	}
	for _, node := range nodes {
		m.c.on(node, func(ctx context.Context, client *redis.Client) {
			require.NoError(m.c.tb, client.Do(ctx, "cluster", "setslot", m.slot, "node", to).Err())
		})
	}
}

// AddMaster adds a master without slots, and returns when all nodes know it.
func (c *Cluster) AddMaster() *Redis {
	c.tb.Helper()
	bus := FreePort(c.tb)
	known := c.running()[0]
	node := StartRedis(c.tb, "cluster-enabled yes", "cluster-port "+bus, "cluster-config-file nodes.conf",
		"cluster-node-timeout 60000", "cluster-require-full-coverage no", "cluster-replica-validity-factor 0", "repl-diskless-sync-delay 0",
		"cluster-allow-replica-migration no")
	c.nodes[node.addr()] = node
	c.on(known, func(ctx context.Context, client *redis.Client) {
		require.NoError(c.tb, client.Do(ctx, "cluster", "meet", "127.0.0.1", node.port, bus).Err())
	})
	all := c.running()
	require.Eventually(c.tb, func() bool {
		for _, n := range all {
			knows := false
			c.on(n, func(ctx context.Context, client *redis.Client) {
				nodes, err := client.ClusterNodes(ctx).Result()
				info, _ := client.ClusterInfo(ctx).Result()
				knows = err == nil && strings.Count(nodes, " connected") == len(all) && !strings.Contains(nodes, "handshake") &&
					strings.Contains(info, "cluster_state:ok")
			})
			if !knows {
				return false
			}
		}
		return true
	}, clusterPatience, 10*time.Millisecond, "all know the new node")
	return node
}

// Remove ends a master that holds no slots any more, and makes all others forget it.
func (c *Cluster) Remove(node *Redis) {
	c.tb.Helper()
	id := c.id(node)
	for _, n := range c.running() {
		if n != node {
			c.on(n, func(ctx context.Context, client *redis.Client) {
				require.NoError(c.tb, client.Do(ctx, "cluster", "forget", id).Err())
			})
		}
	}
	node.Kill()
}

// running returns the nodes that were not killed.
func (c *Cluster) running() (nodes []*Redis) {
	for _, node := range c.nodes {
		if node.cmd != nil {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// Masters returns the masters that answer, in the order of their ports.
func (c *Cluster) Masters() (nodes []*Redis) {
	for _, node := range c.running() {
		if c.IsMaster(node) {
			nodes = append(nodes, node)
		}
	}
	slices.SortFunc(nodes, func(a, b *Redis) int { return strings.Compare(a.port, b.port) })
	return nodes
}

// AwaitAgreement returns when all nodes name the same master for each slot, and all replicas are
// connected. Only then does a replica that is promoted serve the slots that its master has got.
func (c *Cluster) AwaitAgreement() {
	c.tb.Helper()
	require.Eventually(c.tb, func() bool {
		masters := map[string]bool{} // what each node says of all slots
		connected := true
		for _, node := range c.running() {
			c.on(node, func(ctx context.Context, client *redis.Client) {
				slots, err := client.ClusterSlots(ctx).Result()
				var says strings.Builder
				for _, s := range slots {
					fmt.Fprintf(&says, "%d-%d %s\n", s.Start, s.End, s.Nodes[0].Addr)
				}
				masters[says.String()] = true
				connected = connected && err == nil && (replicationField(ctx, client, "role") == "master" ||
					replicationField(ctx, client, "master_link_status") == "up")
			})
		}
		return connected && len(masters) == 1
	}, clusterPatience, 10*time.Millisecond, "the nodes do not agree")
}

// IsMaster reports whether a node says that it is a master.
func (c *Cluster) IsMaster(node *Redis) (is bool) {
	c.on(node, func(ctx context.Context, client *redis.Client) {
		is = replicationField(ctx, client, "role") == "master"
	})
	return is
}

func (c *Cluster) id(node *Redis) (id string) {
	c.on(node, func(ctx context.Context, client *redis.Client) {
		var err error
		id, err = client.Do(ctx, "cluster", "myid").Text()
		require.NoError(c.tb, err)
	})
	return id
}

// on calls do with a client of one node.
func (c *Cluster) on(node *Redis, do func(context.Context, *redis.Client)) {
	client := adminOf(node.addr())
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), clusterPatience)
	defer cancel()
	do(ctx, client)
}
