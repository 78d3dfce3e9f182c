-- Each query finds the tenants whose turn it is in one loop. turns.go explains how. oldest are the
-- first of the tasks that are due, of all tenants. If they are all that are due, their tenants are
-- all that have one. Else turn finds the tenants with tasks in order, behind the one where the last
-- step ended, by one look into an index for each: due reports whether its first task is due. Next
-- is where the following step begins.

-- name: BillingEventTurns :one
WITH RECURSIVE oldest AS MATERIALIZED (
    SELECT tenant_id, due_at AS at FROM billing_events WHERE due_at <= @now::timestamptz ORDER BY due_at LIMIT @most::int
), turn AS (
    SELECT @after::uuid AS tenant_id, false AS due, 0 AS looked, 0 AS found WHERE (SELECT count(*) FROM oldest) = @most::int
    UNION ALL
    SELECT n.tenant_id, n.due, turn.looked + 1, turn.found + n.due::int FROM turn CROSS JOIN LATERAL (
        SELECT x.tenant_id, (x.due_at <= @now::timestamptz) AS due FROM billing_events x
        WHERE x.tenant_id > turn.tenant_id AND x.due_at IS NOT NULL ORDER BY x.tenant_id, x.due_at LIMIT 1
    ) AS n WHERE turn.looked < @look_at::int AND turn.found < @most::int
)
SELECT array(SELECT tenant_id FROM turn WHERE due ORDER BY looked)::uuid[] AS in_turn,
    array(SELECT oldest.tenant_id FROM oldest GROUP BY oldest.tenant_id ORDER BY min(oldest.at))::uuid[] AS with_oldest,
    coalesce((SELECT tenant_id FROM turn WHERE looked = @look_at::int OR found = @most::int ORDER BY looked DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS next;

-- name: BillingSubscriptionTurns :one
WITH RECURSIVE oldest AS MATERIALIZED (
    SELECT tenant_id, due_at AS at FROM billing_subscriptions WHERE due_at <= @now::timestamptz ORDER BY due_at LIMIT @most::int
), turn AS (
    SELECT @after::uuid AS tenant_id, false AS due, 0 AS looked, 0 AS found WHERE (SELECT count(*) FROM oldest) = @most::int
    UNION ALL
    SELECT n.tenant_id, n.due, turn.looked + 1, turn.found + n.due::int FROM turn CROSS JOIN LATERAL (
        SELECT x.tenant_id, (x.due_at <= @now::timestamptz) AS due FROM billing_subscriptions x
        WHERE x.tenant_id > turn.tenant_id AND x.due_at IS NOT NULL ORDER BY x.tenant_id, x.due_at LIMIT 1
    ) AS n WHERE turn.looked < @look_at::int AND turn.found < @most::int
)
SELECT array(SELECT tenant_id FROM turn WHERE due ORDER BY looked)::uuid[] AS in_turn,
    array(SELECT oldest.tenant_id FROM oldest GROUP BY oldest.tenant_id ORDER BY min(oldest.at))::uuid[] AS with_oldest,
    coalesce((SELECT tenant_id FROM turn WHERE looked = @look_at::int OR found = @most::int ORDER BY looked DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS next;

-- name: BillingReconcileTurns :one
WITH RECURSIVE oldest AS MATERIALIZED (
    SELECT tenant_id, reconcile_at AS at FROM billing_endpoints WHERE reconcile_at <= @now::timestamptz ORDER BY reconcile_at LIMIT @most::int
), turn AS (
    SELECT @after::uuid AS tenant_id, false AS due, 0 AS looked, 0 AS found WHERE (SELECT count(*) FROM oldest) = @most::int
    UNION ALL
    SELECT n.tenant_id, n.due, turn.looked + 1, turn.found + n.due::int FROM turn CROSS JOIN LATERAL (
        SELECT x.tenant_id, (x.reconcile_at <= @now::timestamptz) AS due FROM billing_endpoints x
        WHERE x.tenant_id > turn.tenant_id AND x.reconcile_at IS NOT NULL ORDER BY x.tenant_id, x.reconcile_at LIMIT 1
    ) AS n WHERE turn.looked < @look_at::int AND turn.found < @most::int
)
SELECT array(SELECT tenant_id FROM turn WHERE due ORDER BY looked)::uuid[] AS in_turn,
    array(SELECT oldest.tenant_id FROM oldest GROUP BY oldest.tenant_id ORDER BY min(oldest.at))::uuid[] AS with_oldest,
    coalesce((SELECT tenant_id FROM turn WHERE looked = @look_at::int OR found = @most::int ORDER BY looked DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS next;

-- name: DuePlanTurns :one
WITH RECURSIVE oldest AS MATERIALIZED (
    SELECT tenant_id, next_plan_at AS at FROM subjects WHERE next_plan_at <= @now::timestamptz ORDER BY next_plan_at LIMIT @most::int
), turn AS (
    SELECT @after::uuid AS tenant_id, false AS due, 0 AS looked, 0 AS found WHERE (SELECT count(*) FROM oldest) = @most::int
    UNION ALL
    SELECT n.tenant_id, n.due, turn.looked + 1, turn.found + n.due::int FROM turn CROSS JOIN LATERAL (
        SELECT x.tenant_id, (x.next_plan_at <= @now::timestamptz AND (SELECT t.state FROM tenants t WHERE t.id = x.tenant_id) = 'active') AS due FROM subjects x
        WHERE x.tenant_id > turn.tenant_id AND x.next_plan_at IS NOT NULL ORDER BY x.tenant_id, x.next_plan_at LIMIT 1
    ) AS n WHERE turn.looked < @look_at::int AND turn.found < @most::int
)
SELECT array(SELECT tenant_id FROM turn WHERE due ORDER BY looked)::uuid[] AS in_turn,
    array(SELECT o.tenant_id FROM (SELECT tenant_id, min(at) AS at FROM oldest GROUP BY tenant_id) AS o
        WHERE (SELECT t.state FROM tenants t WHERE t.id = o.tenant_id) = 'active' ORDER BY o.at)::uuid[] AS with_oldest,
    coalesce((SELECT tenant_id FROM turn WHERE looked = @look_at::int OR found = @most::int ORDER BY looked DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS next;

-- name: CounterChangeTurns :one
WITH RECURSIVE oldest AS MATERIALIZED (
    SELECT tenant_id, id AS at FROM counter_changes ORDER BY id LIMIT @most::int
), turn AS (
    SELECT @after::uuid AS tenant_id, false AS due, 0 AS looked, 0 AS found WHERE (SELECT count(*) FROM oldest) = @most::int
    UNION ALL
    SELECT n.tenant_id, n.due, turn.looked + 1, turn.found + n.due::int FROM turn CROSS JOIN LATERAL (
        SELECT x.tenant_id, (SELECT t.state FROM tenants t WHERE t.id = x.tenant_id) = 'active' AS due FROM counter_changes x
        WHERE x.tenant_id > turn.tenant_id ORDER BY x.tenant_id, x.id LIMIT 1
    ) AS n WHERE turn.looked < @look_at::int AND turn.found < @most::int
)
SELECT array(SELECT tenant_id FROM turn WHERE due ORDER BY looked)::uuid[] AS in_turn,
    array(SELECT o.tenant_id FROM (SELECT tenant_id, min(at) AS at FROM oldest GROUP BY tenant_id) AS o
        WHERE (SELECT t.state FROM tenants t WHERE t.id = o.tenant_id) = 'active' ORDER BY o.at)::uuid[] AS with_oldest,
    coalesce((SELECT tenant_id FROM turn WHERE looked = @look_at::int OR found = @most::int ORDER BY looked DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS next;

-- name: PlanMigrationTurns :one
-- Migrations that cannot continue now are among the oldest, too. A tenant has at most one open
-- migration for each plan, which bounds the look at those of one tenant.
WITH RECURSIVE oldest AS MATERIALIZED (
    SELECT tenant_id, starts_at AS at FROM plan_migrations WHERE ended_at IS NULL ORDER BY starts_at LIMIT @most::int
), turn AS (
    SELECT @after::uuid AS tenant_id, false AS due, 0 AS looked, 0 AS found WHERE (SELECT count(*) FROM oldest) = @most::int
    UNION ALL
    SELECT n.tenant_id, n.due, turn.looked + 1, turn.found + n.due::int FROM turn CROSS JOIN LATERAL (
        SELECT x.tenant_id, coalesce((
            SELECT (SELECT t.state FROM tenants t WHERE t.id = m.tenant_id) = 'active' FROM plan_migrations m
            WHERE m.tenant_id = x.tenant_id AND m.ended_at IS NULL AND (m.starts_at <= @now::timestamptz OR m.state = 'canceling')
                AND (m.state <> 'waiting' OR NOT EXISTS (SELECT FROM subjects s WHERE s.tenant_id = m.tenant_id AND s.migration_id = m.id))
            ORDER BY m.starts_at, m.id LIMIT 1
        ), false) AS due FROM plan_migrations x
        WHERE x.tenant_id > turn.tenant_id AND x.ended_at IS NULL ORDER BY x.tenant_id, x.starts_at LIMIT 1
    ) AS n WHERE turn.looked < @look_at::int AND turn.found < @most::int
)
SELECT array(SELECT tenant_id FROM turn WHERE due ORDER BY looked)::uuid[] AS in_turn,
    array(SELECT o.tenant_id FROM (SELECT tenant_id, min(at) AS at FROM oldest GROUP BY tenant_id) AS o
        WHERE (SELECT t.state FROM tenants t WHERE t.id = o.tenant_id) = 'active' ORDER BY o.at)::uuid[] AS with_oldest,
    coalesce((SELECT tenant_id FROM turn WHERE looked = @look_at::int OR found = @most::int ORDER BY looked DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS next;

-- name: MeterPushTurns :one
WITH RECURSIVE oldest AS MATERIALIZED (
    SELECT tenant_id, due_at AS at FROM metered_pushes WHERE due_at <= now() ORDER BY due_at LIMIT @most::int
), turn AS (
    SELECT @after::uuid AS tenant_id, false AS due, 0 AS looked, 0 AS found WHERE (SELECT count(*) FROM oldest) = @most::int
    UNION ALL
    SELECT n.tenant_id, n.due, turn.looked + 1, turn.found + n.due::int FROM turn CROSS JOIN LATERAL (
        SELECT x.tenant_id, (x.due_at <= now()) AS due FROM metered_pushes x
        WHERE x.tenant_id > turn.tenant_id AND x.due_at IS NOT NULL ORDER BY x.tenant_id, x.due_at LIMIT 1
    ) AS n WHERE turn.looked < @look_at::int AND turn.found < @most::int
)
SELECT array(SELECT tenant_id FROM turn WHERE due ORDER BY looked)::uuid[] AS in_turn,
    array(SELECT oldest.tenant_id FROM oldest GROUP BY oldest.tenant_id ORDER BY min(oldest.at))::uuid[] AS with_oldest,
    coalesce((SELECT tenant_id FROM turn WHERE looked = @look_at::int OR found = @most::int ORDER BY looked DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS next;

-- name: DeliveryTurns :one
-- The endpoints that have something to send, those that waited longest first. They are found in
-- order, from the first one of a tenant on. No index has the oldest deliveries of all tenants.
WITH RECURSIVE turn AS (
    SELECT @after::uuid AS tenant_id, '00000000-0000-0000-0000-000000000000'::uuid AS endpoint_id, NULL::timestamptz AS due_at, 0 AS looked, 0 AS found
    UNION ALL
    SELECT n.tenant_id, n.endpoint_id, n.due_at, turn.looked + 1, turn.found + (n.due_at <= @now::timestamptz)::int FROM turn CROSS JOIN LATERAL (
        SELECT x.tenant_id, x.endpoint_id, x.due_at FROM notification_deliveries x
        WHERE (x.tenant_id, x.endpoint_id) > (turn.tenant_id, turn.endpoint_id) AND x.due_at IS NOT NULL
        ORDER BY x.tenant_id, x.endpoint_id, x.due_at LIMIT 1
    ) AS n WHERE turn.looked < @look_at::int AND turn.found < @most::int
)
SELECT array(SELECT tenant_id FROM turn WHERE due_at <= @now::timestamptz ORDER BY due_at, endpoint_id)::uuid[] AS tenants,
    array(SELECT endpoint_id FROM turn WHERE due_at <= @now::timestamptz ORDER BY due_at, endpoint_id)::uuid[] AS endpoints,
    coalesce((SELECT tenant_id FROM turn WHERE looked = @look_at::int OR found = @most::int ORDER BY looked DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS next;
