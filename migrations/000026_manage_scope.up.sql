-- Changes of API keys, members and billing ask for a scope of their own. Keys that could make such
-- changes so far still can. An older server ignores the scope.
ALTER TABLE api_keys DROP CONSTRAINT api_keys_scopes_check;
ALTER TABLE api_keys ADD CONSTRAINT api_keys_scopes_check CHECK (
    cardinality(scopes) BETWEEN 1 AND 4 AND scopes <@ ARRAY['check', 'read', 'write', 'manage']);
ALTER TABLE api_keys NO FORCE ROW LEVEL SECURITY; -- the migration changes the keys of all tenants
UPDATE api_keys SET scopes = array_append(scopes, 'manage') WHERE 'write' = ANY (scopes);
ALTER TABLE api_keys FORCE ROW LEVEL SECURITY;
