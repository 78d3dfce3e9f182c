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

-- Keeps subject_labels as whoever writes subjects. A foreign key would do for deletions, but not without one
-- more index. Plans of these statements are kept, and were perhaps made when the table was empty; so a
-- row is named by all of its columns, with which each of the indexes finds it and no other.
CREATE FUNCTION follow_subject_labels() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    old_label record;
BEGIN
    -- With a tenant that goes, its labels go by themselves, and another role deletes it.
    IF TG_OP = 'UPDATE' OR TG_OP = 'DELETE' AND EXISTS (SELECT FROM tenants t WHERE t.id = OLD.tenant_id) THEN
        FOR old_label IN SELECT l.key, l.value FROM jsonb_each_text(OLD.labels) l LOOP
            DELETE FROM subject_labels t
            WHERE t.tenant_id = OLD.tenant_id AND t.key = old_label.key AND t.subject = OLD.subject
                AND t.value = old_label.value AND t.id = OLD.id;
        END LOOP;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO subject_labels (tenant_id, key, subject, value, id, plan_id, state)
        SELECT NEW.tenant_id, l.key, NEW.subject, l.value, NEW.id,
            coalesce(NEW.plan_id, '00000000-0000-0000-0000-000000000000'), NEW.state
        FROM jsonb_each_text(NEW.labels) l;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER follow_labels_inserted AFTER INSERT ON subjects
    FOR EACH ROW WHEN (NEW.labels <> '{}') EXECUTE FUNCTION follow_subject_labels();
CREATE TRIGGER follow_labels_updated AFTER UPDATE ON subjects
    FOR EACH ROW WHEN ((OLD.subject, OLD.id, OLD.labels) <> (NEW.subject, NEW.id, NEW.labels)
        OR NEW.labels <> '{}' AND (OLD.plan_id, OLD.state) IS DISTINCT FROM (NEW.plan_id, NEW.state))
    EXECUTE FUNCTION follow_subject_labels();
CREATE TRIGGER follow_labels_deleted AFTER DELETE ON subjects
    FOR EACH ROW WHEN (OLD.labels <> '{}') EXECUTE FUNCTION follow_subject_labels();

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
