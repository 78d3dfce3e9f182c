ALTER TABLE subjects DROP COLUMN has_credits;
DROP TABLE credit_grants;
