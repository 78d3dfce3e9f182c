-- name: InsertSession :exec
INSERT INTO sessions (token_hash, id, person_id, chosen_tenant, address, user_agent, created_at, seen_at)
VALUES (@token_hash, @id, @person_id, @chosen_tenant, @address, @user_agent, @now, @now);

-- name: SessionByToken :one
SELECT s.id, s.person_id, s.chosen_tenant, s.created_at, s.seen_at, s.longest_idle_ms, coalesce(s.proved_at, s.created_at)::timestamptz AS proved_at, p.email
FROM sessions s JOIN people p ON p.id = s.person_id
WHERE s.token_hash = @token_hash AND s.created_at > @oldest AND s.seen_at > @idle_since;

-- name: SessionsOf :many
SELECT id, address, user_agent, created_at, seen_at FROM sessions
WHERE person_id = @person_id AND created_at > @oldest AND seen_at > @idle_since
ORDER BY seen_at DESC, id DESC LIMIT 100;

-- name: TouchSession :exec
UPDATE sessions SET seen_at = sqlc.arg(now)::timestamptz,
    longest_idle_ms = greatest(longest_idle_ms, floor(extract(epoch FROM sqlc.arg(now)::timestamptz - seen_at) * 1000)::bigint)
WHERE id = @id;

-- name: ChooseTenant :execrows
-- Only a tenant that the session's person has joined.
UPDATE sessions s SET chosen_tenant = m.tenant_id
FROM members m
WHERE s.id = @id AND m.person_id = s.person_id AND m.tenant_id = @tenant_id AND m.joined_at IS NOT NULL;

-- name: DeleteSession :execrows
DELETE FROM sessions WHERE person_id = @person_id AND id = @id;

-- name: DeleteOtherSessions :execrows
DELETE FROM sessions WHERE person_id = @person_id AND id <> @keep;

-- name: DeleteSessionsOf :exec
DELETE FROM sessions WHERE person_id = @person_id;

-- name: DeleteSessionsIn :exec
DELETE FROM sessions WHERE person_id = @person_id AND chosen_tenant = @tenant_id;

-- name: PurgeSessions :execrows
DELETE FROM sessions WHERE token_hash IN (
    SELECT o.token_hash FROM sessions o WHERE o.created_at <= @oldest OR o.seen_at <= @idle_since LIMIT @most);

-- name: SessionsThatHold :many
SELECT s.id, m.tenant_id
FROM (SELECT unnest(@sessions::uuid[]) AS id, unnest(@tenants::uuid[]) AS tenant_id) AS look
JOIN sessions s ON s.id = look.id
JOIN members m ON m.person_id = s.person_id AND m.tenant_id = look.tenant_id AND m.joined_at IS NOT NULL
JOIN tenants t ON t.id = m.tenant_id AND t.state = 'active'
LEFT JOIN security_settings e ON e.tenant_id = m.tenant_id
WHERE s.created_at > @oldest AND s.seen_at > @idle_since
    AND (e.tenant_id IS NULL OR s.created_at > sqlc.arg(now)::timestamptz - e.session_life_ms * interval '1 millisecond'
        AND s.seen_at > sqlc.arg(now)::timestamptz - e.session_idle_ms * interval '1 millisecond' AND s.longest_idle_ms < e.session_idle_ms);

-- name: RememberAddress :exec
INSERT INTO person_addresses (person_id, address, seen_at) VALUES (@person_id, @address, @now)
ON CONFLICT (person_id, address) DO UPDATE SET seen_at = excluded.seen_at;

-- name: TrimAddresses :exec
-- Keeps the addresses that were seen last.
DELETE FROM person_addresses a WHERE a.person_id = @person_id AND a.address <> 'browsers' AND a.address NOT IN (
    SELECT k.address FROM person_addresses k WHERE k.person_id = @person_id AND k.address <> 'browsers'
    ORDER BY k.seen_at DESC, k.address LIMIT @most);

-- name: KnownAddress :one
SELECT EXISTS (
    SELECT FROM people p JOIN person_addresses a ON a.person_id = p.id
    WHERE p.email = @email AND a.address = @address AND a.seen_at > @since
) AS known;

-- name: ForgetAddresses :exec
-- Keeps the address of a session, if there is one.
DELETE FROM person_addresses a WHERE a.person_id = @person_id AND a.address <> 'browsers'
    AND NOT EXISTS (SELECT FROM sessions s WHERE s.id = sqlc.narg(keep)::uuid AND s.address = a.address);

-- name: ForgetBrowsers :exec
-- The row that is no address says since when the person's browsers are known.
INSERT INTO person_addresses (person_id, address, seen_at) VALUES (@person_id, 'browsers', @since)
ON CONFLICT (person_id, address) DO UPDATE SET seen_at = excluded.seen_at;

-- name: BrowsersSince :one
-- The first second of 1970: they were never forgotten.
SELECT coalesce(max(a.seen_at), to_timestamp(0))::timestamptz AS since
FROM people p JOIN person_addresses a ON a.person_id = p.id
WHERE p.email = @email AND a.address = 'browsers';

-- name: PurgeAddresses :execrows
DELETE FROM person_addresses WHERE (person_id, address) IN (
    SELECT o.person_id, o.address FROM person_addresses o
    WHERE o.seen_at <= @before AND (o.address <> 'browsers' OR o.seen_at <= @browsers_before) LIMIT @most);
