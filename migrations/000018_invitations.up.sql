-- The link by which an invited member joins. The person has its token, we only the hash; a new link
-- takes the place of the old one, and who is no member any more has none.
CREATE TABLE invitations (
    tenant_id uuid NOT NULL,
    member_id uuid NOT NULL,
    token_hash bytea NOT NULL CHECK (octet_length(token_hash) = 32), -- SHA-256
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    -- what became of the mail that carries it: off (none was to be sent), waiting, sent, failed
    mail text NOT NULL CHECK (mail IN ('off', 'waiting', 'sent', 'failed')),
    PRIMARY KEY (tenant_id, member_id),
    FOREIGN KEY (tenant_id, member_id) REFERENCES members (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX invitations_token ON invitations (token_hash); -- of 256 random bits none are equal

ALTER TABLE invitations ENABLE ROW LEVEL SECURITY;
ALTER TABLE invitations FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON invitations TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON invitations FOR SELECT TO weir_system USING (true); -- who follows a link is in no tenant yet
GRANT SELECT, INSERT, UPDATE, DELETE ON invitations TO weir_app;
GRANT SELECT ON invitations TO weir_system;
