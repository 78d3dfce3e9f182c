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
	"weir/internal/leases"
	"weir/internal/notify"
	"weir/internal/once"
	"weir/internal/overload"
	"weir/internal/places"
	"weir/internal/records"
	"weir/internal/tenants"
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
	redis      redis.UniversalClient // of counters, and of messages between instances
	records    redis.UniversalClient // of records and refunds: see package records
	background sync.WaitGroup        // must end before store and redis are closed
	engine     *engine.Stack         // nil until assembled
	late       *api.LateReturns      // nil until assembled
}

// lateWait is how long the end of the process waits for returns of leases without an answer.
const lateWait = 3 * time.Second

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
	if s.store, err = openStore(ctx, cfg, log, 0); err != nil {
		return nil, err
	}
	if err := s.openRedis(); err != nil {
		s.store.Close()
		return nil, fmt.Errorf("WEIR_REDIS_URL: %w", err)
	}
	if s.front, err = openFront(cfg, log, s.registry); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// openRedis creates the clients of Redis, which connect at their first call. They differ in the
// number of connections only.
func (s *service) openRedis() (err error) {
	redis.SetLogger(redisLog{s.log})
	options := []redisengine.ClientOption{redisengine.WithTimeout(s.cfg.RedisTimeout)}
	if s.cfg.redisFile != nil {
		s.cfg.redisFile.logTo(s.log)
		options = append(options, redisengine.WithCredentials(s.cfg.redisFile.credentials))
	}
	if s.redis, err = redisengine.NewClient(string(s.cfg.RedisURL), options...); err != nil {
		return err
	}
	s.records, err = redisengine.NewClient(string(s.cfg.RedisURL), append(options, redisengine.WithPoolSize(records.Connections))...)
	return err // the URL is valid, so nil
}

// close closes all parts in reverse order. All contexts have ended.
func (s *service) close() {
	if s.engine != nil {
		s.engine.Close()
	}
	s.background.Wait()
	_ = s.records.Close() // nothing uses them any more
	_ = s.redis.Close()
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
		err = s.front.drain(cfg.Drain)
	case err = <-s.front.failed:
		err = firstError(err, s.front.drain(0))
	}
	s.endReturns()
	return err
}

// endReturns waits for the returns of leases that are not complete. Usage and meters, which they
// report to, end with working, after this.
func (s *service) endReturns() {
	ctx, cancel := context.WithTimeout(context.Background(), lateWait)
	defer cancel()
	s.late.End(ctx)
}

// assemble builds the parts that need the configuration, waits until they have read it, and sets
// them as the handler of front. It fails if ctx ends. What it starts ends with working.
func (s *service) assemble(ctx, working context.Context) error {
	from, err := s.prepare(ctx, working)
	if err != nil {
		return err
	}
	c := s.newCore(from)
	s.startCore(working, c)
	s.startJobs(working, c)
	if err := s.keepSnapshot(working, from); err != nil {
		return err
	}
	select {
	case <-c.following.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.openDoors(ctx, working, c)
}

// openDoors starts what sends messages and asks billing providers, and sets the API and the
// dashboard as the handler of front.
func (s *service) openDoors(ctx, working context.Context, c *core) error {
	post, err := s.newPost()
	if err != nil {
		return err
	}
	s.background.Go(func() { post.Run(working) })
	s.store.LimitInvitations(s.engine, c.keys.Private)
	quotas := quotaNotices{store: s.store, policies: c.policies, checker: c.checker, platform: c.from.Platform, post: post, log: s.log}
	s.background.Go(func() { quotas.run(working) })
	sender := notify.New(notify.Options{Store: s.store, Networks: s.cfg.notificationNetworks(), Logger: s.log, Registerer: s.registry})
	s.background.Go(func() { sender.Run(working) })
	biller := billing.New(billing.Options{
		Store: s.store, StripeURL: s.cfg.StripeURL, Logger: s.log, Registerer: s.registry, Noticed: quotas.billing,
	})
	s.background.Go(func() { biller.Run(working) })
	httpMetrics := api.NewMetrics(s.registry)
	bound := overload.New(int64(s.cfg.MaxInFlight), runtime.GOMAXPROCS(0), s.cfg.RedisTimeout)
	waits := watchOverload(s.registry, bound, s.log)
	s.background.Go(func() {
		bound.Run(working, overload.Sources{
			Queued: c.counters.Waited, Trip: c.counters.Trip, Waiting: c.counters.Waiting, InFlight: httpMetrics.InFlight, Told: waits,
		})
	})
	s.late = api.NewLateReturns(httpMetrics, s.log)
	secrets := c.from.Secrets
	turns, processors := records.NewTurns(), places.NewProcessors(runtime.GOMAXPROCS(0))
	s.store.TakeTurns(processors)
	public := api.New(api.Config{Headers: s.style, Bound: bound, Lane: s.front.lane, GRPC: s.front.grpc(), Proxies: s.front.proxies}, api.Deps{
		Store: s.store, Authenticator: c.authenticator, Policies: c.policies, Checker: c.checker, Instances: c.instances.Count,
		Quota:  check.NewQuota(c.checker, c.policies, c.from.Platform),
		Budget: c.records, Processors: processors,
		Once: once.New(once.Options{
			Client: s.records, Secret: secrets.CounterKey, Timeout: s.cfg.RedisTimeout, Away: s.engine.Away, Turns: turns, Budget: c.records,
			Packing: processors.Short,
		}),
		Leases: leases.New(leases.Options{
			Client: s.records, Secret: secrets.CounterKey, Timeout: s.cfg.RedisTimeout, Away: s.engine.Away, Turns: turns,
		}),
		Late:   s.late,
		Logger: s.log, Metrics: httpMetrics, Readiness: readiness(s.front, c.configAge, s.cfg.MaxConfigAge, c.redisState),
		Follow:         c.following.now,
		Counters:       c.census.Alive,
		Invited:        func(i tenants.Invitation) { dashboard.SendInvitation(s.store, post, s.log, i) },
		InvitationLink: func(i tenants.Invitation) string { return dashboard.UnsentLink(post, i) },
		Billing:        biller,
		PublicURL:      s.cfg.PublicURL,
		CursorKey:      secrets.CursorKey[:],
		Recent:         c.decisions,
		Stopping:       ctx.Done(),
	})
	pages := dashboard.New(dashboard.Deps{
		Store: s.store, Policies: c.policies, Checker: c.checker, Recent: c.decisions, Instances: c.instances.Count,
		DegradedSince: s.engine.DegradedSince, Logger: s.log, Follow: c.following.now, Observe: httpMetrics.Route,
		Billing: biller, PublicURL: s.cfg.PublicURL, Mail: post, Platform: c.from.Platform, Signup: dashboard.Signup(s.cfg.Signup),
		Stopping: ctx.Done(), Counters: s.engine, Alive: c.census.Alive, Keys: c.keys,
		Processors: processors, Fail: bound.Fail,
	})
	s.front.handle(securityText(s.cfg.SecurityContact, s.cfg.PublicURL, beside(public, pages)))
	return nil
}

// commandWait is how long a command waits for a connection to Postgres. A person waits for the
// result, so it is longer than that of a request.
const commandWait = 5 * time.Second

// openForCommand opens the configuration for a command, which ends soon. The error names the
// setting if the database is not configured.
func openForCommand(ctx context.Context, cfg *Config, log *slog.Logger) (*tenants.Store, error) {
	if err := cfg.requireDatabase(); err != nil {
		return nil, err
	}
	return openStore(ctx, cfg, log, commandWait)
}

// openStore opens the configuration in Postgres. wait is how long an operation waits for a
// connection; 0 is the default.
func openStore(ctx context.Context, cfg *Config, log *slog.Logger, wait time.Duration) (*tenants.Store, error) {
	ring, err := cfg.ring()
	if err != nil {
		return nil, err
	}
	var credentials func() (user, password string)
	if cfg.databaseFile != nil {
		cfg.databaseFile.logTo(log)
		credentials = cfg.databaseFile.credentials
	}
	store, err := tenants.Open(context.WithoutCancel(ctx), tenants.Config{
		DatabaseURL: string(cfg.DatabaseURL), ListenURL: string(cfg.DatabaseListenURL), Logger: log, Seal: ring, Credentials: credentials, Acquire: wait,
		SignupTier: cfg.SignupTier,
		WriteRates: tenants.WriteRates{Writes: cfg.WriteRate, Resets: cfg.ResetRate},
		Volume:     tenants.BillingVolume{Events: cfg.BillingDayEvents, Bytes: int64(cfg.BillingDaySize)}, AuditDay: int64(cfg.AuditDaySize),
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
