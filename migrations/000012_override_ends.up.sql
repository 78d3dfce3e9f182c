-- For the list of overrides that are about to end.
CREATE INDEX overrides_end ON overrides (tenant_id, expires_at, subject, rule_id) WHERE expires_at IS NOT NULL;
