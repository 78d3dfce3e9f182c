-- The share of a limit beyond which checks carry a warning. null: the limit of a plan has that of its
-- rule, and a rule has none. A server that does not know it warns nobody.
ALTER TABLE rules ADD COLUMN warn_at double precision CHECK (warn_at BETWEEN 0 AND 1);
ALTER TABLE plan_limits
    ADD COLUMN warn_at double precision CHECK (warn_at BETWEEN 0 AND 1),
    ADD CHECK (warn_at IS NULL OR NOT unlimited);
ALTER TABLE plan_version_limits
    ADD COLUMN warn_at double precision CHECK (warn_at BETWEEN 0 AND 1),
    ADD CHECK (warn_at IS NULL OR NOT unlimited);
GRANT SELECT (warn_at) ON plan_limits TO weir_system;
