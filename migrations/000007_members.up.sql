-- People who log in to the dashboard. A person may be a member of several tenants, so the person
-- stands outside of all of them and only the system role sees it.
CREATE TABLE people (
    id uuid PRIMARY KEY,
    email text NOT NULL UNIQUE CHECK (email = lower(email) AND octet_length(email) BETWEEN 3 AND 254),
    password_hash text NOT NULL, -- argon2id in PHC form
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT, INSERT, UPDATE (password_hash, updated_at) ON people TO weir_system;

CREATE TABLE members (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    person_id uuid NOT NULL REFERENCES people ON DELETE CASCADE,
    role text NOT NULL CHECK (role IN ('owner', 'admin', 'editor', 'support', 'viewer')),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, person_id)
);
CREATE INDEX members_person ON members (person_id);

ALTER TABLE members ENABLE ROW LEVEL SECURITY;
ALTER TABLE members FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON members TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON members FOR SELECT TO weir_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON members TO weir_app;
GRANT SELECT ON members TO weir_system;
