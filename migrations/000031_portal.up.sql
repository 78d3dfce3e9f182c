-- The page that a tenant's own customer sees: its settings, the links that open it, the sessions of
-- browsers that followed a link, and what customers asked for. A server that knows nothing of it
-- serves no such page.
CREATE TABLE portals (
    tenant_id uuid PRIMARY KEY REFERENCES tenants ON DELETE CASCADE,
    brand text NOT NULL CHECK (char_length(brand) <= 80),
    accent text NOT NULL CHECK (accent ~ '^(#[0-9a-f]{6})?$'),
    logo bytea CHECK (octet_length(logo) <= 131072), -- a PNG that the server has written
    frame_origins text[] NOT NULL CHECK (cardinality(frame_origins) <= 20),
    offered_plans text[] NOT NULL CHECK (cardinality(offered_plans) <= 50), -- slugs, the smallest plan first
    requests boolean NOT NULL,
    auto_percent int NOT NULL CHECK (auto_percent BETWEEN 0 AND 1000), -- 0: nothing is approved by itself
    auto_for_text text NOT NULL,
    auto_for_ms bigint NOT NULL,
    auto_every_text text NOT NULL,
    auto_every_ms bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL
);

CREATE TABLE portal_links (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL CHECK (octet_length(subject) BETWEEN 1 AND 256),
    token_hash bytea NOT NULL CHECK (octet_length(token_hash) = 32),
    single_use boolean NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at timestamptz, -- when a browser followed it last
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX portal_links_token ON portal_links (token_hash);
CREATE INDEX portal_links_subject ON portal_links (tenant_id, subject, id);
CREATE INDEX portal_links_expiry ON portal_links (expires_at);

CREATE TABLE portal_sessions (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL, -- stands in the address of the page, and is no secret
    link_id uuid NOT NULL,
    token_hash bytea NOT NULL CHECK (octet_length(token_hash) = 32),
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, link_id) REFERENCES portal_links (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX portal_sessions_token ON portal_sessions (token_hash);
CREATE INDEX portal_sessions_link ON portal_sessions (tenant_id, link_id);

-- What a customer asked for, and what became of it.
CREATE TABLE limit_requests (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL CHECK (octet_length(subject) BETWEEN 1 AND 256),
    rule_id uuid NOT NULL,
    had bigint NOT NULL CHECK (had > 0),
    asked bigint NOT NULL CHECK (asked > had),
    note text NOT NULL CHECK (char_length(note) <= 500), -- the customer's
    state text NOT NULL CHECK (state IN ('open', 'approved', 'refused')),
    automatic boolean NOT NULL DEFAULT false, -- approved by the tenant's settings
    granted bigint,
    granted_until timestamptz,
    answer text NOT NULL DEFAULT '' CHECK (char_length(answer) <= 500), -- the tenant's, which the customer reads
    settled_by text NOT NULL DEFAULT '',
    settled_at timestamptz,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules (tenant_id, id) ON DELETE CASCADE,
    CHECK ((state = 'open') = (settled_at IS NULL)),
    CHECK ((state = 'approved') = (granted IS NOT NULL)),
    CHECK ((granted IS NULL) = (granted_until IS NULL))
);
CREATE UNIQUE INDEX limit_requests_one_open ON limit_requests (tenant_id, subject, rule_id) WHERE state = 'open';
CREATE INDEX limit_requests_subject ON limit_requests (tenant_id, subject, created_at);
CREATE INDEX limit_requests_rule ON limit_requests (tenant_id, rule_id);
CREATE INDEX limit_requests_open ON limit_requests (tenant_id, id) WHERE state = 'open';
CREATE INDEX limit_requests_settled ON limit_requests (settled_at) WHERE settled_at IS NOT NULL;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['portals', 'portal_links', 'portal_sessions', 'limit_requests'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON %I TO weir_app
            USING (tenant_id = NULLIF(current_setting(''weir.tenant_id'', true), '''')::uuid)
            WITH CHECK (tenant_id = NULLIF(current_setting(''weir.tenant_id'', true), '''')::uuid)', name);
    END LOOP;
END
$$;
GRANT SELECT, INSERT, UPDATE ON portals TO weir_app;
GRANT SELECT, INSERT, DELETE, UPDATE (used_at) ON portal_links TO weir_app;
GRANT SELECT, INSERT, DELETE ON portal_sessions TO weir_app;
GRANT SELECT, INSERT, UPDATE (state, automatic, granted, granted_until, answer, settled_by, settled_at) ON limit_requests TO weir_app;

-- A browser that follows a link is in no tenant yet, and one server deletes expired rows of all tenants.
CREATE POLICY find ON portal_links TO weir_system USING (true);
GRANT SELECT (tenant_id, id, token_hash, expires_at), DELETE ON portal_links TO weir_system;
CREATE POLICY find ON portal_sessions TO weir_system USING (true);
GRANT SELECT (tenant_id, id, token_hash, expires_at), DELETE ON portal_sessions TO weir_system;
CREATE POLICY clean ON limit_requests TO weir_system USING (true);
GRANT SELECT (settled_at), DELETE ON limit_requests TO weir_system;
