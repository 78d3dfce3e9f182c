-- The plan that a subject is to get, and when. A server that knows nothing of it leaves it alone.
ALTER TABLE subjects
    ADD COLUMN next_plan_id uuid,
    ADD COLUMN next_plan_at timestamptz,
    ADD CHECK ((next_plan_id IS NULL) = (next_plan_at IS NULL)),
    ADD FOREIGN KEY (tenant_id, next_plan_id) REFERENCES plans (tenant_id, id);
CREATE INDEX subjects_next_plan ON subjects (next_plan_at) WHERE next_plan_at IS NOT NULL; -- what is due, of all tenants
CREATE INDEX subjects_next_plan_of ON subjects (tenant_id, next_plan_id) WHERE next_plan_id IS NOT NULL;
GRANT SELECT (next_plan_id, next_plan_at) ON subjects TO weir_system;

-- What happens to the counters of a subject that gets the plan.
ALTER TABLE plans ADD COLUMN on_change text NOT NULL DEFAULT 'carry' CHECK (on_change IN ('carry', 'reset', 'scale'));
GRANT SELECT (on_change) ON plans TO weir_system;

-- Changes of counters that are to be carried out because a subject has another plan. They are written in
-- the transaction that changes the plan, whoever changes it, and deleted when Redis has carried them out,
-- which it does once for each id.
CREATE TABLE counter_changes (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id bigint GENERATED ALWAYS AS IDENTITY, -- in the order of the changes of one subject
    subject text COLLATE "C" NOT NULL,
    action text NOT NULL CHECK (action IN ('reset', 'scale')),
    from_plan text NOT NULL, -- slug
    to_plan text NOT NULL, -- slug
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX counter_changes_order ON counter_changes (id);

ALTER TABLE counter_changes ENABLE ROW LEVEL SECURITY;
ALTER TABLE counter_changes FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON counter_changes TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY carry_out ON counter_changes TO weir_system USING (true);
GRANT INSERT ON counter_changes TO weir_app;
GRANT SELECT, DELETE ON counter_changes TO weir_system;

-- A subject that is not registered, or registered without a plan, has the default plan.
CREATE FUNCTION note_changed_plan() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
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
CREATE TRIGGER note_first_plan AFTER INSERT ON subjects
    FOR EACH ROW WHEN (NEW.plan_id IS NOT NULL) EXECUTE FUNCTION note_changed_plan();
CREATE TRIGGER note_changed_plan AFTER UPDATE OF plan_id ON subjects
    FOR EACH ROW WHEN (OLD.plan_id IS DISTINCT FROM NEW.plan_id) EXECUTE FUNCTION note_changed_plan();
CREATE TRIGGER note_last_plan AFTER DELETE ON subjects
    FOR EACH ROW WHEN (OLD.plan_id IS NOT NULL) EXECUTE FUNCTION note_changed_plan();
