-- The migration takes its locks or none, as number 66 does, because an import or a backup may read
-- tenants for minutes: while it waited with its request, all of the tenants' statements would wait
-- behind it.
DO $$
DECLARE
    attempts integer := coalesce(nullif(current_setting('weir.lock_attempts', true), ''), '50');
    others text;
BEGIN
    SET LOCAL lock_timeout = '200ms';
    FOR attempt IN 1..attempts LOOP
        BEGIN
            LOCK TABLE tenants IN ACCESS EXCLUSIVE MODE;
            LOCK TABLE ended_meters IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            SELECT string_agg(DISTINCT pid::text, ', ') INTO others FROM pg_locks
            WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
                AND relation IN ('tenants'::regclass, 'ended_meters'::regclass);
            IF attempt = attempts THEN
                RAISE lock_not_available USING MESSAGE = 'tenants and ended_meters are used all the time, now by the processes of Postgres: '
                    || coalesce(others, 'none');
            END IF;
            IF attempt = 1 THEN
                RAISE WARNING 'migration 68 waits for other processes of Postgres that use tenants or ended_meters: %', coalesce(others, 'none');
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    SET LOCAL lock_timeout = DEFAULT;
END $$;

-- A tenant that was deleted. It has rows still, which are deleted in pages, and its own row last. Until
-- then no role sees this row, so that the tenant does not exist for any query that reads tenants. Only
-- a transaction that sets weir.deleted_tenants sees it: the one that deletes the tenant, and those that
-- delete its rows. The slug is free: the row has its id instead.
ALTER TABLE tenants ADD COLUMN deleted_at timestamptz;
CREATE INDEX tenants_deleted ON tenants (deleted_at) WHERE deleted_at IS NOT NULL;
ALTER POLICY all_tenants ON tenants USING (deleted_at IS NULL OR current_setting('weir.deleted_tenants', true) = 'on');
ALTER POLICY own_tenant ON tenants USING (id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid AND deleted_at IS NULL)
    WITH CHECK (id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid AND deleted_at IS NULL);
GRANT UPDATE (slug, deleted_at) ON tenants TO weir_system;

-- Those of a tenant that was deleted go before their notifications, in pages, too.
GRANT DELETE ON notification_deliveries TO weir_system;

-- Nobody needs to know the meters that a deleted tenant's rules had.
ALTER POLICY purge ON ended_meters USING (until <= (SELECT s.pushes_until FROM metering_state s)
    OR NOT EXISTS (SELECT FROM tenants t WHERE t.id = ended_meters.tenant_id));
