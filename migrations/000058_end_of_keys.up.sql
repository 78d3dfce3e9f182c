-- Keys that ended long ago are deleted; the audit trail keeps what happened to them. A key that
-- works is never deleted, whatever a statement says.
ALTER TABLE api_keys DROP CONSTRAINT api_keys_tenant_id_rotated_to_fkey,
    ADD FOREIGN KEY (tenant_id, rotated_to) REFERENCES api_keys (tenant_id, id) ON DELETE SET NULL (rotated_to);
CREATE INDEX api_keys_rotated_to ON api_keys (tenant_id, rotated_to) WHERE rotated_to IS NOT NULL;
CREATE POLICY delete_ended ON api_keys FOR DELETE TO weir_system USING (revoked_at IS NOT NULL OR expires_at IS NOT NULL);
GRANT DELETE ON api_keys TO weir_system;
