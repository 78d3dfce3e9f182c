-- Versions of a plan. plan_limits has the limits of the newest version, plan_version_limits those of older
-- ones. A subject keeps the version that it has. A server that does not know versions gives version 1.
ALTER TABLE plans
    ADD COLUMN newest_version integer NOT NULL DEFAULT 1 CHECK (newest_version >= 1),
    ADD COLUMN published_at timestamptz; -- null: with the plan
GRANT SELECT (newest_version) ON plans TO weir_system;

ALTER TABLE subjects
    ADD COLUMN plan_version integer NOT NULL DEFAULT 1 CHECK (plan_version >= 1), -- of plan_id; 1 without one
    ADD COLUMN migration_id uuid; -- the migration that scheduled next_plan_id
GRANT SELECT (plan_version, migration_id) ON subjects TO weir_system;
CREATE INDEX subjects_plan_version ON subjects (tenant_id, plan_id, plan_version);
CREATE INDEX subjects_migration ON subjects (tenant_id, migration_id) WHERE migration_id IS NOT NULL;

CREATE TABLE plan_versions (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    plan_id uuid NOT NULL,
    number integer NOT NULL CHECK (number >= 1), -- below the plan's newest_version
    published_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, plan_id, number),
    FOREIGN KEY (tenant_id, plan_id) REFERENCES plans (tenant_id, id) ON DELETE CASCADE
);

CREATE TABLE plan_version_limits (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    plan_id uuid NOT NULL,
    number integer NOT NULL,
    rule_id uuid NOT NULL,
    limit_units bigint CHECK (limit_units BETWEEN 1 AND 1000000000000000),
    burst_units bigint CHECK (burst_units BETWEEN 1 AND 1000000000),
    unlimited boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, plan_id, number, rule_id),
    FOREIGN KEY (tenant_id, plan_id, number) REFERENCES plan_versions (tenant_id, plan_id, number) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules (tenant_id, id) ON DELETE CASCADE,
    CHECK (unlimited = (limit_units IS NULL)),
    CHECK (burst_units IS NULL OR NOT unlimited)
);
CREATE INDEX plan_version_limits_rule ON plan_version_limits (tenant_id, rule_id);

-- A migration gives the subjects of a plan the newest version of a plan.
CREATE TABLE plan_migrations (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL,
    plan_id uuid NOT NULL,
    from_version integer CHECK (from_version >= 1), -- null: all, except the newest if to_plan_id is plan_id
    to_plan_id uuid NOT NULL,
    starts_at timestamptz NOT NULL,
    at_cycle_end boolean NOT NULL, -- each subject at the end of its cycle, from starts_at on
    state text NOT NULL CHECK (state IN ('scheduled', 'running', 'waiting', 'done', 'canceling', 'canceled')),
    subjects bigint NOT NULL CHECK (subjects >= 0), -- how many there were at its creation
    moved bigint NOT NULL DEFAULT 0 CHECK (moved >= 0),
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, plan_id) REFERENCES plans (tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, to_plan_id) REFERENCES plans (tenant_id, id) ON DELETE CASCADE,
    CHECK ((ended_at IS NULL) = (state IN ('scheduled', 'running', 'waiting', 'canceling')))
);
CREATE INDEX plan_migrations_open ON plan_migrations (starts_at) WHERE ended_at IS NULL; -- of all tenants
CREATE INDEX plan_migrations_plan ON plan_migrations (tenant_id, plan_id, id);
CREATE INDEX plan_migrations_to_plan ON plan_migrations (tenant_id, to_plan_id);

ALTER TABLE plan_versions ENABLE ROW LEVEL SECURITY;
ALTER TABLE plan_versions FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON plan_versions TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON plan_versions FOR SELECT TO weir_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON plan_versions TO weir_app;
GRANT SELECT ON plan_versions TO weir_system;

ALTER TABLE plan_version_limits ENABLE ROW LEVEL SECURITY;
ALTER TABLE plan_version_limits FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON plan_version_limits TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON plan_version_limits FOR SELECT TO weir_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON plan_version_limits TO weir_app;
GRANT SELECT ON plan_version_limits TO weir_system;

ALTER TABLE plan_migrations ENABLE ROW LEVEL SECURITY;
ALTER TABLE plan_migrations FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON plan_migrations TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON plan_migrations FOR SELECT TO weir_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON plan_migrations TO weir_app;
GRANT SELECT ON plan_migrations TO weir_system;

-- Another version is another plan: what on_change says holds for a migration, too.
ALTER TABLE counter_changes
    ADD COLUMN from_version integer NOT NULL DEFAULT 0, -- 0: the newest
    ADD COLUMN to_version integer NOT NULL DEFAULT 0;

CREATE OR REPLACE FUNCTION note_changed_plan() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
DECLARE
    tenant uuid;
    whose text;
    before uuid;
    after uuid;
    before_version integer := 0;
    after_version integer := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM plans WHERE on_change <> 'carry') THEN
        RETURN NULL; -- as in most tenants
    END IF;
    IF TG_OP <> 'INSERT' THEN
        tenant := OLD.tenant_id;
        whose := OLD.subject;
        before := OLD.plan_id;
        IF before IS NOT NULL THEN
            before_version := OLD.plan_version;
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        tenant := NEW.tenant_id;
        whose := NEW.subject;
        after := NEW.plan_id;
        IF after IS NOT NULL THEN
            after_version := NEW.plan_version;
        END IF;
    END IF;
    INSERT INTO counter_changes (tenant_id, subject, action, from_plan, from_version, to_plan, to_version)
    SELECT tenant, whose, gets.on_change, had.slug, before_version, gets.slug, after_version
    FROM plans had, plans gets
    WHERE had.tenant_id = tenant AND (had.id = before OR before IS NULL AND had.is_default)
        AND gets.tenant_id = tenant AND (gets.id = after OR after IS NULL AND gets.is_default)
        AND (gets.id <> had.id OR coalesce(nullif(before_version, 0), had.newest_version)
            <> coalesce(nullif(after_version, 0), gets.newest_version))
        AND gets.on_change <> 'carry'
        AND EXISTS (SELECT FROM tenants t WHERE t.id = tenant); -- not of a tenant that goes
    RETURN NULL;
END $$;
DROP TRIGGER note_changed_plan ON subjects;
CREATE TRIGGER note_changed_plan AFTER UPDATE OF plan_id, plan_version ON subjects
    FOR EACH ROW WHEN (OLD.plan_id IS DISTINCT FROM NEW.plan_id OR OLD.plan_version <> NEW.plan_version)
    EXECUTE FUNCTION note_changed_plan();
