-- What was decided: counts by minute, hour and day, added to by each server about every second.
--
-- rule is a slug, and '' for the answers to whole checks; resource is '' for all those that a
-- server gives no row of their own. A rule, plan or resource that is gone stays in here, so none
-- of these is a foreign key. Nor is tenant_id: there may be millions of rows, too many to delete
-- along with a tenant; they go a little later, by and by.
--
-- Minutes live in a ring of five tables, one for each day, of which four are in use: an old day
-- goes by TRUNCATE of its table, which is what the server's roles may do. They may not create or
-- drop one, and with a ring nobody needs to.
CREATE TABLE usage_minutes (
    tenant_id uuid NOT NULL,
    slot smallint NOT NULL, -- (days since 1970 in UTC) % 5
    start timestamptz NOT NULL,
    rule text COLLATE "C" NOT NULL,
    plan text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    allowed bigint NOT NULL CHECK (allowed >= 0),
    denied bigint NOT NULL CHECK (denied >= 0),
    shadow_denied bigint NOT NULL CHECK (shadow_denied >= 0),
    degraded bigint NOT NULL CHECK (degraded >= 0),
    cost_allowed bigint NOT NULL CHECK (cost_allowed >= 0), -- stays at the largest bigint once there
    cost_denied bigint NOT NULL CHECK (cost_denied >= 0),
    PRIMARY KEY (tenant_id, start, rule, plan, resource, slot),
    CHECK (slot = floor(extract(epoch FROM start) / 86400)::bigint % 5)
) PARTITION BY LIST (slot);
DO $$
BEGIN
    FOR slot IN 0..4 LOOP
        EXECUTE format('CREATE TABLE usage_minutes_%s PARTITION OF usage_minutes FOR VALUES IN (%s)', slot, slot);
    END LOOP;
END
$$;

CREATE TABLE usage_hours (
    tenant_id uuid NOT NULL,
    start timestamptz NOT NULL,
    rule text COLLATE "C" NOT NULL,
    plan text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    allowed bigint NOT NULL CHECK (allowed >= 0),
    denied bigint NOT NULL CHECK (denied >= 0),
    shadow_denied bigint NOT NULL CHECK (shadow_denied >= 0),
    degraded bigint NOT NULL CHECK (degraded >= 0),
    cost_allowed bigint NOT NULL CHECK (cost_allowed >= 0),
    cost_denied bigint NOT NULL CHECK (cost_denied >= 0),
    PRIMARY KEY (tenant_id, start, rule, plan, resource)
) WITH (fillfactor = 80); -- rows change every second: room for that beside them
CREATE INDEX usage_hours_start ON usage_hours (start);

CREATE TABLE usage_days (
    tenant_id uuid NOT NULL,
    start timestamptz NOT NULL,
    rule text COLLATE "C" NOT NULL,
    plan text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    allowed bigint NOT NULL CHECK (allowed >= 0),
    denied bigint NOT NULL CHECK (denied >= 0),
    shadow_denied bigint NOT NULL CHECK (shadow_denied >= 0),
    degraded bigint NOT NULL CHECK (degraded >= 0),
    cost_allowed bigint NOT NULL CHECK (cost_allowed >= 0),
    cost_denied bigint NOT NULL CHECK (cost_denied >= 0),
    PRIMARY KEY (tenant_id, start, rule, plan, resource)
) WITH (fillfactor = 80); -- rows change every second: room for that beside them
CREATE INDEX usage_days_start ON usage_days (start);

-- The busiest subjects, approximately: one row for each stretch of time, however many subjects a
-- tenant has. The lists are merged by the server.
CREATE TABLE usage_subjects (
    tenant_id uuid NOT NULL,
    grain text NOT NULL CHECK (grain IN ('minute', 'hour', 'day')),
    start timestamptz NOT NULL,
    top jsonb NOT NULL,
    PRIMARY KEY (tenant_id, grain, start)
);
CREATE INDEX usage_subjects_start ON usage_subjects (grain, start);

-- A server process that writes usage, and its newest batch. Its batches come in the order of
-- their ids, so one that is not newer than this is a repetition.
CREATE TABLE usage_writers (
    writer uuid PRIMARY KEY,
    batch uuid NOT NULL,
    complete_until timestamptz NOT NULL, -- all that it decided before is written
    written_at timestamptz NOT NULL,
    ended boolean NOT NULL -- with this batch
);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['usage_minutes', 'usage_minutes_0', 'usage_minutes_1', 'usage_minutes_2',
        'usage_minutes_3', 'usage_minutes_4', 'usage_hours', 'usage_days', 'usage_subjects'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format($policy$CREATE POLICY own_tenant ON %I TO weir_app
            USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
            WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)$policy$, name);
        EXECUTE format('CREATE POLICY write_all ON %I TO weir_system USING (true) WITH CHECK (true)', name);
    END LOOP;
END
$$;
-- The partitions are reached through usage_minutes alone, but for being emptied.
GRANT SELECT ON usage_minutes, usage_hours, usage_days, usage_subjects TO weir_app;
GRANT SELECT (complete_until, written_at, ended) ON usage_writers TO weir_app;
GRANT SELECT, INSERT, UPDATE ON usage_minutes TO weir_system;
GRANT SELECT, INSERT, UPDATE, DELETE ON usage_hours, usage_days, usage_subjects, usage_writers TO weir_system;
GRANT TRUNCATE ON usage_minutes_0, usage_minutes_1, usage_minutes_2, usage_minutes_3, usage_minutes_4 TO weir_system;
