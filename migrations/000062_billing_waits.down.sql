CREATE INDEX billing_events_parked ON billing_events (tenant_id, endpoint_id, customer) WHERE waits_for <> '';
DROP INDEX billing_events_scheduled;
DROP INDEX billing_events_waiting;
CREATE INDEX billing_events_waiting ON billing_events (tenant_id, endpoint_id, customer, id) WHERE waits_for = 'subject';
