CREATE OR REPLACE FUNCTION note_first_meter() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    INSERT INTO ended_meters (tenant_id, rule, until, meter_event, kind)
    SELECT NEW.tenant_id, NEW.slug, s.sealed_until, '', 'units' FROM metering_state s
    WHERE s.pushes_until < s.sealed_until
        -- If it lost a meter since then, it had that one in the sealed hours.
        AND NOT EXISTS (SELECT FROM ended_meters x WHERE x.tenant_id = NEW.tenant_id AND x.rule = NEW.slug AND x.until > s.sealed_until)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
