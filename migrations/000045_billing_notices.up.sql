-- Notices about events of a billing endpoint that are parked or have failed: one row for each endpoint
-- that had a notice. No further one is sent for a time.
CREATE TABLE billing_notices (
    tenant_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    sent_at timestamptz NOT NULL,
    settled_at timestamptz, -- null: events of the endpoint are still parked or failed
    PRIMARY KEY (tenant_id, endpoint_id),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints (tenant_id, id) ON DELETE CASCADE
);
ALTER TABLE billing_notices ENABLE ROW LEVEL SECURITY;
ALTER TABLE billing_notices FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_notices TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY record ON billing_notices TO weir_system USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON billing_notices TO weir_app;
GRANT SELECT, INSERT, UPDATE ON billing_notices TO weir_system;

-- The events of each endpoint are counted, to decide about a notice.
CREATE INDEX billing_events_unapplied_of_endpoint ON billing_events (tenant_id, endpoint_id) WHERE outcome IN ('parked', 'failed');
GRANT SELECT (name) ON billing_endpoints TO weir_system;
