-- How many billing events each tenant has stored on a day (UTC), and their bytes. Only the newest day
-- is kept: what a tenant may store is bounded for each day.
CREATE TABLE billing_days (
    tenant_id uuid PRIMARY KEY REFERENCES tenants ON DELETE CASCADE,
    day date NOT NULL,
    events bigint NOT NULL CHECK (events >= 0),
    bytes bigint NOT NULL CHECK (bytes >= 0)
);
ALTER TABLE billing_days ENABLE ROW LEVEL SECURITY;
ALTER TABLE billing_days FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_days TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
GRANT SELECT, INSERT, UPDATE ON billing_days TO weir_app;

-- The bytes that a trail has got on its newest day (UTC).
ALTER TABLE audit_heads
    ADD COLUMN day date NOT NULL DEFAULT '1970-01-01',
    ADD COLUMN day_bytes bigint NOT NULL DEFAULT 0 CHECK (day_bytes >= 0);
GRANT UPDATE (day, day_bytes) ON audit_heads TO weir_app;

-- Events that were parked or have failed are kept for 400 days, unless they wait for a time.
CREATE INDEX billing_events_unapplied_at ON billing_events (settled_at) WHERE due_at IS NULL AND outcome IN ('parked', 'failed');
CREATE POLICY purge_unapplied ON billing_events FOR DELETE TO weir_system
    USING (due_at IS NULL AND outcome IN ('parked', 'failed'));
