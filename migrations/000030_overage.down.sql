ALTER TABLE plan_version_limits DROP COLUMN overage;
ALTER TABLE plan_limits DROP COLUMN overage;
ALTER TABLE rules DROP COLUMN overage;
