-- Why the last comparison of an endpoint with its provider failed. Empty: it succeeded, or there was
-- none.
ALTER TABLE billing_endpoints
    ADD COLUMN reconcile_failed_at timestamptz,
    ADD COLUMN reconcile_error text NOT NULL DEFAULT '';
