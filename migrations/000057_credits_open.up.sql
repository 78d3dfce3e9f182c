-- What is left of a subject's grants for a rule is found however many of its grants are finished.
-- spent_at is in the condition, and spent is not: spent changes every second, and an update of a
-- column of an index cannot stay in its page.
CREATE INDEX credit_grants_open ON credit_grants (tenant_id, subject, expires_at, rule_id) WHERE revoked_at IS NULL AND spent_at IS NULL;
CREATE INDEX credit_grants_spent ON credit_grants (tenant_id, subject, rule_id, spent_at) WHERE revoked_at IS NULL AND spent_at IS NOT NULL;
-- New grants are opened for one tenant after the other.
DROP INDEX credit_grants_new;
CREATE INDEX credit_grants_new ON credit_grants (tenant_id, id) WHERE NOT opened;
