-- Writers of rules lock tenants first. The migration takes both locks or none, as number 66 does: it
-- is never the victim of a deadlock, and holds no change up while it waits for a long import. After a
-- minute it fails, and has changed nothing.
DO $$
DECLARE
    attempts integer := coalesce(nullif(current_setting('weir.lock_attempts', true), ''), '50');
    others text;
BEGIN
    SET LOCAL lock_timeout = '200ms';
    FOR attempt IN 1..attempts LOOP
        BEGIN
            LOCK TABLE tenants IN SHARE ROW EXCLUSIVE MODE;
            LOCK TABLE rules IN SHARE ROW EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            SELECT string_agg(DISTINCT pid::text, ', ') INTO others FROM pg_locks
            WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
                AND relation IN ('tenants'::regclass, 'rules'::regclass);
            IF attempt = attempts THEN
                RAISE lock_not_available USING MESSAGE = 'tenants and rules are used all the time, now by the processes of Postgres: '
                    || coalesce(others, 'none');
            END IF;
            IF attempt = 1 THEN
                RAISE WARNING 'migration 72 waits for other processes of Postgres that use tenants or rules: %', coalesce(others, 'none');
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    SET LOCAL lock_timeout = DEFAULT;
END $$;

-- The limits that rules themselves had when subjects got other plans, for the changes of counters
-- that wait: a row is written when the rule is edited meanwhile. Changes of a tenant wait for each
-- other, so those that wait have smaller numbers than all later ones.
CREATE TABLE counter_change_own_limits (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    rule_id uuid NOT NULL, -- it may be deleted
    until bigint NOT NULL, -- for changes of counters up to this one, and behind that of an older row
    limit_units bigint NOT NULL,
    burst_units bigint,
    overage text,
    PRIMARY KEY (tenant_id, rule_id, until)
);
ALTER TABLE counter_change_own_limits ENABLE ROW LEVEL SECURITY;
ALTER TABLE counter_change_own_limits FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON counter_change_own_limits TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY carry_out ON counter_change_own_limits TO weir_system USING (true);
GRANT SELECT, INSERT ON counter_change_own_limits TO weir_app;
GRANT SELECT, DELETE ON counter_change_own_limits TO weir_system;
GRANT SELECT (tenant_id, id) ON counter_changes TO weir_app;

-- A tenant that edits rules and moves subjects all the time has at most 1000 rows. Then no more are
-- written, and the limit that the rule gets counts.
CREATE FUNCTION keep_own_limit() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
DECLARE
    newest bigint;
BEGIN
    SELECT max(c.id) INTO newest FROM counter_changes c WHERE c.tenant_id = OLD.tenant_id;
    IF newest IS NOT NULL
        AND (SELECT count(*) FROM (SELECT FROM counter_change_own_limits k WHERE k.tenant_id = OLD.tenant_id LIMIT 1000) AS kept) < 1000 THEN
        -- If there is one for the same change, it was edited again since then.
        INSERT INTO counter_change_own_limits (tenant_id, rule_id, until, limit_units, burst_units, overage)
        VALUES (OLD.tenant_id, OLD.id, newest, OLD.limit_units, OLD.burst_units, OLD.overage)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER keep_own_limit AFTER UPDATE OF limit_units, burst_units, overage ON rules
    FOR EACH ROW WHEN ((OLD.limit_units, OLD.burst_units, OLD.overage) IS DISTINCT FROM (NEW.limit_units, NEW.burst_units, NEW.overage))
    EXECUTE FUNCTION keep_own_limit();
