-- name: TierOf :one
-- The tier of a tenant: its plan as a subject of the operator's tenant, or else the default plan.
-- No row for the operator's own tenant.
SELECT coalesce(own.slug, standard.slug, '')::text AS slug, coalesce(own.bounds, standard.bounds, '{}')::jsonb AS bounds
FROM tenants t JOIN tenants o ON o.slug = @platform AND o.id <> t.id
LEFT JOIN subjects s ON s.tenant_id = o.id AND s.subject = t.slug
LEFT JOIN plans own ON own.tenant_id = o.id AND own.id = s.plan_id
LEFT JOIN plans standard ON standard.tenant_id = o.id AND standard.is_default
WHERE t.id = @tenant_id;

-- name: TierRules :many
SELECT resource, mode, window_text FROM rules WHERE tenant_id = @tenant_id;

-- name: TierRetentions :many
-- Tenants whose tier bounds the retention, in the order of their ids.
SELECT t.id, (coalesce(own.bounds, standard.bounds)->>'retention_days')::int AS days
FROM tenants t JOIN tenants o ON o.slug = @platform AND o.id <> t.id
LEFT JOIN subjects s ON s.tenant_id = o.id AND s.subject = t.slug
LEFT JOIN plans own ON own.tenant_id = o.id AND own.id = s.plan_id
LEFT JOIN plans standard ON standard.tenant_id = o.id AND standard.is_default
WHERE t.id > @after AND coalesce(own.bounds, standard.bounds) ? 'retention_days'
ORDER BY t.id LIMIT @most;

-- name: PurgeUsageHoursOf :execrows
DELETE FROM usage_hours WHERE (tenant_id, start, rule, plan, resource) IN (
    SELECT o.tenant_id, o.start, o.rule, o.plan, o.resource FROM usage_hours o
    WHERE o.tenant_id = @tenant_id AND o.start < @before::timestamptz LIMIT @most);

-- name: PurgeUsageDaysOf :execrows
DELETE FROM usage_days WHERE (tenant_id, start, rule, plan, resource) IN (
    SELECT o.tenant_id, o.start, o.rule, o.plan, o.resource FROM usage_days o
    WHERE o.tenant_id = @tenant_id AND o.start < @before::timestamptz LIMIT @most);

-- name: PurgeUsageSubjectsOf :execrows
DELETE FROM usage_subjects WHERE (tenant_id, grain, start) IN (
    SELECT o.tenant_id, o.grain, o.start FROM usage_subjects o
    WHERE o.tenant_id = @tenant_id AND o.start < @before::timestamptz LIMIT @most);

-- name: InsertTierNotice :execrows
-- Once for each tier, until the tenant fits.
INSERT INTO tier_notices (tenant_id, tier, created_at) VALUES (@tenant_id, @tier, @now)
ON CONFLICT (tenant_id) DO UPDATE SET tier = excluded.tier, created_at = excluded.created_at WHERE tier_notices.tier <> excluded.tier;

-- name: DeleteTierNotice :exec
DELETE FROM tier_notices WHERE tenant_id = @tenant_id;
