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
	shardTenants  = 64 // the counters of a tenant are on one shard, so all shards are used only with several tenants
	shardCrowd    = 10_000
)

// shardCounts are the sizes of Clusters.
var shardCounts = []int{1, 3, 6}

func instancesName(n int) string { return fmt.Sprintf("weir, instances: %d", n) }

// shardsName is the server that counts for so many tenants in a Cluster of so many shards; 0: one
// Redis.
func shardsName(shards, tenants int) string {
	if shards == 0 && tenants == shardTenants {
		return weirName
	}
	return "weir, " + shardsRow(shards, tenants)
}

// shardsRow is the name of its line.
func shardsRow(shards, tenants int) string {
	of := fmt.Sprintf("shards: %d", shards)
	if shards == 0 {
		of = "one Redis, no Cluster"
	}
	return fmt.Sprintf("%s, %s tenants", of, thousands(float64(tenants)))
}

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

// beginShards starts a Cluster of each size, with two instances that count in it: for few tenants,
// and for many.
func (s *stage) beginShards(ctx context.Context, c *cast) (end func(), err error) {
	var stops []func()
	end = func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	crowd := newCrowd([]int{shardCrowd})
	database, err := s.makeCrowd(ctx, crowd, "_shards")
	if err != nil {
		return nil, err
	}
	for _, n := range append([]int{0}, shardCounts...) {
		in := s.store
		if n > 0 {
			if in, err = s.startCluster(ctx, n); err != nil {
				return nil, err
			}
			stops = append(stops, in.stop)
			sv, err := s.startKnowing(ctx, fmt.Sprintf("weir-shards-%d", n), in, c)
			if err != nil {
				return nil, err
			}
			stops = append(stops, sv.stop)
			s.servers[shardsName(n, shardTenants)] = sv
		}
		progress("starting an instance that knows %s tenants, and counts in %d shards", thousands(shardCrowd), n)
		sv, err := s.startInstance(ctx, fmt.Sprintf("weir-shards-%d-crowd", n), s.urlOf(database), in)
		if err != nil {
			return nil, err
		}
		stops = append(stops, sv.stop)
		if err := crowd.first(ctx, sv); err != nil {
			return nil, err
		}
		s.servers[shardsName(n, shardCrowd)] = sv
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
	g := group{"shards", "Shards of a Redis Cluster", []cell{bare}}
	few, many := acrossTenants(c.sharded), newCrowd([]int{shardCrowd}).traffic(shardCrowd)
	for _, tenants := range []int{shardTenants, shardCrowd} {
		traffic := few
		if tenants == shardCrowd {
			traffic = many
		}
		for _, n := range append([]int{0}, shardCounts...) {
			g.cells = append(g.cells, cell{name: shardsRow(n, tenants), server: shardsName(n, tenants), traffic: traffic, checks: 1})
		}
	}
	return g
}
