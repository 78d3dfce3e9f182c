package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/puzpuzpuz/xsync/v4"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// settleCreditsEvery is how often spent credits are stored in Postgres. What a check spends is
// there within a second.
const settleCreditsEvery = 400 * time.Millisecond

// settleTimeout is how long a round may take.
const settleTimeout = 10 * time.Second

// creditKeeper tells the counters of new credits, and Postgres of those that were spent. It notes
// which tenants' checks spend credits: each instance stores what those have spent. What an instance
// spent last before it was killed is found by a sweep over all tenants with credits, in which one
// instance at a time looks at 500 of them in each round.
type creditKeeper struct {
	store    *tenants.Store
	keys     check.Keys
	counters engine.CreditStore
	log      *slog.Logger
	unopened chan creditsOf
	lost     prometheus.Counter
	swept    tenants.CreditsSweep // so far
	spenders *xsync.Map[limit.TenantID, struct{}]
}

// creditsOf names the credits of a subject for a rule.
type creditsOf struct {
	tenant        limit.TenantID
	subject, rule string
}

func newCreditKeeper(store *tenants.Store, keys check.Keys, counters engine.CreditStore, r prometheus.Registerer, log *slog.Logger) *creditKeeper {
	k := &creditKeeper{store: store, keys: keys, counters: counters, log: log, unopened: make(chan creditsOf, 256), spenders: xsync.NewMap[limit.TenantID, struct{}]()}
	k.lost = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "weir_credits_reopened_total", Help: "Grants of credits whose spent units were read from Postgres, because Redis did not know them or knew less.",
	})
	r.MustRegister(k.lost)
	return k
}

// decided is called for each decision by a rule for which the subject has credits. It never waits:
// if the channel is full, the grants stay closed, and another check reports them again.
func (k *creditKeeper) decided(tenant limit.TenantID, subject string, r *check.RuleDecision) {
	if r.CreditsSpent > 0 {
		if _, noted := k.spenders.Load(tenant); !noted {
			k.spenders.Store(tenant, struct{}{})
		}
	}
	if r.Unopened {
		select {
		case k.unopened <- creditsOf{tenant, strings.Clone(subject), r.Rule.Slug}: // the request's memory is used again
		default:
		}
	}
}

// run settles credits until ctx ends.
func (k *creditKeeper) run(ctx context.Context) {
	repeat(ctx, settleCreditsEvery, func() (more bool) {
		round, cancel := context.WithTimeout(ctx, settleTimeout)
		defer cancel()
		settled, err := k.settle(round)
		swept, next, unswept := k.store.SweepCredits(round, k.keys, k.counters, k.swept)
		k.swept = next
		k.lost.Add(float64(settled.Reopened + swept.Reopened))
		err = errors.Join(err, unswept)
		if err != nil && ctx.Err() == nil {
			k.log.Warn("spent credits are not stored in Postgres yet; retrying", "error", err)
		}
		return err == nil && (settled.More || swept.More)
	})
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
	if err != nil || done.More {
		for _, tenant := range spenders {
			k.spenders.Store(tenant, struct{}{})
		}
	}
	return done, err
}

// open opens the credits that checks have missed, until ctx ends.
func (k *creditKeeper) open(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case of := <-k.unopened:
			missed := map[creditsOf]bool{of: true} // many checks miss the same credits
			for len(k.unopened) > 0 {
				missed[<-k.unopened] = true
			}
			for of := range missed {
				k.openOne(ctx, of)
			}
		}
	}
}

func (k *creditKeeper) openOne(ctx context.Context, of creditsOf) {
	round, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	opened, err := k.store.OpenCredits(round, k.keys, k.counters, of.tenant, of.subject, of.rule)
	k.lost.Add(float64(opened))
	if err != nil && ctx.Err() == nil {
		k.log.Warn("credits cannot be spent until Redis knows what was spent of them; retrying", "error", err)
	}
}
