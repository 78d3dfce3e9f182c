-- Whom a tenant counts. Only those have a row that differ from the rest: in plan, state, labels
-- or numbers of their own.
CREATE TABLE subjects (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    subject text COLLATE "C" NOT NULL CHECK (octet_length(subject) BETWEEN 1 AND 256), -- bytes, not letters
    id uuid NOT NULL, -- only for the order of lists: newest first
    plan_id uuid, -- null: the tenant's default plan
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'blocked', 'exempt')),
    labels jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
    billing_ref text NOT NULL DEFAULT '' CHECK (octet_length(billing_ref) <= 256),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL, -- raised by changes of its overrides too
    PRIMARY KEY (tenant_id, subject),
    UNIQUE (tenant_id, id),
    FOREIGN KEY (tenant_id, plan_id) REFERENCES plans (tenant_id, id)
);
CREATE INDEX subjects_version ON subjects (tenant_id, version);
CREATE INDEX subjects_plan ON subjects (tenant_id, plan_id);

-- The number that one subject has for one rule, for a time or for good.
CREATE TABLE overrides (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    subject text COLLATE "C" NOT NULL,
    rule_id uuid NOT NULL,
    limit_units bigint CHECK (limit_units BETWEEN 1 AND 1000000000000000),
    burst_units bigint CHECK (burst_units BETWEEN 1 AND 1000000000),
    unlimited boolean NOT NULL DEFAULT false,
    reason text NOT NULL DEFAULT '' CHECK (char_length(reason) <= 500),
    created_by text NOT NULL DEFAULT '',
    starts_at timestamptz,
    expires_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, subject, rule_id),
    FOREIGN KEY (tenant_id, subject) REFERENCES subjects (tenant_id, subject) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules (tenant_id, id) ON DELETE CASCADE,
    CHECK (unlimited = (limit_units IS NULL)),
    CHECK (burst_units IS NULL OR NOT unlimited),
    CHECK (starts_at < expires_at),
    CHECK (starts_at < '10000-01-01 00:00:00+00' AND expires_at < '10000-01-01 00:00:00+00')
);
CREATE INDEX overrides_rule ON overrides (tenant_id, rule_id);

-- Subjects that were deleted of late, for servers that load only what changed.
CREATE TABLE subject_tombstones (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    subject text COLLATE "C" NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, subject)
);
CREATE INDEX subject_tombstones_version ON subject_tombstones (tenant_id, version);
CREATE INDEX subject_tombstones_age ON subject_tombstones (deleted_at);

ALTER TABLE subjects ENABLE ROW LEVEL SECURITY;
ALTER TABLE subjects FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON subjects TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON subjects FOR SELECT TO weir_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON subjects TO weir_app;
GRANT SELECT (tenant_id, subject, plan_id, state, version) ON subjects TO weir_system;

ALTER TABLE overrides ENABLE ROW LEVEL SECURITY;
ALTER TABLE overrides FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON overrides TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON overrides FOR SELECT TO weir_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON overrides TO weir_app;
GRANT SELECT (tenant_id, subject, rule_id, limit_units, burst_units, unlimited, starts_at, expires_at)
    ON overrides TO weir_system;

ALTER TABLE subject_tombstones ENABLE ROW LEVEL SECURITY;
ALTER TABLE subject_tombstones FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON subject_tombstones TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON subject_tombstones FOR SELECT TO weir_system USING (true);
CREATE POLICY purge_old ON subject_tombstones FOR DELETE TO weir_system USING (deleted_at < now() - interval '24 hours');
GRANT SELECT, INSERT, UPDATE, DELETE ON subject_tombstones TO weir_app;
GRANT SELECT, DELETE ON subject_tombstones TO weir_system;
