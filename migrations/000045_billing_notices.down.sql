REVOKE SELECT (name) ON billing_endpoints FROM weir_system;
DROP INDEX billing_events_unapplied_of_endpoint;
DROP TABLE billing_notices;
