-- name: InsertPlan :one
INSERT INTO plans (tenant_id, id, slug, name, description, is_default, on_change, version)
VALUES (@tenant_id, @id, @slug, @name, @description, @is_default, @on_change, @version)
RETURNING *;

-- name: UpdatePlan :one
UPDATE plans SET name = @name, description = @description, is_default = @is_default, on_change = @on_change,
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

-- name: CountPlans :one
SELECT count(*) FROM plans WHERE tenant_id = @tenant_id;

-- name: PlanHasSubjects :one
SELECT EXISTS (SELECT FROM subjects WHERE tenant_id = @tenant_id AND (plan_id = @plan_id OR next_plan_id = @plan_id));

-- name: DeletePlan :exec
DELETE FROM plans WHERE tenant_id = @tenant_id AND id = @id;

-- name: PlanLimits :many
SELECT l.plan_id, r.slug, l.limit_units, l.burst_units, l.unlimited, l.version
FROM plan_limits l JOIN rules r ON r.tenant_id = l.tenant_id AND r.id = l.rule_id
WHERE l.tenant_id = @tenant_id AND l.plan_id = ANY(@plan_ids::uuid[]);

-- name: UpsertPlanLimit :exec
INSERT INTO plan_limits (tenant_id, plan_id, rule_id, limit_units, burst_units, unlimited, version)
VALUES (@tenant_id, @plan_id, @rule_id, @limit_units, @burst_units, @unlimited, @version)
ON CONFLICT (tenant_id, plan_id, rule_id) DO UPDATE SET limit_units = excluded.limit_units,
    burst_units = excluded.burst_units, unlimited = excluded.unlimited, version = excluded.version;

-- name: DeletePlanLimit :execrows
DELETE FROM plan_limits WHERE tenant_id = @tenant_id AND plan_id = @plan_id AND rule_id = @rule_id;
