-- name: InsertRule :one
-- Its parameters are those of UpdateRule, in the same order.
INSERT INTO rules (slug, name, description, resource, algorithm, limit_units, window_text, window_ms, burst_units,
    precision_text, precision_ms, by_values, mode, on_unavailable, on_missing_attribute, penalty_text, penalty_ms, consistency,
    lease_text, lease_ms, zone, anchor, warn_at, overage, metering, meter_event, version, tenant_id, id)
VALUES (@slug, @name, @description, @resource, @algorithm, @limit_units, @window_text, @window_ms, @burst_units,
    @precision_text, @precision_ms, @by_values, @mode, @on_unavailable, @on_missing_attribute, @penalty_text, @penalty_ms, @consistency,
    @lease_text, @lease_ms, @zone, @anchor, @warn_at, @overage, @metering, @meter_event, @version, @tenant_id, @id)
RETURNING *;

-- name: UpdateRule :one
UPDATE rules SET slug = @slug, name = @name, description = @description, resource = @resource, algorithm = @algorithm,
    limit_units = @limit_units, window_text = @window_text, window_ms = @window_ms, burst_units = @burst_units,
    precision_text = @precision_text, precision_ms = @precision_ms, by_values = @by_values, mode = @mode,
    on_unavailable = @on_unavailable, on_missing_attribute = @on_missing_attribute, penalty_text = @penalty_text, penalty_ms = @penalty_ms,
    consistency = @consistency, lease_text = @lease_text, lease_ms = @lease_ms, zone = @zone, anchor = @anchor, warn_at = @warn_at, overage = @overage,
    metering = @metering, meter_event = @meter_event,
    version = @version, updated_at = now()
WHERE tenant_id = @tenant_id AND id = @id
RETURNING *;

-- name: ListRules :many
-- A page of rules, newest first, after one of them. An empty filter selects all.
SELECT * FROM rules
WHERE tenant_id = @tenant_id AND (sqlc.narg('after')::uuid IS NULL OR id < sqlc.narg('after'))
    AND (@resource::text = '' OR resource = @resource) AND (@algorithm::text = '' OR algorithm = @algorithm)
    AND (@mode::text = '' OR mode = @mode)
    AND (@prefix::text = '' OR starts_with(slug, @prefix) OR starts_with(name, @prefix))
ORDER BY id DESC LIMIT @most;

-- name: RuleBySlug :one
SELECT * FROM rules WHERE tenant_id = @tenant_id AND slug = @slug;

-- name: RulePatterns :many
-- The values that decide which rules match a check, for all rules except one.
SELECT resource, mode FROM rules WHERE tenant_id = @tenant_id AND id <> @but;

-- name: DeleteRule :exec
DELETE FROM rules WHERE tenant_id = @tenant_id AND id = @id;

-- name: RulePlanLimits :many
-- number is 0 for the newest version of a plan.
SELECT p.slug, l.number, l.limit_units, l.burst_units, l.unlimited, l.warn_at, l.overage, l.metering
FROM (
    SELECT n.plan_id, 0 AS number, n.limit_units, n.burst_units, n.unlimited, n.warn_at, n.overage, n.metering FROM plan_limits n WHERE n.tenant_id = @tenant_id AND n.rule_id = @rule_id
    UNION ALL
    SELECT v.plan_id, v.number, v.limit_units, v.burst_units, v.unlimited, v.warn_at, v.overage, v.metering FROM plan_version_limits v WHERE v.tenant_id = @tenant_id AND v.rule_id = @rule_id
) AS l JOIN plans p ON p.tenant_id = @tenant_id AND p.id = l.plan_id
ORDER BY p.slug, l.number;

-- name: StampPlansOfRule :exec
UPDATE plans p SET version = @version, updated_at = now()
FROM plan_limits l
WHERE l.tenant_id = @tenant_id AND l.rule_id = @rule_id AND p.tenant_id = l.tenant_id AND p.id = l.plan_id;

-- name: RuleHasOverrides :one
SELECT EXISTS (SELECT FROM overrides WHERE tenant_id = @tenant_id AND rule_id = @rule_id);

-- name: StampSubjectsOfRule :exec
UPDATE subjects s SET version = @version, updated_at = now()
FROM overrides o
WHERE o.tenant_id = @tenant_id AND o.rule_id = @rule_id AND s.tenant_id = o.tenant_id AND s.subject = o.subject;

-- name: RulesBySlug :many
SELECT * FROM rules WHERE tenant_id = @tenant_id AND slug = ANY(@slugs::text[]);
