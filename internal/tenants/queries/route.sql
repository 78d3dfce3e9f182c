-- name: InsertRoute :one
INSERT INTO routes (tenant_id, id, slug, name, description, subject, hash, no_subject, resources, default_resource,
    cost, attributes, denied_status, fail, version)
VALUES (@tenant_id, @id, @slug, @name, @description, @subject, @hash, @no_subject, @resources, @default_resource,
    @cost, @attributes, @denied_status, @fail, @version)
RETURNING *;

-- name: UpdateRoute :one
UPDATE routes SET name = @name, description = @description, subject = @subject, hash = @hash, no_subject = @no_subject,
    resources = @resources, default_resource = @default_resource, cost = @cost, attributes = @attributes,
    denied_status = @denied_status, fail = @fail, version = @version, updated_at = now()
WHERE tenant_id = @tenant_id AND id = @id
RETURNING *;

-- name: RouteBySlug :one
SELECT * FROM routes WHERE tenant_id = @tenant_id AND slug = @slug;

-- name: Routes :many
SELECT * FROM routes
WHERE tenant_id = @tenant_id AND (sqlc.narg(after)::uuid IS NULL OR id < sqlc.narg(after))
ORDER BY id DESC LIMIT @most;

-- name: RouteSummaries :many
SELECT id, slug, name, subject, no_subject, fail, jsonb_array_length(resources)::int AS templates FROM routes
WHERE tenant_id = @tenant_id AND (sqlc.narg(after)::uuid IS NULL OR id < sqlc.narg(after))
ORDER BY id DESC LIMIT @most;

-- name: RouteHeads :many
SELECT slug, name, subject FROM routes WHERE tenant_id = @tenant_id ORDER BY id DESC LIMIT @most;

-- name: CountRoutes :one
SELECT count(*) FROM routes WHERE tenant_id = @tenant_id;

-- name: AllRoutes :many
SELECT * FROM routes WHERE tenant_id = @tenant_id;

-- name: DeleteRoute :exec
DELETE FROM routes WHERE tenant_id = @tenant_id AND id = @id;
