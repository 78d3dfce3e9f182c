-- name: SubjectsByName :many
-- Always uses the primary key, whatever the statistics are: there may be thousands of subjects.
SELECT s.*, p.slug AS plan_slug, next.slug AS next_plan_slug
FROM (SELECT unnest(@subjects::text[]) AS subject) AS n
CROSS JOIN LATERAL (SELECT * FROM subjects WHERE subjects.tenant_id = @tenant_id AND subjects.subject = n.subject OFFSET 0) AS s
LEFT JOIN plans p ON p.tenant_id = s.tenant_id AND p.id = s.plan_id
LEFT JOIN plans next ON next.tenant_id = s.tenant_id AND next.id = s.next_plan_id;

-- name: ImportNewSubjects :exec
-- The writes of an import. Each takes thousands of rows in one statement, as arrays of equal
-- length.
INSERT INTO subjects (tenant_id, subject, id, plan_id, plan_version, state, labels, billing_ref, cycle_anchor, multiplier, version)
SELECT @tenant_id, n.subject, n.id, nullif(n.plan_id, '00000000-0000-0000-0000-000000000000'), n.plan_version, n.state, n.labels::jsonb,
    n.billing_ref, nullif(n.cycle_anchor, '')::timestamptz, n.multiplier, @version
FROM (SELECT unnest(@subjects::text[]) AS subject, unnest(@ids::uuid[]) AS id, unnest(@plan_ids::uuid[]) AS plan_id,
    unnest(@plan_versions::int[]) AS plan_version,
    unnest(@states::text[]) AS state, unnest(@labels::text[]) AS labels, unnest(@billing_refs::text[]) AS billing_ref,
    unnest(@cycle_anchors::text[]) AS cycle_anchor, unnest(@multipliers::int[]) AS multiplier) AS n;

-- name: ImportChangedSubjects :exec
UPDATE subjects s SET plan_id = nullif(n.plan_id, '00000000-0000-0000-0000-000000000000'), plan_version = n.plan_version, state = n.state,
    labels = n.labels::jsonb, billing_ref = n.billing_ref, cycle_anchor = nullif(n.cycle_anchor, '')::timestamptz, multiplier = n.multiplier,
    version = @version, updated_at = now()
FROM (SELECT unnest(@subjects::text[]) AS subject, unnest(@plan_ids::uuid[]) AS plan_id,
    unnest(@plan_versions::int[]) AS plan_version,
    unnest(@states::text[]) AS state, unnest(@labels::text[]) AS labels, unnest(@billing_refs::text[]) AS billing_ref,
    unnest(@cycle_anchors::text[]) AS cycle_anchor, unnest(@multipliers::int[]) AS multiplier) AS n
WHERE s.tenant_id = @tenant_id AND s.subject = n.subject;

-- name: MoveNextPlans :exec
-- Moves scheduled plan changes of subjects whose cycle anchor an import changes.
UPDATE subjects s SET next_plan_at = n.at::timestamptz
FROM (SELECT unnest(@subjects::text[]) AS subject, unnest(@ats::text[]) AS at) AS n
WHERE s.tenant_id = @tenant_id AND s.subject = n.subject;

-- name: ImportOverrides :exec
INSERT INTO overrides (tenant_id, subject, rule_id, limit_units, burst_units, unlimited, reason, created_by,
    starts_at, expires_at, version)
SELECT @tenant_id, n.subject, n.rule_id, nullif(n.limit_units, 0), nullif(n.burst_units, 0), n.unlimited, n.reason, @created_by,
    nullif(n.starts_at, '')::timestamptz, nullif(n.expires_at, '')::timestamptz, @version
FROM (SELECT unnest(@subjects::text[]) AS subject, unnest(@rule_ids::uuid[]) AS rule_id,
    unnest(@limits::bigint[]) AS limit_units, unnest(@bursts::bigint[]) AS burst_units,
    unnest(@unlimiteds::boolean[]) AS unlimited, unnest(@reasons::text[]) AS reason,
    unnest(@starts::text[]) AS starts_at, unnest(@ends::text[]) AS expires_at) AS n
ON CONFLICT (tenant_id, subject, rule_id) DO UPDATE SET limit_units = excluded.limit_units,
    burst_units = excluded.burst_units, unlimited = excluded.unlimited, reason = excluded.reason,
    created_by = excluded.created_by, starts_at = excluded.starts_at, expires_at = excluded.expires_at,
    version = excluded.version, created_at = excluded.created_at;

-- name: ImportRemovedOverrides :exec
DELETE FROM overrides o
USING (SELECT unnest(@subjects::text[]) AS subject, unnest(@rule_ids::uuid[]) AS rule_id) AS n
WHERE o.tenant_id = @tenant_id AND o.subject = n.subject AND o.rule_id = n.rule_id;

-- name: ImportReturnedSubjects :exec
-- Subjects that are registered again are no longer reported as deleted.
DELETE FROM subject_tombstones WHERE tenant_id = @tenant_id AND subject = ANY(@subjects::text[]);
