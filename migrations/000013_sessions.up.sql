-- Who is signed in to the dashboard. The browser holds the token, we only its hash. A session
-- belongs to a person, who stands outside of all tenants, so only the system role sees it; what
-- the person may do in the chosen tenant is read from members on each request.
CREATE TABLE sessions (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32), -- SHA-256
    id uuid NOT NULL UNIQUE, -- what pages call the session by
    person_id uuid NOT NULL REFERENCES people ON DELETE CASCADE,
    chosen_tenant uuid REFERENCES tenants ON DELETE SET NULL, -- null: a member of none
    address text NOT NULL DEFAULT '' CHECK (octet_length(address) <= 64),
    user_agent text NOT NULL DEFAULT '' CHECK (octet_length(user_agent) <= 512),
    created_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL -- a minute or so behind, so that not each page is a write
);
CREATE INDEX sessions_person ON sessions (person_id);
CREATE INDEX sessions_tenant ON sessions (chosen_tenant);
CREATE INDEX sessions_age ON sessions (created_at);

ALTER TABLE sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE sessions FORCE ROW LEVEL SECURITY;
CREATE POLICY all_sessions ON sessions TO weir_system USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, DELETE, UPDATE (chosen_tenant, seen_at) ON sessions TO weir_system;
