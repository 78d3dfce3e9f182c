-- Old rows of a trail may be removed, from its beginning on. The place and the hash of the last one that
-- was removed stay, so that what is left can be verified from there.
ALTER TABLE audit_heads
    ADD COLUMN removed_sequence bigint NOT NULL DEFAULT 0 CHECK (removed_sequence >= 0 AND removed_sequence <= sequence), -- 0: none was
    ADD COLUMN removed_hash bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex') CHECK (octet_length(removed_hash) = 32);

-- Who serves requests still cannot remove a row; the system role, which does, sees nothing of what rows say.
CREATE POLICY old_rows_seen ON audit FOR SELECT TO weir_system USING (true);
CREATE POLICY old_rows_removed ON audit FOR DELETE TO weir_system USING (true);
CREATE POLICY marks ON audit_heads FOR UPDATE TO weir_system USING (true) WITH CHECK (true);
GRANT SELECT (tenant_id, sequence, at, hash), DELETE ON audit TO weir_system;
GRANT UPDATE (removed_sequence, removed_hash) ON audit_heads TO weir_system;

-- What filters by actor and by action go by.
CREATE INDEX audit_actor ON audit (tenant_id, actor_name, sequence);
CREATE INDEX audit_action ON audit (tenant_id, action, sequence);
