ALTER TABLE billing_endpoints DROP COLUMN reconcile_failed_at, DROP COLUMN reconcile_error;
