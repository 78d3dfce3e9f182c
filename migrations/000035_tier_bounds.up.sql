-- What a tenant in a tier may have, of the plans of the operator's tenant: how many rules, how long
-- windows and others. A field that is missing has no bound. A server that does not know them
-- enforces none.
ALTER TABLE plans ADD COLUMN bounds jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(bounds) = 'object');
GRANT SELECT (bounds) ON plans TO weir_system;
