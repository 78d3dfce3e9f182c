-- Labels follow their subjects statement by statement: row by row, that was two thirds of an import.
DROP TRIGGER follow_labels_inserted ON subjects;
DROP TRIGGER follow_labels_updated ON subjects;
DROP TRIGGER follow_labels_deleted ON subjects;
DROP FUNCTION follow_subject_labels();

-- old_subjects and new_subjects are what a statement has replaced. Those that stay as they are, apart
-- from what a search does not ask for, are put aside by EXCEPT and not by a join: plans of these
-- statements are kept, and one that was made for a single row joins thousands with thousands in a
-- loop. For that reason, too, labels are deleted one by one, each by all of its columns, with which
-- every index finds it and no other.
CREATE FUNCTION add_subject_labels() RETURNS trigger LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    INSERT INTO subject_labels (tenant_id, key, subject, value, id, plan_id, state)
    SELECT s.tenant_id, l.key, s.subject, l.value, s.id, coalesce(s.plan_id, '00000000-0000-0000-0000-000000000000'), s.state
    FROM new_subjects s, jsonb_each_text(s.labels) l;
    RETURN NULL;
END
$$;

CREATE FUNCTION move_subject_labels() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    old_label record;
BEGIN
    FOR old_label IN
        SELECT s.tenant_id, l.key, s.subject, l.value, s.id FROM (
            SELECT tenant_id, subject, id, plan_id, state, labels FROM old_subjects
            EXCEPT SELECT tenant_id, subject, id, plan_id, state, labels FROM new_subjects
        ) s, jsonb_each_text(s.labels) l
    LOOP
        DELETE FROM subject_labels t
        WHERE t.tenant_id = old_label.tenant_id AND t.key = old_label.key AND t.subject = old_label.subject
            AND t.value = old_label.value AND t.id = old_label.id;
    END LOOP;
    INSERT INTO subject_labels (tenant_id, key, subject, value, id, plan_id, state)
    SELECT s.tenant_id, l.key, s.subject, l.value, s.id, coalesce(s.plan_id, '00000000-0000-0000-0000-000000000000'), s.state
    FROM (
        SELECT tenant_id, subject, id, plan_id, state, labels FROM new_subjects
        EXCEPT SELECT tenant_id, subject, id, plan_id, state, labels FROM old_subjects
    ) s, jsonb_each_text(s.labels) l;
    RETURN NULL;
END
$$;

CREATE FUNCTION remove_subject_labels() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    old_label record;
BEGIN
    -- With a tenant that goes, its labels go by themselves, and another role deletes it.
    FOR old_label IN
        SELECT s.tenant_id, l.key, s.subject, l.value, s.id
        FROM old_subjects s, jsonb_each_text(s.labels) l
        WHERE EXISTS (SELECT FROM tenants t WHERE t.id = s.tenant_id)
    LOOP
        DELETE FROM subject_labels t
        WHERE t.tenant_id = old_label.tenant_id AND t.key = old_label.key AND t.subject = old_label.subject
            AND t.value = old_label.value AND t.id = old_label.id;
    END LOOP;
    RETURN NULL;
END
$$;

CREATE TRIGGER add_labels AFTER INSERT ON subjects
    REFERENCING NEW TABLE AS new_subjects FOR EACH STATEMENT EXECUTE FUNCTION add_subject_labels();
CREATE TRIGGER move_labels AFTER UPDATE ON subjects
    REFERENCING OLD TABLE AS old_subjects NEW TABLE AS new_subjects FOR EACH STATEMENT EXECUTE FUNCTION move_subject_labels();
CREATE TRIGGER remove_labels AFTER DELETE ON subjects
    REFERENCING OLD TABLE AS old_subjects FOR EACH STATEMENT EXECUTE FUNCTION remove_subject_labels();
