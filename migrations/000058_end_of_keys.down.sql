REVOKE DELETE ON api_keys FROM weir_system;
DROP POLICY delete_ended ON api_keys;
DROP INDEX api_keys_rotated_to;
ALTER TABLE api_keys DROP CONSTRAINT api_keys_tenant_id_rotated_to_fkey,
    ADD FOREIGN KEY (tenant_id, rotated_to) REFERENCES api_keys (tenant_id, id);
