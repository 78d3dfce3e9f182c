-- name: CountRuleOverrides :one
-- Counts up to @most.
SELECT count(*) FROM (
    SELECT FROM overrides WHERE tenant_id = @tenant_id AND rule_id = @rule_id LIMIT @most
) AS o;

-- name: CountPlanSubjects :one
-- Registered subjects with the newest version of the plan; for the default plan, also subjects
-- without a plan. Each is counted up to @most.
SELECT (SELECT count(*) FROM (
            SELECT FROM subjects s WHERE s.tenant_id = @tenant_id AND s.plan_id = @plan_id AND s.plan_version >= @newest_version LIMIT @most
        ) AS own)
    + (SELECT count(*) FROM (
            SELECT FROM subjects s WHERE @is_default::boolean AND s.tenant_id = @tenant_id AND s.plan_id IS NULL LIMIT @most
        ) AS others) AS subjects;

-- name: CountPlanOverrides :one
-- The subjects of CountPlanSubjects with an active override for the rule, counted up to @most.
SELECT count(*) FROM (
    SELECT FROM overrides o JOIN subjects s ON s.tenant_id = o.tenant_id AND s.subject = o.subject
    WHERE o.tenant_id = @tenant_id AND o.rule_id = @rule_id
        AND (o.starts_at IS NULL OR o.starts_at <= @now) AND (o.expires_at IS NULL OR o.expires_at > @now)
        AND (s.plan_id = @plan_id AND s.plan_version >= @newest_version OR @is_default::boolean AND s.plan_id IS NULL)
    LIMIT @most
) AS o;
