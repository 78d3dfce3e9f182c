-- From which networks an API key works, and which resources it may check; {}: all. A server of an
-- earlier release ignores both.
ALTER TABLE api_keys
    ADD COLUMN addresses text[] NOT NULL DEFAULT '{}' CHECK (cardinality(addresses) <= 20),
    ADD COLUMN resources text[] NOT NULL DEFAULT '{}' CHECK (cardinality(resources) <= 20);
GRANT UPDATE (addresses, resources) ON api_keys TO weir_app;
GRANT SELECT (addresses, resources) ON api_keys TO weir_system;
