-- name: PolicyVersion :one
SELECT slug, state, policy_version, subjects_version, subjects_history_from, partitions, partitions_before, partitions_changed_at
FROM tenants WHERE id = @id;

-- name: PolicyRules :many
SELECT * FROM rules WHERE tenant_id = @tenant_id ORDER BY slug;

-- name: PolicyPlans :many
SELECT id, slug, is_default, newest_version, fail, bounds FROM plans WHERE tenant_id = @tenant_id ORDER BY slug;

-- name: PolicyPlanVersions :many
SELECT plan_id, number FROM plan_versions WHERE tenant_id = @tenant_id ORDER BY plan_id, number;
