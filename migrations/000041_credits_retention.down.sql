REVOKE DELETE ON credit_grants FROM weir_system;
REVOKE SELECT (created_at) ON credit_grants FROM weir_system;
DROP INDEX credit_grants_age;
ALTER TABLE credit_grants DROP COLUMN spent_at;
