// Command peers answers checks with rate limiters of other projects that are Go modules, behind the
// same minimal server as the bare one. A subject whose name begins with "tight" has a limit that is
// reached soon. Every other subject has one that is never reached. The command is a separate
// module, so that Weir's benchmark does not depend on the peers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/mennanov/limiters"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"weir/bench/minimal"
)

// The limits, per window. The generous one is far more than the driver can send.
const (
	window   = time.Hour
	generous = 1_000_000_000
	tight    = 100
)

type constructor func(client *redis.Client) (minimal.Decide, error)

var peers = map[string]constructor{"redis_rate": redisRate, "throttled": throttledGCRA, "ulule": ulule, "mennanov": mennanov}

func main() {
	var addresses minimal.Addresses
	addresses.Flags()
	name := flag.String("peer", "", "which `library`: redis_rate, throttled, ulule or mennanov")
	url := flag.String("redis", "", "`address` of Redis")
	flag.Parse()
	if err := run(&addresses, *name, *url); err != nil {
		log.Fatal(err)
	}
}

func run(addresses *minimal.Addresses, name, url string) error {
	construct, known := peers[name]
	if !known {
		return fmt.Errorf("no peer %q", name)
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	// Each call uses a connection. With the default of ten per core, 64 clients would queue.
	options.PoolSize = 128
	client := redis.NewClient(options)
	defer client.Close()
	decide, err := construct(client)
	if err != nil {
		return err
	}
	return addresses.Serve(decide)
}

func isTight(subject string) bool { return strings.HasPrefix(subject, "tight") }

func redisRate(client *redis.Client) (minimal.Decide, error) {
	limiter := redis_rate.NewLimiter(client)
	limits := []redis_rate.Limit{
		{Rate: generous, Burst: generous, Period: window},
		{Rate: tight, Burst: tight, Period: window},
	}
	return func(ctx context.Context, subject string) (minimal.Verdict, error) {
		limit := limits[0]
		if isTight(subject) {
			limit = limits[1]
		}
		r, err := limiter.Allow(ctx, subject, limit)
		if err != nil {
			return minimal.Verdict{}, err
		}
		return minimal.Verdict{
			Allowed: r.Allowed > 0, Limit: int64(r.Limit.Burst), Remaining: int64(r.Remaining),
			ResetAfter: r.ResetAfter, RetryAfter: r.RetryAfter,
		}, nil
	}, nil
}

func throttledGCRA(client *redis.Client) (minimal.Decide, error) {
	store, err := goredisstore.NewCtx(client, "")
	if err != nil {
		return nil, err
	}
	var limiters []*throttled.GCRARateLimiterCtx
	for _, limit := range []int{generous, tight} {
		l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerDuration(limit, window), MaxBurst: limit - 1})
		if err != nil {
			return nil, err
		}
		limiters = append(limiters, l)
	}
	return func(ctx context.Context, subject string) (minimal.Verdict, error) {
		limiter := limiters[0]
		if isTight(subject) {
			limiter = limiters[1]
		}
		limited, r, err := limiter.RateLimitCtx(ctx, subject, 1)
		if err != nil {
			return minimal.Verdict{}, err
		}
		return minimal.Verdict{
			Allowed: !limited, Limit: int64(r.Limit), Remaining: int64(r.Remaining),
			ResetAfter: r.ResetAfter, RetryAfter: r.RetryAfter,
		}, nil
	}, nil
}

func ulule(client *redis.Client) (minimal.Decide, error) {
	store, err := ululeredis.NewStore(client)
	if err != nil {
		return nil, err
	}
	limiters := []*limiter.Limiter{
		limiter.New(store, limiter.Rate{Period: window, Limit: generous}),
		limiter.New(store, limiter.Rate{Period: window, Limit: tight}),
	}
	return func(ctx context.Context, subject string) (minimal.Verdict, error) {
		l := limiters[0]
		if isTight(subject) {
			l = limiters[1]
		}
		r, err := l.Get(ctx, subject)
		if err != nil {
			return minimal.Verdict{}, err
		}
		reset := time.Until(time.Unix(r.Reset, 0))
		return minimal.Verdict{
			Allowed: !r.Reached, Limit: r.Limit, Remaining: r.Remaining, ResetAfter: reset, RetryAfter: reset,
		}, nil
	}, nil
}

// mennanov is a sliding window of two counters, like Weir's default. The library needs an object
// for each subject. As in its examples, it is created at the first check, and kept.
func mennanov(client *redis.Client) (minimal.Decide, error) {
	var bySubject sync.Map // to *limiters.SlidingWindow
	clock := limiters.NewSystemClock()
	return func(ctx context.Context, subject string) (minimal.Verdict, error) {
		limit := int64(generous)
		if isTight(subject) {
			limit = tight
		}
		known, found := bySubject.Load(subject)
		if !found {
			made := limiters.NewSlidingWindow(limit, window, limiters.NewSlidingWindowRedis(client, subject), clock, 0)
			known, _ = bySubject.LoadOrStore(subject, made)
		}
		wait, err := known.(*limiters.SlidingWindow).Limit(ctx)
		exhausted := errors.Is(err, limiters.ErrLimitExhausted)
		if err != nil && !exhausted {
			return minimal.Verdict{}, err
		}
		return minimal.Verdict{Allowed: !exhausted, Limit: limit, ResetAfter: window, RetryAfter: wait}, nil
	}, nil
}
