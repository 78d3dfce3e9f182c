-- name: TenantByID :one
SELECT * FROM tenants WHERE id = @id;

-- name: TenantBySlug :one
SELECT * FROM tenants WHERE slug = @slug;

-- name: SlugWasUsed :one
-- Whether a tenant has or had this slug, or the operator's tenant has something of that name for a
-- tenant to come. The counters of its rules have no registration: they are named by slug, too.
SELECT (EXISTS (SELECT FROM tenants t WHERE t.slug = @slug::text) OR EXISTS (SELECT FROM deleted_tenants d WHERE d.slug = @slug)
    OR EXISTS (SELECT FROM tenants o JOIN subjects s ON s.tenant_id = o.id WHERE o.slug = @platform AND s.subject = @slug))::boolean AS used;

-- name: LockTenant :one
-- Every change of a tenant's configuration holds this lock, so that counts and checks over several
-- rows stay valid.
SELECT * FROM tenants WHERE id = @id FOR NO KEY UPDATE;

-- name: AnnounceUrgent :exec
-- Until the transaction ends, an import of the tenant knows that an urgent change waits for it.
SELECT pg_advisory_xact_lock_shared(hashtextextended('urgent ' || @tenant::text, 0));

-- name: NothingUrgent :one
-- Reports whether nobody has announced an urgent change of a tenant. The lock ends at once.
SELECT (pg_try_advisory_lock(u.key) AND pg_advisory_unlock(u.key))::boolean AS nothing
FROM (SELECT hashtextextended('urgent ' || @tenant::text, 0) AS key) u;

-- name: InsertTenant :one
INSERT INTO tenants (id, slug, name, partitions, version, policy_version, subjects_version, keys_version)
VALUES (@id, @slug, @name, @partitions, @version, @version, @version, @version)
RETURNING *;

-- name: BumpVersion :one
-- Like NextVersion, for a tenant that has no row.
UPDATE config_version SET version = version + 1 RETURNING version, pg_notify('weir_changes', @tenant_id::text)::text;

-- name: UpdateTenantName :one
UPDATE tenants SET name = @name, updated_at = now() WHERE id = @id RETURNING *;

-- name: UpdateTenant :one
UPDATE tenants SET name = @name, state = @state, partitions = @partitions, partitions_before = @partitions_before,
    partitions_changed_at = @partitions_changed_at, updated_at = now()
WHERE id = @id RETURNING *;

-- name: TenantPartitions :many
-- How many hash tags the counters of tenants may have, also those that were left by the last change.
SELECT id, partitions, greatest(partitions, partitions_before)::integer AS most FROM tenants WHERE id = ANY(@ids::uuid[]);

-- name: SeeDeletedTenants :exec
-- Whether the transaction sees tenants that were deleted ('on'), whose rows are left.
SELECT set_config('weir.deleted_tenants', @value::text, true);

-- name: MarkTenantDeleted :exec
-- Its slug is free from now on.
UPDATE tenants SET deleted_at = now(), slug = id::text WHERE id = @id;

-- name: LeaveDeletedTenant :exec
-- The sessions of those who have chosen it.
UPDATE sessions SET chosen_tenant = NULL WHERE chosen_tenant = @tenant_id;

-- name: DeleteMembersOf :exec
-- With their invitations.
DELETE FROM members WHERE tenant_id = @tenant_id;

-- name: TenantsWithRowsLeft :many
SELECT id FROM tenants WHERE deleted_at IS NOT NULL ORDER BY deleted_at, id;

-- name: DeleteTenantRow :execrows
-- With the rows that it has in tables in which no tenant has many.
DELETE FROM tenants WHERE id = @id AND deleted_at IS NOT NULL;

-- name: InsertDeletedTenant :exec
INSERT INTO deleted_tenants (id, slug, version) VALUES (@id, @slug, @version);

-- name: Tenants :many
SELECT * FROM tenants
WHERE (sqlc.narg(after)::uuid IS NULL OR id < sqlc.narg(after))
    AND (@search::text = '' OR strpos(lower(slug || ' ' || name), lower(@search)) > 0)
    AND (@state::text = '' OR state = @state)
ORDER BY id DESC LIMIT @most;

-- name: TenantsServed :many
-- Data about tenants for the operator: the tier and the checks.
SELECT t.id, coalesce(tier.slug, '')::text AS tier, coalesce(s.state, 'active')::text AS state,
    coalesce(u.allowed, 0)::bigint AS allowed, coalesce(u.denied, 0)::bigint AS denied
FROM tenants t
LEFT JOIN tenants platform ON platform.slug = @platform
LEFT JOIN subjects s ON s.tenant_id = platform.id AND s.subject = t.slug
LEFT JOIN plans tier ON tier.tenant_id = s.tenant_id AND tier.id = s.plan_id
LEFT JOIN LATERAL (
    SELECT sum(h.allowed) AS allowed, sum(h.denied) AS denied FROM usage_hours h
    WHERE h.tenant_id = t.id AND h.start >= @since AND h.rule = '' -- whole checks, not the verdicts of each rule
) AS u ON true
WHERE t.id = ANY(@ids::uuid[]);

-- name: TenantVersions :many
SELECT id, policy_version, subjects_version, keys_version FROM tenants WHERE changed_version > @since;

-- name: DeletedTenants :many
SELECT id FROM deleted_tenants WHERE version > @since;
