DROP INDEX subjects_state;
