DROP TRIGGER note_changed_plan ON subjects;
CREATE OR REPLACE FUNCTION note_changed_plan() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
DECLARE
    tenant uuid;
    whose text;
    before uuid;
    after uuid;
BEGIN
    IF NOT EXISTS (SELECT FROM plans WHERE on_change <> 'carry') THEN
        RETURN NULL; -- as in most tenants
    END IF;
    IF TG_OP <> 'INSERT' THEN
        tenant := OLD.tenant_id;
        whose := OLD.subject;
        before := OLD.plan_id;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        tenant := NEW.tenant_id;
        whose := NEW.subject;
        after := NEW.plan_id;
    END IF;
    INSERT INTO counter_changes (tenant_id, subject, action, from_plan, to_plan)
    SELECT tenant, whose, gets.on_change, had.slug, gets.slug
    FROM plans had, plans gets
    WHERE had.tenant_id = tenant AND (had.id = before OR before IS NULL AND had.is_default)
        AND gets.tenant_id = tenant AND (gets.id = after OR after IS NULL AND gets.is_default)
        AND gets.id <> had.id AND gets.on_change <> 'carry'
        AND EXISTS (SELECT FROM tenants t WHERE t.id = tenant); -- not of a tenant that goes
    RETURN NULL;
END $$;
CREATE TRIGGER note_changed_plan AFTER UPDATE OF plan_id ON subjects
    FOR EACH ROW WHEN (OLD.plan_id IS DISTINCT FROM NEW.plan_id) EXECUTE FUNCTION note_changed_plan();
ALTER TABLE counter_changes DROP COLUMN from_version, DROP COLUMN to_version;
DROP TABLE plan_migrations;
DROP TABLE plan_version_limits;
DROP TABLE plan_versions;
DROP INDEX subjects_plan_version;
ALTER TABLE subjects DROP COLUMN plan_version, DROP COLUMN migration_id; -- and with it its index
ALTER TABLE plans DROP COLUMN newest_version, DROP COLUMN published_at;
