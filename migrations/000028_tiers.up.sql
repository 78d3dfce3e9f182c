-- What checks of a tenant over its quota get, of the plans of the operator's tenant, which are the
-- tiers of the service. A server that does not know this refuses them.
ALTER TABLE plans ADD COLUMN fail text NOT NULL DEFAULT 'closed' CHECK (fail IN ('closed', 'open'));
GRANT SELECT (fail) ON plans TO weir_system;

-- Quotas of which a tenant has used a share, once for each window. A window is known by its end.
CREATE TABLE quota_notices (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    rule text NOT NULL, -- slug of a rule of the operator's tenant
    window_end timestamptz NOT NULL,
    percent integer NOT NULL CHECK (percent IN (80, 95, 100)),
    used bigint NOT NULL,
    quota bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, rule, window_end, percent)
);
CREATE INDEX quota_notices_end ON quota_notices (window_end);

ALTER TABLE quota_notices ENABLE ROW LEVEL SECURITY;
ALTER TABLE quota_notices FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON quota_notices TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY keep ON quota_notices TO weir_system USING (true) WITH CHECK (true);
GRANT SELECT ON quota_notices TO weir_app;
GRANT SELECT, INSERT, DELETE ON quota_notices TO weir_system;
