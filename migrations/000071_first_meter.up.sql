-- A rule that gets its first meter had none before the present hour, also in hours that have ended
-- and are not sealed yet. In the present hour it may have lost another one, which that hour keeps.
CREATE OR REPLACE FUNCTION note_first_meter() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    INSERT INTO ended_meters (tenant_id, rule, until, meter_event, kind)
    SELECT NEW.tenant_id, NEW.slug, h.began, '', 'units'
    FROM metering_state s CROSS JOIN LATERAL (SELECT greatest(s.sealed_until, date_trunc('hour', now(), 'UTC')) AS began) AS h
    WHERE s.pushes_until < h.began -- pushes of an hour before are missing
        AND NOT EXISTS (SELECT FROM ended_meters x WHERE x.tenant_id = NEW.tenant_id AND x.rule = NEW.slug AND x.until > h.began)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
