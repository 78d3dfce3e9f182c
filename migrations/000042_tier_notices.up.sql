-- Tenants that were told that they have more than their tier includes: one row until they fit again.
CREATE TABLE tier_notices (
    tenant_id uuid PRIMARY KEY REFERENCES tenants ON DELETE CASCADE,
    tier text NOT NULL, -- slug of a plan of the operator's tenant
    created_at timestamptz NOT NULL
);
ALTER TABLE tier_notices ENABLE ROW LEVEL SECURITY;
ALTER TABLE tier_notices FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tier_notices TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY record ON tier_notices TO weir_system USING (true) WITH CHECK (true);
GRANT SELECT ON tier_notices TO weir_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON tier_notices TO weir_system;
