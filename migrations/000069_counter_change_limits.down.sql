-- As before the limits were kept.
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
    INSERT INTO counter_changes (tenant_id, subject, action, from_plan, from_version, from_multiplier, to_plan, to_version, to_multiplier)
    SELECT tenant, whose, gets.on_change, had.slug, before_version, before_multiplier, gets.slug, after_version, after_multiplier
    FROM plans had, plans gets
    WHERE had.tenant_id = tenant AND (had.id = before OR before IS NULL AND had.is_default)
        AND gets.tenant_id = tenant AND (gets.id = after OR after IS NULL AND gets.is_default)
        AND (gets.id <> had.id OR coalesce(nullif(before_version, 0), had.newest_version)
            <> coalesce(nullif(after_version, 0), gets.newest_version))
        AND gets.on_change <> 'carry';
    RETURN NULL;
END $$;
DROP FUNCTION keep_plan_limits(uuid, uuid, integer, boolean, bigint);
ALTER TABLE counter_changes DROP COLUMN from_limits, DROP COLUMN to_limits;
DROP TABLE counter_change_limits;
