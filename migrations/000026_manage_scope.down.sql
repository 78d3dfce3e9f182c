-- A key that has only the scope manage could not do anything without it: it is revoked.
ALTER TABLE api_keys NO FORCE ROW LEVEL SECURITY; -- the migration changes the keys of all tenants
UPDATE api_keys SET scopes = ARRAY['read'], revoked_at = coalesce(revoked_at, now()) WHERE scopes = ARRAY['manage'];
UPDATE api_keys SET scopes = array_remove(scopes, 'manage') WHERE 'manage' = ANY (scopes);
ALTER TABLE api_keys FORCE ROW LEVEL SECURITY;
ALTER TABLE api_keys DROP CONSTRAINT api_keys_scopes_check;
ALTER TABLE api_keys ADD CONSTRAINT api_keys_scopes_check CHECK (
    cardinality(scopes) BETWEEN 1 AND 3 AND scopes <@ ARRAY['check', 'read', 'write']);
