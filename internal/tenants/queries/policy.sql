-- name: PolicyVersion :one
SELECT slug, state, policy_version, subjects_version, subjects_history_from, partitions, partitions_before, partitions_changed_at
FROM tenants WHERE id = @id;

-- name: PolicyRules :many
SELECT * FROM rules WHERE tenant_id = @tenant_id ORDER BY slug;

-- name: PolicyPlans :many
SELECT id, slug, is_default, newest_version, fail, bounds FROM plans WHERE tenant_id = @tenant_id ORDER BY slug;

-- name: PolicyPlanLimits :many
SELECT l.plan_id, r.slug, l.limit_units, l.burst_units, l.unlimited, l.warn_at, l.overage, l.metering
FROM plan_limits l JOIN rules r ON r.tenant_id = l.tenant_id AND r.id = l.rule_id
WHERE l.tenant_id = @tenant_id;

-- name: PolicyPlanVersions :many
SELECT plan_id, number FROM plan_versions WHERE tenant_id = @tenant_id ORDER BY plan_id, number;

-- name: PolicyPlanVersionLimits :many
SELECT l.plan_id, l.number, r.slug, l.limit_units, l.burst_units, l.unlimited, l.warn_at, l.overage, l.metering
FROM plan_version_limits l JOIN rules r ON r.tenant_id = l.tenant_id AND r.id = l.rule_id
WHERE l.tenant_id = @tenant_id;
