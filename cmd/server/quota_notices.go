package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/tenants"
)

// recordQuotasEvery is the maximum delay of a notice about a quota.
const recordQuotasEvery = 30 * time.Second

// recordQuotas records which tenants have used 80, 95 and 100 % of a quota, until ctx ends. Every
// instance does this. The database keeps one notice for each share and window.
func recordQuotas(
	ctx context.Context, store *tenants.Store, policies *check.Policies, checker *check.Checker, platform uuid.UUID, log *slog.Logger,
) {
	repeat(ctx, recordQuotasEvery, func() (more bool) {
		if err := recordQuotasOnce(ctx, store, policies, checker, platform, log); err != nil && ctx.Err() == nil {
			log.Warn("quotas were not all read; retrying", "error", err)
		}
		return false
	})
}

func recordQuotasOnce(
	ctx context.Context, store *tenants.Store, policies *check.Policies, checker *check.Checker, platform uuid.UUID, log *slog.Logger,
) error {
	policy, err := policies.Get(ctx, platform)
	if err != nil {
		return err
	}
	const page = 1000
	for after := ""; ; {
		list, err := store.TenantsInTiers(ctx, platform, after, page)
		if err != nil {
			return err
		}
		for _, t := range list {
			for _, q := range checker.Quotas(ctx, policy, t.Slug) {
				fresh, err := store.RecordQuota(ctx, t.ID, q.Rule.Slug, q.WindowEnd, q.Used, q.Limit)
				if err != nil {
					return err
				}
				for _, n := range fresh {
					log.Warn("a tenant has used a share of its quota", "tenant_id", t.ID, "rule", n.Rule, "percent", n.Percent)
				}
			}
			after = t.Slug
		}
		if len(list) < page {
			return nil
		}
	}
}
