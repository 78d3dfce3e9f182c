-- name: InsertQuotaNotice :execrows
INSERT INTO quota_notices (tenant_id, rule, window_end, percent, used, quota)
VALUES (@tenant_id, @rule, @window_end, @percent, @used, @quota) ON CONFLICT DO NOTHING;

-- name: QuotaNotices :many
-- Notices of current windows, newest first.
SELECT * FROM quota_notices WHERE tenant_id = @tenant_id AND window_end > @now::timestamptz
ORDER BY created_at DESC, percent DESC LIMIT 20;

-- name: PurgeQuotaNotices :execrows
DELETE FROM quota_notices WHERE (tenant_id, rule, window_end, percent) IN (
    SELECT o.tenant_id, o.rule, o.window_end, o.percent FROM quota_notices o WHERE o.window_end < @before::timestamptz LIMIT @most);

-- name: TenantsInTiers :many
-- Active tenants with a tier or their own quota: the registered subjects of the operator's tenant.
SELECT t.id, t.slug FROM subjects s JOIN tenants t ON t.slug = s.subject
WHERE s.tenant_id = @platform AND t.state = 'active' AND t.id <> @platform AND t.slug > @after::text
ORDER BY t.slug LIMIT @most;
