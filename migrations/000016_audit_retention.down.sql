DROP INDEX audit_actor, audit_action;
REVOKE SELECT (tenant_id, sequence, at, hash), DELETE ON audit FROM weir_system;
REVOKE UPDATE (removed_sequence, removed_hash) ON audit_heads FROM weir_system;
DROP POLICY old_rows_seen ON audit;
DROP POLICY old_rows_removed ON audit;
DROP POLICY marks ON audit_heads;
ALTER TABLE audit_heads DROP COLUMN removed_sequence, DROP COLUMN removed_hash;
