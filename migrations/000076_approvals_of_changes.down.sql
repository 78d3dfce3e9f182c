DROP TRIGGER note_approved_limits ON counter_changes;
DROP FUNCTION note_approved_limits();
ALTER TABLE counter_changes DROP COLUMN approved;
