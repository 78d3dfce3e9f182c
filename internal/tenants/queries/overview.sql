-- name: CountConfigured :one
-- Counts at most @most subjects, because there may be millions.
SELECT
    (SELECT count(*) FROM rules r WHERE r.tenant_id = @tenant_id) AS rules,
    (SELECT count(*) FROM plans p WHERE p.tenant_id = @tenant_id) AS plans,
    (SELECT count(*) FROM (SELECT FROM subjects s WHERE s.tenant_id = @tenant_id LIMIT @most) AS counted) AS subjects,
    (SELECT count(*) FROM api_keys k WHERE k.tenant_id = @tenant_id AND k.revoked_at IS NULL
        AND (k.expires_at IS NULL OR k.expires_at > @now::timestamptz)) AS keys;
