DROP TRIGGER follow_labels_inserted ON subjects;
DROP TRIGGER follow_labels_updated ON subjects;
DROP TRIGGER follow_labels_deleted ON subjects;
DROP FUNCTION follow_subject_labels();
DROP TABLE subject_labels;
DROP INDEX subjects_plan, subjects_plan_subject, subjects_state, subjects_state_subject;
CREATE INDEX subjects_plan ON subjects (tenant_id, plan_id);
CREATE INDEX subjects_state ON subjects (tenant_id, state, id) WHERE state <> 'active';
