DROP TRIGGER note_first_plan ON subjects;
DROP TRIGGER note_changed_plan ON subjects;
DROP TRIGGER note_last_plan ON subjects;
DROP FUNCTION note_changed_plan;
DROP TABLE counter_changes;
ALTER TABLE plans DROP COLUMN on_change;
ALTER TABLE subjects DROP COLUMN next_plan_at, DROP COLUMN next_plan_id; -- and with them what they are checked by
