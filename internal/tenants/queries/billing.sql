-- name: InsertBillingEndpoint :one
INSERT INTO billing_endpoints (tenant_id, id, provider, name, signing_secrets, signing_secret_hints, api_key, api_key_hint,
    subject_from, grace_days, fallback_plan_id, live, created_at, updated_at, reconcile_at, version)
VALUES (@tenant_id, @id, @provider, @name, @signing_secrets, @signing_secret_hints, @api_key, @api_key_hint,
    @subject_from, @grace_days, @fallback_plan_id, @live, @created_at, @updated_at, @reconcile_at, @version)
RETURNING *;

-- name: UpdateBillingEndpoint :one
UPDATE billing_endpoints SET name = @name, signing_secrets = @signing_secrets, signing_secret_hints = @signing_secret_hints,
    api_key = @api_key, api_key_hint = @api_key_hint, subject_from = @subject_from, grace_days = @grace_days,
    reconcile_failed_at = CASE WHEN @api_key::bytea IS NOT NULL THEN reconcile_failed_at END,
    reconcile_error = CASE WHEN @api_key::bytea IS NOT NULL THEN reconcile_error ELSE '' END,
    fallback_plan_id = @fallback_plan_id, live = @live, reconcile_at = @reconcile_at, updated_at = @updated_at, version = @version
WHERE tenant_id = @tenant_id AND id = @id
RETURNING *;

-- name: DeleteBillingEndpoint :exec
DELETE FROM billing_endpoints WHERE tenant_id = @tenant_id AND id = @id;

-- name: BillingEndpoints :many
-- Newest first, after the given one.
SELECT e.*, coalesce(p.slug, '')::text AS fallback_plan FROM billing_endpoints e
LEFT JOIN plans p ON p.tenant_id = e.tenant_id AND p.id = e.fallback_plan_id
WHERE e.tenant_id = @tenant_id AND (sqlc.narg(after_at)::timestamptz IS NULL
    OR (e.created_at, e.id) < (sqlc.narg(after_at)::timestamptz, sqlc.narg(after)::uuid))
ORDER BY e.created_at DESC, e.id DESC LIMIT @most;

-- name: BillingEndpointByID :one
SELECT e.*, coalesce(p.slug, '')::text AS fallback_plan FROM billing_endpoints e
LEFT JOIN plans p ON p.tenant_id = e.tenant_id AND p.id = e.fallback_plan_id
WHERE e.tenant_id = @tenant_id AND e.id = @id;

-- name: CountBillingEndpoints :one
SELECT count(*) FROM billing_endpoints WHERE tenant_id = @tenant_id;

-- name: ReencryptBillingEndpoint :exec
-- The same secrets, encrypted with another key. The version stays the same.
UPDATE billing_endpoints SET signing_secrets = @signing_secrets, api_key = @api_key
WHERE tenant_id = @tenant_id AND id = @id AND version = @version;

-- name: RecordBillingEndpointEvent :execrows
-- The first event of a mode determines that of the endpoint. Then there is no row for the other mode.
UPDATE billing_endpoints SET last_event_at = @at, live = coalesce(live, sqlc.narg(live))
WHERE tenant_id = @tenant_id AND id = @id AND coalesce(live = sqlc.narg(live), true);

-- name: RecordBillingEndpointLook :exec
-- Unless a price was mapped meanwhile: events that wait for prices are looked at first.
UPDATE billing_endpoints SET looked_at = CASE WHEN looked_at < 0 THEN looked_at ELSE greatest(looked_at, @version) END WHERE tenant_id = @tenant_id AND id = @id;

-- name: MarkBillingPrices :exec
-- A price was mapped, so the events of the endpoint that wait for one are looked at. The mark is another
-- one each time.
UPDATE billing_endpoints SET looked_at = -sqlc.arg(mark)::bigint WHERE tenant_id = @tenant_id AND id = @id;

-- name: RecordBillingPricesLook :exec
-- Unless the endpoint was marked again meanwhile. After it, the events that wait for a subject are looked at
-- again.
UPDATE billing_endpoints SET looked_at = 0 WHERE tenant_id = @tenant_id AND id = @id AND looked_at = @seen;

-- name: ClaimBillingReconcile :execrows
-- One server compares. If it fails, another one does after @next; without an API key, none does.
UPDATE billing_endpoints SET reconcile_at = CASE WHEN api_key IS NOT NULL THEN @next::timestamptz END WHERE tenant_id = @tenant_id AND id = @id AND reconcile_at <= @now;

-- name: RenewBillingReconcile :exec
-- One that is due was requested meanwhile, or another server has it.
UPDATE billing_endpoints SET reconcile_at = @next WHERE tenant_id = @tenant_id AND id = @id AND reconcile_at > @now;

-- name: RequestBillingReconcile :execrows
-- All purchases are compared that the provider still knows.
UPDATE billing_endpoints SET reconcile_at = @now::timestamptz, purchases_compared_at = NULL WHERE tenant_id = @tenant_id AND id = @id AND api_key IS NOT NULL;

-- name: RecordBillingReconcile :exec
-- One that is due was requested meanwhile: it follows, with all that it was asked for. None follows
-- if the endpoint has lost its API key.
UPDATE billing_endpoints SET reconciled_at = @at, reconcile_failed_at = CASE WHEN api_key IS NOT NULL THEN sqlc.narg(failed_at)::timestamptz END,
    reconcile_error = CASE WHEN api_key IS NULL THEN '' ELSE @error END,
    reconcile_at = CASE WHEN api_key IS NULL THEN NULL WHEN reconcile_at > @began::timestamptz AND reconcile_at <= @at::timestamptz THEN reconcile_at ELSE @next::timestamptz END,
    purchases_compared_at = CASE WHEN reconcile_at > @began::timestamptz AND reconcile_at <= @at::timestamptz OR NOT @purchases::boolean
        THEN purchases_compared_at ELSE @at::timestamptz END
WHERE tenant_id = @tenant_id AND id = @id;

-- name: RecordBillingReconcileFailure :exec
-- The endpoint may have lost its API key meanwhile.
UPDATE billing_endpoints SET reconcile_failed_at = @at, reconcile_error = @error
WHERE tenant_id = @tenant_id AND id = @id AND api_key IS NOT NULL;

-- name: RecordBillingRefusal :exec
UPDATE billing_endpoints SET refused_at = @at, refused_why = @why WHERE tenant_id = @tenant_id AND id = @id;

-- name: WebhookEndpoint :one
-- In any tenant, because the sender of an event belongs to none. Also in a suspended one: its
-- customers pay and cancel meanwhile. A deleted one is hidden (tenants.deleted_at).
SELECT e.tenant_id, e.id, e.provider, e.signing_secrets, e.live, e.version FROM billing_endpoints e
JOIN tenants t ON t.id = e.tenant_id
WHERE e.id = @id;

-- name: UpsertBillingPrice :one
INSERT INTO billing_prices (tenant_id, price, id, endpoint_id, plan_id, rule_id, units, expires_days, multiply, priority,
    created_at, updated_at, version)
VALUES (@tenant_id, @price, @id, @endpoint_id, @plan_id, @rule_id, @units, @expires_days, @multiply, @priority,
    @created_at, @updated_at, @version)
ON CONFLICT (tenant_id, price) DO UPDATE SET endpoint_id = excluded.endpoint_id, plan_id = excluded.plan_id,
    rule_id = excluded.rule_id, units = excluded.units, expires_days = excluded.expires_days, multiply = excluded.multiply, priority = excluded.priority, updated_at = excluded.updated_at, version = excluded.version
RETURNING *;

-- name: DeleteBillingPrice :exec
DELETE FROM billing_prices WHERE tenant_id = @tenant_id AND price = @price;

-- name: BillingPrices :many
SELECT b.*, coalesce(p.slug, '')::text AS plan, coalesce(r.slug, '')::text AS rule FROM billing_prices b
LEFT JOIN plans p ON p.tenant_id = b.tenant_id AND p.id = b.plan_id
LEFT JOIN rules r ON r.tenant_id = b.tenant_id AND r.id = b.rule_id
WHERE b.tenant_id = @tenant_id AND (sqlc.narg(after)::uuid IS NULL OR b.id < sqlc.narg(after))
ORDER BY b.id DESC LIMIT @most;

-- name: BillingPricesOf :many
SELECT b.*, coalesce(p.slug, '')::text AS plan, coalesce(r.slug, '')::text AS rule FROM billing_prices b
LEFT JOIN plans p ON p.tenant_id = b.tenant_id AND p.id = b.plan_id
LEFT JOIN rules r ON r.tenant_id = b.tenant_id AND r.id = b.rule_id
WHERE b.tenant_id = @tenant_id AND b.endpoint_id = @endpoint_id ORDER BY b.price;

-- name: BillingPriceByName :one
SELECT b.*, coalesce(p.slug, '')::text AS plan, coalesce(r.slug, '')::text AS rule FROM billing_prices b
LEFT JOIN plans p ON p.tenant_id = b.tenant_id AND p.id = b.plan_id
LEFT JOIN rules r ON r.tenant_id = b.tenant_id AND r.id = b.rule_id
WHERE b.tenant_id = @tenant_id AND b.price = @price;

-- name: CountBillingPrices :one
SELECT count(*) FROM billing_prices WHERE tenant_id = @tenant_id;

-- name: RuleHasBilling :one
SELECT EXISTS (SELECT FROM billing_prices WHERE tenant_id = @tenant_id AND rule_id = @rule_id);

-- name: EndpointGrantsCredits :one
SELECT EXISTS (SELECT FROM billing_prices WHERE tenant_id = @tenant_id AND endpoint_id = @endpoint_id AND rule_id IS NOT NULL);

-- name: LockBillingPurchases :exec
-- Until the transaction ends, no other one grants credits for a purchase, or takes them back.
SELECT pg_advisory_xact_lock(hashtextextended(@endpoint, 0));

-- name: PutBillingPayment :exec
INSERT INTO billing_payments (tenant_id, endpoint_id, payment, purchase, seen_at) VALUES (@tenant_id, @endpoint_id, @payment, @purchase, @now)
ON CONFLICT (tenant_id, endpoint_id, payment) DO UPDATE SET purchase = excluded.purchase;

-- name: PutBillingRefund :one
INSERT INTO billing_payments (tenant_id, endpoint_id, payment, refunded, seen_at) VALUES (@tenant_id, @endpoint_id, @payment, true, @now)
ON CONFLICT (tenant_id, endpoint_id, payment) DO UPDATE SET refunded = true
RETURNING purchase;

-- name: PurchaseRefunded :one
SELECT EXISTS (SELECT FROM billing_payments b
    WHERE b.tenant_id = @tenant_id AND b.endpoint_id = @endpoint_id AND b.purchase = @purchase AND b.purchase <> '' AND b.refunded);

-- name: PurgeBillingPayments :execrows
-- Payments from before an instant whose purchases have no grants.
DELETE FROM billing_payments WHERE (tenant_id, endpoint_id, payment) IN (
    SELECT p.tenant_id, p.endpoint_id, p.payment FROM billing_payments p
    WHERE p.seen_at < @before::timestamptz AND NOT EXISTS (
        SELECT FROM credit_grants g WHERE g.tenant_id = p.tenant_id AND p.purchase <> ''
            AND g.reference > p.purchase || '/' AND g.reference < p.purchase || '0' AND g.reference <> '')
    LIMIT @most);

-- name: PlanHasBilling :one
SELECT EXISTS (SELECT FROM billing_prices WHERE billing_prices.tenant_id = @tenant_id AND plan_id = @plan_id)
    OR EXISTS (SELECT FROM billing_endpoints WHERE billing_endpoints.tenant_id = @tenant_id AND fallback_plan_id = @plan_id);

-- name: InsertBillingEvent :execrows
INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, customer, subscription, subject, due_at,
    outcome, why, settled_at)
VALUES (@tenant_id, @id, @endpoint_id, @provider_id, @type, @provider_at, @received_at, @body, @customer, @subscription, @subject, sqlc.narg(due_at),
    sqlc.narg(outcome), @why, sqlc.narg(settled_at))
ON CONFLICT (tenant_id, endpoint_id, provider_id) WHERE duplicate_of IS NULL DO NOTHING;

-- name: CountBillingEvent :one
-- Counts an event of @day that was not received before, unless the tenant would then have more of that
-- day than it may. The stored day can be that of a server whose clock is ahead, but not by more than a
-- day. The row of the tenant stays locked until the transaction ends.
WITH received AS (
    SELECT FROM billing_events e
    WHERE e.tenant_id = @tenant_id AND e.endpoint_id = @endpoint_id AND e.provider_id = @provider_id AND e.duplicate_of IS NULL
), counted AS (
    INSERT INTO billing_days AS d (tenant_id, day, events, bytes)
    SELECT @tenant_id, @day::date, 1, @bytes::bigint WHERE NOT EXISTS (SELECT FROM received)
    ON CONFLICT (tenant_id) DO UPDATE SET day = CASE WHEN d.day BETWEEN excluded.day AND excluded.day + 1 THEN d.day ELSE excluded.day END,
        events = CASE WHEN d.day BETWEEN excluded.day AND excluded.day + 1 THEN d.events ELSE 0 END + 1,
        bytes = CASE WHEN d.day BETWEEN excluded.day AND excluded.day + 1 THEN d.bytes ELSE 0 END + excluded.bytes
    WHERE d.day NOT BETWEEN excluded.day AND excluded.day + 1 OR d.events < @most_events::bigint AND d.bytes + excluded.bytes <= @most_bytes::bigint
    RETURNING d.tenant_id
)
SELECT EXISTS (SELECT FROM received) AS received, EXISTS (SELECT FROM counted) AS counted;

-- name: PurgeUnappliedEvents :execrows
-- Parked and failed events that were last decided before a time, and are not to be processed again,
-- or take effect far ahead.
DELETE FROM billing_events WHERE (tenant_id, id) IN (
    SELECT o.tenant_id, o.id FROM billing_events o
    WHERE o.settled_at < @before AND (o.due_at IS NULL OR o.waits_for = 'time' AND o.due_at > @ahead) AND o.outcome IN ('parked', 'failed') LIMIT @most);

-- name: PurgeBillingEvents :execrows
-- Events that were decided before a time, without parked and failed ones.
DELETE FROM billing_events WHERE (tenant_id, id) IN (
    SELECT o.tenant_id, o.id FROM billing_events o
    WHERE o.settled_at < @before AND o.due_at IS NULL AND o.outcome IN ('applied', 'duplicate', 'stale', 'ignored') LIMIT @most);

-- name: BillingEventReceived :one
SELECT EXISTS (SELECT FROM billing_events
    WHERE tenant_id = @tenant_id AND endpoint_id = @endpoint_id AND provider_id = @provider_id AND duplicate_of IS NULL);

-- name: RecordBillingDuplicate :exec
-- One row for all duplicates of an event.
INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, customer, subscription, subject,
    outcome, why, settled_at, duplicate_of)
SELECT e.tenant_id, @id, e.endpoint_id, e.provider_id, e.type, e.provider_at, @now, '', e.customer, e.subscription, e.subject,
    'duplicate', 'the event ' || e.provider_id || ' was received before', @now, e.id
FROM billing_events e
WHERE e.tenant_id = @tenant_id AND e.endpoint_id = @endpoint_id AND e.provider_id = @provider_id AND e.duplicate_of IS NULL
ON CONFLICT (tenant_id, duplicate_of) WHERE duplicate_of IS NOT NULL
DO UPDATE SET deliveries = billing_events.deliveries + 1, received_at = excluded.received_at;

-- name: BillingEventByID :one
SELECT * FROM billing_events WHERE tenant_id = @tenant_id AND id = @id;

-- name: LockBillingEvent :one
SELECT * FROM billing_events WHERE tenant_id = @tenant_id AND id = @id FOR UPDATE;

-- name: SettleBillingEvent :exec
UPDATE billing_events SET outcome = sqlc.narg(outcome), why = @why, settled_at = @settled_at, due_at = sqlc.narg(due_at), attempts = @attempts,
    waits_for = @waits_for, customer = @customer, subscription = @subscription, subject = @subject
WHERE tenant_id = @tenant_id AND id = @id;

-- name: DismissBillingEvent :exec
-- It waits for nothing any more.
UPDATE billing_events SET outcome = 'ignored', why = @why, settled_at = @settled_at, due_at = NULL, waits_for = ''
WHERE tenant_id = @tenant_id AND id = @id;

-- name: PostponeBillingEvent :exec
UPDATE billing_events SET due_at = @due_at, why = @why, attempts = attempts + 1 WHERE tenant_id = @tenant_id AND id = @id AND due_at IS NOT NULL;

-- name: WakeBillingPrices :one
-- A price was mapped, so events that wait for a price are due again. It looks at a page of them, as
-- WakeBillingSubjects does.
WITH page AS MATERIALIZED (
    SELECT e.id, e.customer, e.due_at FROM billing_events e
    WHERE e.tenant_id = @tenant_id AND e.endpoint_id = @endpoint_id AND e.waits_for = 'price'
        AND (e.customer, e.id) > (@after_customer::text, @after_id::uuid)
    ORDER BY e.customer, e.id LIMIT @most
), woken AS (
    UPDATE billing_events e SET due_at = @now FROM page
    WHERE e.tenant_id = @tenant_id AND e.id = page.id AND (page.due_at IS NULL OR page.due_at > @now)
)
SELECT page.customer, page.id, count(*) OVER () AS looked FROM page ORDER BY page.customer DESC, page.id DESC LIMIT 1;

-- name: WakeBillingCustomer :one
-- Data about a customer arrived, so events that wait for their subject are due again. It looks at a
-- page of them, in the order of their ids. looked is the number of events in the page, and id is that
-- of the last one, where the next page begins.
WITH page AS MATERIALIZED (
    SELECT e.id FROM billing_events e
    WHERE e.tenant_id = @tenant_id AND e.endpoint_id = @endpoint_id AND e.waits_for = 'subject' AND e.customer = @customer AND e.id > @after_id::uuid
    ORDER BY e.id LIMIT @most
), woken AS (
    UPDATE billing_events e SET due_at = @now FROM page WHERE e.tenant_id = @tenant_id AND e.id = page.id
)
SELECT page.id, count(*) OVER () AS looked FROM page ORDER BY page.id DESC LIMIT 1;

-- name: WakeBillingSubscription :exec
-- A subscription has a subject, so events that wait for that are due again, and wait no longer. Those
-- that wait for a subject until a time are not woken: they may wait for something else.
WITH page AS MATERIALIZED (
    SELECT e.id FROM billing_events e
    WHERE e.tenant_id = @tenant_id AND e.endpoint_id = @endpoint_id AND e.subscription = @subscription
        AND e.waits_for IN ('subject', 'subscription') AND (e.waits_for = 'subscription' OR e.due_at IS NULL)
    ORDER BY e.id LIMIT @most
)
UPDATE billing_events e SET due_at = @now, waits_for = '' FROM page WHERE e.tenant_id = @tenant_id AND e.id = page.id;

-- name: WakeBillingSubjects :one
-- Subjects were registered, so events of their customers are due again. It looks at a page of the
-- events that wait, because one statement for all of them could exceed its timeout. looked is the
-- number of events in the page, and customer and id are those of the last one, where the next page
-- begins.
WITH page AS MATERIALIZED (
    SELECT e.id, e.customer, e.due_at FROM billing_events e
    WHERE e.tenant_id = @tenant_id AND e.endpoint_id = @endpoint_id AND e.waits_for = 'subject' AND e.customer <> ''
        AND (e.customer, e.id) > (@after_customer::text, @after_id::uuid)
    ORDER BY e.customer, e.id LIMIT @most
), woken AS (
    UPDATE billing_events e SET due_at = @now FROM page
    WHERE e.tenant_id = @tenant_id AND e.id = page.id AND (page.due_at IS NULL OR page.due_at > @now)
        AND EXISTS (SELECT FROM subjects s WHERE s.tenant_id = @tenant_id AND s.billing_ref = page.customer AND s.billing_ref <> '')
)
SELECT page.customer, page.id, count(*) OVER () AS looked FROM page ORDER BY page.customer DESC, page.id DESC LIMIT 1;

-- name: DueBillingEvents :many
-- The first due events of some tenants, the tenants in turn.
SELECT due.tenant_id, due.id FROM (SELECT unnest(@tenants::uuid[]) AS tenant_id) AS turn
CROSS JOIN LATERAL (
    SELECT e.tenant_id, e.id, row_number() OVER (ORDER BY e.due_at, e.id) AS place FROM billing_events e
    WHERE e.tenant_id = turn.tenant_id AND e.due_at <= @now ORDER BY e.due_at, e.id LIMIT @of_tenant
) AS due
ORDER BY due.place, array_position(@tenants::uuid[], due.tenant_id) LIMIT @most;

-- name: DueBillingSubscriptions :many
-- The first due subscriptions of some tenants, the tenants in turn.
SELECT due.tenant_id, due.endpoint_id, due.subscription FROM (SELECT unnest(@tenants::uuid[]) AS tenant_id) AS turn
CROSS JOIN LATERAL (
    SELECT s.tenant_id, s.endpoint_id, s.subscription, row_number() OVER (ORDER BY s.due_at, s.endpoint_id, s.subscription) AS place
    FROM billing_subscriptions s WHERE s.tenant_id = turn.tenant_id AND s.due_at <= @now
    ORDER BY s.due_at, s.endpoint_id, s.subscription LIMIT @of_tenant
) AS due
ORDER BY due.place, array_position(@tenants::uuid[], due.tenant_id) LIMIT @most;

-- name: DueBillingReconciles :many
-- The due endpoints of some tenants, the tenants in turn.
SELECT due.tenant_id, due.id FROM (SELECT unnest(@tenants::uuid[]) AS tenant_id) AS turn
CROSS JOIN LATERAL (
    SELECT e.tenant_id, e.id, row_number() OVER (ORDER BY e.reconcile_at, e.id) AS place FROM billing_endpoints e
    WHERE e.tenant_id = turn.tenant_id AND e.reconcile_at <= @now ORDER BY e.reconcile_at, e.id LIMIT @of_tenant
) AS due
ORDER BY due.place, array_position(@tenants::uuid[], due.tenant_id) LIMIT @most;

-- name: UnseenBillingSubjects :one
-- Endpoints with events that wait for a subject, where subjects have changed since the last look, and
-- those where a price was mapped: looked is negative.
-- They are found in order, from the first one of a tenant on, among @look_at endpoints.
WITH page AS MATERIALIZED (
    SELECT e.tenant_id, e.id, e.looked_at FROM billing_endpoints e WHERE e.tenant_id >= @after::uuid ORDER BY e.tenant_id, e.id LIMIT @look_at::int
), unseen AS MATERIALIZED (
    SELECT page.tenant_id, page.id, t.subjects_version, page.looked_at FROM page JOIN tenants t ON t.id = page.tenant_id
    WHERE page.looked_at < 0 OR t.subjects_version > page.looked_at
        AND EXISTS (SELECT FROM billing_events v WHERE v.tenant_id = page.tenant_id AND v.endpoint_id = page.id AND v.waits_for = 'subject')
    ORDER BY page.tenant_id, page.id LIMIT @most::int
)
SELECT array(SELECT tenant_id FROM unseen ORDER BY tenant_id, id)::uuid[] AS tenants, array(SELECT id FROM unseen ORDER BY tenant_id, id)::uuid[] AS endpoints,
    array(SELECT subjects_version FROM unseen ORDER BY tenant_id, id)::bigint[] AS versions,
    array(SELECT looked_at FROM unseen ORDER BY tenant_id, id)::bigint[] AS looked,
    coalesce(CASE WHEN (SELECT count(*) FROM unseen) = @most::int THEN (SELECT tenant_id FROM unseen ORDER BY tenant_id DESC LIMIT 1)
        WHEN (SELECT count(*) FROM page) = @look_at::int THEN (SELECT tenant_id FROM page ORDER BY tenant_id DESC LIMIT 1) END,
        '00000000-0000-0000-0000-000000000000')::uuid AS next;

-- name: BillingBacklog :one
-- Events that are not processed yet, counted up to @most, and when the one was received that is due for
-- the longest time.
SELECT (SELECT count(*) FROM (SELECT a.id FROM billing_events a WHERE a.due_at <= @now LIMIT @most) AS few) AS events,
    coalesce((SELECT b.received_at FROM billing_events b WHERE b.due_at <= @now ORDER BY b.due_at LIMIT 1), 'epoch')::timestamptz AS oldest;

-- name: CountUnappliedEvents :one
-- Events of a tenant that were not applied, counted up to @most. Scheduled ones are parked until a
-- time that the event names.
SELECT count(*) FILTER (WHERE outcome = 'parked') AS parked, count(*) FILTER (WHERE outcome = 'parked' AND waits_for = 'time') AS scheduled,
    count(*) FILTER (WHERE outcome = 'failed') AS failed
FROM (SELECT outcome, waits_for FROM billing_events WHERE tenant_id = @tenant_id AND outcome IN ('parked', 'failed') LIMIT @most) AS few;

-- name: CountAllUnappliedEvents :one
-- The same of all tenants, without those that wait for a time. Their index has this order, and with it
-- no other index is used, which has those that wait for a time.
SELECT count(*) FILTER (WHERE outcome = 'parked') AS parked, count(*) FILTER (WHERE outcome = 'failed') AS failed
FROM (SELECT outcome FROM billing_events WHERE outcome IN ('parked', 'failed') AND waits_for <> 'time' ORDER BY endpoint_id LIMIT @most) AS few;

-- name: BillingEndpointsAfter :many
-- Endpoints of all tenants, in order, after the given one.
SELECT tenant_id, id FROM billing_endpoints WHERE (tenant_id, id) > (@after_tenant::uuid, @after_id::uuid) ORDER BY tenant_id, id LIMIT @most;

-- name: DueBillingNotices :many
-- Of the endpoints after one, up to another: those with events that were received before a time and are
-- parked or failed, without those that wait for a time, unless a notice was sent recently. And those
-- that had a notice and have no such events any more. Only the events of these are counted. The first
-- such event of each endpoint is looked up; EXISTS could read those of all tenants. Their index has
-- the order in which they are read, so that no other index is used.
WITH due AS MATERIALIZED (
    SELECT e.tenant_id, e.id, e.provider, e.name FROM billing_endpoints e
    LEFT JOIN billing_notices b ON b.tenant_id = e.tenant_id AND b.endpoint_id = e.id
    CROSS JOIN LATERAL (
        SELECT count(*) > 0 AS unapplied FROM (SELECT FROM billing_events v
            WHERE v.tenant_id = e.tenant_id AND v.endpoint_id = e.id AND v.outcome IN ('parked', 'failed') AND v.waits_for <> 'time'
                AND v.received_at <= @before ORDER BY v.received_at LIMIT 1) AS first
    ) AS has
    WHERE (e.tenant_id, e.id) > (@after_tenant::uuid, @after_id::uuid) AND (e.tenant_id, e.id) <= (@last_tenant::uuid, @last_id::uuid)
        AND (SELECT t.state FROM tenants t WHERE t.id = e.tenant_id) IS NOT NULL -- none of a tenant that was deleted
        AND CASE WHEN b.settled_at IS NULL AND b.sent_at > @repeat_before THEN NOT has.unapplied
            WHEN b.settled_at IS NULL AND b.sent_at IS NOT NULL THEN true
            WHEN b.sent_at > @again_before THEN false
            ELSE has.unapplied END
)
SELECT due.tenant_id, due.id, due.provider, due.name, n.parked, n.failed, n.oldest FROM due
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE few.outcome = 'parked') AS parked, count(*) FILTER (WHERE few.outcome = 'failed') AS failed,
        coalesce(min(few.received_at), 'epoch')::timestamptz AS oldest
    FROM (SELECT v.outcome, v.received_at FROM billing_events v
        WHERE v.tenant_id = due.tenant_id AND v.endpoint_id = due.id AND v.outcome IN ('parked', 'failed') AND v.waits_for <> 'time'
            AND v.received_at <= @before ORDER BY v.received_at LIMIT @count_most) AS few) AS n;

-- name: PutBillingNotice :execrows
-- 0 if another server has recorded it, or if the endpoint was deleted.
INSERT INTO billing_notices (tenant_id, endpoint_id, sent_at)
SELECT e.tenant_id, e.id, @now FROM billing_endpoints e WHERE e.tenant_id = @tenant_id AND e.id = @endpoint_id
ON CONFLICT (tenant_id, endpoint_id) DO UPDATE SET sent_at = excluded.sent_at, settled_at = NULL
WHERE billing_notices.settled_at IS NULL AND billing_notices.sent_at <= @repeat_before
    OR billing_notices.settled_at IS NOT NULL AND billing_notices.sent_at <= @again_before;

-- name: SettleBillingNotice :execrows
UPDATE billing_notices SET settled_at = @now WHERE tenant_id = @tenant_id AND endpoint_id = @endpoint_id AND settled_at IS NULL;

-- name: BillingCustomer :one
SELECT facts FROM billing_customers WHERE tenant_id = @tenant_id AND endpoint_id = @endpoint_id AND customer = @customer;

-- name: PutBillingCustomer :exec
INSERT INTO billing_customers (tenant_id, endpoint_id, customer, facts) VALUES (@tenant_id, @endpoint_id, @customer, @facts)
ON CONFLICT (tenant_id, endpoint_id, customer) DO UPDATE SET facts = excluded.facts;

-- name: BillingSubscription :one
SELECT * FROM billing_subscriptions WHERE tenant_id = @tenant_id AND endpoint_id = @endpoint_id AND subscription = @subscription;

-- name: BillingSubscriptionsOfCustomer :many
-- In order, after the given one.
SELECT * FROM billing_subscriptions
WHERE tenant_id = @tenant_id AND endpoint_id = @endpoint_id AND customer = @customer AND subscription > @after ORDER BY subscription LIMIT @most;

-- name: BillingSubscriptionsOfSubject :many
-- Those of the endpoint, and if it is one of Stripe, those of the other endpoints of Stripe in the same
-- mode, in order after the given one.
SELECT s.* FROM billing_endpoints e JOIN billing_endpoints other ON other.tenant_id = e.tenant_id
    AND (other.id = e.id OR other.provider = 'stripe' AND e.provider = 'stripe' AND other.live IS NOT DISTINCT FROM e.live)
JOIN billing_subscriptions s ON s.tenant_id = other.tenant_id AND s.endpoint_id = other.id
WHERE e.tenant_id = @tenant_id AND e.id = @endpoint_id AND s.subject = @subject
    AND (s.subscription, s.endpoint_id) > (@after_subscription::text, @after_endpoint::uuid)
ORDER BY s.subscription, s.endpoint_id LIMIT @most;

-- name: CountSubscriptionsOfSubject :one
-- The number of those that BillingSubscriptionsOfSubject pages through, at most most.
SELECT count(*) FROM (
    SELECT FROM billing_endpoints e JOIN billing_endpoints other ON other.tenant_id = e.tenant_id
        AND (other.id = e.id OR other.provider = 'stripe' AND e.provider = 'stripe' AND other.live IS NOT DISTINCT FROM e.live)
    JOIN billing_subscriptions s ON s.tenant_id = other.tenant_id AND s.endpoint_id = other.id
    WHERE e.tenant_id = @tenant_id AND e.id = @endpoint_id AND s.subject = @subject LIMIT @most) AS few;

-- name: BillingSubscriptionNames :many
SELECT subscription, customer FROM billing_subscriptions
WHERE tenant_id = @tenant_id AND endpoint_id = @endpoint_id AND subscription > @after ORDER BY subscription LIMIT @most;

-- name: PutBillingSubscription :exec
-- What has not changed is not written.
INSERT INTO billing_subscriptions AS b (tenant_id, endpoint_id, subscription, customer, subject, state, standing, priority, created, due_at, updated_at)
VALUES (@tenant_id, @endpoint_id, @subscription, @customer, @subject, @state, @standing::smallint, @priority, @created::bigint, sqlc.narg(due_at), @now)
ON CONFLICT (tenant_id, endpoint_id, subscription) DO UPDATE SET customer = excluded.customer, subject = excluded.subject,
    state = excluded.state, standing = excluded.standing, priority = excluded.priority, created = excluded.created,
    due_at = excluded.due_at, updated_at = excluded.updated_at
WHERE (b.customer, b.subject, b.state, b.standing, b.priority, b.created, b.due_at)
    IS DISTINCT FROM (excluded.customer, excluded.subject, excluded.state, excluded.standing, excluded.priority, excluded.created, excluded.due_at);

-- name: PutSubscriptionStandings :exec
UPDATE billing_subscriptions b SET standing = n.standing, priority = n.priority, created = n.created
FROM (SELECT unnest(@endpoints::uuid[]) AS endpoint_id, unnest(@subscriptions::text[]) AS subscription,
    unnest(@standings::smallint[]) AS standing, unnest(@priorities::integer[]) AS priority, unnest(@createds::bigint[]) AS created) AS n
WHERE b.tenant_id = @tenant_id AND b.endpoint_id = n.endpoint_id AND b.subscription = n.subscription;

-- name: PostponeBillingSubscription :exec
UPDATE billing_subscriptions SET due_at = @due_at
WHERE tenant_id = @tenant_id AND endpoint_id = @endpoint_id AND subscription = @subscription AND due_at <= @now;

-- name: GracePeriods :many
-- Subscriptions of a tenant whose grace period has not ended, in the order of the ends.
SELECT s.subject, s.subscription, s.due_at::timestamptz AS ends_at, coalesce(p.slug, '') AS fallback_plan
FROM billing_subscriptions s
JOIN billing_endpoints e ON e.tenant_id = s.tenant_id AND e.id = s.endpoint_id
LEFT JOIN plans p ON p.tenant_id = e.tenant_id AND p.id = e.fallback_plan_id
WHERE s.tenant_id = @tenant_id AND s.due_at IS NOT NULL AND s.subject <> ''
ORDER BY s.due_at, s.subscription LIMIT @most;

-- name: GracePeriodsOfSubject :many
-- The same of one subject. The index of subjects begins with the endpoint.
SELECT s.subject, s.subscription, s.due_at::timestamptz AS ends_at, coalesce(p.slug, '') AS fallback_plan
FROM billing_endpoints e
JOIN billing_subscriptions s ON s.tenant_id = e.tenant_id AND s.endpoint_id = e.id AND s.subject = @subject
LEFT JOIN plans p ON p.tenant_id = e.tenant_id AND p.id = e.fallback_plan_id
WHERE e.tenant_id = @tenant_id AND s.due_at IS NOT NULL
ORDER BY s.due_at, s.subscription LIMIT @most;

-- name: SubjectByBillingRef :one
-- If several subjects have the reference, always the same one.
SELECT subject FROM subjects WHERE tenant_id = @tenant_id AND billing_ref = @billing_ref AND billing_ref <> '' ORDER BY subject LIMIT 1;

-- name: SubjectsByBillingRefs :many
-- The subjects that have one of the references, in the order of their names.
SELECT subject, billing_ref FROM subjects
WHERE tenant_id = @tenant_id AND billing_ref = ANY(@refs::text[]) AND billing_ref <> '' ORDER BY subject;
