-- name: CountRuleOverrides :one
-- No further than most.
SELECT count(*) FROM (
    SELECT FROM overrides WHERE tenant_id = @tenant_id AND rule_id = @rule_id LIMIT @most
) AS o;

-- name: CountPlanSubjects :one
-- Those that are registered with the plan, and with the default plan those that have none of their
-- own; of each no further than most. Those with an older version are not among them.
SELECT (SELECT count(*) FROM (
            SELECT FROM subjects s WHERE s.tenant_id = @tenant_id AND s.plan_id = @plan_id AND s.plan_version >= @newest_version LIMIT @most
        ) AS own)
    + (SELECT count(*) FROM (
            SELECT FROM subjects s WHERE @is_default::boolean AND s.tenant_id = @tenant_id AND s.plan_id IS NULL LIMIT @most
        ) AS others) AS subjects;

-- name: CountPlanOverrides :one
-- Those of CountPlanSubjects that have an override in force for the rule, no further than most.
SELECT count(*) FROM (
    SELECT FROM overrides o JOIN subjects s ON s.tenant_id = o.tenant_id AND s.subject = o.subject
    WHERE o.tenant_id = @tenant_id AND o.rule_id = @rule_id
        AND (o.starts_at IS NULL OR o.starts_at <= @now) AND (o.expires_at IS NULL OR o.expires_at > @now)
        AND (s.plan_id = @plan_id AND s.plan_version >= @newest_version OR @is_default::boolean AND s.plan_id IS NULL)
    LIMIT @most
) AS o;
