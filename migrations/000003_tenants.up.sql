-- An organisation. Everything in the tables with a tenant_id belongs to one.
CREATE TABLE tenants (
    id uuid PRIMARY KEY,
    slug text NOT NULL UNIQUE CHECK (slug ~ '^[a-z0-9-]{1,63}$'),
    name text NOT NULL DEFAULT '' CHECK (char_length(name) <= 200),
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'suspended')),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- config_version at the last change of: this row's name or state; rules, plans, plan limits
    -- or state; subjects or overrides; API keys or state.
    version bigint NOT NULL,
    policy_version bigint NOT NULL,
    subjects_version bigint NOT NULL,
    keys_version bigint NOT NULL,
    -- Deletions of subjects up to this version are no longer told by subject_tombstones.
    subjects_history_from bigint NOT NULL DEFAULT 0,
    changed_version bigint NOT NULL
        GENERATED ALWAYS AS (greatest(version, policy_version, subjects_version, keys_version)) STORED
);
CREATE INDEX tenants_changed ON tenants (changed_version);

ALTER TABLE tenants ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenants FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tenants TO weir_app
    USING (id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY all_tenants ON tenants TO weir_system USING (true) WITH CHECK (true);
-- A tenant may rename itself; only the operator changes its slug or state.
GRANT SELECT, UPDATE (name, updated_at, version, policy_version, subjects_version, keys_version) ON tenants TO weir_app;
GRANT SELECT, INSERT, DELETE,
    UPDATE (name, state, updated_at, version, policy_version, subjects_version, keys_version, subjects_history_from)
    ON tenants TO weir_system;

-- Tenants that are no more, so that servers hear of it by version as of any other change.
CREATE TABLE deleted_tenants (
    id uuid PRIMARY KEY,
    slug text NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL
);
CREATE INDEX deleted_tenants_version ON deleted_tenants (version);
GRANT SELECT, INSERT ON deleted_tenants TO weir_system;
