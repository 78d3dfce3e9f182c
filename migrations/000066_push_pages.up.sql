-- Writers of rules lock that table first, and then ended_meters: in another order, the migration
-- could be the victim of a deadlock. An export of an earlier release may read metering_state for
-- fifteen minutes. So the migration takes all locks or none: while it waited with some, it would hold
-- up every change of a rule. After a minute it fails and says for what it waited. It has changed
-- nothing then, and the server tries again.
DO $$
DECLARE
    attempts integer := coalesce(nullif(current_setting('weir.lock_attempts', true), ''), '50');
    others text;
BEGIN
    SET LOCAL lock_timeout = '200ms';
    FOR attempt IN 1..attempts LOOP
        BEGIN
            LOCK TABLE rules IN SHARE ROW EXCLUSIVE MODE;
            LOCK TABLE metering_state, ended_meters IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            SELECT string_agg(DISTINCT pid::text, ', ') INTO others FROM pg_locks
            WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
                AND relation IN ('rules'::regclass, 'metering_state'::regclass, 'ended_meters'::regclass);
            IF attempt = attempts THEN
                RAISE lock_not_available USING MESSAGE = 'rules, metering_state and ended_meters are used all the time, now by the processes of Postgres: '
                    || coalesce(others, 'none');
            END IF;
            IF attempt = 1 THEN
                RAISE WARNING 'migration 66 waits for other processes of Postgres that use rules, metering_state or ended_meters: %', coalesce(others, 'none');
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    SET LOCAL lock_timeout = DEFAULT;
END $$;
-- Pushes of sealed hours are created in pages, apart from sealing. Those of all hours before
-- pushes_until are created; of that hour, those of the tenants before pushes_tenant, and of that
-- tenant those of the rules up to pushes_rule.
ALTER TABLE metering_state ADD COLUMN pushes_until timestamptz, -- not null from the next statement on
    ADD COLUMN pushes_tenant uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    ADD COLUMN pushes_rule text COLLATE "C" NOT NULL DEFAULT '';
UPDATE metering_state SET pushes_until = sealed_until; -- the earlier releases created them as they sealed
ALTER TABLE metering_state ALTER COLUMN pushes_until SET NOT NULL;

-- A meter that ended is kept until the pushes of its hours are created. An instance of an earlier
-- release, which seals at the same time, deletes no others.
DROP POLICY write_all ON ended_meters;
CREATE POLICY read_all ON ended_meters FOR SELECT TO weir_system USING (true);
CREATE POLICY purge ON ended_meters FOR DELETE TO weir_system USING (until <= (SELECT s.pushes_until FROM metering_state s));
CREATE INDEX ended_meters_until ON ended_meters (until); -- a page of those to delete

-- A rule that gets a meter while pushes of sealed hours are missing had none in these hours.
ALTER TABLE ended_meters DROP CONSTRAINT ended_meters_meter_event_check; -- '': it had none
GRANT SELECT (tenant_id, rule, until) ON ended_meters TO weir_app;

CREATE FUNCTION note_first_meter() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    INSERT INTO ended_meters (tenant_id, rule, until, meter_event, kind)
    SELECT NEW.tenant_id, NEW.slug, s.sealed_until, '', 'units' FROM metering_state s
    WHERE s.pushes_until < s.sealed_until
        -- If it lost a meter since then, it had that one in the sealed hours.
        AND NOT EXISTS (SELECT FROM ended_meters x WHERE x.tenant_id = NEW.tenant_id AND x.rule = NEW.slug AND x.until > s.sealed_until)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER note_created_meter AFTER INSERT ON rules
    FOR EACH ROW WHEN (NEW.meter_event <> '') EXECUTE FUNCTION note_first_meter();
CREATE TRIGGER note_first_meter AFTER UPDATE OF slug, meter_event ON rules
    FOR EACH ROW WHEN (NEW.meter_event <> '' AND (OLD.meter_event = '' OR OLD.slug <> NEW.slug)) EXECUTE FUNCTION note_first_meter();
