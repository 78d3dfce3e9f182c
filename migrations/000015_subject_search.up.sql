-- What searches of subjects go by: each combination of prefix, plan, label and state finds its page in
-- one index, in the order of the list. Columns behind the one that orders are for conditions that the
-- index alone can decide.

DROP INDEX subjects_plan, subjects_state;
CREATE INDEX subjects_plan ON subjects (tenant_id, plan_id, id, state);
CREATE INDEX subjects_plan_subject ON subjects (tenant_id, plan_id, subject, state);
-- Nearly all are active: that is not worth an index.
CREATE INDEX subjects_state ON subjects (tenant_id, state, id, plan_id) WHERE state <> 'active';
CREATE INDEX subjects_state_subject ON subjects (tenant_id, state, subject, plan_id) WHERE state <> 'active';

-- The labels of subjects, a row each, with what a search by a label may ask for besides. subjects.labels
-- is what counts; an index on that cannot serve, because the operators of jsonb are not leakproof and so
-- are not looked at before row security is.
CREATE TABLE subject_labels (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    key text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    id uuid NOT NULL, -- as in subjects, and so on
    plan_id uuid NOT NULL, -- the nil UUID for none
    state text NOT NULL,
    PRIMARY KEY (tenant_id, key, subject, plan_id, state) -- the last two for searches, not to tell rows apart
);

ALTER TABLE subject_labels ENABLE ROW LEVEL SECURITY;
ALTER TABLE subject_labels FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON subject_labels TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
GRANT SELECT, INSERT, DELETE ON subject_labels TO weir_app;

-- Keeps subject_labels, once for each statement that writes subjects, as whoever writes. A foreign key
-- would do for deletions, but not without one more index. What is written must not be joined in
-- any other way than row by row, by the primary key: the plan is kept, and was perhaps made when the
-- table was empty.
CREATE FUNCTION follow_subject_labels() RETURNS trigger LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    none CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO subject_labels (tenant_id, key, subject, value, id, plan_id, state)
        SELECT s.tenant_id, l.key, s.subject, l.value, s.id, coalesce(s.plan_id, none), s.state FROM new_rows s, jsonb_each_text(s.labels) l;
    ELSIF TG_OP = 'UPDATE' THEN
        DELETE FROM subject_labels t USING (
            SELECT s.tenant_id, l.key, s.subject, l.value, s.id, coalesce(s.plan_id, none), s.state FROM old_rows s, jsonb_each_text(s.labels) l
            EXCEPT
            SELECT s.tenant_id, l.key, s.subject, l.value, s.id, coalesce(s.plan_id, none), s.state FROM new_rows s, jsonb_each_text(s.labels) l
        ) AS gone
        WHERE t.tenant_id = gone.tenant_id AND t.key = gone.key AND t.subject = gone.subject;
        INSERT INTO subject_labels (tenant_id, key, subject, value, id, plan_id, state)
        SELECT s.tenant_id, l.key, s.subject, l.value, s.id, coalesce(s.plan_id, none), s.state FROM new_rows s, jsonb_each_text(s.labels) l
        EXCEPT
        SELECT s.tenant_id, l.key, s.subject, l.value, s.id, coalesce(s.plan_id, none), s.state FROM old_rows s, jsonb_each_text(s.labels) l;
    -- With a tenant that goes, its labels go by themselves, and another role deletes it.
    ELSIF EXISTS (SELECT FROM old_rows s JOIN tenants t ON t.id = s.tenant_id) THEN
        DELETE FROM subject_labels t USING (
            SELECT s.tenant_id, l.key, s.subject FROM old_rows s, jsonb_object_keys(s.labels) AS l (key)
        ) AS gone
        WHERE t.tenant_id = gone.tenant_id AND t.key = gone.key AND t.subject = gone.subject;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER follow_labels_inserted AFTER INSERT ON subjects REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION follow_subject_labels();
CREATE TRIGGER follow_labels_updated AFTER UPDATE ON subjects REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION follow_subject_labels();
CREATE TRIGGER follow_labels_deleted AFTER DELETE ON subjects REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION follow_subject_labels();

-- Those that are there already: for this the owner, too, must see them.
ALTER TABLE subjects NO FORCE ROW LEVEL SECURITY;
ALTER TABLE subject_labels NO FORCE ROW LEVEL SECURITY;
INSERT INTO subject_labels (tenant_id, key, subject, value, id, plan_id, state)
SELECT s.tenant_id, l.key, s.subject, l.value, s.id, coalesce(s.plan_id, '00000000-0000-0000-0000-000000000000'), s.state
FROM subjects s, jsonb_each_text(s.labels) l;
ALTER TABLE subjects FORCE ROW LEVEL SECURITY;
ALTER TABLE subject_labels FORCE ROW LEVEL SECURITY;

CREATE INDEX subject_labels_key ON subject_labels (tenant_id, key, id, plan_id, state);
CREATE INDEX subject_labels_value ON subject_labels (tenant_id, key, value, id, plan_id, state);
CREATE INDEX subject_labels_value_subject ON subject_labels (tenant_id, key, value, subject, plan_id, state);
