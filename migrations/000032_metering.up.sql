-- Exact usage for invoices: units by tenant, hour, subject and rule, of rules that say so.

-- none: not metered. units, overage: what is invoiced, all units or those beyond the limit.
-- meter_event is the name of the provider's meter; '': nothing is sent.
ALTER TABLE rules
    ADD COLUMN metering text NOT NULL DEFAULT 'none' CHECK (metering IN ('none', 'units', 'overage')),
    ADD COLUMN meter_event text NOT NULL DEFAULT '' CHECK (char_length(meter_event) <= 100),
    ADD CHECK (metering <> 'none' OR meter_event = '');

-- A rule or a subject that is gone stays in here, so neither is a foreign key. Nor is tenant_id:
-- there may be millions of rows, too many to delete along with a tenant. Rows of a sealed hour
-- never change: writers add to the first open hour what belongs to an earlier one (late_units).
CREATE TABLE metered_usage (
    tenant_id uuid NOT NULL,
    start timestamptz NOT NULL CHECK (extract(epoch FROM start)::bigint % 3600 = 0),
    subject text COLLATE "C" NOT NULL CHECK (subject <> ''),
    rule text COLLATE "C" NOT NULL,
    units bigint NOT NULL CHECK (units >= 0), -- stays at the largest bigint once there
    overage_units bigint NOT NULL CHECK (overage_units >= 0), -- of units: those beyond the limit
    checks bigint NOT NULL CHECK (checks >= 0),
    late_units bigint NOT NULL CHECK (late_units >= 0), -- of units: those of earlier hours
    PRIMARY KEY (tenant_id, start, subject, rule)
) WITH (fillfactor = 80); -- rows change every second: room for that beside them
CREATE INDEX metered_usage_subject ON metered_usage (tenant_id, subject, rule, start);
CREATE INDEX metered_usage_start ON metered_usage USING brin (start);

-- Sums of all subjects. unattributed_units are in no row of metered_usage: a server had no memory
-- left to keep them by subject.
CREATE TABLE metered_totals (
    tenant_id uuid NOT NULL,
    start timestamptz NOT NULL,
    rule text COLLATE "C" NOT NULL,
    units bigint NOT NULL CHECK (units >= 0),
    overage_units bigint NOT NULL CHECK (overage_units >= 0),
    checks bigint NOT NULL CHECK (checks >= 0),
    late_units bigint NOT NULL CHECK (late_units >= 0),
    unattributed_units bigint NOT NULL CHECK (unattributed_units >= 0),
    PRIMARY KEY (tenant_id, start, rule)
) WITH (fillfactor = 80);
CREATE INDEX metered_totals_start ON metered_totals (start);

-- A server process that meters, and its newest batch. Its batches are numbered, so one that is not
-- newer than this is a repetition.
CREATE TABLE metering_writers (
    writer uuid PRIMARY KEY,
    sequence bigint NOT NULL,
    complete_until timestamptz NOT NULL, -- all that it decided before is written
    written_at timestamptz NOT NULL,
    ended boolean NOT NULL, -- with this batch
    missing boolean NOT NULL DEFAULT false -- it was silent for too long, and has an open gap
);

-- All hours before sealed_until are sealed. looked_at is when a server last looked whether an hour
-- can be sealed. waits_from is when that began again after nobody could look.
CREATE TABLE metering_state (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    sealed_until timestamptz NOT NULL,
    looked_at timestamptz NOT NULL,
    waits_from timestamptz NOT NULL
);
INSERT INTO metering_state (sealed_until, looked_at, waits_from) VALUES (date_trunc('hour', now(), 'UTC'), now(), now());

-- Processes that ended without saying so. What they decided after from_at may be missing. A process
-- that comes back writes what it has, and closes its gap.
CREATE TABLE metering_gaps (
    writer uuid PRIMARY KEY,
    from_at timestamptz NOT NULL,
    to_at timestamptz NOT NULL,
    closed_at timestamptz
);
CREATE INDEX metering_gaps_to ON metering_gaps (to_at);

-- What is sent to a provider's meter: for each rule that names one, each sealed hour. The subjects
-- are sent in order, up to after_subject so far; metered_push_problems has those that were not.
CREATE TABLE metered_pushes (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL,
    start timestamptz NOT NULL,
    rule text COLLATE "C" NOT NULL,
    meter_event text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('units', 'overage')),
    after_subject text COLLATE "C" NOT NULL DEFAULT '',
    pushed bigint NOT NULL DEFAULT 0, -- subjects
    pushed_units bigint NOT NULL DEFAULT 0,
    complete boolean NOT NULL DEFAULT false, -- all subjects were sent or have a problem
    why text NOT NULL DEFAULT '', -- why it waits
    attempts int NOT NULL DEFAULT 0, -- failed, in a row
    unanswered_at timestamptz, -- since when it may have sent subjects behind after_subject
    due_at timestamptz, -- null: nothing is left to do
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, start, rule)
);
CREATE INDEX metered_pushes_due ON metered_pushes (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE metered_push_problems (
    tenant_id uuid NOT NULL,
    push_id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL,
    units bigint NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('parked', 'failed')),
    why text NOT NULL,
    PRIMARY KEY (tenant_id, push_id, subject),
    FOREIGN KEY (tenant_id, push_id) REFERENCES metered_pushes (tenant_id, id) ON DELETE CASCADE
);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['metered_usage', 'metered_totals', 'metered_pushes', 'metered_push_problems'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format($policy$CREATE POLICY own_tenant ON %I TO weir_app
            USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
            WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)$policy$, name);
        EXECUTE format('CREATE POLICY write_all ON %I TO weir_system USING (true) WITH CHECK (true)', name);
    END LOOP;
END
$$;
GRANT SELECT ON metered_usage, metered_totals, metered_pushes, metered_push_problems, metering_gaps, metering_state TO weir_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON metered_usage, metered_totals, metering_writers, metering_gaps, metered_pushes, metered_push_problems TO weir_system;
GRANT SELECT, UPDATE ON metering_state TO weir_system;
