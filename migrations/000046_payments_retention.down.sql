REVOKE SELECT (reference) ON credit_grants FROM weir_system;
REVOKE SELECT, DELETE ON billing_payments FROM weir_system;
DROP POLICY purge ON billing_payments;
DROP INDEX billing_payments_age;
ALTER TABLE billing_payments DROP COLUMN seen_at;
