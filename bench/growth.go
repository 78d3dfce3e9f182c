package main

import (
	"context"
	"fmt"

	"weir/bench/load"
)

// The tables about more instances and more shards of Redis. On one machine they show what a check
// costs there, but not how much faster several machines are.
const (
	mostInstances = 3
	mostShards    = 3
	shardTenants  = 64 // the counters of a tenant are on one shard, so all shards are used only with several tenants
)

func instancesName(n int) string { return fmt.Sprintf("weir, instances: %d", n) }
func shardsName(n int) string    { return fmt.Sprintf("weir, shards: %d", n) }

// begin starts the servers that only this table needs. end stops them.
func (s *stage) begin(ctx context.Context, name string, c *cast) (end func(), err error) {
	nothing := func() {}
	switch name {
	case "peers":
		return nothing, s.beginPeers(ctx)
	case "grpc":
		if s.peers {
			return nothing, s.beginEnvoy(ctx)
		}
	case "tenants":
		return nothing, s.beginCrowd(ctx, c.crowd)
	case "instances":
		return s.beginInstances(ctx, c)
	case "shards":
		return s.beginShards(ctx, c)
	}
	return nothing, nil
}

// beginInstances starts the additional instances.
func (s *stage) beginInstances(ctx context.Context, c *cast) (end func(), err error) {
	first := s.servers[weirName]
	var more []*server
	end = func() {
		for _, sv := range more {
			sv.stop()
		}
	}
	for n := 1; n <= mostInstances; n++ {
		if n > 1 {
			sv, err := s.startKnowing(ctx, fmt.Sprintf("weir-%d", n), s.store, c)
			if err != nil {
				end()
				return nil, err
			}
			more = append(more, sv)
		}
		all := *first
		all.more = more[:len(more):len(more)]
		s.servers[instancesName(n)] = &all
	}
	return end, nil
}

// beginShards starts a Cluster of each size, with an instance that uses it.
func (s *stage) beginShards(ctx context.Context, c *cast) (end func(), err error) {
	var stops []func()
	end = func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]()
		}
	}
	for n := 1; n <= mostShards; n++ {
		shards, err := s.startCluster(ctx, n)
		if err != nil {
			end()
			return nil, err
		}
		stops = append(stops, shards.stop)
		sv, err := s.startKnowing(ctx, fmt.Sprintf("weir-shards-%d", n), shards, c)
		if err != nil {
			end()
			return nil, err
		}
		stops = append(stops, sv.stop)
		s.servers[shardsName(n)] = sv
	}
	return end, nil
}

// startKnowing starts an instance, and sends it a check of each tenant.
func (s *stage) startKnowing(ctx context.Context, name string, in *store, c *cast) (*server, error) {
	sv, err := s.startInstance(ctx, name, s.databaseURL(), in)
	if err != nil {
		return nil, err
	}
	api := newAdmin(sv.http)
	defer api.client.CloseIdleConnections()
	if err := each(ctx, c.all(), api.first); err != nil {
		sv.stop()
		return nil, fmt.Errorf("%s: %w%s", name, err, sv.lastWords())
	}
	return sv, nil
}

// countersGroup measures one tenant with more and more subjects.
func (c *cast) countersGroup(bare cell, weir func(string, *load.Traffic) cell) group {
	g := group{"counters", "Number of subjects, one rule", []cell{bare}}
	for _, n := range []int{1000, 10_000, 100_000} {
		g.cells = append(g.cells, weir(thousands(float64(n))+" subjects", few(c.plain, n, load.Uniform)))
	}
	return g
}

func (c *cast) instancesGroup(bare cell, uniform *load.Traffic) group {
	g := group{"instances", "Instances", []cell{bare}}
	for n := 1; n <= mostInstances; n++ {
		g.cells = append(g.cells, cell{name: instancesName(n)[len("weir, "):], server: instancesName(n), traffic: uniform, checks: 1})
	}
	return g
}

func (c *cast) shardsGroup(bare cell) group {
	traffic := acrossTenants(c.sharded)
	g := group{"shards", fmt.Sprintf("Shards of a Redis Cluster, %d tenants", shardTenants), []cell{
		bare, {name: "one Redis, no Cluster", server: weirName, traffic: traffic, checks: 1},
	}}
	for n := 1; n <= mostShards; n++ {
		g.cells = append(g.cells, cell{name: shardsName(n)[len("weir, "):], server: shardsName(n), traffic: traffic, checks: 1})
	}
	return g
}
