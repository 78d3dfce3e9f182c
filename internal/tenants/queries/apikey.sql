-- name: InsertKey :one
INSERT INTO api_keys (tenant_id, id, name, kind, scopes, hash, last4, created_by, expires_at, addresses, resources, version)
VALUES (@tenant_id, @id, @name, @kind, @scopes, @hash, @last4, @created_by, @expires_at, @addresses, @resources, @version)
RETURNING *;

-- name: KeyByID :one
SELECT * FROM api_keys WHERE tenant_id = @tenant_id AND id = @id;

-- name: FirstKey :one
-- The first key of the chain of rotations that ends with this key.
WITH RECURSIVE line AS (
    SELECT k.id, 0 AS steps FROM api_keys k WHERE k.tenant_id = @tenant_id AND k.id = @id
    UNION ALL
    SELECT k.id, line.steps + 1 FROM line JOIN api_keys k ON k.tenant_id = @tenant_id AND k.rotated_to = line.id
)
SELECT line.id FROM line ORDER BY line.steps DESC LIMIT 1;

-- name: Keys :many
SELECT * FROM api_keys
WHERE tenant_id = @tenant_id AND (sqlc.narg(after)::uuid IS NULL OR id < sqlc.narg(after))
ORDER BY id DESC LIMIT @most;

-- name: UpdateKey :one
UPDATE api_keys SET name = @name, scopes = @scopes, expires_at = @expires_at, revoked_at = @revoked_at,
    rotated_to = @rotated_to, addresses = @addresses, resources = @resources, version = @version
WHERE tenant_id = @tenant_id AND id = @id
RETURNING *;

-- name: LookUpKey :one
-- The data for authentication, with the version at which it was read.
SELECT k.tenant_id, k.id, k.name, k.kind, k.scopes, k.hash, k.expires_at, k.revoked_at, k.rotated_to, k.addresses, k.resources,
    t.state AS tenant_state, t.slug AS tenant_slug, t.keys_version
FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
WHERE k.hash = @hash;

-- name: KeyOfActor :one
-- LookUpKey for a key that was found before.
SELECT k.tenant_id, k.id, k.name, k.kind, k.scopes, k.hash, k.expires_at, k.revoked_at, k.rotated_to, k.addresses, k.resources,
    t.state AS tenant_state, t.slug AS tenant_slug, t.keys_version
FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
WHERE k.tenant_id = @tenant_id AND k.id = @id;

-- name: LookUpTenantKeys :many
-- The keys that work, and of those that ended the @most that changed last: a key that ended earlier
-- is looked up when it is used.
SELECT k.tenant_id, k.id, k.name, k.kind, k.scopes, k.hash, k.expires_at, k.revoked_at, k.rotated_to, k.addresses, k.resources,
    t.state AS tenant_state, t.slug AS tenant_slug, t.keys_version
FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
WHERE k.tenant_id = @tenant_id AND (k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > @now::timestamptz)
    OR k.id IN (
        SELECT e.id FROM api_keys e
        WHERE e.tenant_id = @tenant_id AND (e.revoked_at IS NOT NULL OR e.expires_at <= @now::timestamptz)
        ORDER BY e.version DESC, e.id DESC LIMIT @most));

-- name: CountKeys :one
-- All keys, and those that work.
SELECT count(*) AS stored, count(*) FILTER (WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > @now::timestamptz)) AS working
FROM api_keys WHERE tenant_id = @tenant_id;

-- name: PurgeKeys :execrows
DELETE FROM api_keys WHERE (tenant_id, id) IN (
    SELECT k.tenant_id, k.id FROM api_keys k WHERE k.revoked_at < @before::timestamptz OR k.expires_at < @before::timestamptz
    LIMIT @most);

-- name: TenantsWithEndedKeys :many
-- Tenants with more than @kept keys that have ended, in the order of their ids.
SELECT tenant_id FROM api_keys WHERE tenant_id > @after AND (revoked_at IS NOT NULL OR expires_at <= @now::timestamptz)
GROUP BY tenant_id HAVING count(*) > @kept::bigint ORDER BY tenant_id LIMIT @most;

-- name: PurgeKeysOf :execrows
-- Keys of a tenant that have ended, except those that ended last.
DELETE FROM api_keys d WHERE d.tenant_id = @tenant_id AND d.id IN (
    SELECT k.id FROM api_keys k
    WHERE k.tenant_id = @tenant_id AND (k.revoked_at IS NOT NULL OR k.expires_at <= @now::timestamptz)
    ORDER BY least(k.revoked_at, k.expires_at) DESC, k.id DESC OFFSET @kept LIMIT @most);

-- name: TouchKeys :batchexec
UPDATE api_keys SET last_used_at = @at::timestamptz
WHERE tenant_id = @tenant_id AND id = @id AND (last_used_at IS NULL OR last_used_at < @at);
