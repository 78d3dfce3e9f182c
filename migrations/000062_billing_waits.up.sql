-- A page of the events of an endpoint that wait for a subject or for a price is read in the order of
-- this index, however many of them one customer has.
DROP INDEX billing_events_waiting;
CREATE INDEX billing_events_waiting ON billing_events (tenant_id, endpoint_id, waits_for, customer, id) WHERE waits_for IN ('subject', 'price');

-- The scheduled events of a tenant, in the order in which they are listed. Nothing else used
-- billing_events_parked.
CREATE INDEX billing_events_scheduled ON billing_events (tenant_id, due_at, subject, id) WHERE waits_for = 'time';
DROP INDEX billing_events_parked;
