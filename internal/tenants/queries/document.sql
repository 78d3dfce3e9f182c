-- name: DocumentRules :many
SELECT * FROM rules WHERE tenant_id = @tenant_id;

-- name: DocumentPlans :many
SELECT * FROM plans WHERE tenant_id = @tenant_id;

-- name: DocumentSubjects :many
-- All subjects, or those that are named.
SELECT s.*, p.slug AS plan_slug
FROM subjects s LEFT JOIN plans p ON p.tenant_id = s.tenant_id AND p.id = s.plan_id
WHERE s.tenant_id = @tenant_id AND (@every::boolean OR s.subject = ANY(@subjects::text[]))
ORDER BY s.subject LIMIT @most;

-- name: DocumentPlansInUse :many
-- Which of some plans have subjects, apart from some subjects.
SELECT p.slug FROM plans p
WHERE p.tenant_id = @tenant_id AND p.id = ANY(@plan_ids::uuid[]) AND EXISTS (
    SELECT FROM subjects s WHERE s.tenant_id = p.tenant_id AND s.plan_id = p.id AND s.subject <> ALL(@but::text[]));

-- name: DocumentRulesOverridden :one
SELECT EXISTS (SELECT FROM overrides WHERE tenant_id = @tenant_id AND rule_id = ANY(@rule_ids::uuid[]));
