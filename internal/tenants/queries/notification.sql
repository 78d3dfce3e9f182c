-- name: InsertNotificationEndpoint :one
INSERT INTO notification_endpoints (tenant_id, id, url, description, types, enabled, secrets, secret_hint, created_at, updated_at, version)
VALUES (@tenant_id, @id, @url, @description, @types, @enabled, @secrets, @secret_hint, @created_at, @created_at, @version)
RETURNING *;

-- name: UpdateNotificationEndpoint :one
UPDATE notification_endpoints SET url = @url, description = @description, types = @types, enabled = @enabled, disabled_why = @disabled_why,
    secrets = @secrets, secret_hint = @secret_hint, previous_until = sqlc.narg(previous_until), updated_at = @updated_at, version = @version
WHERE tenant_id = @tenant_id AND id = @id
RETURNING *;

-- name: DeleteNotificationEndpoint :exec
DELETE FROM notification_endpoints WHERE tenant_id = @tenant_id AND id = @id;

-- name: NotificationEndpoints :many
-- Newest first, after the given one.
SELECT * FROM notification_endpoints WHERE tenant_id = @tenant_id AND (sqlc.narg(after)::uuid IS NULL OR id < sqlc.narg(after))
ORDER BY id DESC LIMIT @most;

-- name: NotificationEndpointByID :one
SELECT * FROM notification_endpoints WHERE tenant_id = @tenant_id AND id = @id;

-- name: CountNotificationEndpoints :one
SELECT count(*) FROM notification_endpoints WHERE tenant_id = @tenant_id;

-- name: ReencryptNotificationEndpoint :exec
-- The same secrets, encrypted with another key. The version stays the same.
UPDATE notification_endpoints SET secrets = @secrets WHERE tenant_id = @tenant_id AND id = @id AND version = @version;

-- name: EndpointsForNotification :many
SELECT id FROM notification_endpoints
WHERE tenant_id = @tenant_id AND enabled AND (cardinality(types) = 0 OR @type::text = ANY(types));

-- name: CountRecentNotifications :one
SELECT count(*) AS recent, count(*) FILTER (WHERE type = @type) AS of_type
FROM notifications WHERE tenant_id = @tenant_id AND created_at > @since;

-- name: RecordDroppedNotification :exec
UPDATE notification_endpoints SET dropped = dropped + 1, dropped_at = @now WHERE tenant_id = @tenant_id AND id = ANY(@ids::uuid[]);

-- name: InsertNotification :exec
INSERT INTO notifications (tenant_id, id, type, body, created_at) VALUES (@tenant_id, @id, @type, @body, @created_at);

-- name: InsertNotificationDelivery :exec
INSERT INTO notification_deliveries (tenant_id, id, endpoint_id, notification_id, state, due_at, began_at, created_at)
VALUES (@tenant_id, @id, @endpoint_id, @notification_id, 'pending', @now::timestamptz, @now::timestamptz, @now::timestamptz);

-- name: NotificationDeliveries :many
-- Newest first, after the given one.
SELECT d.*, n.type, e.url FROM notification_deliveries d
JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = d.notification_id
JOIN notification_endpoints e ON e.tenant_id = d.tenant_id AND e.id = d.endpoint_id
WHERE d.tenant_id = @tenant_id AND (sqlc.narg(endpoint_id)::uuid IS NULL OR d.endpoint_id = sqlc.narg(endpoint_id))
    AND (@state::text = '' OR d.state = @state) AND (@type::text = '' OR n.type = @type)
    AND (sqlc.narg(after)::uuid IS NULL OR d.id < sqlc.narg(after))
ORDER BY d.id DESC LIMIT @most;

-- name: NotificationDeliveryByID :one
SELECT d.*, n.type, e.url, n.body FROM notification_deliveries d
JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = d.notification_id
JOIN notification_endpoints e ON e.tenant_id = d.tenant_id AND e.id = d.endpoint_id
WHERE d.tenant_id = @tenant_id AND d.id = @id;

-- name: ReplayNotificationDelivery :exec
UPDATE notification_deliveries SET state = 'pending', attempts = 0, due_at = @now::timestamptz, began_at = @now::timestamptz,
    settled_at = NULL, why = ''
WHERE tenant_id = @tenant_id AND id = @id;

-- name: ClaimNotificationDelivery :one
-- The next delivery of an endpoint, for one server, unless the tenant was deleted. If that server
-- dies, another one sends it after the lease.
WITH claimed AS (
    UPDATE notification_deliveries d SET due_at = @lease, attempts = attempts + 1, attempted_at = @now
    WHERE d.tenant_id = @tenant_id AND EXISTS (SELECT FROM tenants t WHERE t.id = d.tenant_id) AND d.id = (
        SELECT c.id FROM notification_deliveries c WHERE c.tenant_id = @tenant_id AND c.endpoint_id = @endpoint_id AND c.due_at <= @now
        ORDER BY c.due_at, c.id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING d.tenant_id, d.id, d.endpoint_id, d.notification_id, d.attempts, d.began_at
)
SELECT c.id, c.notification_id, c.attempts, c.began_at, n.type, n.body, e.url, e.enabled, e.secrets, e.previous_until
FROM claimed c JOIN notifications n ON n.tenant_id = c.tenant_id AND n.id = c.notification_id
JOIN notification_endpoints e ON e.tenant_id = c.tenant_id AND e.id = c.endpoint_id;

-- name: SettleNotificationDelivery :execrows
-- Nothing, if the lease has ended and another server has the delivery.
UPDATE notification_deliveries SET state = @state, due_at = sqlc.narg(due_at), settled_at = sqlc.narg(settled_at), status = sqlc.narg(status),
    why = @why, answer = @answer
WHERE tenant_id = @tenant_id AND id = @id AND state = 'pending' AND attempts = @attempts;

-- name: NotificationBacklog :one
-- Deliveries that wait for an attempt, counted up to @most, in the order of the index that has them.
SELECT count(*) FROM (
    SELECT FROM notification_deliveries WHERE due_at IS NOT NULL ORDER BY tenant_id, endpoint_id, due_at LIMIT @most) AS few;

-- name: PurgeNotifications :execrows
-- With their deliveries.
DELETE FROM notifications WHERE (tenant_id, id) IN (
    SELECT o.tenant_id, o.id FROM notifications o WHERE o.created_at < @before LIMIT @most);

-- name: AuditNotificationEndpoints :many
-- Column by column: secrets are not to get into the trail, even encrypted.
SELECT id, url AS target, jsonb_strip_nulls(jsonb_build_object('id', id, 'url', url, 'description', nullif(description, ''), 'types', nullif(types, '{}'),
    'enabled', enabled, 'disabled_reason', nullif(disabled_why, ''), 'secret_last4', secret_hint, 'previous_secret_until', previous_until))::text AS object
FROM notification_endpoints WHERE tenant_id = @tenant_id AND id = ANY(@ids::uuid[]);

-- name: DeliveryTurns :one
-- The endpoints that have something to send, those that waited longest first. They are found in
-- order, from the first one of a tenant on. No index has the oldest deliveries of all tenants. A
-- tenant that was deleted may have deliveries still, and is not among tenants any more.
WITH RECURSIVE turn AS (
    SELECT @after::uuid AS tenant_id, '00000000-0000-0000-0000-000000000000'::uuid AS endpoint_id, NULL::timestamptz AS due_at, 0 AS looked, 0 AS found
    UNION ALL
    SELECT n.tenant_id, n.endpoint_id, n.due_at, turn.looked + 1, turn.found + (n.due_at <= @now::timestamptz)::int FROM turn CROSS JOIN LATERAL (
        SELECT x.tenant_id, x.endpoint_id, CASE WHEN (SELECT t.state FROM tenants t WHERE t.id = x.tenant_id) IS NULL THEN 'infinity' ELSE x.due_at END AS due_at
        FROM notification_deliveries x
        WHERE (x.tenant_id, x.endpoint_id) > (turn.tenant_id, turn.endpoint_id) AND x.due_at IS NOT NULL
        ORDER BY x.tenant_id, x.endpoint_id, x.due_at LIMIT 1
    ) AS n WHERE turn.looked < @look_at::int AND turn.found < @most::int
)
SELECT array(SELECT tenant_id FROM turn WHERE due_at <= @now::timestamptz ORDER BY due_at, endpoint_id)::uuid[] AS tenants,
    array(SELECT endpoint_id FROM turn WHERE due_at <= @now::timestamptz ORDER BY due_at, endpoint_id)::uuid[] AS endpoints,
    coalesce((SELECT tenant_id FROM turn WHERE looked = @look_at::int OR found = @most::int ORDER BY looked DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS next;
