-- Payments whose purchases granted nothing, or whose grants are deleted, are deleted, too.
ALTER TABLE billing_payments ADD COLUMN seen_at timestamptz NOT NULL DEFAULT now(); -- when an event first named it
CREATE INDEX billing_payments_age ON billing_payments (seen_at);
CREATE POLICY purge ON billing_payments TO weir_system USING (true);
GRANT SELECT, DELETE ON billing_payments TO weir_system;
GRANT SELECT (reference) ON credit_grants TO weir_system;
