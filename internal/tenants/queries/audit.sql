-- The objects of a change as the trail shows them: JSON with the names of the columns, which
-- audit_objects.go converts to those of the API. Nulls are omitted.

-- name: AuditTenants :many
SELECT id, slug AS target, jsonb_build_object('slug', slug, 'name', name, 'state', state, 'partitions', nullif(partitions, 1))::text AS object
FROM tenants WHERE id = ANY(@ids::uuid[]);

-- name: AuditKeys :many
-- The columns are named, so that neither a hash nor a column that is added later gets into the
-- trail.
SELECT id, id::text AS target, jsonb_strip_nulls(jsonb_build_object('id', id, 'name', name, 'kind', kind, 'scopes', scopes,
    'last4', last4, 'expires_at', expires_at, 'revoked_at', revoked_at, 'rotated_to', rotated_to,
    'addresses', nullif(addresses, '{}'), 'resources', nullif(resources, '{}')))::text AS object
FROM api_keys WHERE tenant_id = @tenant_id AND id = ANY(@ids::uuid[]);

-- name: AuditRules :many
SELECT id, slug AS target, jsonb_strip_nulls(to_jsonb(r))::text AS object
FROM rules r WHERE tenant_id = @tenant_id AND id = ANY(@ids::uuid[]);

-- name: AuditRuleUse :one
-- What is deleted with a rule: the limits that plans have for it, and the number of overrides. If
-- these are more limits than most, those of older versions are a count and the SHA-256 of their
-- text, which has the form of the texts of AuditPlanVersions.
WITH used AS (
    SELECT p.slug || coalesce(' ' || l.number, '') AS name, l.number,
        json_strip_nulls(json_build_object('burst', l.burst_units, 'limit', l.limit_units,
            'metering', l.metering, 'overage', l.overage, 'unlimited', nullif(l.unlimited, false), 'warn_at', l.warn_at)) AS fields
    FROM (SELECT n.plan_id, NULL::int AS number, n.limit_units, n.burst_units, n.unlimited, n.warn_at, n.overage, n.metering
        FROM plan_limits n WHERE n.tenant_id = @tenant_id AND n.rule_id = @rule_id
        UNION ALL SELECT v.plan_id, v.number, v.limit_units, v.burst_units, v.unlimited, v.warn_at, v.overage, v.metering
        FROM plan_version_limits v WHERE v.tenant_id = @tenant_id AND v.rule_id = @rule_id
    ) AS l JOIN plans p ON p.tenant_id = @tenant_id AND p.id = l.plan_id
), size AS (SELECT count(*) <= @most::bigint AS small FROM used)
SELECT jsonb_strip_nulls(jsonb_build_object(
    'plan_limits', coalesce((SELECT jsonb_object_agg(name, fields) FROM used, size WHERE number IS NULL OR small), '{}'),
    'older_plan_limits', (SELECT jsonb_build_object('limits', count(*), 'sha256', encode(sha256(convert_to(
            '{' || string_agg(to_json(name)::text || ':' || fields::text, ',' ORDER BY name COLLATE "C") || '}', 'UTF8')), 'hex'))
        FROM used, size WHERE number IS NOT NULL AND NOT small HAVING count(*) > 0),
    'overrides', (SELECT count(*) FROM overrides o WHERE o.tenant_id = @tenant_id AND o.rule_id = @rule_id)))::text AS object;

-- name: AuditPlans :many
SELECT p.id, p.slug AS target, jsonb_strip_nulls(to_jsonb(p) || jsonb_build_object('on_change', nullif(p.on_change, 'carry'), 'fail', nullif(p.fail, 'closed'), 'limits', coalesce((
    SELECT jsonb_object_agg(r.slug, jsonb_build_object(
        'limit', l.limit_units, 'burst', l.burst_units, 'unlimited', nullif(l.unlimited, false), 'warn_at', l.warn_at, 'overage', l.overage, 'metering', l.metering))
    FROM plan_limits l JOIN rules r ON r.tenant_id = l.tenant_id AND r.id = l.rule_id
    WHERE l.tenant_id = p.tenant_id AND l.plan_id = p.id), '{}')))::text AS object
FROM plans p WHERE p.tenant_id = @tenant_id AND p.id = ANY(@ids::uuid[]);

-- name: AuditPlanVersions :many
-- Older versions of plans, as pairs of a plan and a number; 0 stands for all of the plan. The text
-- is JSON without spaces, with sorted names, so that it always has the same SHA-256. It is omitted
-- if these versions of the plan have more limits than most.
SELECT v.plan_id, v.number, l.limits, encode(sha256(convert_to(l.text, 'UTF8')), 'hex') AS sha256,
    (CASE WHEN sum(l.limits) OVER (PARTITION BY v.plan_id) <= @most::bigint THEN l.text ELSE '' END)::text AS text
FROM (SELECT unnest(@plan_ids::uuid[]) AS plan_id, unnest(@numbers::int[]) AS number) AS n
JOIN plan_versions v ON v.tenant_id = @tenant_id AND v.plan_id = n.plan_id AND n.number IN (0, v.number)
CROSS JOIN LATERAL (
    SELECT count(*) AS limits, '{' || coalesce(string_agg(to_json(r.slug)::text || ':' || json_strip_nulls(json_build_object('burst', l.burst_units, 'limit', l.limit_units,
        'metering', l.metering, 'overage', l.overage, 'unlimited', nullif(l.unlimited, false), 'warn_at', l.warn_at))::text,
        ',' ORDER BY r.slug COLLATE "C"), '') || '}' AS text
    FROM plan_version_limits l JOIN rules r ON r.tenant_id = l.tenant_id AND r.id = l.rule_id
    WHERE l.tenant_id = v.tenant_id AND l.plan_id = v.plan_id AND l.number = v.number
) AS l;

-- name: AuditRoutes :many
SELECT id, slug AS target, jsonb_strip_nulls(to_jsonb(r))::text AS object
FROM routes r WHERE tenant_id = @tenant_id AND id = ANY(@ids::uuid[]);

-- name: AuditDefaultPlan :many
SELECT id FROM plans WHERE tenant_id = @tenant_id AND is_default;

-- name: AuditSubjects :many
-- The slugs of all plans and rules are read once, as in OverridesOf.
SELECT s.subject AS target, jsonb_strip_nulls(to_jsonb(s) || jsonb_build_object(
    'plan', (SELECT jsonb_object_agg(p.id, p.slug) FROM plans p WHERE p.tenant_id = @tenant_id) ->> s.plan_id::text,
    'next_plan', (SELECT jsonb_object_agg(p.id, p.slug) FROM plans p WHERE p.tenant_id = @tenant_id) ->> s.next_plan_id::text,
    'overrides', coalesce((
        SELECT jsonb_object_agg((SELECT jsonb_object_agg(r.id, r.slug) FROM rules r WHERE r.tenant_id = @tenant_id) ->> o.rule_id::text, jsonb_build_object(
            'limit', o.limit_units, 'burst', o.burst_units, 'unlimited', nullif(o.unlimited, false),
            'reason', nullif(o.reason, ''), 'starts_at', o.starts_at, 'expires_at', o.expires_at))
        FROM overrides o WHERE o.tenant_id = s.tenant_id AND o.subject = s.subject), '{}')))::text AS object
FROM subjects s WHERE s.tenant_id = @tenant_id AND s.subject = ANY(@subjects::text[]);

-- name: AuditMembers :many
SELECT m.person_id AS id, p.email AS target,
    jsonb_build_object('id', m.id, 'email', p.email, 'role', m.role, 'joined', m.joined_at IS NOT NULL)::text AS object
FROM members m JOIN people p ON p.id = m.person_id
WHERE m.tenant_id = @tenant_id AND m.person_id = ANY(@ids::uuid[]);

-- name: AuditEndpoints :many
-- The columns are named, so that no secret gets into the trail. The hints show that a secret was
-- replaced.
SELECT e.id, e.id::text AS target, jsonb_strip_nulls(jsonb_build_object('provider', e.provider, 'name', e.name,
    'signing_secrets', e.signing_secret_hints, 'api_key', nullif(e.api_key_hint, ''), 'subject_from', e.subject_from,
    'grace_days', e.grace_days, 'fallback_plan', p.slug))::text AS object
FROM billing_endpoints e LEFT JOIN plans p ON p.tenant_id = e.tenant_id AND p.id = e.fallback_plan_id
WHERE e.tenant_id = @tenant_id AND e.id = ANY(@ids::uuid[]);

-- name: AuditPrices :many
SELECT b.price AS target, (jsonb_build_object('endpoint', b.endpoint_id) || CASE WHEN r.id IS NULL
    THEN jsonb_build_object('plan', p.slug, 'multiply', b.multiply, 'priority', b.priority)
    ELSE jsonb_build_object('credits', jsonb_build_object('rule', r.slug, 'units', b.units, 'expires_after_days', b.expires_days)) END)::text AS object
FROM billing_prices b LEFT JOIN plans p ON p.tenant_id = b.tenant_id AND p.id = b.plan_id
LEFT JOIN rules r ON r.tenant_id = b.tenant_id AND r.id = b.rule_id
WHERE b.tenant_id = @tenant_id AND b.price = ANY(@prices::text[]);

-- name: AuditMemberPerson :many
SELECT person_id FROM members WHERE tenant_id = @tenant_id AND id = @id;

-- name: LockAuditHead :one
-- The end of the chain, locked until the transaction ends.
INSERT INTO audit_heads (tenant_id, sequence, hash) VALUES (@tenant_id, 0, @genesis)
ON CONFLICT (tenant_id) DO UPDATE SET sequence = audit_heads.sequence
RETURNING sequence, hash, day, day_bytes;

-- name: MoveAuditHead :exec
UPDATE audit_heads SET sequence = @sequence, hash = @hash, day = @day, day_bytes = @day_bytes WHERE tenant_id = @tenant_id;

-- name: InsertAudit :exec
-- The rows of one change, possibly thousands, as arrays of equal length. '' stands for no object.
INSERT INTO audit (tenant_id, sequence, id, at, actor_kind, actor_id, actor_name, address, user_agent, request_id,
    action, kind, target, before, after, reason, hash)
SELECT @tenant_id, n.sequence, n.id, @at, @actor_kind, sqlc.narg(actor_id)::uuid, @actor_name, @address, @user_agent, @request_id,
    n.action, n.kind, n.target, nullif(n.before, '')::json, nullif(n.after, '')::json, n.reason, n.hash
FROM (SELECT unnest(@sequences::bigint[]) AS sequence, unnest(@ids::uuid[]) AS id, unnest(@actions::text[]) AS action,
    unnest(@kinds::text[]) AS kind, unnest(@targets::text[]) AS target, unnest(@befores::text[]) AS before,
    unnest(@afters::text[]) AS after, unnest(@reasons::text[]) AS reason, unnest(@hashes::bytea[]) AS hash) AS n;

-- name: AuditHead :one
SELECT sequence, hash, removed_sequence, removed_hash FROM audit_heads WHERE tenant_id = @tenant_id;

-- name: AuditHeads :many
-- The heads of all tenants, by id. A head whose row was removed has no time.
SELECT h.tenant_id, t.slug, h.sequence, h.hash, a.at FROM audit_heads h JOIN tenants t ON t.id = h.tenant_id
LEFT JOIN audit a ON a.tenant_id = h.tenant_id AND a.sequence = h.sequence
WHERE h.sequence > 0 AND h.tenant_id > @after ORDER BY h.tenant_id LIMIT @most;

-- name: AuditHashAt :one
SELECT hash FROM audit WHERE tenant_id = @tenant_id AND sequence = @sequence;

-- name: AuditsBefore :many
-- Tenants whose oldest row is from before a time.
SELECT h.tenant_id FROM audit_heads h JOIN audit a ON a.tenant_id = h.tenant_id AND a.sequence = h.removed_sequence + 1
WHERE h.tenant_id > @after AND a.at < @before ORDER BY h.tenant_id LIMIT @most;

-- name: LockAuditMark :one
SELECT removed_sequence FROM audit_heads WHERE tenant_id = @tenant_id FOR UPDATE;

-- name: AuditAges :many
SELECT sequence, at, hash FROM audit WHERE tenant_id = @tenant_id AND sequence > @after ORDER BY sequence LIMIT @most;

-- name: RemoveAudit :execrows
DELETE FROM audit WHERE tenant_id = @tenant_id AND sequence <= @sequence;

-- name: MoveAuditMark :exec
UPDATE audit_heads SET removed_sequence = @sequence, removed_hash = @hash WHERE tenant_id = @tenant_id;

-- name: AuditMigrations :many
-- Without the progress, which the rows of the subjects show.
SELECT m.id, p.slug AS target, jsonb_strip_nulls(jsonb_build_object('id', m.id, 'from', p.slug, 'from_version', m.from_version,
    'to', target.slug, 'starts_at', m.starts_at, 'at_cycle_end', nullif(m.at_cycle_end, false), 'subjects', m.subjects,
    'state', nullif(m.state, 'running')))::text AS object
FROM plan_migrations m JOIN plans p ON p.tenant_id = m.tenant_id AND p.id = m.plan_id
JOIN plans target ON target.tenant_id = m.tenant_id AND target.id = m.to_plan_id
WHERE m.tenant_id = @tenant_id AND m.id = ANY(@ids::uuid[]);

-- name: AuditPortals :many
-- The logo by its hash: a picture does not belong into the trail.
SELECT tenant_id AS id, 'customer page'::text AS target, jsonb_strip_nulls(jsonb_build_object('brand', nullif(brand, ''), 'accent', nullif(accent, ''),
    'logo', encode(sha256(logo), 'hex'), 'frame_origins', nullif(frame_origins, '{}'), 'offered_plans', nullif(offered_plans, '{}'),
    'requests', requests, 'auto_approve_percent', nullif(auto_percent, 0), 'auto_approve_for', auto_for_text,
    'auto_approve_every', auto_every_text))::text AS object
FROM portals WHERE tenant_id = ANY(@ids::uuid[]);

-- name: AuditSecurity :many
SELECT tenant_id AS id, 'security settings'::text AS target, jsonb_build_object('session_idle', session_idle_text,
    'session_life', session_life_text, 'max_sessions', max_sessions, 'confirm_after', confirm_after_text,
    'event_retention', event_retention_text)::text AS object
FROM security_settings WHERE tenant_id = ANY(@ids::uuid[]);

-- name: AuditPortalLinks :many
-- Column by column: the hash of the token is not to get into the trail.
SELECT id, subject AS target, jsonb_build_object('id', id, 'single_use', single_use, 'expires_at', expires_at)::text AS object
FROM portal_links WHERE tenant_id = @tenant_id AND id = ANY(@ids::uuid[]);

-- name: AuditLimitRequests :many
SELECT q.id, q.subject AS target, jsonb_strip_nulls(jsonb_build_object('id', q.id, 'rule', r.slug, 'had', q.had, 'asked', q.asked,
    'note', nullif(q.note, ''), 'state', q.state, 'automatic', nullif(q.automatic, false), 'granted', q.granted,
    'granted_until', q.granted_until, 'answer', nullif(q.answer, '')))::text AS object
FROM limit_requests q JOIN rules r ON r.tenant_id = q.tenant_id AND r.id = q.rule_id
WHERE q.tenant_id = @tenant_id AND q.id = ANY(@ids::uuid[]);

-- name: AuditCredits :many
SELECT g.id, g.subject AS target, jsonb_strip_nulls(jsonb_build_object('id', g.id, 'rule', r.slug, 'units', g.units,
    'expires_at', g.expires_at, 'reference', nullif(g.reference, ''), 'reason', nullif(g.reason, ''), 'revoked_at', g.revoked_at))::text AS object
FROM credit_grants g JOIN rules r ON r.tenant_id = g.tenant_id AND r.id = g.rule_id
WHERE g.tenant_id = @tenant_id AND g.id = ANY(@ids::uuid[]);
