-- name: InsertPlan :one
INSERT INTO plans (tenant_id, id, slug, name, description, is_default, on_change, fail, bounds, newest_version, version)
VALUES (@tenant_id, @id, @slug, @name, @description, @is_default, @on_change, @fail, @bounds, greatest(@newest_version::int, 1), @version)
RETURNING *;

-- name: UpdatePlan :one
UPDATE plans SET name = @name, description = @description, is_default = @is_default, on_change = @on_change, fail = @fail, bounds = @bounds,
    version = @version, updated_at = now()
WHERE tenant_id = @tenant_id AND id = @id
RETURNING *;

-- name: ClearDefaultPlan :exec
UPDATE plans SET is_default = false, version = @version, updated_at = now() WHERE tenant_id = @tenant_id AND is_default;

-- name: PlanBySlug :one
SELECT * FROM plans WHERE tenant_id = @tenant_id AND slug = @slug;

-- name: Plans :many
SELECT * FROM plans
WHERE tenant_id = @tenant_id AND (sqlc.narg(after)::uuid IS NULL OR id < sqlc.narg(after))
ORDER BY id DESC LIMIT @most;

-- name: PlanHeads :many
-- What is needed to list plans, without their limits.
SELECT id, slug, name, is_default FROM plans
WHERE tenant_id = @tenant_id AND (sqlc.narg(after)::uuid IS NULL OR id < sqlc.narg(after))
ORDER BY id DESC LIMIT @most;

-- name: CountPlans :one
SELECT count(*) FROM plans WHERE tenant_id = @tenant_id;

-- name: CountPlanLimits :one
-- The limits of all versions of all plans.
SELECT ((SELECT count(*) FROM plan_limits l WHERE l.tenant_id = @tenant_id)
    + (SELECT count(*) FROM plan_version_limits v WHERE v.tenant_id = @tenant_id))::bigint;

-- name: PlanHasSubjects :one
SELECT EXISTS (SELECT FROM subjects WHERE tenant_id = @tenant_id AND (plan_id = @plan_id OR next_plan_id = @plan_id));

-- name: DeletePlan :exec
DELETE FROM plans WHERE tenant_id = @tenant_id AND id = @id;

-- name: PlanLimits :many
SELECT l.plan_id, r.slug, l.limit_units, l.burst_units, l.unlimited, l.warn_at, l.overage, l.metering, l.version
FROM plan_limits l JOIN rules r ON r.tenant_id = l.tenant_id AND r.id = l.rule_id
WHERE l.tenant_id = @tenant_id AND l.plan_id = ANY(@plan_ids::uuid[])
    AND (sqlc.narg(rules)::text[] IS NULL OR r.slug = ANY(sqlc.narg(rules)::text[]));

-- name: UpsertPlanLimits :exec
-- Sets limits of a plan, as arrays of equal length. 0, an empty text and a share of -1 stand for
-- null.
INSERT INTO plan_limits (tenant_id, plan_id, rule_id, limit_units, burst_units, unlimited, warn_at, overage, metering, version)
SELECT @tenant_id, @plan_id, n.rule_id, nullif(n.limit_units, 0), nullif(n.burst_units, 0), n.unlimited, nullif(n.warn_at, -1),
    nullif(n.overage, ''), nullif(n.metering, ''), @version
FROM (SELECT unnest(@rule_ids::uuid[]) AS rule_id, unnest(@limits::bigint[]) AS limit_units,
    unnest(@bursts::bigint[]) AS burst_units, unnest(@unlimiteds::boolean[]) AS unlimited,
    unnest(@warn_ats::double precision[]) AS warn_at, unnest(@overages::text[]) AS overage,
    unnest(@meterings::text[]) AS metering) AS n
ON CONFLICT (tenant_id, plan_id, rule_id) DO UPDATE SET limit_units = excluded.limit_units,
    burst_units = excluded.burst_units, unlimited = excluded.unlimited, warn_at = excluded.warn_at, overage = excluded.overage,
    metering = excluded.metering, version = excluded.version;

-- name: DeletePlanLimits :exec
DELETE FROM plan_limits WHERE tenant_id = @tenant_id AND plan_id = @plan_id AND rule_id = ANY(@rule_ids::uuid[]);

-- name: KeepPlanVersion :exec
-- Stores the newest version of a plan as an older version.
INSERT INTO plan_versions (tenant_id, plan_id, number, published_at)
SELECT p.tenant_id, p.id, p.newest_version, coalesce(p.published_at, p.created_at) FROM plans p
WHERE p.tenant_id = @tenant_id AND p.id = @plan_id AND p.newest_version = @number;

-- name: KeepPlanLimits :exec
-- Stores the limits of the newest version, like KeepPlanVersion.
INSERT INTO plan_version_limits (tenant_id, plan_id, number, rule_id, limit_units, burst_units, unlimited, warn_at, overage, metering)
SELECT l.tenant_id, l.plan_id, p.newest_version, l.rule_id, l.limit_units, l.burst_units, l.unlimited, l.warn_at, l.overage, l.metering
FROM plan_limits l JOIN plans p ON p.tenant_id = l.tenant_id AND p.id = l.plan_id
WHERE l.tenant_id = @tenant_id AND l.plan_id = @plan_id;

-- name: PublishPlan :exec
UPDATE plans SET newest_version = @newest_version, published_at = @published_at, version = @version, updated_at = now()
WHERE tenant_id = @tenant_id AND id = @id;

-- name: PlanVersions :many
-- The older versions of some plans, newest first.
SELECT * FROM plan_versions WHERE tenant_id = @tenant_id AND plan_id = ANY(@plan_ids::uuid[]) ORDER BY number DESC;

-- name: PlanVersionLimits :many
SELECT l.plan_id, l.number, r.slug, l.limit_units, l.burst_units, l.unlimited, l.warn_at, l.overage, l.metering
FROM plan_version_limits l JOIN rules r ON r.tenant_id = l.tenant_id AND r.id = l.rule_id
WHERE l.tenant_id = @tenant_id AND l.plan_id = ANY(@plan_ids::uuid[]);

-- name: LimitsOfPlanVersions :many
-- The limits of some older versions of a plan.
SELECT l.number, r.slug, l.limit_units, l.burst_units, l.unlimited, l.warn_at, l.overage, l.metering
FROM plan_version_limits l JOIN rules r ON r.tenant_id = l.tenant_id AND r.id = l.rule_id
WHERE l.tenant_id = @tenant_id AND l.plan_id = @plan_id AND l.number = ANY(@numbers::int[]);

-- name: PutPlanVersion :exec
INSERT INTO plan_versions (tenant_id, plan_id, number, published_at) VALUES (@tenant_id, @plan_id, @number, now())
ON CONFLICT DO NOTHING;

-- name: PutPlanVersionLimits :exec
-- Sets limits of an older version, like UpsertPlanLimits.
INSERT INTO plan_version_limits (tenant_id, plan_id, number, rule_id, limit_units, burst_units, unlimited, warn_at, overage, metering)
SELECT @tenant_id, @plan_id, @number, n.rule_id, nullif(n.limit_units, 0), nullif(n.burst_units, 0), n.unlimited, nullif(n.warn_at, -1),
    nullif(n.overage, ''), nullif(n.metering, '')
FROM (SELECT unnest(@rule_ids::uuid[]) AS rule_id, unnest(@limits::bigint[]) AS limit_units,
    unnest(@bursts::bigint[]) AS burst_units, unnest(@unlimiteds::boolean[]) AS unlimited,
    unnest(@warn_ats::double precision[]) AS warn_at, unnest(@overages::text[]) AS overage,
    unnest(@meterings::text[]) AS metering) AS n;

-- name: ClearPlanVersionLimits :exec
DELETE FROM plan_version_limits WHERE tenant_id = @tenant_id AND plan_id = @plan_id AND number = @number;

-- name: DeletePlanVersion :exec
DELETE FROM plan_versions WHERE tenant_id = @tenant_id AND plan_id = @plan_id AND number = @number;

-- name: PlanVersionHasSubjects :one
SELECT EXISTS (SELECT FROM subjects WHERE tenant_id = @tenant_id AND plan_id = @plan_id AND plan_version = @number);

-- name: CountPlanVersion :one
-- The number of subjects with a version, counted up to @most.
SELECT count(*) FROM (
    SELECT FROM subjects WHERE tenant_id = @tenant_id AND plan_id = @plan_id AND plan_version = @number LIMIT @most
) AS s;

-- name: PlanSubjects :many
-- The subjects that CountPlanSubjects counts, up to @most.
SELECT s.subject FROM subjects s
WHERE s.tenant_id = @tenant_id AND (s.plan_id = @plan_id AND s.plan_version >= @newest_version OR @is_default::boolean AND s.plan_id IS NULL)
LIMIT @most;
