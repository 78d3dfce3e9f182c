-- name: InsertCredits :one
INSERT INTO credit_grants (tenant_id, id, subject, rule_id, units, expires_at, reference, reason, created_by, created_at)
VALUES (@tenant_id, @id, @subject, @rule_id, @units, @expires_at, @reference, @reason, @created_by, @created_at)
RETURNING *;

-- name: RevokeCredits :exec
UPDATE credit_grants SET revoked_by = @revoked_by, revoked_at = @revoked_at
WHERE tenant_id = @tenant_id AND id = @id AND revoked_at IS NULL;

-- name: StampCredits :exec
-- Servers load the subject again, with its grants.
UPDATE subjects SET version = @version, updated_at = now(), has_credits = true WHERE tenant_id = @tenant_id AND subject = @subject;

-- name: Credits :many
-- Newest first, behind the one that is named.
SELECT g.*, r.slug AS rule FROM credit_grants g JOIN rules r ON r.tenant_id = g.tenant_id AND r.id = g.rule_id
WHERE g.tenant_id = @tenant_id AND g.subject = @subject AND (sqlc.narg(after)::uuid IS NULL OR g.id < sqlc.narg(after))
ORDER BY g.id DESC LIMIT @most;

-- name: CreditsByID :one
SELECT g.*, r.slug AS rule FROM credit_grants g JOIN rules r ON r.tenant_id = g.tenant_id AND r.id = g.rule_id
WHERE g.tenant_id = @tenant_id AND g.subject = @subject AND g.id = @id;

-- name: CreditsByReference :one
SELECT g.*, r.slug AS rule FROM credit_grants g JOIN rules r ON r.tenant_id = g.tenant_id AND r.id = g.rule_id
WHERE g.tenant_id = @tenant_id AND g.reference = @reference AND g.reference <> '';

-- name: CreditsOfPurchase :many
-- The grants whose references begin with the purchase and a slash; 0 is the character after it.
SELECT g.*, r.slug AS rule FROM credit_grants g JOIN rules r ON r.tenant_id = g.tenant_id AND r.id = g.rule_id
WHERE g.tenant_id = @tenant_id AND g.reference > @purchase::text || '/' AND g.reference < @purchase::text || '0' AND g.reference <> ''
    AND g.revoked_at IS NULL ORDER BY g.id LIMIT @most;

-- name: CountOpenCredits :one
-- Grants of a subject of which something is left, counted up to @most.
SELECT count(*) FROM (
    (SELECT FROM credit_grants f WHERE f.tenant_id = @tenant_id AND f.rule_id = @rule_id AND f.subject = @subject
        AND f.revoked_at IS NULL AND f.spent_at IS NULL AND f.spent < f.units AND f.expires_at IS NULL LIMIT @most)
    UNION ALL
    (SELECT FROM credit_grants e WHERE e.tenant_id = @tenant_id AND e.rule_id = @rule_id AND e.subject = @subject
        AND e.revoked_at IS NULL AND e.spent_at IS NULL AND e.spent < e.units AND e.expires_at > @now::timestamptz LIMIT @most)
) AS few;

-- name: CountNewCredits :one
-- Grants of a subject, for all rules, behind the one that is named, counted up to @most.
SELECT count(*) FROM (
    SELECT FROM credit_grants WHERE tenant_id = @tenant_id AND subject = @subject AND id > @after LIMIT @most
) AS few;

-- name: CountSubjectsWithCredits :one
-- Subjects with something left of a grant for a rule, counted up to @most.
SELECT count(*) FROM (
    SELECT DISTINCT subject FROM credit_grants WHERE tenant_id = @tenant_id AND rule_id = @rule_id
        AND revoked_at IS NULL AND spent < units AND (expires_at IS NULL OR expires_at > @now::timestamptz) LIMIT @most
) AS few;

-- name: TenantsWithNewCredits :many
-- Tenants behind the one that is named with a grant that is not opened, by one look into the index
-- for each of them, however many grants it has.
WITH RECURSIVE with_new AS (
    (SELECT f.tenant_id, 1 AS place FROM credit_grants f WHERE NOT f.opened AND f.tenant_id > @after ORDER BY f.tenant_id LIMIT 1)
    UNION ALL
    SELECT (SELECT g.tenant_id FROM credit_grants g WHERE NOT g.opened AND g.tenant_id > w.tenant_id ORDER BY g.tenant_id LIMIT 1), w.place + 1
    FROM with_new w WHERE w.tenant_id IS NOT NULL AND w.place < @most::int
)
SELECT tenant_id::uuid AS tenant_id FROM with_new WHERE tenant_id IS NOT NULL;

-- name: NewCredits :many
-- Grants of a tenant behind the one that is named that are not opened, oldest first. Of one that is
-- not spendable nothing is left, so the counters need not know it.
SELECT g.id, g.subject, r.slug AS rule,
    (g.revoked_at IS NULL AND g.spent < g.units AND (g.expires_at IS NULL OR g.expires_at > now()))::boolean AS spendable
FROM credit_grants g JOIN rules r ON r.tenant_id = g.tenant_id AND r.id = g.rule_id
WHERE g.tenant_id = @tenant_id AND NOT g.opened AND g.id > @after ORDER BY g.id LIMIT @most;

-- name: MarkOpenedCredits :execrows
-- The rows are locked in the order of the key, as those of SettleCredits. Rows that others have
-- locked are left for a later round, which opens them again: that changes nothing.
WITH held AS (
    SELECT g.tenant_id, g.id FROM credit_grants g
    WHERE g.tenant_id = @tenant_id AND NOT g.opened AND g.id = ANY(@ids::uuid[]) ORDER BY g.tenant_id, g.id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE credit_grants g SET opened = true FROM held h WHERE g.tenant_id = h.tenant_id AND g.id = h.id;

-- name: SpendableCredits :many
-- What the counters must know of some subjects' grants, each of a rule: all of which something is
-- left, and those that were spent last, which servers may still take for spendable. asked_us is
-- before the instant of which the rows are, and read_us behind it, by one clock.
SELECT w.subject::text AS subject, w.rule::text AS rule, g.id, g.spent, g.expires_at, g.left_over,
    (extract(epoch FROM now()) * 1000000)::bigint AS asked_us, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS read_us
FROM (SELECT unnest(@subjects::text[]) AS subject, unnest(@rules::text[]) AS rule) AS w
JOIN rules r ON r.tenant_id = @tenant_id AND r.slug = w.rule CROSS JOIN LATERAL (
    (SELECT f.id, f.spent, f.expires_at, true AS left_over FROM credit_grants f
    WHERE f.tenant_id = @tenant_id AND f.subject = w.subject AND f.rule_id = r.id
        AND f.revoked_at IS NULL AND f.spent_at IS NULL AND f.expires_at IS NULL AND f.spent < f.units LIMIT @most)
    UNION ALL
    (SELECT e.id, e.spent, e.expires_at, true FROM credit_grants e
    WHERE e.tenant_id = @tenant_id AND e.subject = w.subject AND e.rule_id = r.id
        AND e.revoked_at IS NULL AND e.spent_at IS NULL AND e.expires_at > now() AND e.spent < e.units LIMIT @most)
    UNION ALL
    (SELECT s.id, s.spent, s.expires_at, false FROM credit_grants s
    WHERE s.tenant_id = @tenant_id AND s.subject = w.subject AND s.rule_id = r.id
        AND s.revoked_at IS NULL AND s.spent_at IS NOT NULL ORDER BY s.spent_at DESC LIMIT @finished)
) AS g;

-- name: TenantsWithCredits :many
-- Tenants with a grant behind the one that is named, by one look into the index for each of them.
WITH RECURSIVE with_credits AS (
    (SELECT f.tenant_id, 1 AS place FROM credit_grants f WHERE f.tenant_id > @after ORDER BY f.tenant_id LIMIT 1)
    UNION ALL
    SELECT (SELECT g.tenant_id FROM credit_grants g WHERE g.tenant_id > w.tenant_id ORDER BY g.tenant_id LIMIT 1), w.place + 1
    FROM with_credits w WHERE w.tenant_id IS NOT NULL AND w.place < @most::int
)
SELECT tenant_id::uuid AS tenant_id FROM with_credits WHERE tenant_id IS NOT NULL;

-- name: SettleCredits :execrows
-- A total never falls, so it does not matter which server stores it, nor how often. The rows are
-- locked in the order of the key. Rows that others have locked are left for the next round: a tenant
-- that deletes many subjects has locked its rows for seconds, and must not stop those of others.
WITH held AS (
    SELECT g.tenant_id, g.id, t.total
    FROM (SELECT unnest(@tenants::uuid[]) AS tenant_id, unnest(@ids::uuid[]) AS id, unnest(@totals::bigint[]) AS total) AS t
    JOIN credit_grants g ON g.tenant_id = t.tenant_id AND g.id = t.id
    WHERE g.spent < t.total ORDER BY g.tenant_id, g.id FOR NO KEY UPDATE OF g SKIP LOCKED
)
UPDATE credit_grants g SET spent = least(g.units, h.total), spent_at = CASE WHEN h.total >= g.units THEN @now::timestamptz END
FROM held h WHERE g.tenant_id = h.tenant_id AND g.id = h.id AND g.spent < h.total;

-- name: CreditsBehind :many
-- Grants of which more was settled than one of these totals.
SELECT DISTINCT g.tenant_id, g.id, g.subject, r.slug AS rule
FROM (SELECT unnest(@tenants::uuid[]) AS tenant_id, unnest(@ids::uuid[]) AS id, unnest(@totals::bigint[]) AS total) AS t
JOIN credit_grants g ON g.tenant_id = t.tenant_id AND g.id = t.id
JOIN rules r ON r.tenant_id = g.tenant_id AND r.id = g.rule_id
WHERE g.spent > t.total ORDER BY g.tenant_id, g.subject, rule;

-- name: CreditsUnsettled :many
-- Grants of which one of these totals is not settled, because others had locked them.
SELECT g.id FROM (SELECT unnest(@tenants::uuid[]) AS tenant_id, unnest(@ids::uuid[]) AS id, unnest(@totals::bigint[]) AS total) AS t
JOIN credit_grants g ON g.tenant_id = t.tenant_id AND g.id = t.id
WHERE g.spent < least(g.units, t.total);

-- name: PurgeCredits :execrows
-- Grants that were revoked, spent or expired before an instant. Only grants that are older can be.
DELETE FROM credit_grants WHERE (tenant_id, id) IN (
    SELECT g.tenant_id, g.id FROM credit_grants g
    WHERE g.created_at < @before::timestamptz
        AND (g.revoked_at < @before OR g.expires_at < @before OR g.spent >= g.units AND coalesce(g.spent_at, g.created_at) < @before)
    LIMIT @most);

-- name: HasCredits :one
SELECT EXISTS (SELECT FROM credit_grants WHERE tenant_id = @tenant_id);
