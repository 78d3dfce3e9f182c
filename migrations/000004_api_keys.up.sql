-- A tenant's credential. The key itself is shown once and kept nowhere; hash is its SHA-256,
-- which is enough for a secret of 178 random bits.
CREATE TABLE api_keys (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL,
    name text NOT NULL DEFAULT '' CHECK (char_length(name) <= 200),
    kind text NOT NULL CHECK (kind IN ('key', 'op')), -- op: the operator's, of the platform tenant
    scopes text[] NOT NULL
        CHECK (cardinality(scopes) BETWEEN 1 AND 3 AND scopes <@ ARRAY['check', 'read', 'write']),
    hash bytea NOT NULL CHECK (octet_length(hash) = 32),
    last4 text NOT NULL CHECK (char_length(last4) = 4),
    created_by text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz, -- at most a minute or so behind
    rotated_to uuid,
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, rotated_to) REFERENCES api_keys (tenant_id, id)
);
-- The one unique value without the tenant in front: a key is found before its tenant is known,
-- and must lead to one tenant only. Nobody chooses a hash, so nobody can probe for another's.
CREATE UNIQUE INDEX api_keys_hash ON api_keys (hash);

ALTER TABLE api_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE api_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON api_keys TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON api_keys FOR SELECT TO weir_system USING (true);
CREATE POLICY touch_all ON api_keys FOR UPDATE TO weir_system USING (true) WITH CHECK (true);
-- Keys are revoked, never removed: who used what stays answerable.
GRANT SELECT, INSERT, UPDATE (name, scopes, expires_at, revoked_at, rotated_to, version) ON api_keys TO weir_app;
GRANT SELECT (tenant_id, id, name, kind, scopes, hash, expires_at, revoked_at, rotated_to, last_used_at, version),
    UPDATE (last_used_at) ON api_keys TO weir_system;
