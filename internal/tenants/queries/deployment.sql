-- name: SetTenant :exec
-- The values that row security compares with, until the transaction ends.
SELECT set_config('weir.tenant_id', @tenant_id::text, true);

-- name: ConfigVersion :one
SELECT epoch, version FROM config_version;

-- name: NextVersion :one
-- The number of the current change. It locks config_version until the transaction ends, so it is
-- called last before the writes. It sets the version of the changed parts of the tenant.
WITH next AS (
    UPDATE config_version SET version = version + 1 RETURNING version
), stamped AS (
    UPDATE tenants SET
        policy_version = CASE WHEN @policy::boolean THEN next.version ELSE policy_version END,
        subjects_version = CASE WHEN @subjects::boolean THEN next.version ELSE subjects_version END,
        keys_version = CASE WHEN @keys::boolean THEN next.version ELSE keys_version END,
        version = CASE WHEN @itself::boolean THEN next.version ELSE tenants.version END
    FROM next WHERE id = @tenant_id
)
SELECT next.version FROM next, pg_notify('weir_changes', @tenant_id::text);

-- name: Secrets :one
SELECT counter_key, cursor_key FROM deployment_secrets;

-- name: TryLock :one
-- Whether this server alone has a lock, until the transaction ends.
SELECT pg_try_advisory_xact_lock(@lock);
