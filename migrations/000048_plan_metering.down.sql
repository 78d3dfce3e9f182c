ALTER TABLE metered_totals DROP COLUMN billed_units, DROP COLUMN free_units;
ALTER TABLE metered_usage DROP COLUMN billed_units, DROP COLUMN free_units;
ALTER TABLE plan_version_limits DROP COLUMN metering;
ALTER TABLE plan_limits DROP COLUMN metering;
