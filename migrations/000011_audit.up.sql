-- Who changed what: a row for each changed object of a tenant's configuration, written in the
-- change's own transaction. hash covers the row before and all of this one (internal/tenants/audit.go),
-- so that a row that was edited, taken out, put in or moved breaks the chain.
CREATE TABLE audit (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    sequence bigint NOT NULL CHECK (sequence > 0), -- without gaps
    id uuid NOT NULL,
    at timestamptz NOT NULL,
    actor_kind text NOT NULL,
    actor_id uuid, -- of the key or member; not a foreign key, as the row outlives it
    actor_name text NOT NULL,
    address text NOT NULL, -- '': by no request
    user_agent text NOT NULL,
    request_id text NOT NULL,
    action text NOT NULL CHECK (action ~ '^[a-z_]{1,32}$'),
    kind text NOT NULL CHECK (kind ~ '^[a-z_]{1,32}$'),
    target text COLLATE "C" NOT NULL,
    -- Only what changed; null: there was, or is, no such object. The text counts, not only the value,
    -- which is why this is not jsonb.
    before json,
    after json,
    reason text NOT NULL,
    hash bytea NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (tenant_id, sequence)
);
CREATE INDEX audit_target ON audit (tenant_id, kind, target, sequence);
CREATE INDEX audit_at ON audit (tenant_id, at);

-- The end of each chain. Its row is locked by whoever appends.
CREATE TABLE audit_heads (
    tenant_id uuid PRIMARY KEY REFERENCES tenants ON DELETE CASCADE,
    sequence bigint NOT NULL CHECK (sequence >= 0),
    hash bytea NOT NULL CHECK (octet_length(hash) = 32)
);

ALTER TABLE audit ENABLE ROW LEVEL SECURITY;
ALTER TABLE audit FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON audit TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
ALTER TABLE audit_heads ENABLE ROW LEVEL SECURITY;
ALTER TABLE audit_heads FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON audit_heads TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
-- The system role writes the heads to the log, and nothing here.
CREATE POLICY all_heads ON audit_heads FOR SELECT TO weir_system USING (true);
-- What is written stays: nobody the server acts as may change or remove a row.
GRANT SELECT, INSERT ON audit TO weir_app;
GRANT SELECT, INSERT, UPDATE (sequence, hash) ON audit_heads TO weir_app;
GRANT SELECT ON audit_heads TO weir_system;
