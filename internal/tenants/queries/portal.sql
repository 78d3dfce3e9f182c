-- name: Portal :one
SELECT * FROM portals WHERE tenant_id = @tenant_id;

-- name: UpsertPortal :one
INSERT INTO portals (tenant_id, brand, accent, logo, frame_origins, offered_plans, requests, auto_percent, auto_for_text,
    auto_for_ms, auto_every_text, auto_every_ms, version)
VALUES (@tenant_id, @brand, @accent, @logo, @frame_origins, @offered_plans, @requests, @auto_percent, @auto_for_text,
    @auto_for_ms, @auto_every_text, @auto_every_ms, @version)
ON CONFLICT (tenant_id) DO UPDATE SET brand = excluded.brand, accent = excluded.accent, logo = excluded.logo,
    frame_origins = excluded.frame_origins, offered_plans = excluded.offered_plans, requests = excluded.requests,
    auto_percent = excluded.auto_percent, auto_for_text = excluded.auto_for_text, auto_for_ms = excluded.auto_for_ms,
    auto_every_text = excluded.auto_every_text, auto_every_ms = excluded.auto_every_ms, version = excluded.version,
    updated_at = now()
RETURNING *;

-- name: InsertPortalLink :one
INSERT INTO portal_links (tenant_id, id, subject, token_hash, single_use, created_by, created_at, expires_at, pages_until)
VALUES (@tenant_id, @id, @subject, @token_hash, @single_use, @created_by, @created_at, @expires_at, @pages_until)
RETURNING *;

-- name: PortalLinks :many
-- Links to the page of one subject that a browser can still follow, or that keep a session.
SELECT l.* FROM portal_links l
WHERE l.tenant_id = @tenant_id AND l.subject = @subject AND (sqlc.narg(after)::uuid IS NULL OR l.id < sqlc.narg(after))
    AND (l.expires_at > @now::timestamptz OR EXISTS (SELECT FROM portal_sessions s
        WHERE s.tenant_id = l.tenant_id AND s.link_id = l.id AND s.expires_at > @now::timestamptz))
ORDER BY l.id DESC LIMIT @most;

-- name: PortalLinkByID :one
SELECT * FROM portal_links WHERE tenant_id = @tenant_id AND subject = @subject AND id = @id;

-- name: DeletePortalLink :exec
-- With its sessions.
DELETE FROM portal_links WHERE tenant_id = @tenant_id AND id = @id;

-- name: TenantOfPortalLink :one
SELECT l.tenant_id, l.id FROM portal_links l JOIN tenants t ON t.id = l.tenant_id
WHERE l.token_hash = @token_hash AND t.state = 'active';

-- name: PortalLink :one
SELECT * FROM portal_links WHERE tenant_id = @tenant_id AND id = @id;

-- name: UsePortalLink :one
-- Of two that follow a link for one use at the same time, one finds it used.
UPDATE portal_links SET used_at = @now
WHERE tenant_id = @tenant_id AND id = @id AND expires_at > @now AND (NOT single_use OR used_at IS NULL)
RETURNING pages_until;

-- name: InsertPortalSession :exec
INSERT INTO portal_sessions (tenant_id, id, link_id, token_hash, created_at, expires_at)
VALUES (@tenant_id, @id, @link_id, @token_hash, @created_at, @expires_at);

-- name: TenantOfPortalSession :one
SELECT s.tenant_id FROM portal_sessions s JOIN tenants t ON t.id = s.tenant_id
WHERE s.token_hash = @token_hash AND s.id = @id AND s.expires_at > @now::timestamptz AND t.state = 'active';

-- name: PortalVisit :one
SELECT s.id, s.link_id, s.expires_at, l.subject FROM portal_sessions s
JOIN portal_links l ON l.tenant_id = s.tenant_id AND l.id = s.link_id
JOIN tenants t ON t.id = s.tenant_id
WHERE s.tenant_id = @tenant_id AND s.id = @id AND s.expires_at > @now::timestamptz AND t.state = 'active';

-- name: PurgePortalSessions :execrows
DELETE FROM portal_sessions WHERE (tenant_id, id) IN (
    SELECT o.tenant_id, o.id FROM portal_sessions o WHERE o.expires_at <= @now::timestamptz LIMIT @most);

-- name: PurgePortalLinks :execrows
-- Of links that expired before a time no session can be left.
DELETE FROM portal_links WHERE (tenant_id, id) IN (
    SELECT o.tenant_id, o.id FROM portal_links o WHERE o.expires_at <= @before::timestamptz LIMIT @most);

-- name: InsertLimitRequest :one
INSERT INTO limit_requests (tenant_id, id, subject, rule_id, had, asked, note, state, created_at)
VALUES (@tenant_id, @id, @subject, @rule_id, @had, @asked, @note, 'open', @created_at)
RETURNING *;

-- name: UpdateLimitRequest :one
-- Settles it.
UPDATE limit_requests SET state = @state, automatic = @automatic, granted = @granted, granted_until = @granted_until,
    answer = @answer, settled_by = @settled_by, settled_at = @settled_at
WHERE tenant_id = @tenant_id AND id = @id
RETURNING *;

-- name: LimitRequestByID :one
SELECT q.*, r.slug AS rule FROM limit_requests q JOIN rules r ON r.tenant_id = q.tenant_id AND r.id = q.rule_id
WHERE q.tenant_id = @tenant_id AND q.id = @id;

-- name: LimitRequests :many
SELECT q.*, r.slug AS rule FROM limit_requests q JOIN rules r ON r.tenant_id = q.tenant_id AND r.id = q.rule_id
WHERE q.tenant_id = @tenant_id AND (sqlc.narg(after)::uuid IS NULL OR q.id < sqlc.narg(after))
    AND (@state::text = '' OR q.state = @state::text) AND (@subject::text = '' OR q.subject = @subject::text)
ORDER BY q.id DESC LIMIT @most;

-- name: CountLimitRequests :one
-- Of one subject since a time, and how many of them the settings approved for one rule.
SELECT count(*) FILTER (WHERE created_at > @since::timestamptz) AS recent,
    count(*) FILTER (WHERE automatic AND rule_id = @rule_id AND settled_at > @approved_since::timestamptz) AS approved,
    count(*) FILTER (WHERE state = 'open' AND rule_id = @rule_id) AS open
FROM limit_requests WHERE tenant_id = @tenant_id AND subject = @subject;

-- name: CountOpenLimitRequests :one
SELECT count(*) FROM (SELECT FROM limit_requests WHERE tenant_id = @tenant_id AND state = 'open' LIMIT 100) AS few;

-- name: PurgeLimitRequests :execrows
DELETE FROM limit_requests WHERE (tenant_id, id) IN (
    SELECT o.tenant_id, o.id FROM limit_requests o WHERE o.settled_at < @before::timestamptz LIMIT @most);

-- name: ManagersToNotify :many
-- The addresses that receive mails about requests for higher limits and about quotas: owners first,
-- then those who were invited first.
SELECT p.email FROM members m JOIN people p ON p.id = m.person_id
WHERE m.tenant_id = @tenant_id AND m.joined_at IS NOT NULL AND m.role IN ('owner', 'admin')
ORDER BY m.role = 'owner' DESC, m.id LIMIT 20;
