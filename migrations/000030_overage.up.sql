-- What becomes of checks beyond a limit. null: the limit of a plan has that of its rule, and a rule
-- denies them. A server that does not know it denies them.
ALTER TABLE rules ADD COLUMN overage text CHECK (overage = 'allow');
ALTER TABLE plan_limits
    ADD COLUMN overage text CHECK (overage IN ('deny', 'allow')),
    ADD CHECK (overage IS NULL OR NOT unlimited);
ALTER TABLE plan_version_limits
    ADD COLUMN overage text CHECK (overage IN ('deny', 'allow')),
    ADD CHECK (overage IS NULL OR NOT unlimited);
GRANT SELECT (overage) ON plan_limits TO weir_system;
