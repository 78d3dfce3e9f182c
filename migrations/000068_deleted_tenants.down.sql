ALTER POLICY purge ON ended_meters USING (until <= (SELECT s.pushes_until FROM metering_state s));
REVOKE DELETE ON notification_deliveries FROM weir_system;
REVOKE UPDATE (slug, deleted_at) ON tenants FROM weir_system;
ALTER POLICY own_tenant ON tenants USING (id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
ALTER POLICY all_tenants ON tenants USING (true);
ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY;
DELETE FROM tenants WHERE deleted_at IS NOT NULL;
ALTER TABLE tenants FORCE ROW LEVEL SECURITY;
ALTER TABLE tenants DROP COLUMN deleted_at;
