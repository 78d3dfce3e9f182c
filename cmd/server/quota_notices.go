package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/mail"
	"weir/internal/tenants"
)

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
}

// run records notices until ctx ends.
func (n *quotaNotices) run(ctx context.Context) {
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
	const page = 1000
	for after := ""; ; {
		list, err := n.store.TenantsInTiers(ctx, n.platform, after, page)
		if err != nil {
			return err
		}
		for _, t := range list {
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
			after = t.Slug
		}
		if len(list) < page {
			return nil
		}
	}
}

// send mails a notice. The dashboard shows it in any case, so a mail that fails is only logged.
func (n *quotaNotices) send(ctx context.Context, t tenants.TenantInTier, quota string, notice tenants.QuotaNotice) {
	if !n.post.On() {
		return
	}
	to, err := n.store.Managers(ctx, t.ID)
	if err != nil {
		n.log.Warn("a notice about a quota was not mailed", "tenant_id", t.ID, "error", err)
		return
	}
	if quota == "" {
		quota = notice.Rule
	}
	for _, address := range to {
		n.post.Send(mail.QuotaNotice(address, t.Slug, quota, notice.Percent, notice.Used, notice.Quota, notice.WindowEnd, n.post.Link("/usage")), func(error) {})
	}
}
