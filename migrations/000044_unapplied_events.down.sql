REVOKE SELECT (outcome) ON billing_events FROM weir_system;
DROP INDEX billing_events_unapplied;
