-- The migration takes its lock or none, as number 66 does: a backup may read portal_links for long, and
-- while it waited with its request, all statements on portal_links would wait behind it.
DO $$
DECLARE
    attempts integer := coalesce(nullif(current_setting('weir.lock_attempts', true), ''), '50');
    others text;
BEGIN
    SET LOCAL lock_timeout = '200ms';
    FOR attempt IN 1..attempts LOOP
        BEGIN
            LOCK TABLE portal_links IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            SELECT string_agg(DISTINCT pid::text, ', ') INTO others FROM pg_locks
            WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
                AND relation = 'portal_links'::regclass;
            IF attempt = attempts THEN
                RAISE lock_not_available USING MESSAGE = 'portal_links is used all the time, now by the processes of Postgres: '
                    || coalesce(others, 'none');
            END IF;
            IF attempt = 1 THEN
                RAISE WARNING 'migration 73 waits for other processes of Postgres that use portal_links: %', coalesce(others, 'none');
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    SET LOCAL lock_timeout = DEFAULT;
END $$;

-- A link that a key with an end has created opens no page for longer than the key exists.
ALTER TABLE portal_links ADD COLUMN pages_until timestamptz; -- null: 12 hours after the use of the link
