-- When the purchases of an endpoint were last compared with its provider: a comparison of plans
-- alone, as with a key that may not read events, does not move it. null: never, or somebody has
-- requested to compare as many as the provider knows.
ALTER TABLE billing_endpoints ADD COLUMN purchases_compared_at timestamptz;
ALTER TABLE billing_endpoints NO FORCE ROW LEVEL SECURITY; -- the migration changes the endpoints of all tenants
UPDATE billing_endpoints SET purchases_compared_at = reconciled_at WHERE reconcile_error = '';
ALTER TABLE billing_endpoints FORCE ROW LEVEL SECURITY;

-- Meters that rules had in hours that are not sealed yet: a rule that gets another meter, invoices
-- other units, or is deleted, keeps the present hour, of which the units are sent after it is
-- sealed. A second change in an hour changes nothing for it.
CREATE TABLE ended_meters (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    rule text COLLATE "C" NOT NULL, -- slug
    until timestamptz NOT NULL, -- hours that begin before it, and not before that of an older row
    meter_event text NOT NULL CHECK (meter_event <> ''),
    kind text NOT NULL CHECK (kind IN ('units', 'overage')),
    PRIMARY KEY (tenant_id, rule, until)
);
ALTER TABLE ended_meters ENABLE ROW LEVEL SECURITY;
ALTER TABLE ended_meters FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON ended_meters TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY write_all ON ended_meters TO weir_system USING (true) WITH CHECK (true);
GRANT INSERT ON ended_meters TO weir_app;
GRANT SELECT, DELETE ON ended_meters TO weir_system;

CREATE FUNCTION note_ended_meter() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    IF EXISTS (SELECT FROM tenants t WHERE t.id = OLD.tenant_id) THEN -- not of a tenant that goes
        INSERT INTO ended_meters (tenant_id, rule, until, meter_event, kind)
        VALUES (OLD.tenant_id, OLD.slug, date_trunc('hour', now(), 'UTC') + interval '1 hour', OLD.meter_event, OLD.metering)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_changed_meter AFTER UPDATE OF slug, metering, meter_event ON rules
    FOR EACH ROW WHEN (OLD.meter_event <> '' AND (OLD.slug, OLD.metering, OLD.meter_event) IS DISTINCT FROM (NEW.slug, NEW.metering, NEW.meter_event))
    EXECUTE FUNCTION note_ended_meter();
CREATE TRIGGER note_deleted_meter AFTER DELETE ON rules
    FOR EACH ROW WHEN (OLD.meter_event <> '') EXECUTE FUNCTION note_ended_meter();
