-- Prepaid units of a subject for a rule: checks that do not fit in the window spend them. spent
-- follows what the counters say, and never falls; a grant that was revoked or has expired keeps it.
-- opened: the counters were told of the grant. A server that does not know this table spends none.
CREATE TABLE credit_grants (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL,
    rule_id uuid NOT NULL,
    units bigint NOT NULL CHECK (units BETWEEN 1 AND 1000000000000000),
    spent bigint NOT NULL DEFAULT 0 CHECK (spent BETWEEN 0 AND units),
    expires_at timestamptz CHECK (expires_at < '10000-01-01 00:00:00+00'),
    reference text COLLATE "C" NOT NULL DEFAULT '' CHECK (octet_length(reference) <= 256), -- the giver's own name of it
    reason text NOT NULL DEFAULT '' CHECK (char_length(reason) <= 500),
    created_by text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    revoked_by text NOT NULL DEFAULT '',
    revoked_at timestamptz,
    opened boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, subject) REFERENCES subjects (tenant_id, subject) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules (tenant_id, id) ON DELETE CASCADE
) WITH (fillfactor = 80); -- spent changes every second: room for that beside it
-- The same reference grants once.
CREATE UNIQUE INDEX credit_grants_reference ON credit_grants (tenant_id, reference) WHERE reference <> '';
CREATE INDEX credit_grants_subject ON credit_grants (tenant_id, subject, id);
CREATE INDEX credit_grants_rule ON credit_grants (tenant_id, rule_id);
CREATE INDEX credit_grants_new ON credit_grants (id) WHERE NOT opened;

-- Nearly all subjects have none, so that nearly all loads look for none.
ALTER TABLE subjects ADD COLUMN has_credits boolean NOT NULL DEFAULT false;

ALTER TABLE credit_grants ENABLE ROW LEVEL SECURITY;
ALTER TABLE credit_grants FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON credit_grants TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY settle ON credit_grants TO weir_system USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE (revoked_by, revoked_at) ON credit_grants TO weir_app;
GRANT SELECT (tenant_id, id, subject, rule_id, units, spent, expires_at, revoked_at, opened), UPDATE (spent, opened) ON credit_grants TO weir_system;
GRANT SELECT (has_credits) ON subjects TO weir_system;
