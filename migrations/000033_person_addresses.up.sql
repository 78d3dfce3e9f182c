-- From where people have signed in. Strangers who guess a password cannot use up the attempts of
-- these addresses. As for sessions, only the system role sees them.
CREATE TABLE person_addresses (
    person_id uuid NOT NULL REFERENCES people ON DELETE CASCADE,
    address text NOT NULL CHECK (octet_length(address) BETWEEN 1 AND 64),
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (person_id, address)
);
CREATE INDEX person_addresses_age ON person_addresses (seen_at);

ALTER TABLE person_addresses ENABLE ROW LEVEL SECURITY;
ALTER TABLE person_addresses FORCE ROW LEVEL SECURITY;
CREATE POLICY all_addresses ON person_addresses TO weir_system USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, DELETE, UPDATE (seen_at) ON person_addresses TO weir_system;
