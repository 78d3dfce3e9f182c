DROP POLICY purge_unapplied ON billing_events;
DROP INDEX billing_events_unapplied_at;
ALTER TABLE audit_heads DROP COLUMN day, DROP COLUMN day_bytes;
DROP TABLE billing_days;
