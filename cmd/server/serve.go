package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"weir/internal/api"
	"weir/internal/billing"
	"weir/internal/check"
	"weir/internal/dashboard"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/once"
	"weir/internal/overload"
	"weir/internal/peers"
	"weir/internal/recent"
	"weir/internal/seal"
	"weir/internal/tenants"
	"weir/internal/usage"
)

type serveCommand struct{}

// Run serves until a signal arrives.
func (serveCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	return serve(ctx, cfg, log, func(*front) {})
}

// service has the parts of the process, in the order in which they are opened.
type service struct {
	cfg        *Config
	log        *slog.Logger
	style      api.HeaderStyle
	store      *tenants.Store
	registry   *prometheus.Registry
	front      *front
	redis      redis.UniversalClient
	background sync.WaitGroup // must end before store and redis are closed
	engine     *engine.Stack  // nil until assembled
}

// open opens the parts that do not depend on other processes.
func open(ctx context.Context, cfg *Config, log *slog.Logger) (s *service, err error) {
	s = &service{cfg: cfg, log: log, registry: newRegistry()}
	if cfg.ProfileContention {
		profileContention()
	}
	if err := firstError(cfg.requireStores(), cfg.requireListeners(), cfg.requireMail()); err != nil {
		return nil, err
	}
	if s.style, err = api.ParseHeaderStyle(cfg.Headers); err != nil {
		return nil, fmt.Errorf("WEIR_HEADERS: %w", err)
	}
	if s.store, err = openStore(ctx, cfg, log); err != nil {
		return nil, err
	}
	redis.SetLogger(redisLog{log})
	var options []redisengine.ClientOption
	if cfg.redisFile != nil {
		cfg.redisFile.logTo(log)
		options = append(options, redisengine.WithCredentials(cfg.redisFile.credentials))
	}
	if s.redis, err = redisengine.NewClient(string(cfg.RedisURL), options...); err != nil {
		s.store.Close()
		return nil, fmt.Errorf("WEIR_REDIS_URL: %w", err)
	}
	if s.front, err = openFront(cfg, log, s.registry); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close closes all parts in reverse order. All contexts have ended.
func (s *service) close() {
	if s.engine != nil {
		s.engine.Close()
	}
	s.background.Wait()
	_ = s.redis.Close() // nothing uses it any more
	s.store.Close()
}

// serve runs the service until ctx ends, and drains. It calls started once, when the service is
// ready. While Postgres or Redis is unavailable, it starts as far as possible, and waits.
func serve(ctx context.Context, cfg *Config, log *slog.Logger, started func(*front)) error {
	s, err := open(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer s.close()
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx)) // outlives ctx by the drain
	defer stopWorking()
	s.front.start(working)
	if err := s.assemble(ctx, working); err != nil {
		return firstError(unlessEnded(ctx, err), s.front.drain(0))
	}
	log.Info("ready")
	started(s.front)
	select {
	case <-ctx.Done():
		return s.front.drain(cfg.Drain)
	case err := <-s.front.failed:
		return firstError(err, s.front.drain(0))
	}
}

// assemble builds the parts that need Postgres, waits until they have read their data, and sets
// them as the handler of front. It fails if ctx ends. What it starts ends with working.
func (s *service) assemble(ctx, working context.Context) error {
	deployment, err := prepareDatabase(ctx, s.cfg, s.store, s.front, s.log)
	if err != nil {
		return err
	}
	keys := check.NewKeys(deployment.secrets.CounterKey)
	metrics := check.NewMetrics(s.registry)
	counters := redisengine.New(s.redis, redisengine.Options{Deadline: s.cfg.RedisTimeout})
	instances := peers.New(s.cfg.Instances, s.registry)
	s.engine = engine.NewStack(engine.StackOptions{
		Shared: counters, Local: engine.NewMemory(engine.MemoryOptions{}), Share: instances.Share, Metrics: engine.NewMetrics(s.registry),
	})
	policies := check.NewPolicies(s.store, keys, s.log, metrics)
	policies.Limit(int64(s.cfg.PolicyMemory))
	policies.Pin(deployment.platform) // its rules are the quotas of all tenants
	recorder := usage.New(usage.Options{Sink: s.store, Registerer: s.registry, Logger: s.log})
	meter := usage.NewMeter(usage.MeterOptions{Sink: s.store, Registerer: s.registry, Logger: s.log})
	about := aboutInstance(s.store.Watcher().Age)
	var checker *check.Checker
	decisions := recent.New(recent.Options{Keys: keys, Peers: instances, Self: func() recent.Instance {
		self := about()
		health := s.engine.Health()
		self.Latency, self.DegradedSince, self.Failure = checker.Latency(), health.DegradedSince, string(health.Failure)
		return self
	}})
	checker = check.NewChecker(check.CheckerOptions{
		Keys: keys, Engine: s.engine, Metrics: metrics, Observers: []check.Observer{recorder, meter, decisions},
	})
	authenticator := tenants.NewAuthenticator(s.store)
	keyNews := peers.NewBroadcast("keys", deployment.secrets.CounterKey[:])
	authenticator.Tell(keyNews.Send)
	following := newFollower(s.store, authenticator, policies, deployment.platform, s.log)
	watchEngine(s.registry, counters)
	watchAge(s.registry, s.store.Watcher().Age)

	s.background.Go(func() { instances.Run(working, s.redis, s.log) })
	s.background.Go(func() {
		keyNews.Run(working, s.redis, s.log, func(message []byte) {
			if err := authenticator.Learn(message); err != nil {
				s.log.Warn("ignored a message of another version of Weir", "error", err)
			}
		})
	})
	s.background.Go(func() { decisions.Run(working, s.redis, s.log) })
	s.background.Go(func() { checker.RunLatency(working) })
	redisState := newRedisState(s.engine, counters, s.registry, s.log)
	s.background.Go(func() { redisState.run(working) })
	s.background.Go(func() { s.front.failIf("record the use of keys", authenticator.Run(working)) })
	s.background.Go(func() {
		policies.Run(working)
		policies.Close()
	})
	s.background.Go(func() { s.front.failIf("listen for changes", following.run(working)) })
	s.background.Go(func() { purge(working, s.store, s.cfg.AuditRetention, s.log) })
	s.background.Go(func() { applyDuePlans(working, s.store, s.log) })
	s.background.Go(func() { runPlanMigrations(working, s.store, s.log) })
	s.background.Go(func() { changeCounters(working, s.store, policies, checker, s.log) })
	s.background.Go(func() { logAuditHeads(working, s.store, s.log) })
	s.background.Go(func() { recorder.Run(working) })
	s.background.Go(func() { meter.Run(working) })
	s.background.Go(func() { s.store.RunMetering(working) })
	s.background.Go(func() { s.store.RunUsageUpkeep(working) })
	select {
	case <-following.ready:
	case <-ctx.Done():
		return ctx.Err()
	}

	post, err := s.newPost()
	if err != nil {
		return err
	}
	s.background.Go(func() { post.Run(working) })
	quotas := quotaNotices{store: s.store, policies: policies, checker: checker, platform: deployment.platform, post: post, log: s.log}
	s.background.Go(func() { quotas.run(working) })
	biller := billing.New(billing.Options{Store: s.store, StripeURL: s.cfg.StripeURL, Logger: s.log, Registerer: s.registry})
	s.background.Go(func() { biller.Run(working) })
	httpMetrics := api.NewMetrics(s.registry)
	bound := overload.New(int64(s.cfg.MaxInFlight), runtime.GOMAXPROCS(0))
	waits := watchOverload(s.registry, bound)
	s.background.Go(func() {
		bound.Run(working, overload.Sources{Queued: counters.Waited, InFlight: httpMetrics.InFlight, Told: waits})
	})
	public := api.New(api.Config{Headers: s.style, Bound: bound, Lane: s.front.lane, GRPC: s.front.grpc(), Proxies: s.front.proxies}, api.Deps{
		Store: s.store, Authenticator: authenticator, Policies: policies, Checker: checker, Instances: instances.Count,
		Quota: check.NewQuota(checker, policies, deployment.platform),
		Once: once.New(once.Options{
			Client: s.redis, Secret: deployment.secrets.CounterKey, Timeout: s.cfg.RedisTimeout,
			Away: s.engine.Away,
		}),
		Logger: s.log, Metrics: httpMetrics, Readiness: readiness(s.front, s.store.Watcher().Age, s.cfg.MaxConfigAge, redisState),
		Follow:         following.now,
		Invited:        func(i tenants.Invitation) { dashboard.SendInvitation(s.store, post, s.log, i) },
		InvitationLink: func(i tenants.Invitation) string { return dashboard.UnsentLink(post, i) },
		Billing:        biller,
		PublicURL:      s.cfg.PublicURL,
		CursorKey:      deployment.secrets.CursorKey[:],
	})
	pages := dashboard.New(dashboard.Deps{
		Store: s.store, Policies: policies, Checker: checker, Recent: decisions, Instances: instances.Count,
		DegradedSince: s.engine.DegradedSince, Logger: s.log, Follow: following.now, Observe: httpMetrics.Route,
		Billing: biller, PublicURL: s.cfg.PublicURL, Mail: post, Platform: deployment.platform, Signup: dashboard.Signup(s.cfg.Signup),
		Stopping: ctx.Done(),
	})
	s.front.handle(beside(public, pages))
	return nil
}

func openStore(ctx context.Context, cfg *Config, log *slog.Logger) (*tenants.Store, error) {
	ring, err := seal.Parse(string(cfg.EncryptionKey))
	if err != nil {
		return nil, fmt.Errorf("WEIR_ENCRYPTION_KEY: %w", err)
	}
	var credentials func() (user, password string)
	if cfg.databaseFile != nil {
		cfg.databaseFile.logTo(log)
		credentials = cfg.databaseFile.credentials
	}
	store, err := tenants.Open(context.WithoutCancel(ctx), tenants.Config{
		DatabaseURL: string(cfg.DatabaseURL), ListenURL: string(cfg.DatabaseListenURL), Logger: log, Seal: ring, Credentials: credentials,
		WriteRates: tenants.WriteRates{Writes: cfg.WriteRate, Resets: cfg.ResetRate},
	})
	if err != nil {
		return nil, fmt.Errorf("WEIR_DATABASE_URL or WEIR_DATABASE_LISTEN_URL: %w", err)
	}
	return store, nil
}

// unlessEnded returns nil if err is only the end of ctx, and err otherwise.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// configStale is the age at which the configuration counts as unavailable: several comparisons have
// failed.
const configStale = 2 * time.Second

// readiness tells /readyz what to answer. Checks are answered without Redis and without Postgres,
// so neither outage makes the instance leave the load balancer: all instances would leave together.
// An operator who prefers that sets maxAge, the maximum age of the configuration; 0: none.
func readiness(front *front, age func() time.Duration, maxAge time.Duration, redis *redisState) func() api.Readiness {
	return func() (r api.Readiness) {
		redis.report(&r)
		old := age()
		if old > configStale {
			r.Degraded = append(r.Degraded, "postgres")
		}
		switch {
		case front.draining.Load():
			r.Reason = "The instance is stopping."
		case maxAge > 0 && old > maxAge:
			r.Reason = fmt.Sprintf("The configuration is %s old, more than WEIR_MAX_CONFIG_AGE (%s). Postgres cannot be reached.", old.Truncate(time.Second), maxAge)
		}
		return r
	}
}
