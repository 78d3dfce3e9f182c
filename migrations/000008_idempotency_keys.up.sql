-- The first answer to a POST that carried an Idempotency-Key, for replay within 24 hours.
-- A secret is never part of the stored answer.
CREATE TABLE idempotency_keys (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    key text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    request_hash bytea NOT NULL CHECK (octet_length(request_hash) = 32),
    state text NOT NULL CHECK (state IN ('in_progress', 'finished')),
    attempt uuid NOT NULL, -- who holds it while in progress
    status int CHECK (status BETWEEN 200 AND 599),
    header jsonb,
    body bytea,
    started_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key),
    CHECK ((state = 'finished') = (status IS NOT NULL))
);
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);

ALTER TABLE idempotency_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON idempotency_keys TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
-- The system role only sweeps out what has expired.
CREATE POLICY purge_expired_read ON idempotency_keys FOR SELECT TO weir_system USING (expires_at < now());
CREATE POLICY purge_expired ON idempotency_keys FOR DELETE TO weir_system USING (expires_at < now());
GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_keys TO weir_app;
GRANT SELECT (tenant_id, key, expires_at), DELETE ON idempotency_keys TO weir_system;
