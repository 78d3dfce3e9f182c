DROP TRIGGER add_labels ON subjects;
DROP TRIGGER move_labels ON subjects;
DROP TRIGGER remove_labels ON subjects;
DROP FUNCTION add_subject_labels();
DROP FUNCTION move_subject_labels();
DROP FUNCTION remove_subject_labels();
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
