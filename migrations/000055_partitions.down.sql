ALTER TABLE tenants DROP COLUMN partitions_changed_at, DROP COLUMN partitions_before, DROP COLUMN partitions;
