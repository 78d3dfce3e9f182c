-- name: InsertSession :exec
INSERT INTO sessions (token_hash, id, person_id, chosen_tenant, address, user_agent, created_at, seen_at)
VALUES (@token_hash, @id, @person_id, @chosen_tenant, @address, @user_agent, @now, @now);

-- name: SessionByToken :one
SELECT s.id, s.person_id, s.chosen_tenant, s.created_at, s.seen_at, p.email
FROM sessions s JOIN people p ON p.id = s.person_id
WHERE s.token_hash = @token_hash AND s.created_at > @oldest AND s.seen_at > @idle_since;

-- name: SessionsOf :many
SELECT id, address, user_agent, created_at, seen_at FROM sessions
WHERE person_id = @person_id AND created_at > @oldest AND seen_at > @idle_since
ORDER BY seen_at DESC, id DESC LIMIT 100;

-- name: TouchSession :exec
UPDATE sessions SET seen_at = @now WHERE id = @id;

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
DELETE FROM sessions WHERE created_at <= @oldest OR seen_at <= @idle_since;

-- name: SessionsThatHold :many
SELECT s.id, m.tenant_id
FROM (SELECT unnest(@sessions::uuid[]) AS id, unnest(@tenants::uuid[]) AS tenant_id) AS look
JOIN sessions s ON s.id = look.id
JOIN members m ON m.person_id = s.person_id AND m.tenant_id = look.tenant_id AND m.joined_at IS NOT NULL
JOIN tenants t ON t.id = m.tenant_id AND t.state = 'active'
WHERE s.created_at > @oldest AND s.seen_at > @idle_since;
