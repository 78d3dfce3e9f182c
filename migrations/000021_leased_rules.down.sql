ALTER TABLE rules DROP COLUMN consistency; -- and with it what it is checked by
