-- A new epoch of the configuration says that the database is a backup that was restored. What was
-- done after the backup, outside of it, is there as not done.

-- The newest restore. Pushes of hours that ended before it may have been sent before it.
CREATE TABLE restores (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    restored_at timestamptz -- null: there was none
);
INSERT INTO restores DEFAULT VALUES;
GRANT SELECT, UPDATE ON restores TO weir_system;

-- The provider may have every event of the pushes that are not complete, and of the parked subjects.
-- It recognises their identifiers for a day, counted from the end of their hour.
CREATE FUNCTION note_restored_pushes() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public SET role = weir_system AS $$
BEGIN
    UPDATE restores SET restored_at = clock_timestamp();
    -- No subject is behind this one. A claimed part is not claimed any more, so that
    -- its outcome does not replace this.
    UPDATE metered_pushes SET unanswered_at = least(unanswered_at, start + interval '1 hour'), unanswered_until = repeat(U&'\+10FFFF', 64),
        due_at = now()
    WHERE NOT complete;
    UPDATE metered_pushes SET due_at = now() WHERE complete AND due_at IS NOT NULL;
    UPDATE metered_push_problems x SET unanswered_at = least(x.unanswered_at, p.start + interval '1 hour')
    FROM metered_pushes p
    WHERE p.tenant_id = x.tenant_id AND p.id = x.push_id AND x.outcome = 'parked';
    RETURN NULL;
END $$;

-- Changes of counters have marks in the counter store, named by their numbers, and those of after the
-- backup may still be there. So new numbers begin at the microseconds since 1970, which no number
-- has reached. This runs as the owner of the sequence.
CREATE FUNCTION renumber_counter_changes() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    PERFORM setval('counter_changes_id_seq', greatest(s.last_value, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))
    FROM counter_changes_id_seq s;
    RETURN NULL;
END $$;

-- As number 66: it never waits with a lock that others wait for, and not for long.
DO $$
DECLARE
    attempts integer := coalesce(nullif(current_setting('weir.lock_attempts', true), ''), '50');
    others text;
BEGIN
    SET LOCAL lock_timeout = '200ms';
    FOR attempt IN 1..attempts LOOP
        BEGIN
            LOCK TABLE config_version IN SHARE ROW EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            SELECT string_agg(DISTINCT pid::text, ', ') INTO others FROM pg_locks
            WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
                AND relation = 'config_version'::regclass;
            IF attempt = attempts THEN
                RAISE lock_not_available USING MESSAGE = 'config_version is used all the time, now by the processes of Postgres: '
                    || coalesce(others, 'none');
            END IF;
            IF attempt = 1 THEN
                RAISE WARNING 'migration 70 waits for other processes of Postgres that use config_version: %', coalesce(others, 'none');
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    SET LOCAL lock_timeout = DEFAULT;
END $$;
CREATE TRIGGER note_restored_pushes AFTER UPDATE OF epoch ON config_version
    FOR EACH ROW WHEN (OLD.epoch <> NEW.epoch) EXECUTE FUNCTION note_restored_pushes();
CREATE TRIGGER renumber_counter_changes AFTER UPDATE OF epoch ON config_version
    FOR EACH ROW WHEN (OLD.epoch <> NEW.epoch) EXECUTE FUNCTION renumber_counter_changes();
