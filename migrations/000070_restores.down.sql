DROP TRIGGER renumber_counter_changes ON config_version;
DROP TRIGGER note_restored_pushes ON config_version;
DROP FUNCTION renumber_counter_changes();
DROP FUNCTION note_restored_pushes();
DROP TABLE restores;
