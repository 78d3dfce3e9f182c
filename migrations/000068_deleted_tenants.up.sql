-- A tenant that was deleted. It has rows still, which are deleted in pages, and its own row last. Until
-- then no role sees this row, so that the tenant does not exist for any query that reads tenants. Only
-- a transaction that sets weir.deleted_tenants sees it: the one that deletes the tenant, and those that
-- delete its rows. The slug is free: the row has its id instead.
ALTER TABLE tenants ADD COLUMN deleted_at timestamptz;
CREATE INDEX tenants_deleted ON tenants (deleted_at) WHERE deleted_at IS NOT NULL;
ALTER POLICY all_tenants ON tenants USING (deleted_at IS NULL OR current_setting('weir.deleted_tenants', true) = 'on');
ALTER POLICY own_tenant ON tenants USING (id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid AND deleted_at IS NULL);
GRANT UPDATE (slug, deleted_at) ON tenants TO weir_system;

-- Those of a tenant that was deleted go before their notifications, in pages, too.
GRANT DELETE ON notification_deliveries TO weir_system;

-- Nobody needs to know the meters that a deleted tenant's rules had.
ALTER POLICY purge ON ended_meters USING (until <= (SELECT s.pushes_until FROM metering_state s)
    OR NOT EXISTS (SELECT FROM tenants t WHERE t.id = ended_meters.tenant_id));
