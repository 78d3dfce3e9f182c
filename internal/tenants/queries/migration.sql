-- name: InsertPlanMigration :one
INSERT INTO plan_migrations (tenant_id, id, plan_id, from_version, to_plan_id, starts_at, at_cycle_end, state, subjects, created_by)
VALUES (@tenant_id, @id, @plan_id, @from_version, @to_plan_id, @starts_at, @at_cycle_end, @state, @subjects, @created_by)
RETURNING *;

-- name: PlanMigration :one
SELECT m.*, p.slug AS plan_slug, target.slug AS to_slug,
    (SELECT count(*) FROM subjects s WHERE s.tenant_id = m.tenant_id AND s.migration_id = m.id)::bigint AS waiting
FROM plan_migrations m JOIN plans p ON p.tenant_id = m.tenant_id AND p.id = m.plan_id
JOIN plans target ON target.tenant_id = m.tenant_id AND target.id = m.to_plan_id
WHERE m.tenant_id = @tenant_id AND p.slug = @slug AND m.id = @id;

-- name: PlanMigrations :many
SELECT m.*, p.slug AS plan_slug, target.slug AS to_slug,
    (SELECT count(*) FROM subjects s WHERE s.tenant_id = m.tenant_id AND s.migration_id = m.id)::bigint AS waiting
FROM plan_migrations m JOIN plans p ON p.tenant_id = m.tenant_id AND p.id = m.plan_id
JOIN plans target ON target.tenant_id = m.tenant_id AND target.id = m.to_plan_id
WHERE m.tenant_id = @tenant_id AND p.slug = @slug AND (sqlc.narg(after)::uuid IS NULL OR m.id < sqlc.narg(after))
ORDER BY m.id DESC LIMIT @most;

-- name: OpenPlanMigrations :many
-- The open migrations of some tenants that can continue now, the tenants in turn. A waiting one
-- continues when the last change that it scheduled was executed. Those that move subjects come last,
-- and only if the trail of the tenant has less than audit_day bytes of today: see auditDayOf.
SELECT due.tenant_id, due.id, p.slug FROM (SELECT unnest(@tenants::uuid[]) AS tenant_id) AS turn
CROSS JOIN LATERAL (
    SELECT m.tenant_id, m.id, m.plan_id, row_number() OVER (ORDER BY m.state IN ('scheduled', 'running'), m.starts_at, m.id) AS place FROM plan_migrations m
    WHERE m.tenant_id = turn.tenant_id AND m.ended_at IS NULL AND (m.starts_at <= @now::timestamptz OR m.state = 'canceling')
        AND (m.state <> 'waiting' OR NOT EXISTS (SELECT FROM subjects s WHERE s.tenant_id = m.tenant_id AND s.migration_id = m.id))
        AND (m.state IN ('canceling', 'waiting') OR NOT EXISTS (SELECT FROM audit_heads h WHERE h.tenant_id = m.tenant_id
            AND h.day_bytes >= @audit_day::bigint AND h.day BETWEEN @today::date AND @tomorrow::date))
    ORDER BY m.state IN ('scheduled', 'running'), m.starts_at, m.id LIMIT @of_tenant
) AS due
JOIN plans p ON p.tenant_id = due.tenant_id AND p.id = due.plan_id
ORDER BY due.place, array_position(@tenants::uuid[], due.tenant_id) LIMIT @most;

-- name: MoreCounterChanges :one
-- Whether more than so many changes of counters of the tenant wait.
SELECT EXISTS (SELECT FROM counter_changes WHERE tenant_id = @tenant_id OFFSET @most);

-- name: OpenMigrationOfPlan :one
SELECT EXISTS (SELECT FROM plan_migrations WHERE tenant_id = @tenant_id AND plan_id = @plan_id AND ended_at IS NULL);

-- name: UpdatePlanMigration :exec
UPDATE plan_migrations SET state = @state, moved = moved + @moved::bigint, ended_at = @ended_at
WHERE tenant_id = @tenant_id AND id = @id;

-- name: CountMigrating :one
SELECT count(*) FROM subjects s
WHERE s.tenant_id = @tenant_id AND s.plan_id = @plan_id
    AND (sqlc.narg(from_version)::int IS NULL OR s.plan_version = sqlc.narg(from_version))
    AND s.plan_version < @below::int;

-- name: Migrating :many
-- Subjects that the migration has not moved yet. below is the newest version, if the target is the
-- newest version of the same plan.
SELECT s.subject, s.cycle_anchor FROM subjects s
WHERE s.tenant_id = @tenant_id AND s.plan_id = @plan_id
    AND (sqlc.narg(from_version)::int IS NULL OR s.plan_version = sqlc.narg(from_version))
    AND s.plan_version < @below::int AND (@scheduled_too::boolean OR s.next_plan_id IS NULL)
LIMIT @most;

-- name: MigrateSubjects :exec
UPDATE subjects SET plan_id = @plan_id, plan_version = @plan_version, version = @version, updated_at = now()
WHERE tenant_id = @tenant_id AND subject = ANY(@subjects::text[]);

-- name: ScheduleMigration :exec
UPDATE subjects s SET next_plan_id = @next_plan_id, next_plan_at = n.at::timestamptz, next_plan_at_cycle_end = true, migration_id = @migration_id,
    version = @version, updated_at = now()
FROM (SELECT unnest(@subjects::text[]) AS subject, unnest(@ats::text[]) AS at) AS n
WHERE s.tenant_id = @tenant_id AND s.subject = n.subject;

-- name: WaitingForMigration :many
SELECT subject FROM subjects WHERE tenant_id = @tenant_id AND migration_id = @migration_id LIMIT @most;

-- name: CancelMigrationOf :exec
UPDATE subjects SET next_plan_id = NULL, next_plan_at = NULL, next_plan_at_cycle_end = NULL, migration_id = NULL, version = @version, updated_at = now()
WHERE tenant_id = @tenant_id AND subject = ANY(@subjects::text[]);

-- name: CountMigrated :exec
UPDATE plan_migrations SET moved = moved + 1 WHERE tenant_id = @tenant_id AND id = @id;

-- name: MigrationCanceled :one
SELECT EXISTS (SELECT FROM plan_migrations WHERE tenant_id = @tenant_id AND id = @id AND state = 'canceling');
