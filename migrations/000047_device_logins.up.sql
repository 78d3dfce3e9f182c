-- Sign-ins of the command weir that wait for a member's confirmation in a browser, for ten minutes.
-- Both codes are stored as hashes. A row belongs to no tenant until a member has approved it, so
-- only the system role sees the rows. The key is created when the command collects it.
CREATE TABLE device_logins (
    id uuid PRIMARY KEY,
    device_hash bytea NOT NULL UNIQUE CHECK (octet_length(device_hash) = 32), -- SHA-256
    user_hash bytea NOT NULL UNIQUE CHECK (octet_length(user_hash) = 32), -- SHA-256
    machine text NOT NULL CHECK (char_length(machine) BETWEEN 1 AND 100), -- as the command says
    address text NOT NULL, -- from which the command asked
    scopes text[] NOT NULL CHECK (cardinality(scopes) BETWEEN 1 AND 4),
    state text NOT NULL CHECK (state IN ('pending', 'approved', 'denied')),
    chosen_tenant uuid, -- in which the key is created; it may have been deleted meanwhile
    person_id uuid REFERENCES people ON DELETE CASCADE, -- who approved it
    interval_s int NOT NULL CHECK (interval_s BETWEEN 1 AND 600), -- between two polls
    polled_at timestamptz,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CHECK ((state = 'approved') = (chosen_tenant IS NOT NULL)),
    CHECK ((state = 'approved') = (person_id IS NOT NULL))
);
CREATE INDEX device_logins_end ON device_logins (expires_at);
CREATE INDEX device_logins_person ON device_logins (person_id);

ALTER TABLE device_logins ENABLE ROW LEVEL SECURITY;
ALTER TABLE device_logins FORCE ROW LEVEL SECURITY;
CREATE POLICY all_logins ON device_logins TO weir_system USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON device_logins TO weir_system;
