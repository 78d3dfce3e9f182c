DROP TABLE quota_notices;
ALTER TABLE plans DROP COLUMN fail;
