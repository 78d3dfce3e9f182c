-- Events that could not be applied are counted on pages and in a metric.
CREATE INDEX billing_events_unapplied ON billing_events (tenant_id, outcome) WHERE outcome IN ('parked', 'failed');
GRANT SELECT (outcome) ON billing_events TO weir_system;
