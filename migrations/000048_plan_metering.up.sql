-- Which units of a plan's subjects are invoiced. null: as the rule says. A server that does not know
-- it does as the rule says.
ALTER TABLE plan_limits ADD COLUMN metering text CHECK (metering IN ('none', 'units', 'overage'));
ALTER TABLE plan_version_limits ADD COLUMN metering text CHECK (metering IN ('none', 'units', 'overage'));
GRANT SELECT (metering) ON plan_limits TO weir_system;

-- Of the units within the limit: those of plans that invoice only units beyond it, and those of
-- plans that invoice all. Others are invoiced as the rule says.
ALTER TABLE metered_usage
    ADD COLUMN free_units bigint NOT NULL DEFAULT 0 CHECK (free_units >= 0),
    ADD COLUMN billed_units bigint NOT NULL DEFAULT 0 CHECK (billed_units >= 0);
ALTER TABLE metered_totals
    ADD COLUMN free_units bigint NOT NULL DEFAULT 0 CHECK (free_units >= 0),
    ADD COLUMN billed_units bigint NOT NULL DEFAULT 0 CHECK (billed_units >= 0);
