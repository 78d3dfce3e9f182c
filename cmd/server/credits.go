package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/puzpuzpuz/xsync/v4"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/tenants"
)

// settleCreditsEvery is how often spent credits are stored in Postgres. What a check spends is
// there within a second.
const settleCreditsEvery = 400 * time.Millisecond

// settleTimeout is how long a round may take.
const settleTimeout = 10 * time.Second

// After a loss of data, each subject with credits that sends a check has grants to open.
const (
	openedAtOnce  = 50     // subjects of a tenant
	openedTenants = 3      // at once, each with a connection of the 8 for such tasks
	maxUnopened   = 16_384 // subjects of all tenants that wait: a tenant may have a quarter of what is left
	mostUnopened  = 1024   // of one tenant
	leastUnopened = 16     // that a tenant may have in any case
)

// creditKeeper tells the counters of new credits, and Postgres of those that were spent. It notes
// which tenants' checks spend credits: each instance stores what those have spent. What an instance
// spent last before it was killed is found by a sweep over all tenants with credits, in which one
// instance at a time looks at 500 of them in each round.
type creditKeeper struct {
	store    *tenants.Store
	keys     check.Keys
	counters engine.CreditStore
	log      *slog.Logger
	unopened *places.Queue[limit.TenantID, tenants.CreditsOf]
	lost     prometheus.Counter
	swept    tenants.CreditsSweep // so far
	spenders *xsync.Map[limit.TenantID, struct{}]
	opens    func(ctx context.Context, tenant limit.TenantID, of []tenants.CreditsOf) (opened int, err error)
}

func newCreditKeeper(store *tenants.Store, keys check.Keys, counters engine.CreditStore, r prometheus.Registerer, log *slog.Logger) *creditKeeper {
	k := &creditKeeper{
		store: store, keys: keys, counters: counters, log: log, spenders: xsync.NewMap[limit.TenantID, struct{}](),
		unopened: places.NewQueue[limit.TenantID, tenants.CreditsOf](maxUnopened, mostUnopened, leastUnopened),
		opens: func(ctx context.Context, tenant limit.TenantID, of []tenants.CreditsOf) (int, error) {
			return store.OpenCredits(ctx, keys, counters, tenant, of...)
		},
	}
	k.lost = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "weir_credits_reopened_total", Help: "Grants of credits whose spent units were read from Postgres, because Redis did not know them or knew less.",
	})
	r.MustRegister(k.lost)
	return k
}

// decided is called for each decision by a rule for which the subject has credits. It never waits:
// if the tenant has too many in the queue, the grants stay closed, and another check reports them
// again.
func (k *creditKeeper) decided(tenant limit.TenantID, subject string, r *check.RuleDecision) {
	if r.CreditsSpent > 0 {
		if _, noted := k.spenders.Load(tenant); !noted {
			k.spenders.Store(tenant, struct{}{})
		}
	}
	if r.Unopened {
		k.unopened.Add(tenant, tenants.CreditsOf{Subject: strings.Clone(subject), Rule: r.Rule.Slug}) // the request's memory is used again
	}
}

// run settles credits until ctx ends.
func (k *creditKeeper) run(ctx context.Context) {
	repeat(ctx, settleCreditsEvery, func() (more bool) { return k.round(ctx) })
}

// round stores what was spent and opens new credits, of some tenants. The error that it logs says
// whether Postgres or Redis is unavailable.
func (k *creditKeeper) round(ctx context.Context) (more bool) {
	round, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	settled, err := k.settle(round)
	swept, next, unswept := k.store.SweepCredits(round, k.keys, k.counters, k.swept)
	k.swept = next
	k.lost.Add(float64(settled.Reopened + swept.Reopened))
	err = errors.Join(err, unswept)
	if err != nil && ctx.Err() == nil {
		k.log.Warn("credits are not settled, or new ones cannot be spent yet; retrying", "error", err)
	}
	return err == nil && (settled.More || swept.More)
}

// settle stores the spent credits of the tenants whose checks this instance decided. A tenant is
// removed from spenders before its counters are read. A check that spends later adds it again. A
// check that still found it there had spent before, so its units are included.
func (k *creditKeeper) settle(ctx context.Context) (done tenants.CreditsSettled, err error) {
	var spenders []limit.TenantID
	k.spenders.Range(func(tenant limit.TenantID, _ struct{}) bool {
		k.spenders.Delete(tenant)
		spenders = append(spenders, tenant)
		return true
	})
	if len(spenders) == 0 {
		return done, nil
	}
	done, err = k.store.SettleCredits(ctx, k.keys, k.counters, spenders)
	if some := (*tenants.UnsettledError)(nil); !done.More && errors.As(err, &some) {
		spenders = some.Tenants // the others are settled
	}
	if err != nil || done.More {
		for _, tenant := range spenders {
			k.spenders.Store(tenant, struct{}{})
		}
	}
	return done, err
}

// open opens the credits that checks have missed, until ctx ends. Tenants take turns.
func (k *creditKeeper) open(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	for range openedTenants {
		work.Go(func() {
			for {
				tenant, of, done, err := k.unopened.Next(ctx, openedAtOnce)
				if err != nil {
					return
				}
				k.openOf(ctx, tenant, of)
				done()
			}
		})
	}
}

// openOf opens the credits of some subjects of a tenant.
func (k *creditKeeper) openOf(ctx context.Context, tenant limit.TenantID, of []tenants.CreditsOf) {
	round, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	opened, err := k.opens(round, tenant, of)
	k.lost.Add(float64(opened))
	if err != nil && ctx.Err() == nil {
		k.log.Warn("credits that Redis does not know cannot be spent yet; retrying", "error", err)
	}
}
