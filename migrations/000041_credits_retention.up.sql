-- Grants of which nothing has been left for a long time are deleted.
ALTER TABLE credit_grants ADD COLUMN spent_at timestamptz; -- when the last unit was spent; null also for older grants
CREATE INDEX credit_grants_age ON credit_grants (created_at);
GRANT SELECT (created_at, spent_at), UPDATE (spent_at), DELETE ON credit_grants TO weir_system;
