-- A page of the events of an endpoint that wait for a subject or for a price is read in the order of
-- this index, however many of them one customer has.
DROP INDEX billing_events_waiting;
CREATE INDEX billing_events_waiting ON billing_events (tenant_id, endpoint_id, waits_for, customer, id) WHERE waits_for IN ('subject', 'price');

-- The scheduled events of a tenant, in the order in which they are listed. Nothing else used
-- billing_events_parked.
CREATE INDEX billing_events_scheduled ON billing_events (tenant_id, due_at, subject, id) WHERE waits_for = 'time';
DROP INDEX billing_events_parked;

-- Scheduled events are parked, too. Those that look for events that wait for something else, or have
-- failed, of an endpoint or of all tenants, do not read them.
DROP INDEX billing_events_unapplied_of_endpoint;
CREATE INDEX billing_events_unapplied_of_endpoint ON billing_events (endpoint_id, received_at) WHERE outcome IN ('parked', 'failed') AND waits_for <> 'time';
-- This one has all, in the order in which they are listed.
DROP INDEX billing_events_unapplied;
CREATE INDEX billing_events_unapplied ON billing_events (tenant_id, outcome, id) WHERE outcome IN ('parked', 'failed');

-- A scheduled event whose time has not come is deleted after 400 days as others that were not
-- applied. Since events may be scheduled for 400 days at most, it is one of an earlier release.
DROP INDEX billing_events_unapplied_at;
CREATE INDEX billing_events_unapplied_at ON billing_events (settled_at) WHERE outcome IN ('parked', 'failed');
DROP POLICY purge_unapplied ON billing_events;
CREATE POLICY purge_unapplied ON billing_events FOR DELETE TO weir_system
    USING ((due_at IS NULL OR waits_for = 'time') AND outcome IN ('parked', 'failed'));
