-- The number of hash tags over which a tenant's counters are spread in Redis, and what it was before
-- it last changed; 0: it has never changed.
ALTER TABLE tenants
    ADD COLUMN partitions integer NOT NULL DEFAULT 1 CHECK (partitions BETWEEN 1 AND 64),
    ADD COLUMN partitions_before integer NOT NULL DEFAULT 0 CHECK (partitions_before BETWEEN 0 AND 64),
    ADD COLUMN partitions_changed_at timestamptz,
    ADD CHECK ((partitions_before = 0) = (partitions_changed_at IS NULL));
GRANT UPDATE (partitions, partitions_before, partitions_changed_at) ON tenants TO weir_system;
