-- Links by which people without a session act for themselves: choose a new password, or end a
-- sign-up. Each works once. The person has the token, we only its hash. Only the system role sees
-- them, as it alone sees people.
CREATE TABLE account_links (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32), -- SHA-256
    purpose text NOT NULL CHECK (purpose IN ('password', 'signup')),
    email text NOT NULL CHECK (email = lower(email) AND octet_length(email) BETWEEN 3 AND 254),
    person_id uuid REFERENCES people ON DELETE CASCADE, -- null: somebody who signs up
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CHECK ((purpose = 'password') = (person_id IS NOT NULL))
);
CREATE INDEX account_links_person ON account_links (person_id);
CREATE INDEX account_links_end ON account_links (expires_at);

ALTER TABLE account_links ENABLE ROW LEVEL SECURITY;
ALTER TABLE account_links FORCE ROW LEVEL SECURITY;
CREATE POLICY all_links ON account_links TO weir_system USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, DELETE ON account_links TO weir_system;
