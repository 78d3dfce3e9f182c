DROP POLICY purge_unapplied ON billing_events;
CREATE POLICY purge_unapplied ON billing_events FOR DELETE TO weir_system
    USING (due_at IS NULL AND outcome IN ('parked', 'failed'));
DROP INDEX billing_events_unapplied_at;
CREATE INDEX billing_events_unapplied_at ON billing_events (settled_at) WHERE due_at IS NULL AND outcome IN ('parked', 'failed');
DROP INDEX billing_events_unapplied;
CREATE INDEX billing_events_unapplied ON billing_events (tenant_id, outcome) WHERE outcome IN ('parked', 'failed');
DROP INDEX billing_events_unapplied_of_endpoint;
CREATE INDEX billing_events_unapplied_of_endpoint ON billing_events (tenant_id, endpoint_id) WHERE outcome IN ('parked', 'failed');
CREATE INDEX billing_events_parked ON billing_events (tenant_id, endpoint_id, customer) WHERE waits_for <> '';
DROP INDEX billing_events_scheduled;
DROP INDEX billing_events_waiting;
CREATE INDEX billing_events_waiting ON billing_events (tenant_id, endpoint_id, customer, id) WHERE waits_for = 'subject';
