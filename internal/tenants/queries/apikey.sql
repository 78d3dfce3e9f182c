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

-- name: LookUpTenantKeys :many
SELECT k.tenant_id, k.id, k.name, k.kind, k.scopes, k.hash, k.expires_at, k.revoked_at, k.rotated_to, k.addresses, k.resources,
    t.state AS tenant_state, t.slug AS tenant_slug, t.keys_version
FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
WHERE k.tenant_id = @tenant_id;

-- name: TouchKeys :batchexec
UPDATE api_keys SET last_used_at = @at::timestamptz
WHERE tenant_id = @tenant_id AND id = @id AND (last_used_at IS NULL OR last_used_at < @at);
