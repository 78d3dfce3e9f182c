package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/bench/kernel"
)

// store is the Redis with the counters of a server: one process, or the shards of a Cluster.
type store struct {
	url   string // as in WEIR_REDIS_URL
	nodes []*node
	bus   string // the bus address of the first node of a Cluster
}

// node is one process of Redis.
type node struct {
	*process
	addr   string
	client *redis.Client
}

// cpu returns the CPU time of all processes.
func (s *store) cpu() (total time.Duration, err error) {
	for _, n := range s.nodes {
		t, err := kernel.CPU(n.pid())
		if err != nil {
			return 0, err
		}
		total += t
	}
	return total, nil
}

func (s *store) flush(ctx context.Context) error {
	for _, n := range s.nodes {
		if err := n.client.FlushAll(ctx).Err(); err != nil {
			return err
		}
	}
	return nil
}

// counterBytes empties the store and returns the memory per counter.
func (s *store) counterBytes(ctx context.Context) (float64, error) {
	if len(s.nodes) > 1 { // a node of a Cluster holds more than counters
		return 0, s.flush(ctx)
	}
	return counterBytes(ctx, s.nodes[0].client)
}

func (s *store) stop() {
	for _, n := range s.nodes {
		_ = n.client.Close() // nothing can be lost any more
		n.process.stop()
	}
}

// startNode starts a Redis that only this run uses and that writes nothing to disk. It is emptied
// between measurements, and its CPU time counts for the checks.
func (s *stage) startNode(ctx context.Context, name string, settings ...string) (*node, error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		if binary, err = exec.LookPath("valkey-server"); err != nil {
			return nil, errors.New("missing: redis-server or valkey-server")
		}
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := strings.Cut(addr, ":")
	settings = append([]string{"bind 127.0.0.1", "port " + port, `save ""`, "appendonly no", "maxmemory-policy noeviction", "loglevel warning"}, settings...)
	cmd := exec.Command(binary, "-")
	cmd.Dir = s.dir
	cmd.Stdin = strings.NewReader(strings.Join(settings, "\n") + "\n")
	n := &node{addr: addr, client: redis.NewClient(&redis.Options{Addr: addr})}
	if n.process, err = start(ctx, s.dir, name, cmd, func() error { return n.client.Ping(ctx).Err() }); err != nil {
		return nil, errors.Join(err, n.client.Close())
	}
	return n, nil
}

// startRedis starts the Redis of all servers except those of a Cluster.
func (s *stage) startRedis(ctx context.Context) error {
	n, err := s.startNode(ctx, "redis")
	if err != nil {
		return err
	}
	s.store = &store{url: "redis://" + n.addr + "/0", nodes: []*node{n}}
	s.undo = append(s.undo, s.store.stop)
	s.redis = n.client
	return nil
}

const slots = 16384 // of a Cluster

// startCluster starts a Cluster with this many primaries, and returns when each of them knows all
// slots. The caller stops it.
func (s *stage) startCluster(ctx context.Context, shards int) (_ *store, err error) {
	c := &store{}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	for i := range shards {
		name := fmt.Sprintf("redis-%d-of-%d", i+1, shards)
		bus, err := freeAddr() // the port plus 10 000 may be in use
		if err != nil {
			return nil, err
		}
		_, port, _ := strings.Cut(bus, ":")
		n, err := s.startNode(ctx, name, "cluster-enabled yes", "cluster-config-file nodes-"+port, "cluster-port "+port)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, n)
		first, last := i*slots/shards, (i+1)*slots/shards-1
		if err := n.client.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
			return nil, err
		}
		if i > 0 {
			host, port, _ := strings.Cut(c.nodes[0].addr, ":")
			_, firstBus, _ := strings.Cut(c.bus, ":")
			if err := n.client.Do(ctx, "CLUSTER", "MEET", host, port, firstBus).Err(); err != nil {
				return nil, err
			}
		} else {
			c.bus = bus
		}
	}
	for _, n := range c.nodes {
		if err := n.await(ctx, func() error { return checkCluster(ctx, n.client, shards) }); err != nil {
			return nil, fmt.Errorf("cluster of %d: %w", shards, err)
		}
	}
	// An address that is given twice means a Cluster, which reports its other nodes.
	c.url = fmt.Sprintf("redis://%s?addr=%s", c.nodes[0].addr, c.nodes[len(c.nodes)-1].addr)
	return c, nil
}

// checkCluster returns an error while a node does not know all slots.
func checkCluster(ctx context.Context, client *redis.Client, shards int) error {
	info, err := client.ClusterInfo(ctx).Result()
	switch {
	case err != nil:
		return err
	case infoText(info, "cluster_state") != "ok" || infoText(info, "cluster_size") != fmt.Sprint(shards):
		return fmt.Errorf("not all slots are served yet:\n%s", info)
	}
	return nil
}
