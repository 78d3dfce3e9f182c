-- name: SubjectByName :one
SELECT s.*, p.slug AS plan_slug, next.slug AS next_plan_slug
FROM subjects s LEFT JOIN plans p ON p.tenant_id = s.tenant_id AND p.id = s.plan_id
LEFT JOIN plans next ON next.tenant_id = s.tenant_id AND next.id = s.next_plan_id
WHERE s.tenant_id = @tenant_id AND s.subject = @subject;

-- name: InsertSubject :one
INSERT INTO subjects (tenant_id, subject, id, plan_id, plan_version, state, labels, billing_ref, cycle_anchor, multiplier,
    next_plan_id, next_plan_at, next_plan_at_cycle_end, version)
VALUES (@tenant_id, @subject, @id, @plan_id, greatest(@plan_version::int, 1), @state, @labels, @billing_ref, @cycle_anchor, greatest(@multiplier::int, 1),
    @next_plan_id, @next_plan_at, nullif(@at_cycle_end::boolean, false), @version)
RETURNING *;

-- name: UpdateSubject :one
UPDATE subjects SET plan_id = @plan_id, plan_version = greatest(@plan_version::int, 1), state = @state, labels = @labels, billing_ref = @billing_ref,
    cycle_anchor = @cycle_anchor, multiplier = coalesce(nullif(@multiplier::int, 0), multiplier),
    next_plan_id = @next_plan_id, next_plan_at = @next_plan_at, next_plan_at_cycle_end = nullif(@at_cycle_end::boolean, false),
    migration_id = @migration_id, version = @version, updated_at = now()
WHERE tenant_id = @tenant_id AND subject = @subject
RETURNING *;

-- name: StampSubject :exec
UPDATE subjects SET version = @version, updated_at = now() WHERE tenant_id = @tenant_id AND subject = @subject;

-- name: DeleteSubject :exec
DELETE FROM subjects WHERE tenant_id = @tenant_id AND subject = @subject;

-- name: InsertTombstone :exec
INSERT INTO subject_tombstones (tenant_id, subject, version) VALUES (@tenant_id, @subject, @version)
ON CONFLICT (tenant_id, subject) DO UPDATE SET version = excluded.version, deleted_at = now();

-- name: DeleteTombstone :exec
DELETE FROM subject_tombstones WHERE tenant_id = @tenant_id AND subject = @subject;

-- name: OverridesOf :many
-- The slugs of all rules are read once. A join would, before the first ANALYZE of a new database,
-- read all rules for each override.
SELECT o.*, ((SELECT jsonb_object_agg(r.id, r.slug) FROM rules r WHERE r.tenant_id = @tenant_id) ->> o.rule_id::text)::text AS rule
FROM (SELECT unnest(@subjects::text[]) AS subject) AS n
CROSS JOIN LATERAL ( -- by the primary key, subject by subject, however many there are of each
    SELECT * FROM overrides WHERE overrides.tenant_id = @tenant_id AND overrides.subject = n.subject OFFSET 0
) AS o
ORDER BY rule;

-- name: CountOverrides :many
-- By the primary key, subject by subject.
SELECT n.subject::text AS subject,
    (SELECT count(*) FROM overrides WHERE overrides.tenant_id = @tenant_id AND overrides.subject = n.subject) AS overrides
FROM (SELECT unnest(@subjects::text[]) AS subject) AS n;

-- name: CountOverridesTo :one
-- How many overrides subjects have, at most @most. Postgres reads no more.
SELECT count(*) FROM (
    SELECT FROM (SELECT unnest(@subjects::text[]) AS subject) AS n
    CROSS JOIN LATERAL (SELECT FROM overrides WHERE overrides.tenant_id = @tenant_id AND overrides.subject = n.subject OFFSET 0) AS o
    LIMIT @most
) AS found;

-- name: OverrideOf :one
SELECT o.*, r.slug AS rule FROM overrides o JOIN rules r ON r.tenant_id = o.tenant_id AND r.id = o.rule_id
WHERE o.tenant_id = @tenant_id AND o.subject = @subject AND r.slug = @rule;

-- name: UpsertOverride :one
INSERT INTO overrides (tenant_id, subject, rule_id, limit_units, burst_units, unlimited, reason, created_by,
    starts_at, expires_at, version)
VALUES (@tenant_id, @subject, @rule_id, @limit_units, @burst_units, @unlimited, @reason, @created_by,
    @starts_at, @expires_at, @version)
ON CONFLICT (tenant_id, subject, rule_id) DO UPDATE SET limit_units = excluded.limit_units,
    burst_units = excluded.burst_units, unlimited = excluded.unlimited, reason = excluded.reason,
    created_by = excluded.created_by, starts_at = excluded.starts_at, expires_at = excluded.expires_at,
    version = excluded.version, created_at = excluded.created_at
RETURNING *;

-- name: DeleteOverride :exec
DELETE FROM overrides WHERE tenant_id = @tenant_id AND subject = @subject AND rule_id = @rule_id;

-- name: DeleteCustomersOverrides :exec
-- Deletes what customers got by requests that were approved automatically.
DELETE FROM overrides WHERE tenant_id = @tenant_id AND subject = ANY(@subjects::text[]) AND created_by LIKE 'customer:%';

-- name: CustomersOverrides :many
-- What customers got by requests that were approved automatically.
SELECT o.subject, o.rule_id, r.slug AS rule
FROM (SELECT unnest(@subjects::text[]) AS subject) AS n
CROSS JOIN LATERAL (
    SELECT * FROM overrides
    WHERE overrides.tenant_id = @tenant_id AND overrides.subject = n.subject AND created_by LIKE 'customer:%' OFFSET 0
) AS o
JOIN rules r ON r.tenant_id = @tenant_id AND r.id = o.rule_id;

-- name: RaiseSubjectsHistory :exec
-- Before the oldest tombstones are purged, stores the version up to which deletions are no longer
-- known. It waits for no tenant: those of one that is being changed are left for the next time, and
-- have no part of most.
UPDATE tenants t SET subjects_history_from = greatest(t.subjects_history_from, old.version)
FROM (SELECT o.tenant_id, max(o.version)::bigint AS version FROM (
        SELECT s.tenant_id, s.version FROM subject_tombstones s JOIN tenants x ON x.id = s.tenant_id -- none of a tenant that was deleted
        WHERE s.deleted_at < now() - interval '24 hours' ORDER BY s.deleted_at LIMIT @most FOR NO KEY UPDATE OF x SKIP LOCKED
    ) AS o GROUP BY o.tenant_id) AS old
WHERE t.id = old.tenant_id;

-- name: PurgeTombstones :execrows
-- Every change of a tombstone locks its tenant first, so this statement waits for nobody.
DELETE FROM subject_tombstones WHERE (tenant_id, subject) IN (
    SELECT s.tenant_id, s.subject FROM subject_tombstones s JOIN tenants t ON t.id = s.tenant_id
    WHERE s.deleted_at < now() - interval '24 hours' AND s.version <= t.subjects_history_from
    ORDER BY s.deleted_at LIMIT @most FOR NO KEY UPDATE OF t SKIP LOCKED);

-- name: DuePlans :many
-- The first subjects of some tenants whose next plan is due, the tenants in turn.
SELECT due.tenant_id, due.subject FROM (SELECT unnest(@tenants::uuid[]) AS tenant_id) AS turn
CROSS JOIN LATERAL (
    SELECT s.tenant_id, s.subject, row_number() OVER (ORDER BY s.next_plan_at, s.subject) AS place FROM subjects s
    WHERE s.tenant_id = turn.tenant_id AND s.next_plan_at <= @now::timestamptz ORDER BY s.next_plan_at, s.subject LIMIT @of_tenant
) AS due
ORDER BY due.place, array_position(@tenants::uuid[], due.tenant_id) LIMIT @most;

-- name: ScheduledPlans :many
-- Scheduled changes, the next one first, after a given one: those of subjects, and events of the
-- generic webhook that take effect later. The content of an event was checked when it arrived.
SELECT c.subject::text AS subject, c.event::uuid AS event, c.plan_version::int AS plan_version, c.at::timestamptz AS at, c.at_cycle_end::boolean AS at_cycle_end,
    c.plan_slug::text AS plan_slug, c.next_plan_slug::text AS next_plan_slug
FROM ((SELECT s.subject, '00000000-0000-0000-0000-000000000000'::uuid AS event, s.plan_version, s.next_plan_at AS at, s.next_plan_at_cycle_end IS NOT NULL AS at_cycle_end,
        coalesce(p.slug, '') AS plan_slug, next.slug AS next_plan_slug
    FROM subjects s LEFT JOIN plans p ON p.tenant_id = s.tenant_id AND p.id = s.plan_id
    JOIN plans next ON next.tenant_id = s.tenant_id AND next.id = s.next_plan_id
    WHERE s.tenant_id = @tenant_id AND s.next_plan_id IS NOT NULL AND (sqlc.narg(subject)::text IS NULL OR s.subject = sqlc.narg(subject))
        AND (sqlc.narg(after_at)::timestamptz IS NULL OR (s.next_plan_at, s.subject) > (sqlc.narg(after_at), @after::text))
    ORDER BY s.next_plan_at, s.subject LIMIT @most)
UNION ALL
    (SELECT v.subject, v.id, coalesce(s.plan_version, 0), v.due_at, false, coalesce(p.slug, ''), next.slug
    FROM billing_events v JOIN billing_endpoints e ON e.tenant_id = v.tenant_id AND e.id = v.endpoint_id AND e.provider = 'generic'
    LEFT JOIN subjects s ON s.tenant_id = v.tenant_id AND s.subject = v.subject
    LEFT JOIN plans p ON p.tenant_id = s.tenant_id AND p.id = s.plan_id
    JOIN plans next ON next.tenant_id = v.tenant_id AND next.slug = convert_from(v.body, 'UTF8')::json ->> 'plan'
    WHERE v.tenant_id = @tenant_id AND v.waits_for = 'time' AND v.type = 'subject.plan'
        AND (sqlc.narg(subject)::text IS NULL OR v.subject = sqlc.narg(subject))
        AND (sqlc.narg(after_at)::timestamptz IS NULL OR (v.due_at, v.subject, v.id) > (sqlc.narg(after_at), @after::text, @after_event::uuid))
    ORDER BY v.due_at, v.subject, v.id LIMIT @most)) AS c
ORDER BY c.at, c.subject, c.event LIMIT @most;

-- name: CounterChanges :many
-- The first pending changes of counters of some tenants after plan changes: those of a tenant in
-- order, the tenants in turn. approved has those limits that no override defines now.
SELECT due.tenant_id, due.id, due.subject, due.action, due.from_plan, due.from_version, due.from_multiplier, due.from_limits,
    due.to_plan, due.to_version, due.to_multiplier, due.to_limits, (
        SELECT jsonb_object_agg(r.slug, a.value) FROM jsonb_each(due.approved) a
        JOIN rules r ON r.tenant_id = due.tenant_id AND r.id = a.key::uuid
        WHERE NOT EXISTS (SELECT FROM overrides o WHERE o.tenant_id = due.tenant_id AND o.subject = due.subject AND o.rule_id = r.id)
    )::jsonb AS approved
FROM (SELECT unnest(@tenants::uuid[]) AS tenant_id) AS turn
CROSS JOIN LATERAL (
    SELECT c.tenant_id, c.id, c.subject, c.action, c.from_plan, c.from_version, c.from_multiplier, c.from_limits,
        c.to_plan, c.to_version, c.to_multiplier, c.to_limits, c.approved,
        row_number() OVER (ORDER BY c.id) AS place
    FROM counter_changes c WHERE c.tenant_id = turn.tenant_id ORDER BY c.id LIMIT @of_tenant
) AS due
ORDER BY due.place, array_position(@tenants::uuid[], due.tenant_id) LIMIT @most;

-- name: DeleteCounterChanges :exec
DELETE FROM counter_changes WHERE id = ANY(@ids::bigint[]);

-- name: LockTenantsWithUnusedLimits :many
-- Locks tenants, as LockTenant does, for which limits are kept that no pending change of counters
-- names. Tenants that others have locked are left for later.
SELECT t.id FROM tenants t
WHERE t.id IN (
    SELECT k.tenant_id FROM counter_change_limits k
    WHERE NOT EXISTS (SELECT FROM counter_changes c WHERE c.tenant_id = k.tenant_id AND c.from_limits = k.id)
        AND NOT EXISTS (SELECT FROM counter_changes c WHERE c.tenant_id = k.tenant_id AND c.to_limits = k.id)
)
ORDER BY t.id LIMIT @most FOR NO KEY UPDATE SKIP LOCKED;

-- name: DeleteUnusedLimits :exec
-- Deletes what LockTenantsWithUnusedLimits describes, of tenants that it has locked.
DELETE FROM counter_change_limits k
WHERE k.tenant_id = ANY(@tenants::uuid[])
    AND NOT EXISTS (SELECT FROM counter_changes c WHERE c.tenant_id = k.tenant_id AND c.from_limits = k.id)
    AND NOT EXISTS (SELECT FROM counter_changes c WHERE c.tenant_id = k.tenant_id AND c.to_limits = k.id);

-- name: PurgeOwnLimits :execrows
-- Limits of rules that no pending change of counters needs. Later changes have greater numbers. The
-- first one is looked up in the index: a join of all changes of a tenant would be quadratic.
DELETE FROM counter_change_own_limits WHERE (tenant_id, rule_id, until) IN (
    SELECT o.tenant_id, o.rule_id, o.until FROM counter_change_own_limits o
    WHERE coalesce((SELECT c.id FROM counter_changes c WHERE c.tenant_id = o.tenant_id ORDER BY c.id LIMIT 1) > o.until, true) LIMIT @most);
