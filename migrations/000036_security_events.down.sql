ALTER TABLE sessions DROP COLUMN proved_at;
DROP TABLE security_settings;
DROP TABLE security_events;
