-- name: TakeUsageBatch :execrows
-- Records a writer's batch. No row: the batch or a later one was already written. If another
-- connection is writing the same batch, this statement waits for its end.
INSERT INTO usage_writers AS w (writer, batch, complete_until, written_at, ended)
VALUES (@writer, @batch, @complete_until, now(), @ended)
ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, written_at = excluded.written_at, ended = excluded.ended,
    complete_until = greatest(w.complete_until, excluded.complete_until)
WHERE w.batch < excluded.batch;

-- name: AddUsageMinutes :exec
-- In the order of the key, here and below, so that two writers wait for each other and do not
-- deadlock. Minutes beyond their retention are left to the hours; minutes of a server whose clock
-- is ahead count as now. A tenant that was deleted has no usage. Each tenant is looked up once, and
-- not for each row: while an export of a tenant is open, and the tenant is changed again and again,
-- Postgres cannot remove the old versions of its row, and reads all of them each time.
WITH known AS MATERIALIZED (SELECT t.id FROM tenants t WHERE t.id = ANY (SELECT DISTINCT unnest(@tenants::uuid[])))
INSERT INTO usage_minutes AS u (tenant_id, slot, start, rule, plan, resource,
    allowed, denied, shadow_denied, degraded, cost_allowed, cost_denied)
SELECT r.tenant_id, floor(extract(epoch FROM r.start) / 86400)::bigint % 5, r.start, r.rule, r.plan, r.resource,
    sum(r.allowed)::bigint, sum(r.denied)::bigint, sum(r.shadow_denied)::bigint, sum(r.degraded)::bigint,
    least(sum(r.cost_allowed), 9223372036854775807)::bigint, least(sum(r.cost_denied), 9223372036854775807)::bigint
FROM (
    SELECT unnest(@tenants::uuid[]) AS tenant_id,
        least(unnest(@starts::timestamptz[]), date_trunc('minute', now(), 'UTC')) AS start,
        unnest(@rules::text[]) AS rule, unnest(@plans::text[]) AS plan, unnest(@resources::text[]) AS resource,
        unnest(@allowed::bigint[]) AS allowed, unnest(@denied::bigint[]) AS denied,
        unnest(@shadow_denied::bigint[]) AS shadow_denied, unnest(@degraded::bigint[]) AS degraded,
        unnest(@cost_allowed::bigint[]) AS cost_allowed, unnest(@cost_denied::bigint[]) AS cost_denied
) AS r JOIN known t ON t.id = r.tenant_id
WHERE r.start >= now() - @retention::interval
GROUP BY r.tenant_id, r.start, r.rule, r.plan, r.resource
ORDER BY r.tenant_id, r.start, r.rule, r.plan, r.resource
ON CONFLICT (tenant_id, start, rule, plan, resource, slot) DO UPDATE SET allowed = u.allowed + excluded.allowed, denied = u.denied + excluded.denied,
    shadow_denied = u.shadow_denied + excluded.shadow_denied, degraded = u.degraded + excluded.degraded,
    cost_allowed = least(u.cost_allowed::numeric + excluded.cost_allowed, 9223372036854775807)::bigint,
    cost_denied = least(u.cost_denied::numeric + excluded.cost_denied, 9223372036854775807)::bigint;

-- name: AddUsageHours :exec
WITH known AS MATERIALIZED (SELECT t.id FROM tenants t WHERE t.id = ANY (SELECT DISTINCT unnest(@tenants::uuid[])))
INSERT INTO usage_hours AS u (tenant_id, start, rule, plan, resource,
    allowed, denied, shadow_denied, degraded, cost_allowed, cost_denied)
SELECT r.tenant_id, r.start, r.rule, r.plan, r.resource,
    sum(r.allowed)::bigint, sum(r.denied)::bigint, sum(r.shadow_denied)::bigint, sum(r.degraded)::bigint,
    least(sum(r.cost_allowed), 9223372036854775807)::bigint, least(sum(r.cost_denied), 9223372036854775807)::bigint
FROM (
    SELECT unnest(@tenants::uuid[]) AS tenant_id,
        date_trunc('hour', least(unnest(@starts::timestamptz[]), now()), 'UTC') AS start,
        unnest(@rules::text[]) AS rule, unnest(@plans::text[]) AS plan, unnest(@resources::text[]) AS resource,
        unnest(@allowed::bigint[]) AS allowed, unnest(@denied::bigint[]) AS denied,
        unnest(@shadow_denied::bigint[]) AS shadow_denied, unnest(@degraded::bigint[]) AS degraded,
        unnest(@cost_allowed::bigint[]) AS cost_allowed, unnest(@cost_denied::bigint[]) AS cost_denied
) AS r JOIN known t ON t.id = r.tenant_id
WHERE r.start >= now() - @retention::interval
GROUP BY r.tenant_id, r.start, r.rule, r.plan, r.resource
ORDER BY r.tenant_id, r.start, r.rule, r.plan, r.resource
ON CONFLICT (tenant_id, start, rule, plan, resource) DO UPDATE SET allowed = u.allowed + excluded.allowed, denied = u.denied + excluded.denied,
    shadow_denied = u.shadow_denied + excluded.shadow_denied, degraded = u.degraded + excluded.degraded,
    cost_allowed = least(u.cost_allowed::numeric + excluded.cost_allowed, 9223372036854775807)::bigint,
    cost_denied = least(u.cost_denied::numeric + excluded.cost_denied, 9223372036854775807)::bigint;

-- name: AddUsageDays :exec
WITH known AS MATERIALIZED (SELECT t.id FROM tenants t WHERE t.id = ANY (SELECT DISTINCT unnest(@tenants::uuid[])))
INSERT INTO usage_days AS u (tenant_id, start, rule, plan, resource,
    allowed, denied, shadow_denied, degraded, cost_allowed, cost_denied)
SELECT r.tenant_id, r.start, r.rule, r.plan, r.resource,
    sum(r.allowed)::bigint, sum(r.denied)::bigint, sum(r.shadow_denied)::bigint, sum(r.degraded)::bigint,
    least(sum(r.cost_allowed), 9223372036854775807)::bigint, least(sum(r.cost_denied), 9223372036854775807)::bigint
FROM (
    SELECT unnest(@tenants::uuid[]) AS tenant_id,
        date_trunc('day', least(unnest(@starts::timestamptz[]), now()), 'UTC') AS start,
        unnest(@rules::text[]) AS rule, unnest(@plans::text[]) AS plan, unnest(@resources::text[]) AS resource,
        unnest(@allowed::bigint[]) AS allowed, unnest(@denied::bigint[]) AS denied,
        unnest(@shadow_denied::bigint[]) AS shadow_denied, unnest(@degraded::bigint[]) AS degraded,
        unnest(@cost_allowed::bigint[]) AS cost_allowed, unnest(@cost_denied::bigint[]) AS cost_denied
) AS r JOIN known t ON t.id = r.tenant_id
WHERE r.start >= now() - @retention::interval
GROUP BY r.tenant_id, r.start, r.rule, r.plan, r.resource
ORDER BY r.tenant_id, r.start, r.rule, r.plan, r.resource
ON CONFLICT (tenant_id, start, rule, plan, resource) DO UPDATE SET allowed = u.allowed + excluded.allowed, denied = u.denied + excluded.denied,
    shadow_denied = u.shadow_denied + excluded.shadow_denied, degraded = u.degraded + excluded.degraded,
    cost_allowed = least(u.cost_allowed::numeric + excluded.cost_allowed, 9223372036854775807)::bigint,
    cost_denied = least(u.cost_denied::numeric + excluded.cost_denied, 9223372036854775807)::bigint;

-- name: LockUsageSubjects :many
-- Creates missing lists, and locks all of them, in the same order for all writers.
WITH known AS MATERIALIZED (SELECT t.id FROM tenants t WHERE t.id = ANY (SELECT DISTINCT unnest(@tenants::uuid[])))
INSERT INTO usage_subjects AS u (tenant_id, grain, start, top)
SELECT r.tenant_id, r.grain, r.start, '{}'
FROM (
    SELECT unnest(@tenants::uuid[]) AS tenant_id, unnest(@grains::text[]) AS grain,
        unnest(@starts::timestamptz[]) AS start
) AS r JOIN known t ON t.id = r.tenant_id
ORDER BY r.tenant_id, r.grain, r.start
ON CONFLICT (tenant_id, grain, start) DO UPDATE SET top = u.top
RETURNING u.tenant_id, u.grain, u.start, u.top;

-- name: SetUsageSubjects :exec
UPDATE usage_subjects u SET top = r.top
FROM (
    SELECT unnest(@tenants::uuid[]) AS tenant_id, unnest(@grains::text[]) AS grain,
        unnest(@starts::timestamptz[]) AS start, unnest(@tops::jsonb[]) AS top
) AS r
WHERE u.tenant_id = r.tenant_id AND u.grain = r.grain AND u.start = r.start;

-- name: DatabaseTime :one
SELECT now()::timestamptz AS now;

-- name: UsageCompleteUntil :one
-- The time up to which all writers have reported everything. A process that was silent for long is
-- ignored: it was killed, or it will report later. If the live processes are known, one that is not
-- among them is ignored sooner.
SELECT coalesce(min(complete_until), now())::timestamptz AS complete_until
FROM usage_writers
WHERE NOT ended AND written_at > now() - CASE
    WHEN @certain::boolean AND NOT writer = ANY (@alive::uuid[]) THEN @gone::interval ELSE @silent::interval END;

-- name: UsageSubjects :many
SELECT start, top FROM usage_subjects
WHERE tenant_id = @tenant_id AND grain = @grain AND start >= @since AND start < @until
ORDER BY start;

-- name: UsageSlotInUse :one
SELECT EXISTS (SELECT FROM usage_minutes WHERE slot = @slot);

-- name: PurgeUsageHours :execrows
DELETE FROM usage_hours WHERE (tenant_id, start, rule, plan, resource) IN (
    SELECT o.tenant_id, o.start, o.rule, o.plan, o.resource FROM usage_hours o
    WHERE o.start < now() - @retention::interval LIMIT @most);

-- name: PurgeUsageDays :execrows
DELETE FROM usage_days WHERE (tenant_id, start, rule, plan, resource) IN (
    SELECT o.tenant_id, o.start, o.rule, o.plan, o.resource FROM usage_days o
    WHERE o.start < now() - @retention::interval LIMIT @most);

-- name: PurgeUsageSubjects :execrows
DELETE FROM usage_subjects WHERE (tenant_id, grain, start) IN (
    SELECT o.tenant_id, o.grain, o.start FROM usage_subjects o
    WHERE o.grain = @grain AND o.start < now() - @retention::interval LIMIT @most);

-- name: PurgeDeletedUsageHours :execrows
-- Of tenants deleted recently. A server that does not know of the deletion may write a little longer.
DELETE FROM usage_hours WHERE (tenant_id, start, rule, plan, resource) IN (
    SELECT o.tenant_id, o.start, o.rule, o.plan, o.resource
    FROM usage_hours o JOIN deleted_tenants d ON d.id = o.tenant_id
    WHERE d.deleted_at > now() - interval '2 days' LIMIT @most);

-- name: PurgeDeletedUsageDays :execrows
DELETE FROM usage_days WHERE (tenant_id, start, rule, plan, resource) IN (
    SELECT o.tenant_id, o.start, o.rule, o.plan, o.resource
    FROM usage_days o JOIN deleted_tenants d ON d.id = o.tenant_id
    WHERE d.deleted_at > now() - interval '2 days' LIMIT @most);

-- name: PurgeDeletedUsageSubjects :execrows
DELETE FROM usage_subjects WHERE (tenant_id, grain, start) IN (
    SELECT o.tenant_id, o.grain, o.start
    FROM usage_subjects o JOIN deleted_tenants d ON d.id = o.tenant_id
    WHERE d.deleted_at > now() - interval '2 days' LIMIT @most);

-- name: PurgeUsageWriters :execrows
DELETE FROM usage_writers WHERE writer IN (
    SELECT o.writer FROM usage_writers o WHERE o.written_at < now() - @retention::interval LIMIT @most);
