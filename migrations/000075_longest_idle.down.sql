ALTER TABLE sessions DROP COLUMN longest_idle_ms;
