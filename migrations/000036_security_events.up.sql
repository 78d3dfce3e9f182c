-- What happened to logins, keys and members of a tenant, in a stream of its own: sign-ins, failed
-- ones, new browsers, changes of passwords, roles and keys, exports. Changes of objects are in the
-- audit trail as well; a sign-in changes no object.
CREATE TABLE security_events (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL, -- in the order of time
    at timestamptz NOT NULL,
    kind text NOT NULL CHECK (char_length(kind) BETWEEN 1 AND 50),
    actor_kind text NOT NULL,
    actor_id uuid, -- of the member or the key
    actor_name text NOT NULL,
    address text NOT NULL,
    user_agent text NOT NULL,
    request_id text NOT NULL,
    target text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX security_events_kind ON security_events (tenant_id, kind, id);
CREATE INDEX security_events_actor ON security_events (tenant_id, actor_name, id);
CREATE INDEX security_events_at ON security_events (tenant_id, at);

-- A tenant without a row has the defaults.
CREATE TABLE security_settings (
    tenant_id uuid PRIMARY KEY REFERENCES tenants ON DELETE CASCADE,
    session_idle_text text NOT NULL,
    session_idle_ms bigint NOT NULL CHECK (session_idle_ms BETWEEN 300000 AND 43200000),
    session_life_text text NOT NULL,
    session_life_ms bigint NOT NULL CHECK (session_life_ms BETWEEN 3600000 AND 604800000),
    max_sessions int NOT NULL CHECK (max_sessions BETWEEN 1 AND 100), -- of each member
    confirm_after_text text NOT NULL,
    confirm_after_ms bigint NOT NULL CHECK (confirm_after_ms BETWEEN 60000 AND 43200000),
    event_retention_text text NOT NULL,
    event_retention_ms bigint NOT NULL CHECK (event_retention_ms BETWEEN 2592000000 AND 315360000000),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL
);

-- When the person last entered the password in the session; null: when it began.
ALTER TABLE sessions ADD COLUMN proved_at timestamptz;
GRANT UPDATE (proved_at) ON sessions TO weir_system;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['security_events', 'security_settings'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON %I TO weir_app
            USING (tenant_id = NULLIF(current_setting(''weir.tenant_id'', true), '''')::uuid)
            WITH CHECK (tenant_id = NULLIF(current_setting(''weir.tenant_id'', true), '''')::uuid)', name);
    END LOOP;
END
$$;
-- Events are never changed. A person belongs to several tenants, so the system role writes what
-- happens to a login, and deletes what is too old.
GRANT SELECT, INSERT ON security_events TO weir_app;
GRANT SELECT, INSERT, UPDATE ON security_settings TO weir_app;
CREATE POLICY write_all ON security_events TO weir_system USING (true) WITH CHECK (true);
GRANT SELECT (tenant_id, id, at, actor_id, actor_name), INSERT, DELETE ON security_events TO weir_system;
CREATE POLICY read_all ON security_settings FOR SELECT TO weir_system USING (true);
GRANT SELECT ON security_settings TO weir_system;
