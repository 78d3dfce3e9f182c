DROP INDEX subjects_billing_ref;
ALTER TABLE subjects DROP COLUMN multiplier;
DROP TABLE billing_events;
DROP TABLE billing_subscriptions;
DROP TABLE billing_customers;
DROP TABLE billing_prices;
DROP TABLE billing_endpoints;
