-- name: BeginIdempotent :execrows
-- Claims a key that is not in use: a new or expired one, or one of a server of an older release
-- that began so long ago that it must have failed. Waits for a transaction that holds the key.
INSERT INTO idempotency_keys (tenant_id, key, request_hash, state, attempt, started_at, expires_at)
VALUES (@tenant_id, @key, @request_hash, 'in_progress', @attempt, @now, @expires_at)
ON CONFLICT (tenant_id, key) DO UPDATE SET request_hash = excluded.request_hash, state = 'in_progress',
    attempt = excluded.attempt, status = NULL, header = NULL, body = NULL,
    started_at = excluded.started_at, expires_at = excluded.expires_at
WHERE idempotency_keys.expires_at <= @now
    OR (idempotency_keys.state = 'in_progress' AND idempotency_keys.started_at < @abandoned_before
        AND idempotency_keys.request_hash = excluded.request_hash);

-- name: IdempotentByKey :one
SELECT * FROM idempotency_keys WHERE tenant_id = @tenant_id AND key = @key;

-- name: FinishIdempotent :execrows
UPDATE idempotency_keys SET state = 'finished', status = @status, header = @header, body = @body
WHERE tenant_id = @tenant_id AND key = @key AND state = 'in_progress' AND attempt = @attempt;

-- name: PurgeIdempotent :execrows
DELETE FROM idempotency_keys WHERE (tenant_id, key) IN (
    SELECT o.tenant_id, o.key FROM idempotency_keys o WHERE o.expires_at < now() LIMIT @most);
