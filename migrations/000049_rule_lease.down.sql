ALTER TABLE rules DROP COLUMN lease_text, DROP COLUMN lease_ms; -- and with them what they are checked by
