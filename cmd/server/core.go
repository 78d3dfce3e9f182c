package main

import (
	"context"
	"time"

	"weir/internal/budget"
	"weir/internal/check"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/peers"
	"weir/internal/recent"
	"weir/internal/snapshot"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// core is what decides checks: the configuration in memory, the engines, and the observers of
// decisions. The API and the dashboard are built around it.
type core struct {
	from          *startup
	keys          check.Keys
	source        *snapshot.Source
	policies      *check.Policies
	authenticator *tenants.Authenticator
	following     *follower
	configAge     func() time.Duration

	counters   *redisengine.Engine
	census     *redisengine.Census
	records    *budget.Budget
	redisState *redisState
	checker    *check.Checker

	instances *peers.Peers
	keyNews   *peers.Broadcast
	decisions *recent.Log
	recorder  *usage.Recorder
	meter     *usage.Meter
	notes     *meterNotes
	credits   *creditKeeper
}

// newCore builds the core, and starts nothing.
func (s *service) newCore(from *startup) *core {
	c := &core{from: from, keys: check.NewKeys(from.Secrets.CounterKey), configAge: s.configAge(from)}
	metrics := check.NewMetrics(s.registry)
	c.instances = peers.New(s.cfg.Instances, from.Secrets.CounterKey[:], s.registry)
	c.source = snapshot.NewSource(s.store, from.file)
	c.policies = check.NewPolicies(c.source, c.keys, s.log, metrics)
	c.policies.Limit(int64(s.cfg.PolicyMemory))
	c.policies.Pin(from.Platform) // its rules are the quotas of all tenants
	c.records = budget.New(budget.Options{
		Client: s.redis, Prefix: c.keys.Prefix, Instances: c.instances.Count, Default: int64(s.cfg.TenantRecords),
		Bound: func(tenant limit.TenantID) (int64, bool) { return c.policies.RecordBound(from.Platform, tenant) },
	})
	c.census = redisengine.NewCensus(redisengine.CensusOptions{
		Client: s.redis, Prefix: c.keys.Prefix, Instances: c.instances.Count, Default: s.cfg.TenantCounters,
		Bound:  func(tenant limit.TenantID) (int64, bool) { return c.policies.CounterBound(from.Platform, tenant) },
		Places: c.policies.Places, Operator: from.Platform, Measured: c.records.Measured,
	})
	c.counters = redisengine.New(s.redis, redisengine.Options{Deadline: s.cfg.RedisTimeout, Census: c.census, Refunds: s.records})
	s.engine = engine.NewStack(engine.StackOptions{
		Shared: c.counters, Local: engine.NewMemory(engine.MemoryOptions{}), Share: c.instances.Share, Metrics: engine.NewMetrics(s.registry),
	})
	c.redisState = newRedisState(s.engine, c.counters, c.census, s.registry, s.log)
	s.store.FollowWriters(c.instances.Alive)
	c.recorder = usage.New(usage.Options{
		Sink: s.store, Registerer: s.registry, Logger: s.log, Writer: c.instances.UUID(), Looked: func() []limit.TenantID { return c.decisions.Looked() },
	})
	c.notes = newMeterNotes(s.redis, c.keys, s.store)
	c.meter = usage.NewMeter(usage.MeterOptions{Sink: s.store, Notes: c.notes, Registerer: s.registry, Logger: s.log})
	c.credits = newCreditKeeper(s.store, c.keys, c.counters, s.registry, s.log)
	about := aboutInstance(c.configAge)
	c.decisions = recent.New(recent.Options{Keys: c.keys, Peers: c.instances, Self: func() recent.Instance {
		self := about()
		health := s.engine.Health()
		self.Latency, self.DegradedSince, self.Failure = c.checker.Latency(), health.DegradedSince, string(health.Failure)
		return self
	}})
	c.checker = check.NewChecker(check.CheckerOptions{
		Keys: c.keys, Engine: s.engine, Metrics: metrics, Observers: []check.Observer{c.recorder, c.meter, c.decisions}, Credits: c.credits.decided,
		Instances: c.instances.Count,
	})
	c.authenticator = tenants.NewAuthenticator(s.store)
	c.keyNews = peers.NewBroadcast("keys", from.Secrets.CounterKey[:])
	c.authenticator.Tell(c.keyNews.Send)
	c.following = newFollower(s.store, c.authenticator, c.policies, from.Platform, s.log)
	watchEngine(s.registry, c.counters)
	watchCensus(s.registry, c.census)
	watchRecords(s.registry, c.records)
	watchAge(s.registry, c.configAge)
	return c
}

// startCore starts what checks depend on. It ends with working.
func (s *service) startCore(working context.Context, c *core) {
	s.background.Go(func() { c.instances.Run(working, s.redis, s.log) })
	s.background.Go(func() {
		c.keyNews.Run(working, s.redis, s.log, func(message []byte) {
			if err := c.authenticator.Learn(message); err != nil {
				s.log.Warn("ignored a message of another version of Weir", "error", err)
			}
		})
	})
	s.background.Go(func() { c.decisions.Run(working, s.redis, s.log) })
	s.background.Go(func() { c.census.Run(working) })
	s.background.Go(func() { c.records.Run(working) })
	s.background.Go(func() { c.checker.RunLatency(working) })
	s.background.Go(func() { c.redisState.run(working) })
	s.background.Go(func() { s.front.failIf("record the use of keys", c.authenticator.Run(working)) })
	s.background.Go(func() {
		c.policies.Run(working)
		c.policies.Close()
	})
	s.background.Go(func() {
		if c.from.file != nil {
			c.following.restore(working, c.from.file)
		}
		if c.from.isPrepared(working) {
			c.source.UseStore()
			s.front.failIf("listen for changes", c.following.run(working))
		}
	})
	s.background.Go(func() { c.recorder.Run(working) })
	s.background.Go(func() { c.meter.Run(working) })
	s.background.Go(func() { c.credits.open(working) })
}

// startJobs starts the regular work on Postgres, as soon as Postgres can be used. It ends with
// working.
func (s *service) startJobs(working context.Context, c *core) {
	for _, job := range []func(){
		func() { purge(working, s.store, s.cfg.AuditRetention, s.log) },
		func() { deleteTenantRows(working, s.store, s.log) },
		func() { applyDuePlans(working, s.store, s.log) },
		func() { runPlanMigrations(working, s.store, s.log) },
		func() { changeCounters(working, s.store, c.policies, c.checker, s.log) },
		func() { c.credits.run(working) },
		func() { logAuditHeads(working, s.store, s.log) },
		func() { sealMetering(working, s.store, c.notes, s.log) },
		func() { createMeterPushes(working, s.store, s.log) },
		func() { purgeUsage(working, s.store, s.log) },
		func() { warnOfSignupTier(working, s.cfg, c.policies, c.from.Platform, s.log) },
	} {
		s.background.Go(func() {
			if c.from.isPrepared(working) {
				job()
			}
		})
	}
}
