-- The migration takes its lock or none, as number 66 does: a backup may read counter_changes for long,
-- and while it waited with its request, all changes of plans would wait behind it.
DO $$
DECLARE
    attempts integer := coalesce(nullif(current_setting('weir.lock_attempts', true), ''), '50');
    others text;
BEGIN
    SET LOCAL lock_timeout = '200ms';
    FOR attempt IN 1..attempts LOOP
        BEGIN
            LOCK TABLE counter_changes IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            SELECT string_agg(DISTINCT pid::text, ', ') INTO others FROM pg_locks
            WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
                AND relation = 'counter_changes'::regclass;
            IF attempt = attempts THEN
                RAISE lock_not_available USING MESSAGE = 'counter_changes is used all the time, now by the processes of Postgres: '
                    || coalesce(others, 'none');
            END IF;
            IF attempt = 1 THEN
                RAISE WARNING 'migration 76 waits for other processes of Postgres that use counter_changes: %', coalesce(others, 'none');
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    SET LOCAL lock_timeout = DEFAULT;
END $$;

-- What was approved automatically ends with the plan, in the transaction that writes the row: these are
-- the limits that the subject had, by rule, each as [limit, burst].
ALTER TABLE counter_changes ADD COLUMN approved jsonb; -- null: none

CREATE FUNCTION note_approved_limits() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    NEW.approved := (
        SELECT jsonb_object_agg(o.rule_id, jsonb_build_array(o.limit_units, o.burst_units)) FROM overrides o
        WHERE o.tenant_id = NEW.tenant_id AND o.subject = NEW.subject AND o.created_by LIKE 'customer:%' AND o.limit_units IS NOT NULL
            AND coalesce(o.starts_at <= now(), true) AND coalesce(o.expires_at > now(), true));
    RETURN NEW;
END $$;
CREATE TRIGGER note_approved_limits BEFORE INSERT ON counter_changes FOR EACH ROW EXECUTE FUNCTION note_approved_limits();
