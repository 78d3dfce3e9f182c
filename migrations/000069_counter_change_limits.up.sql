-- Writers of subjects lock counter_changes before or after tenants. So the migration takes both locks
-- or none, as number 66 does: it is never the victim of a deadlock, and holds no change up while it
-- waits for a long import. After a minute it fails, and has changed nothing.
DO $$
DECLARE
    attempts integer := coalesce(nullif(current_setting('weir.lock_attempts', true), ''), '50');
    others text;
BEGIN
    SET LOCAL lock_timeout = '200ms';
    FOR attempt IN 1..attempts LOOP
        BEGIN
            LOCK TABLE tenants IN SHARE ROW EXCLUSIVE MODE;
            LOCK TABLE counter_changes IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            SELECT string_agg(DISTINCT pid::text, ', ') INTO others FROM pg_locks
            WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
                AND relation IN ('tenants'::regclass, 'counter_changes'::regclass);
            IF attempt = attempts THEN
                RAISE lock_not_available USING MESSAGE = 'tenants and counter_changes are used all the time, now by the processes of Postgres: '
                    || coalesce(others, 'none');
            END IF;
            IF attempt = 1 THEN
                RAISE WARNING 'migration 69 waits for other processes of Postgres that use tenants or counter_changes: %', coalesce(others, 'none');
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    SET LOCAL lock_timeout = DEFAULT;
END $$;

-- The limits of versions of plans when a subject got or lost them, for the changes of counters that
-- need their ratio: until these are carried out, plans can be edited or deleted, even in the same
-- transaction. They are kept once for each state of a version, and deleted when no change names them.
CREATE TABLE counter_change_limits (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id bigint GENERATED ALWAYS AS IDENTITY,
    plan_id uuid NOT NULL, -- it may be deleted
    number integer NOT NULL,
    plan_version bigint NOT NULL, -- the plan's column version, which every edit of its limits changes
    -- Of equal length, one for each limit, as in plan_limits.
    rule_ids uuid[] NOT NULL,
    limit_units bigint[] NOT NULL, -- null: unlimited
    burst_units bigint[] NOT NULL,
    overages text[] NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, plan_id, number, plan_version)
);
ALTER TABLE counter_change_limits ENABLE ROW LEVEL SECURITY;
ALTER TABLE counter_change_limits FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON counter_change_limits TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY carry_out ON counter_change_limits TO weir_system USING (true);
GRANT SELECT, INSERT ON counter_change_limits TO weir_app;
GRANT SELECT, DELETE ON counter_change_limits TO weir_system;

ALTER TABLE counter_changes
    ADD COLUMN from_limits bigint, -- null: of before this migration, or not needed
    ADD COLUMN to_limits bigint;

-- keep_plan_limits keeps the present limits of a version of a plan, and returns their id. Changes of
-- a tenant wait for each other, and what deletes limits waits for them. A tenant that edits plans
-- and moves subjects all the time has at most 1000; then the result is null, and the change counts
-- by the limits that the plan has when it is carried out.
CREATE FUNCTION keep_plan_limits(tenant uuid, plan uuid, version integer, is_newest boolean, edited bigint) RETURNS bigint
    LANGUAGE sql SET search_path = pg_catalog, public AS $$
    INSERT INTO counter_change_limits (tenant_id, plan_id, number, plan_version, rule_ids, limit_units, burst_units, overages)
    SELECT tenant, plan, version, edited, coalesce(array_agg(l.rule_id), '{}'), coalesce(array_agg(l.limit_units), '{}'),
        coalesce(array_agg(l.burst_units), '{}'), coalesce(array_agg(l.overage), '{}')
    FROM (
        SELECT n.rule_id, n.limit_units, n.burst_units, n.overage FROM plan_limits n
        WHERE is_newest AND n.tenant_id = tenant AND n.plan_id = plan
        UNION ALL
        SELECT o.rule_id, o.limit_units, o.burst_units, o.overage FROM plan_version_limits o
        WHERE NOT is_newest AND o.tenant_id = tenant AND o.plan_id = plan AND o.number = version
    ) AS l
    HAVING (SELECT count(*) FROM (SELECT FROM counter_change_limits k WHERE k.tenant_id = tenant LIMIT 1000) AS kept) < 1000
    ON CONFLICT DO NOTHING RETURNING id
$$;

CREATE OR REPLACE FUNCTION note_changed_plan() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
DECLARE
    tenant uuid;
    whose text;
    before uuid;
    after uuid;
    before_version integer := 0;
    after_version integer := 0;
    before_multiplier integer := 1; -- of a subject that is not registered
    after_multiplier integer := 1;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        tenant := OLD.tenant_id;
        whose := OLD.subject;
        before := OLD.plan_id;
        before_multiplier := OLD.multiplier;
        IF before IS NOT NULL THEN
            before_version := OLD.plan_version;
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        tenant := NEW.tenant_id;
        whose := NEW.subject;
        after := NEW.plan_id;
        after_multiplier := NEW.multiplier;
        IF after IS NOT NULL THEN
            after_version := NEW.plan_version;
        END IF;
    END IF;
    -- weir_system, which deletes tenants, may not insert here, not even no rows.
    IF NOT EXISTS (SELECT FROM tenants t WHERE t.id = tenant)
        OR NOT EXISTS (SELECT FROM plans p WHERE p.tenant_id = tenant AND p.on_change <> 'carry') THEN
        RETURN NULL; -- as in most tenants
    END IF;
    -- The limits are mostly kept already, by the row before: a function would cost more than the look.
    INSERT INTO counter_changes (tenant_id, subject, action, from_plan, from_version, from_multiplier, to_plan, to_version, to_multiplier,
        from_limits, to_limits)
    SELECT tenant, whose, c.on_change, c.had_slug, before_version, before_multiplier, c.slug, after_version, after_multiplier,
        CASE WHEN c.on_change = 'scale' THEN coalesce(
            (SELECT k.id FROM counter_change_limits k
                WHERE k.tenant_id = tenant AND k.plan_id = c.had_id AND k.number = c.had_number AND k.plan_version = c.had_edited),
            keep_plan_limits(tenant, c.had_id, c.had_number, c.had_number = c.had_newest, c.had_edited)) END,
        CASE WHEN c.on_change = 'scale' THEN coalesce(
            (SELECT k.id FROM counter_change_limits k
                WHERE k.tenant_id = tenant AND k.plan_id = c.id AND k.number = c.number AND k.plan_version = c.edited),
            keep_plan_limits(tenant, c.id, c.number, c.number = c.newest, c.edited)) END
    FROM (
        SELECT had.id AS had_id, had.slug AS had_slug, had.version AS had_edited, had.newest_version AS had_newest,
            coalesce(nullif(before_version, 0), had.newest_version) AS had_number,
            gets.id, gets.slug, gets.version AS edited, gets.newest_version AS newest,
            coalesce(nullif(after_version, 0), gets.newest_version) AS number, gets.on_change
        FROM plans had, plans gets
        WHERE had.tenant_id = tenant AND (had.id = before OR before IS NULL AND had.is_default)
            AND gets.tenant_id = tenant AND (gets.id = after OR after IS NULL AND gets.is_default)
    ) AS c
    WHERE (c.id <> c.had_id OR c.number <> c.had_number) AND c.on_change <> 'carry';
    RETURN NULL;
END $$;
