DROP INDEX billing_events_of_subscription;
ALTER TABLE billing_events NO FORCE ROW LEVEL SECURITY; -- the events of all tenants
UPDATE billing_events SET waits_for = '' WHERE waits_for = 'subscription';
ALTER TABLE billing_events FORCE ROW LEVEL SECURITY;
ALTER TABLE billing_events DROP CONSTRAINT billing_events_waits_for_check;
ALTER TABLE billing_events ADD CONSTRAINT billing_events_waits_for_check CHECK (waits_for IN ('', 'subject', 'price', 'time'));
DROP INDEX billing_subscriptions_of_subject;
ALTER TABLE billing_subscriptions DROP COLUMN standing, DROP COLUMN priority, DROP COLUMN created;
