-- The migration takes its lock or none, as number 66 does: a backup may read sessions for long, and
-- while it waited with its request, all statements on sessions would wait behind it.
DO $$
DECLARE
    attempts integer := coalesce(nullif(current_setting('weir.lock_attempts', true), ''), '50');
    others text;
BEGIN
    SET LOCAL lock_timeout = '200ms';
    FOR attempt IN 1..attempts LOOP
        BEGIN
            LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            SELECT string_agg(DISTINCT pid::text, ', ') INTO others FROM pg_locks
            WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
                AND relation = 'sessions'::regclass;
            IF attempt = attempts THEN
                RAISE lock_not_available USING MESSAGE = 'sessions is used all the time, now by the processes of Postgres: '
                    || coalesce(others, 'none');
            END IF;
            IF attempt = 1 THEN
                RAISE WARNING 'migration 75 waits for other processes of Postgres that use sessions: %', coalesce(others, 'none');
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    SET LOCAL lock_timeout = DEFAULT;
END $$;

-- The longest time between two uses of a session since the password was entered. A session that was
-- idle in a tenant with a long limit must not continue in one with a shorter limit, however often it
-- was used in between. Servers of earlier releases do not record it.
ALTER TABLE sessions
    ADD COLUMN longest_idle_ms bigint NOT NULL DEFAULT 0;
GRANT UPDATE (longest_idle_ms) ON sessions TO weir_system;
