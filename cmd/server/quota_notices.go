package main

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/mail"
	"weir/internal/tenants"
)

// compareTiersEvery is the maximum delay of a notice about a tier. It is rare, and takes queries
// for each tenant.
const compareTiersEvery = 10 * time.Minute

// recordQuotasEvery is the maximum delay of a notice about a quota.
const recordQuotasEvery = 30 * time.Second

// quotaNotices records which tenants have used 80, 95 and 100 % of a quota, and mails each notice
// to the owners and admins of the tenant. Every instance does this. The database keeps one notice
// for each share and window, so only one instance sends the mail.
type quotaNotices struct {
	store    *tenants.Store
	policies *check.Policies
	checker  *check.Checker
	platform uuid.UUID
	post     *mail.Post
	log      *slog.Logger
	// quotas and tiers are the slugs behind which the next round begins; "": with the first.
	quotas, tiers string
}

// run records notices until ctx ends.
func (n *quotaNotices) run(ctx context.Context) {
	var tiers sync.WaitGroup
	defer tiers.Wait()
	tiers.Go(func() {
		repeat(ctx, compareTiersEvery, func() (more bool) {
			if err := n.compareTiers(ctx); err != nil && ctx.Err() == nil {
				n.log.Warn("tenants were not all compared with their tiers; retrying", "error", err)
			}
			return false
		})
	})
	repeat(ctx, recordQuotasEvery, func() (more bool) {
		if err := n.once(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("quotas were not all read; retrying", "error", err)
		}
		return false
	})
}

func (n *quotaNotices) once(ctx context.Context) error {
	policy, err := n.policies.Get(ctx, n.platform)
	if err != nil {
		return err
	}
	return n.each(ctx, &n.quotas, func(t tenants.TenantInTier) error {
		for _, q := range n.checker.Quotas(ctx, policy, t.Slug) {
			fresh, err := n.store.RecordQuota(ctx, t.ID, q.Rule.Slug, q.WindowEnd, q.Used, q.Limit)
			if err != nil {
				return err
			}
			for _, notice := range fresh {
				n.log.Warn("a tenant has used a share of its quota", "tenant_id", t.ID, "rule", notice.Rule, "percent", notice.Percent)
			}
			if len(fresh) > 0 { // of several new shares, the largest says it all
				n.send(ctx, t, q.Rule.Name, fresh[len(fresh)-1])
			}
		}
		return nil
	})
}

// mostNoticeErrors is how many tenants may fail one after the other, until it is hardly their
// fault.
const mostNoticeErrors = 10

// each calls do for each tenant with a tier or its own quota. A tenant that fails, for example
// because it is locked, does not keep the others. A round that ends because many fail in a row is
// continued behind them by the next one. The error is the first one.
func (n *quotaNotices) each(ctx context.Context, after *string, do func(tenants.TenantInTier) error) error {
	const page = 1000
	var first error
	failed := 0
	for {
		list, err := n.store.TenantsInTiers(ctx, n.platform, *after, page)
		if err != nil {
			return err
		}
		for _, t := range list {
			*after = t.Slug
			if err := do(t); err == nil {
				failed = 0
			} else {
				first = cmp.Or(first, err)
				if failed++; failed == mostNoticeErrors || ctx.Err() != nil {
					return first
				}
			}
		}
		if len(list) < page {
			*after = ""
			return first
		}
	}
}

// compareTiers mails a notice to each tenant that has more than its tier includes, once.
func (n *quotaNotices) compareTiers(ctx context.Context) error {
	return n.each(ctx, &n.tiers, func(t tenants.TenantInTier) error {
		tier, over, err := n.store.RecordOverTier(ctx, t.ID)
		if err != nil || len(over) == 0 {
			return err
		}
		n.log.Warn("a tenant has more than its tier includes", "tenant_id", t.ID, "tier", tier, "over", over)
		n.mail(ctx, t.ID, func(address string) mail.Letter {
			return mail.TierNotice(address, t.Slug, tier, over, n.post.Link("/usage"))
		})
		return nil
	})
}

func (n *quotaNotices) send(ctx context.Context, t tenants.TenantInTier, quota string, notice tenants.QuotaNotice) {
	if quota == "" {
		quota = notice.Rule
	}
	n.mail(ctx, t.ID, func(address string) mail.Letter {
		return mail.QuotaNotice(address, t.Slug, quota, notice.Percent, notice.Used, notice.Quota, notice.WindowEnd, n.post.Link("/usage"))
	})
}

// billing mails that billing events of a tenant were not applied.
func (n *quotaNotices) billing(ctx context.Context, notice tenants.BillingNotice) {
	if notice.Settled() || !n.post.On() {
		return
	}
	t, err := n.store.Tenant(ctx, tenants.AsSystem(notice.Tenant, "billing"))
	if err != nil {
		n.log.Warn("a notice was not mailed", "tenant_id", notice.Tenant, "error", err)
		return
	}
	n.mail(ctx, notice.Tenant, func(address string) mail.Letter {
		return mail.BillingNotice(address, t.Slug, cmp.Or(notice.Name, notice.Provider), notice.Parked, notice.Failed, n.post.Link("/billing/events"))
	})
}

// mail mails a notice to the owners and admins of a tenant. The dashboard shows it in any case, so
// a mail that fails is only logged.
func (n *quotaNotices) mail(ctx context.Context, tenant uuid.UUID, letter func(address string) mail.Letter) {
	if !n.post.On() {
		return
	}
	to, err := n.store.Managers(ctx, tenant)
	if err != nil {
		n.log.Warn("a notice was not mailed", "tenant_id", tenant, "error", err)
		return
	}
	for _, address := range to {
		n.post.Send(mail.ByTenant(tenant.String()), letter(address), func(error) {})
	}
}
