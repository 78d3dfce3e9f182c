DROP TABLE billing_payments;
DELETE FROM billing_prices WHERE rule_id IS NOT NULL;
ALTER TABLE billing_prices DROP COLUMN rule_id, DROP COLUMN units, DROP COLUMN expires_days, ALTER COLUMN plan_id SET NOT NULL;
