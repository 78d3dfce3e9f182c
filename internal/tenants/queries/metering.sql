-- name: ShareMetering :exec
-- Until the transaction ends, no hour is sealed.
SELECT pg_advisory_xact_lock_shared(@lock);

-- name: TakeMeteredBatch :one
-- Records a writer's batch, and returns what was recorded of the writer before: the newest sequence,
-- and up to when it was complete. No row: the batch or a later one was already written. A statement
-- does not see its own change, so the row that it reads is the older one.
INSERT INTO metering_writers AS w (writer, sequence, complete_until, written_at, ended)
VALUES (@writer, @sequence, @complete_until, now(), @ended)
ON CONFLICT (writer) DO UPDATE SET sequence = excluded.sequence, written_at = excluded.written_at, ended = excluded.ended,
    complete_until = greatest(w.complete_until, excluded.complete_until), missing = false
WHERE w.sequence < excluded.sequence
RETURNING coalesce((SELECT o.sequence FROM metering_writers o WHERE o.writer = w.writer), 0)::bigint AS had,
    coalesce((SELECT o.complete_until FROM metering_writers o WHERE o.writer = w.writer), @since)::timestamptz AS had_until;

-- name: ReportLostBatches :exec
-- A gap that no writer closes: its id is not that of a writer.
INSERT INTO metering_gaps (writer, from_at, to_at) VALUES (gen_random_uuid(), least(@from_at::timestamptz, now()), now());

-- name: CloseMeteringGap :exec
UPDATE metering_gaps SET closed_at = now() WHERE writer = @writer AND closed_at IS NULL;

-- name: NoteMeteringWriters :exec
-- Writers that could not write are waited for, and missed, as if they had written an empty batch.
INSERT INTO metering_writers (writer, sequence, complete_until, written_at, ended)
SELECT n.writer, 0, least(n.since, now()), now(), false
FROM (SELECT unnest(@writers::uuid[]) AS writer, unnest(@since::timestamptz[]) AS since) AS n
ON CONFLICT (writer) DO NOTHING;

-- name: EndMeteringWriters :many
-- Writers that have ended, and have written all if the batch is known that was acknowledged last.
-- Otherwise, the database was restored without it, and they stay as they are.
UPDATE metering_writers w SET ended = true, missing = false
FROM (SELECT unnest(@writers::uuid[]) AS writer, unnest(@acknowledged::bigint[]) AS acknowledged) AS n
WHERE w.writer = n.writer AND NOT w.ended AND w.sequence >= n.acknowledged
RETURNING w.writer;

-- name: CloseMeteringGaps :exec
-- A statement of its own, behind the one that has locked the writers: a look may just have opened
-- their gaps, which a statement from before does not see.
UPDATE metering_gaps SET closed_at = now() WHERE writer = ANY (@writers::uuid[]) AND closed_at IS NULL;

-- name: ExtendMeteringGaps :exec
-- Writers that are missing, and still metered at these times.
UPDATE metering_gaps g SET to_at = n.at
FROM (SELECT unnest(@writers::uuid[]) AS writer, unnest(@at::timestamptz[]) AS at) AS n
WHERE g.writer = n.writer AND g.closed_at IS NULL AND g.to_at < n.at;

-- name: KnownMetered :many
-- Which of some rows there are, by their places.
SELECT r.place::integer FROM (
    SELECT generate_series(0, cardinality(@subjects::text[]) - 1) AS place, unnest(@subjects::text[]) AS subject,
        unnest(@tenants::uuid[]) AS tenant_id, unnest(@starts::timestamptz[]) AS start, unnest(@rules::text[]) AS rule
) AS r CROSS JOIN metering_state s
JOIN metered_usage u ON u.tenant_id = r.tenant_id AND u.subject = r.subject AND u.rule = r.rule
    AND u.start = greatest(least(r.start, date_trunc('hour', now(), 'UTC')), s.sealed_until);

-- name: AddMeteredUsage :many
-- In the order of the key, here and below, so that two writers wait for each other and do not
-- deadlock. Units of a sealed hour are added to the first open one, those of a server whose clock
-- is ahead to the present one. A tenant that was deleted has no usage. Each row names its
-- group, of one tenant, hour and rule, by number: there are few groups, and each value costs
-- allocations. It returns how many rows are new, by tenant and hour: a row that was there has an
-- xmax, of the lock that ON CONFLICT takes.
WITH known AS MATERIALIZED (SELECT t.id FROM tenants t WHERE t.id = ANY (SELECT DISTINCT unnest(@tenants::uuid[]))),
added AS (
INSERT INTO metered_usage AS u (tenant_id, start, subject, rule, units, overage_units, free_units, billed_units, checks, late_units)
SELECT k.tenant_id, greatest(least(k.start, date_trunc('hour', now(), 'UTC')), s.sealed_until), r.subject, k.rule,
    least(sum(r.units), 9223372036854775807)::bigint, least(sum(r.overage_units), 9223372036854775807)::bigint,
    least(sum(r.free_units), 9223372036854775807)::bigint, least(sum(r.billed_units), 9223372036854775807)::bigint,
    sum(r.checks)::bigint, least(coalesce(sum(r.units) FILTER (WHERE k.start < s.sealed_until), 0), 9223372036854775807)::bigint
FROM (
    SELECT unnest(@groups::integer[]) AS n, unnest(@subjects::text[]) AS subject,
        unnest(@units::bigint[]) AS units, unnest(@overage_units::bigint[]) AS overage_units,
        unnest(@free_units::bigint[]) AS free_units, unnest(@billed_units::bigint[]) AS billed_units, unnest(@checks::bigint[]) AS checks
) AS r JOIN (
    SELECT generate_series(0, cardinality(@tenants::uuid[]) - 1) AS n,
        unnest(@tenants::uuid[]) AS tenant_id, unnest(@starts::timestamptz[]) AS start, unnest(@rules::text[]) AS rule
) AS k ON k.n = r.n JOIN known t ON t.id = k.tenant_id CROSS JOIN metering_state s
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4
ON CONFLICT (tenant_id, start, subject, rule) DO UPDATE SET
    units = least(u.units::numeric + excluded.units, 9223372036854775807)::bigint,
    overage_units = least(u.overage_units::numeric + excluded.overage_units, 9223372036854775807)::bigint,
    free_units = least(u.free_units::numeric + excluded.free_units, 9223372036854775807)::bigint,
    billed_units = least(u.billed_units::numeric + excluded.billed_units, 9223372036854775807)::bigint,
    checks = u.checks + excluded.checks,
    late_units = least(u.late_units::numeric + excluded.late_units, 9223372036854775807)::bigint
RETURNING u.tenant_id, u.start, u.xmax = 0 AS is_new
)
SELECT tenant_id, start, count(*) AS new_rows FROM added WHERE is_new GROUP BY 1, 2;

-- name: AddMeteredTotals :exec
-- One row for each tenant, hour and rule. Units without a subject are unattributed.
WITH known AS MATERIALIZED (SELECT t.id FROM tenants t WHERE t.id = ANY (SELECT DISTINCT unnest(@tenants::uuid[])))
INSERT INTO metered_totals AS u (tenant_id, start, rule, units, overage_units, free_units, billed_units, checks, late_units, unattributed_units)
SELECT r.tenant_id, greatest(least(r.start, date_trunc('hour', now(), 'UTC')), s.sealed_until), r.rule,
    least(sum(r.units), 9223372036854775807)::bigint, least(sum(r.overage_units), 9223372036854775807)::bigint,
    least(sum(r.free_units), 9223372036854775807)::bigint, least(sum(r.billed_units), 9223372036854775807)::bigint,
    sum(r.checks)::bigint, least(coalesce(sum(r.units) FILTER (WHERE r.start < s.sealed_until), 0), 9223372036854775807)::bigint,
    least(sum(r.unattributed_units), 9223372036854775807)::bigint
FROM (
    SELECT unnest(@tenants::uuid[]) AS tenant_id, unnest(@starts::timestamptz[]) AS start,
        unnest(@unattributed_units::bigint[]) AS unattributed_units, unnest(@rules::text[]) AS rule,
        unnest(@units::bigint[]) AS units, unnest(@overage_units::bigint[]) AS overage_units,
        unnest(@free_units::bigint[]) AS free_units, unnest(@billed_units::bigint[]) AS billed_units, unnest(@checks::bigint[]) AS checks
) AS r JOIN known t ON t.id = r.tenant_id CROSS JOIN metering_state s
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3
ON CONFLICT (tenant_id, start, rule) DO UPDATE SET
    units = least(u.units::numeric + excluded.units, 9223372036854775807)::bigint,
    overage_units = least(u.overage_units::numeric + excluded.overage_units, 9223372036854775807)::bigint,
    free_units = least(u.free_units::numeric + excluded.free_units, 9223372036854775807)::bigint,
    billed_units = least(u.billed_units::numeric + excluded.billed_units, 9223372036854775807)::bigint,
    checks = u.checks + excluded.checks,
    late_units = least(u.late_units::numeric + excluded.late_units, 9223372036854775807)::bigint,
    unattributed_units = least(u.unattributed_units::numeric + excluded.unattributed_units, 9223372036854775807)::bigint;

-- name: LookMetering :one
-- Records that a server looks. After a time without, as during an outage of Postgres, writers get
-- as long as usual to write.
UPDATE metering_state SET looked_at = sqlc.arg(now)::timestamptz,
    waits_from = CASE WHEN looked_at < sqlc.arg(now)::timestamptz - sqlc.arg(unwatched)::interval THEN sqlc.arg(now)::timestamptz ELSE waits_from END
RETURNING sealed_until, waits_from;

-- name: MissMeteringWriters :one
-- Opens the gaps of writers that were silent for too long, oldest first, and returns how many there
-- were, at most as many as asked for. It waits for no writer: one that writes now is not missing.
-- The row with a writer's id is its newest gap. One that the writer has closed moves to an id of its
-- own and stays as it is: the units between the two gaps are complete. If the writer has completed
-- nothing since the closed one began, that was closed too early, and opens again.
WITH silent AS (
    SELECT w.writer FROM metering_writers w
    WHERE NOT w.ended AND NOT w.missing AND greatest(w.written_at, sqlc.arg(waits_from)::timestamptz) < sqlc.arg(now)::timestamptz - sqlc.arg(silence)::interval
    ORDER BY w.written_at, w.writer LIMIT sqlc.arg(most) FOR UPDATE SKIP LOCKED
), missed AS (
    UPDATE metering_writers w SET missing = true FROM silent WHERE w.writer = silent.writer
    RETURNING w.writer, w.complete_until
), moved AS (
    INSERT INTO metering_gaps (writer, from_at, to_at, closed_at) SELECT gen_random_uuid(), o.from_at, o.to_at, o.closed_at
    FROM missed m JOIN metering_gaps o ON o.writer = m.writer
    WHERE o.closed_at IS NOT NULL AND o.from_at < m.complete_until
), opened AS (
    INSERT INTO metering_gaps AS g (writer, from_at, to_at) SELECT m.writer, m.complete_until, sqlc.arg(now)::timestamptz FROM missed m
    ON CONFLICT (writer) DO UPDATE SET to_at = excluded.to_at, closed_at = NULL,
        from_at = CASE WHEN g.closed_at IS NULL THEN least(g.from_at, excluded.from_at) ELSE excluded.from_at END
)
SELECT count(*) FROM missed;

-- name: MeteringCompleteUntil :one
-- Up to when all present writers have written everything.
SELECT coalesce(min(complete_until), @now::timestamptz)::timestamptz AS complete_until FROM metering_writers WHERE NOT ended AND NOT missing;

-- name: LockMetering :exec
-- Waits for writers, and keeps them out until the transaction ends.
SELECT pg_advisory_xact_lock(@lock);

-- name: SealMetering :one
UPDATE metering_state SET sealed_until = greatest(sealed_until, @until::timestamptz) RETURNING sealed_until;

-- name: ReadByIndexes :exec
-- Statements of this transaction read the few rows that they need by indexes. While the statistics of
-- a table are old, the planner would read and sort all of it for a page.
SELECT set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true);

-- name: PushesPlace :one
-- The place up to which pushes were created, and the first sealed hour with usage from there on; if
-- there is none, sealed_until.
SELECT s.pushes_until, s.pushes_tenant, s.pushes_rule, s.sealed_until, coalesce((
    SELECT t.start FROM metered_totals t WHERE t.start >= s.pushes_until AND t.start < s.sealed_until ORDER BY t.start LIMIT 1
), s.sealed_until)::timestamptz AS hour FROM metering_state s;

-- name: TenantsFrom :many
SELECT id FROM tenants WHERE id >= @first ORDER BY id LIMIT @most;

-- name: CreateMeteredPushes :many
-- What rules with a meter send of a sealed hour, for a page of rows of some tenants, those of the
-- first one behind a rule. A subject's units of an hour are sent once, so an hour is sealed first. A
-- meter that a rule lost since the hour began gets it; an empty one says that it had none. It
-- returns the page's last row, and how many there are. Slugs of rules have the collation of their index.
-- Of an hour that ended before the database was restored, all may have been sent before the restore.
WITH page AS MATERIALIZED (
    SELECT t.tenant_id, t.start, t.rule, t.units, t.overage_units, t.free_units, t.billed_units FROM tenants o CROSS JOIN LATERAL (
        SELECT x.tenant_id, x.start, x.rule, x.units, x.overage_units, x.free_units, x.billed_units FROM metered_totals x
        WHERE x.tenant_id = o.id AND x.start = @start::timestamptz AND x.rule > CASE WHEN o.id = @first::uuid THEN @after_rule::text ELSE '' END
        ORDER BY x.rule LIMIT @most::integer
    ) AS t
    WHERE o.id BETWEEN @first::uuid AND @last::uuid ORDER BY o.id, t.rule LIMIT @most::integer
), made AS (
    INSERT INTO metered_pushes (tenant_id, id, start, rule, meter_event, kind, due_at, unanswered_at, unanswered_until)
    SELECT t.tenant_id, gen_random_uuid(), t.start, t.rule, m.meter_event, m.kind, now(),
        CASE WHEN back.restored_at >= t.start + interval '1 hour' THEN t.start + interval '1 hour' END,
        CASE WHEN back.restored_at >= t.start + interval '1 hour' THEN repeat(U&'\+10FFFF', 64) ELSE '' END
    FROM page t LEFT JOIN restores back ON true
    LEFT JOIN LATERAL (
        SELECT x.meter_event, x.kind FROM ended_meters x
        WHERE x.tenant_id = t.tenant_id AND x.rule = t.rule AND x.until > t.start ORDER BY x.until LIMIT 1
    ) AS had ON true
    LEFT JOIN rules r ON r.tenant_id = t.tenant_id AND r.slug = t.rule COLLATE "default"
    CROSS JOIN LATERAL (SELECT coalesce(had.meter_event, r.meter_event, '') AS meter_event, coalesce(had.kind, r.metering, 'none') AS kind) AS m
    WHERE m.meter_event <> '' AND m.kind <> 'none'
        AND CASE m.kind WHEN 'overage' THEN t.overage_units > 0 OR t.billed_units > 0 ELSE t.units > t.free_units END
    ON CONFLICT (tenant_id, start, rule) DO NOTHING
)
SELECT p.tenant_id, p.rule, count(*) OVER () AS looked FROM page p ORDER BY p.tenant_id DESC, p.rule DESC LIMIT 1;

-- name: PurgeEndedMeters :execrows
-- The pushes of their hours are created.
DELETE FROM ended_meters WHERE (tenant_id, rule, until) IN (
    SELECT o.tenant_id, o.rule, o.until FROM ended_meters o WHERE o.until <= @until ORDER BY o.until LIMIT @most);

-- name: MovePushesPlace :exec
UPDATE metering_state SET pushes_until = @until, pushes_tenant = @tenant, pushes_rule = @rule;

-- name: MeteringState :one
SELECT sealed_until FROM metering_state;

-- name: MeteringGaps :many
-- At most so many, in the order of time. Those in which units may be missing have the first places,
-- and the last one spans all of them that have no other. Closed gaps have the places that are left.
SELECT min(g.from_at)::timestamptz AS from_at, max(g.to_at)::timestamptz AS to_at, g.closed_at
FROM (
    SELECT m.from_at, m.to_at, m.closed_at, row_number() OVER (ORDER BY m.closed_at IS NOT NULL, m.from_at, m.to_at) AS place
    FROM (
        SELECT o.from_at, o.to_at, o.closed_at FROM metering_gaps o WHERE o.to_at > @since AND o.from_at < @until AND o.closed_at IS NULL
        UNION ALL (
            SELECT c.from_at, c.to_at, c.closed_at FROM metering_gaps c WHERE c.to_at > @since AND c.from_at < @until AND c.closed_at IS NOT NULL
            ORDER BY c.from_at, c.to_at LIMIT @most::integer
        )
    ) AS m
) AS g
WHERE g.place <= @most OR g.closed_at IS NULL
GROUP BY least(g.place, @most), g.closed_at ORDER BY 1, 2;

-- name: MeteredHours :many
-- One row per hour, subject and rule, in this order, behind the one that is named.
SELECT start, subject, rule, units, overage_units, free_units, billed_units, checks, late_units FROM metered_usage
WHERE tenant_id = @tenant_id AND start >= @since AND start < @until
    AND (@subject::text = '' OR subject = @subject) AND (@rule::text = '' OR rule = @rule)
    AND (start, subject, rule) > (@after_start::timestamptz, @after_subject::text, @after_rule::text)
ORDER BY start, subject, rule LIMIT @most;

-- name: MeteredPeriod :many
-- One row per subject and rule for the whole period, in this order, behind the one that is named.
SELECT subject, rule, least(sum(units), 9223372036854775807)::bigint AS units,
    least(sum(overage_units), 9223372036854775807)::bigint AS overage_units,
    least(sum(free_units), 9223372036854775807)::bigint AS free_units,
    least(sum(billed_units), 9223372036854775807)::bigint AS billed_units, sum(checks)::bigint AS checks,
    least(sum(late_units), 9223372036854775807)::bigint AS late_units
FROM metered_usage
WHERE tenant_id = @tenant_id AND start >= @since AND start < @until
    AND (@subject::text = '' OR subject = @subject) AND (@rule::text = '' OR rule = @rule)
    AND subject >= @prefix::text AND subject < @prefix::text || U&'\+10FFFF' -- what begins with it
    AND (subject, rule) > (@after_subject::text, @after_rule::text)
GROUP BY subject, rule
ORDER BY subject, rule LIMIT @most;

-- name: MeteredTotals :many
-- One row per rule for the whole period.
SELECT rule, least(sum(units), 9223372036854775807)::bigint AS units,
    least(sum(overage_units), 9223372036854775807)::bigint AS overage_units,
    least(sum(free_units), 9223372036854775807)::bigint AS free_units,
    least(sum(billed_units), 9223372036854775807)::bigint AS billed_units, sum(checks)::bigint AS checks,
    least(sum(late_units), 9223372036854775807)::bigint AS late_units,
    least(sum(unattributed_units), 9223372036854775807)::bigint AS unattributed_units
FROM metered_totals
WHERE tenant_id = @tenant_id AND start >= @since AND start < @until AND (@rule::text = '' OR rule = @rule)
GROUP BY rule ORDER BY rule LIMIT @most;

-- name: MeteredTotalsOf :many
-- The same for one subject. Its units are attributed.
SELECT rule, least(sum(units), 9223372036854775807)::bigint AS units,
    least(sum(overage_units), 9223372036854775807)::bigint AS overage_units,
    least(sum(free_units), 9223372036854775807)::bigint AS free_units,
    least(sum(billed_units), 9223372036854775807)::bigint AS billed_units, sum(checks)::bigint AS checks,
    least(sum(late_units), 9223372036854775807)::bigint AS late_units
FROM metered_usage
WHERE tenant_id = @tenant_id AND subject = @subject AND start >= @since AND start < @until AND (@rule::text = '' OR rule = @rule)
GROUP BY rule ORDER BY rule LIMIT @most;

-- name: KnowsRule :one
-- Reports whether a tenant has a rule, or metered usage of a rule that was deleted.
SELECT (EXISTS (SELECT FROM rules r WHERE r.tenant_id = @tenant_id AND r.slug = @slug)
    OR EXISTS (SELECT FROM metered_totals m WHERE m.tenant_id = @tenant_id AND m.rule = @slug))::boolean AS known;

-- name: PurgeMeteredUsage :execrows
DELETE FROM metered_usage WHERE (tenant_id, start, subject, rule) IN (
    SELECT o.tenant_id, o.start, o.subject, o.rule FROM metered_usage o
    WHERE o.start < now() - @retention::interval LIMIT @most);

-- name: PurgeMeteredTotals :execrows
DELETE FROM metered_totals WHERE (tenant_id, start, rule) IN (
    SELECT o.tenant_id, o.start, o.rule FROM metered_totals o
    WHERE o.start < now() - @retention::interval LIMIT @most);

-- name: PurgeDeletedMeteredUsage :execrows
DELETE FROM metered_usage WHERE (tenant_id, start, subject, rule) IN (
    SELECT o.tenant_id, o.start, o.subject, o.rule
    FROM metered_usage o JOIN deleted_tenants d ON d.id = o.tenant_id
    WHERE d.deleted_at > now() - interval '2 days' LIMIT @most);

-- name: PurgeDeletedMeteredTotals :execrows
DELETE FROM metered_totals WHERE (tenant_id, start, rule) IN (
    SELECT o.tenant_id, o.start, o.rule
    FROM metered_totals o JOIN deleted_tenants d ON d.id = o.tenant_id
    WHERE d.deleted_at > now() - interval '2 days' LIMIT @most);

-- name: PurgeMeteringWriters :execrows
DELETE FROM metering_writers WHERE writer IN (
    SELECT o.writer FROM metering_writers o WHERE o.written_at < now() - @retention::interval LIMIT @most);

-- name: PurgeMeteringGaps :execrows
DELETE FROM metering_gaps WHERE writer IN (
    SELECT o.writer FROM metering_gaps o WHERE o.to_at < now() - @retention::interval LIMIT @most);

-- name: PurgeMeteredPushProblems :execrows
-- Before their pushes, of which one can have very many.
DELETE FROM metered_push_problems WHERE (tenant_id, push_id, subject) IN (
    SELECT p.tenant_id, p.push_id, p.subject
    FROM metered_pushes o JOIN metered_push_problems p ON p.tenant_id = o.tenant_id AND p.push_id = o.id
    WHERE o.start < now() - @retention::interval LIMIT @most);

-- name: PurgeMeteredPushes :execrows
DELETE FROM metered_pushes WHERE (tenant_id, id) IN (
    SELECT o.tenant_id, o.id FROM metered_pushes o WHERE o.start < now() - @retention::interval LIMIT @most);

-- name: DueMeteredPushes :many
-- The first due pushes of some tenants, the tenants in turn.
SELECT due.tenant_id, due.id, due.attempts FROM (SELECT unnest(@tenants::uuid[]) AS tenant_id) AS turn
CROSS JOIN LATERAL (
    SELECT p.tenant_id, p.id, p.attempts, row_number() OVER (ORDER BY p.due_at, p.id) AS place FROM metered_pushes p
    WHERE p.tenant_id = turn.tenant_id AND p.due_at <= now() ORDER BY p.due_at, p.id LIMIT @of_tenant
) AS due
ORDER BY due.place, array_position(@tenants::uuid[], due.tenant_id) LIMIT @most;

-- name: ClaimMeteredPush :one
-- One server sends; where it dies, another does after the time that it has for it. Nothing is sent
-- for a tenant that was deleted.
UPDATE metered_pushes p SET due_at = now() + @lease::interval
WHERE p.tenant_id = @tenant_id AND p.id = @id AND p.due_at <= now() AND EXISTS (SELECT FROM tenants t WHERE t.id = p.tenant_id)
RETURNING start, rule, meter_event, kind, after_subject, complete, attempts, unanswered_at, unanswered_until, due_at, now()::timestamptz AS now;

-- name: RetryMeteredPushes :exec
-- The pushes of a tenant that wait longer for their next attempt than a server has for a part are due
-- now. A part that a server sends is left alone: its outcome is not lost. The transaction may have
-- waited for the tenant.
UPDATE metered_pushes SET due_at = clock_timestamp() WHERE tenant_id = @tenant_id AND due_at > clock_timestamp() + @lease::interval;

-- name: BeginMeteredPush :execrows
-- Subjects of a part that is still claimed may be sent from now on. Those that may have been sent
-- before stay as they are.
UPDATE metered_pushes SET unanswered_at = coalesce(unanswered_at, sqlc.arg(now)::timestamptz),
    unanswered_until = CASE WHEN unanswered_at IS NULL THEN @until::text ELSE unanswered_until END
WHERE tenant_id = @tenant_id AND id = @id AND due_at = @claimed::timestamptz;

-- name: PostponeMeteredPush :exec
-- A part that is still claimed was not sent: what may have been sent is as before the claim.
UPDATE metered_pushes SET attempts = @attempts, why = @why, unanswered_at = sqlc.narg(unanswered_at), unanswered_until = @unanswered_until,
    due_at = now() + @wait::interval, updated_at = now()
WHERE tenant_id = @tenant_id AND id = @id AND due_at = @claimed::timestamptz;

-- name: MeteredPushSubjects :many
-- The subjects with units to send among the next ones, of which there may be very many without.
SELECT looked.subject, least(looked.due, 9223372036854775807)::bigint AS units FROM (
    SELECT u.subject, CASE @kind::text WHEN 'overage' THEN u.overage_units::numeric + u.billed_units ELSE u.units::numeric - u.free_units END AS due
    FROM metered_usage u WHERE u.tenant_id = @tenant_id AND u.start = @start AND u.rule = @rule AND u.subject > @after_subject
    ORDER BY u.subject LIMIT @look
) AS looked WHERE looked.due > 0 ORDER BY looked.subject LIMIT @most;

-- name: MeteredPushLookedUntil :one
-- The last one of so many subjects.
SELECT subject FROM metered_usage
WHERE tenant_id = @tenant_id AND start = @start AND rule = @rule AND subject > @after_subject ORDER BY subject LIMIT 1 OFFSET @before::integer;

-- name: MeteredPushProblems :many
SELECT subject, units, outcome, why, unanswered_at FROM metered_push_problems
WHERE tenant_id = @tenant_id AND push_id = @push_id AND subject > @after_subject ORDER BY subject LIMIT @most;

-- name: MeteredPushProblemsUntil :one
-- The subject behind so many that were not sent.
SELECT subject FROM metered_push_problems
WHERE tenant_id = @tenant_id AND push_id = @push_id AND subject > @after_subject ORDER BY subject LIMIT 1 OFFSET @skip::integer;

-- name: ParkedMeteredSubjects :many
-- The parked subjects, up to one of them, that may have a customer now: MeteredCustomers says which.
-- Those that may have been sent before are among them, and with @every all are. Of the others, those
-- are not whose endpoints with a key all reject their events.
SELECT p.subject, p.units, p.unanswered_at FROM metered_push_problems p
LEFT JOIN subjects s ON s.tenant_id = @tenant_id AND s.subject = p.subject AND starts_with(s.billing_ref, 'cus_')
    AND s.subject > @after_subject AND (@until::text = '' OR s.subject <= @until)
LEFT JOIN LATERAL (
    SELECT bool_or(e.id <> ALL (@rejecting::uuid[])) AS takes FROM (
        SELECT x.endpoint_id FROM billing_subscriptions x
        WHERE x.tenant_id = @tenant_id AND x.subject = p.subject AND x.customer <> '' OFFSET 0 -- by its own index, not for each endpoint
    ) AS of_subject
    JOIN billing_endpoints e ON e.tenant_id = @tenant_id AND e.id = of_subject.endpoint_id
    WHERE e.provider = 'stripe' AND e.api_key IS NOT NULL
) AS subscribed ON true
WHERE p.tenant_id = @tenant_id AND p.push_id = @push_id AND p.outcome = 'parked' AND p.subject > @after_subject
    AND (@until::text = '' OR p.subject <= @until)
    AND (@every::boolean OR p.unanswered_at IS NOT NULL OR coalesce(subscribed.takes, s.subject IS NOT NULL))
ORDER BY p.subject LIMIT @most;

-- name: MeteredCustomers :many
-- The provider's customer of each subject, with the endpoint whose key can send for it: that of the
-- subscription that gives the plan, as Standing.Better orders them and best reads them, in live mode
-- if there is one. A subject without subscriptions has its billing_ref. That has also the tenant's
-- only Stripe endpoint with a key, where the customer's own endpoint has none.
SELECT n.subject::text AS subject, coalesce(b.customer, s.billing_ref, '')::text AS customer,
    coalesce(b.endpoint_id::text, o.id, '')::text AS endpoint
FROM (SELECT unnest(@subjects::text[]) AS subject) AS n
LEFT JOIN LATERAL (
    SELECT x.customer, CASE WHEN e.api_key IS NOT NULL THEN x.endpoint_id END AS endpoint_id FROM billing_subscriptions x
    JOIN billing_endpoints e ON e.tenant_id = x.tenant_id AND e.id = x.endpoint_id
    WHERE x.tenant_id = @tenant_id AND x.subject = n.subject AND x.customer <> '' AND e.provider = 'stripe'
    ORDER BY e.live DESC NULLS LAST,
        coalesce(x.standing, CASE WHEN x.state->'newest'->>'status' IN ('active', 'trialing', 'past_due', 'unpaid') AND x.state->'gone' IS NULL THEN 4 ELSE 0 END) DESC,
        x.priority DESC, coalesce(x.created, (x.state->'newest'->>'created')::bigint, 0) DESC,
        x.subscription, e.api_key IS NULL, x.endpoint_id LIMIT 1
) AS b ON true
LEFT JOIN subjects s ON s.tenant_id = @tenant_id AND s.subject = n.subject AND starts_with(s.billing_ref, 'cus_')
    AND (b.customer IS NULL OR b.customer = s.billing_ref)
LEFT JOIN LATERAL (
    SELECT min(e.id::text) AS id FROM billing_endpoints e
    WHERE e.tenant_id = @tenant_id AND e.provider = 'stripe' AND e.api_key IS NOT NULL HAVING count(*) = 1
) AS o ON s.subject IS NOT NULL;

-- name: MeterEndpoints :many
-- The endpoints to which events can be sent.
SELECT id, version, live FROM billing_endpoints WHERE tenant_id = @tenant_id AND provider = 'stripe' AND api_key IS NOT NULL;

-- name: LockMeteredPush :execrows
-- Locks the push of a part that is still claimed, before its subjects that were not sent: what notes
-- a restore locks them in this order, too.
SELECT FROM metered_pushes WHERE tenant_id = @tenant_id AND id = @id AND due_at = @claimed::timestamptz FOR NO KEY UPDATE;

-- name: AdvanceMeteredPush :exec
-- Subjects up to after_subject, of a part that is locked, were sent, or have a problem.
UPDATE metered_pushes SET after_subject = @after_subject, pushed = pushed + @pushed, pushed_units = pushed_units + @pushed_units,
    complete = @complete, why = @why, attempts = @attempts, unanswered_at = sqlc.narg(unanswered_at), unanswered_until = @unanswered_until,
    due_at = sqlc.narg(due_at), updated_at = now()
WHERE tenant_id = @tenant_id AND id = @id;

-- name: PutMeteredPushProblem :exec
-- A problem that is known keeps since when the subject's units may have been sent.
INSERT INTO metered_push_problems (tenant_id, push_id, subject, units, outcome, why, unanswered_at)
VALUES (@tenant_id, @push_id, @subject, @units, @outcome, @why, sqlc.narg(unanswered_at))
ON CONFLICT (tenant_id, push_id, subject) DO UPDATE SET outcome = excluded.outcome, why = excluded.why
    WHERE (metered_push_problems.outcome, metered_push_problems.why) <> (excluded.outcome, excluded.why);

-- name: ClearAttemptedProblems :exec
-- An attempt did not send the units of these subjects: only an earlier one may have.
UPDATE metered_push_problems SET unanswered_at = NULL
WHERE tenant_id = @tenant_id AND push_id = @push_id AND subject = ANY (@subjects::text[]) AND unanswered_at = @now;

-- name: NoteUnansweredProblems :exec
-- Some units of these subjects, which had problems, may be sent now.
UPDATE metered_push_problems SET unanswered_at = @now
WHERE tenant_id = @tenant_id AND push_id = @push_id AND subject = ANY (@subjects::text[]) AND unanswered_at IS NULL;

-- name: DeleteMeteredPushProblem :exec
DELETE FROM metered_push_problems WHERE tenant_id = @tenant_id AND push_id = @push_id AND subject = @subject;

-- name: MeteredPushHasProblems :one
SELECT EXISTS (SELECT FROM metered_push_problems WHERE tenant_id = @tenant_id AND push_id = @push_id AND outcome = 'parked');

-- name: ListMeteredPushes :many
-- Newest hour first, behind the one that is named.
SELECT p.id, p.start, p.rule, p.meter_event, p.kind, p.pushed, p.pushed_units, p.complete, p.why, p.attempts, p.due_at, p.updated_at,
    (SELECT count(*) FROM metered_push_problems x WHERE x.tenant_id = p.tenant_id AND x.push_id = p.id AND x.outcome = 'parked') AS parked,
    (SELECT count(*) FROM metered_push_problems x WHERE x.tenant_id = p.tenant_id AND x.push_id = p.id AND x.outcome = 'failed') AS failed
FROM metered_pushes p
WHERE p.tenant_id = @tenant_id AND (@rule::text = '' OR p.rule = @rule) AND (p.start, p.rule) < (@before_start::timestamptz, @before_rule::text)
ORDER BY p.start DESC, p.rule DESC LIMIT @most;
