ALTER TABLE plan_version_limits DROP COLUMN warn_at;
ALTER TABLE plan_limits DROP COLUMN warn_at;
ALTER TABLE rules DROP COLUMN warn_at;
