-- How the requests of a gateway become checks (/v1/authorize/{route}). The ranges are those of internal/route,
-- which says them to people; here those hold that a constraint can say.
CREATE TABLE routes (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL,
    slug text NOT NULL CHECK (slug ~ '^[a-z0-9-]{1,63}$'),
    name text NOT NULL DEFAULT '' CHECK (char_length(name) <= 200),
    description text NOT NULL DEFAULT '' CHECK (char_length(description) <= 2000),
    subject text[] NOT NULL CHECK (
        cardinality(subject) BETWEEN 1 AND 8 AND array_position(subject, NULL) IS NULL
        AND octet_length(array_to_string(subject, '')) <= 2048),
    hash text NOT NULL CHECK (hash IN ('secrets', 'all', 'none')),
    no_subject text NOT NULL CHECK (no_subject IN ('deny', 'allow', 'ip')),
    -- [{"match": "GET /orders/{id}", "resource": ..., "cost": ...}], in the order in which they are tried.
    resources jsonb NOT NULL CHECK (
        jsonb_typeof(resources) = 'array' AND jsonb_array_length(resources) <= 100 AND octet_length(resources::text) <= 131072),
    default_resource text NOT NULL CHECK (octet_length(default_resource) BETWEEN 1 AND 256 AND position('*' IN default_resource) = 0),
    cost bigint NOT NULL CHECK (cost BETWEEN 0 AND 1000000000000000),
    -- {"NAME": "SOURCE"}
    attributes jsonb NOT NULL CHECK (jsonb_typeof(attributes) = 'object' AND octet_length(attributes::text) <= 8192),
    denied_status int NOT NULL CHECK (denied_status IN (429, 403)),
    fail text NOT NULL CHECK (fail IN ('closed', 'open')),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, slug)
);

ALTER TABLE routes ENABLE ROW LEVEL SECURITY;
ALTER TABLE routes FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON routes TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON routes FOR SELECT TO weir_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON routes TO weir_app;
GRANT SELECT ON routes TO weir_system;
