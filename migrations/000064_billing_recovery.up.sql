-- When the purchases of an endpoint were last compared with its provider: a comparison of plans
-- alone, as with a key that may not read events, does not move it. null: never, or somebody has
-- requested to compare as many as the provider knows.
ALTER TABLE billing_endpoints ADD COLUMN purchases_compared_at timestamptz;
ALTER TABLE billing_endpoints NO FORCE ROW LEVEL SECURITY; -- the migration changes the endpoints of all tenants
UPDATE billing_endpoints SET purchases_compared_at = reconciled_at WHERE reconcile_error = '';
ALTER TABLE billing_endpoints FORCE ROW LEVEL SECURITY;
