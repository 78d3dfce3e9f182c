-- name: DocumentRules :many
SELECT * FROM rules WHERE tenant_id = @tenant_id;

-- name: DocumentPlans :many
SELECT * FROM plans WHERE tenant_id = @tenant_id;

-- name: DocumentSubjects :many
SELECT s.*, p.slug AS plan_slug, next.slug AS next_plan_slug
FROM subjects s LEFT JOIN plans p ON p.tenant_id = s.tenant_id AND p.id = s.plan_id
LEFT JOIN plans next ON next.tenant_id = s.tenant_id AND next.id = s.next_plan_id
WHERE s.tenant_id = @tenant_id
ORDER BY s.subject LIMIT @most;

-- name: DocumentPlansInUse :many
-- The plans in @plan_ids that have subjects other than those in @but.
SELECT p.slug FROM plans p
WHERE p.tenant_id = @tenant_id AND p.id = ANY(@plan_ids::uuid[]) AND EXISTS (
    SELECT FROM subjects s WHERE s.tenant_id = p.tenant_id AND s.plan_id = p.id AND s.subject <> ALL(@but::text[]));

-- name: DocumentRulesOverridden :one
SELECT EXISTS (SELECT FROM overrides WHERE tenant_id = @tenant_id AND rule_id = ANY(@rule_ids::uuid[]));

-- name: InsertSubjects :exec
-- Like InsertSubject, for many subjects. The nil UUID stands for no plan.
INSERT INTO subjects (tenant_id, subject, id, plan_id, plan_version, state, labels, billing_ref, cycle_anchor, multiplier, version)
SELECT @tenant_id, unnest(@subjects::text[]), unnest(@ids::uuid[]),
    nullif(unnest(@plan_ids::uuid[]), '00000000-0000-0000-0000-000000000000'), unnest(@plan_versions::int[]), unnest(@states::text[]),
    unnest(@labels::text[])::jsonb, unnest(@billing_refs::text[]),
    nullif(unnest(@cycle_anchors::text[]), '')::timestamptz, unnest(@multipliers::int[]), @version;

-- name: DeleteTombstones :exec
DELETE FROM subject_tombstones WHERE tenant_id = @tenant_id AND subject = ANY(@subjects::text[]);

-- name: InsertOverrides :exec
-- Like UpsertOverride, for many new overrides. 0 and '' stand for null.
INSERT INTO overrides (tenant_id, subject, rule_id, limit_units, burst_units, unlimited, reason, created_by,
    starts_at, expires_at, version)
SELECT @tenant_id, unnest(@subjects::text[]), unnest(@rule_ids::uuid[]), nullif(unnest(@limits::bigint[]), 0),
    nullif(unnest(@bursts::bigint[]), 0), unnest(@unlimited::boolean[]), unnest(@reasons::text[]), @created_by,
    nullif(unnest(@starts_at::text[]), '')::timestamptz, nullif(unnest(@expires_at::text[]), '')::timestamptz, @version;
