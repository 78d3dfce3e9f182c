-- name: InsertSecurityEvents :exec
INSERT INTO security_events (tenant_id, id, at, kind, actor_kind, actor_id, actor_name, address, user_agent, request_id, target, details)
SELECT @tenant_id::uuid, unnest(@ids::uuid[]), @at::timestamptz, unnest(@kinds::text[]), @actor_kind::text, sqlc.narg('actor_id')::uuid, @actor_name::text,
    @address::text, @user_agent::text, @request_id::text, unnest(@targets::text[]), unnest(@details::text[])::jsonb;

-- name: SecuritySettings :one
SELECT * FROM security_settings WHERE tenant_id = @tenant_id;

-- name: UpsertSecuritySettings :one
INSERT INTO security_settings (tenant_id, session_idle_text, session_idle_ms, session_life_text, session_life_ms, max_sessions,
    confirm_after_text, confirm_after_ms, event_retention_text, event_retention_ms, version)
VALUES (@tenant_id, @session_idle_text, @session_idle_ms, @session_life_text, @session_life_ms, @max_sessions,
    @confirm_after_text, @confirm_after_ms, @event_retention_text, @event_retention_ms, @version)
ON CONFLICT (tenant_id) DO UPDATE SET session_idle_text = excluded.session_idle_text, session_idle_ms = excluded.session_idle_ms,
    session_life_text = excluded.session_life_text, session_life_ms = excluded.session_life_ms, max_sessions = excluded.max_sessions,
    confirm_after_text = excluded.confirm_after_text, confirm_after_ms = excluded.confirm_after_ms,
    event_retention_text = excluded.event_retention_text, event_retention_ms = excluded.event_retention_ms,
    version = excluded.version, updated_at = now()
RETURNING *;

-- name: ConfirmSession :execrows
UPDATE sessions SET proved_at = @now, longest_idle_ms = 0 WHERE id = @id AND person_id = @person_id;

-- name: MaxSessionsOf :one
-- The smallest number that one of the person's tenants allows; 100 by default.
SELECT coalesce(min(s.max_sessions), 100)::int AS most FROM members m JOIN security_settings s ON s.tenant_id = m.tenant_id
WHERE m.person_id = @person_id AND m.joined_at IS NOT NULL;

-- name: TrimSessions :execrows
-- Ends the least recently used sessions.
DELETE FROM sessions x WHERE x.person_id = @person_id AND x.id IN (
    SELECT k.id FROM sessions k WHERE k.person_id = @person_id ORDER BY k.seen_at DESC, k.id DESC OFFSET @most);
