-- Reads all billing events, while others are written.
ALTER TABLE billing_events VALIDATE CONSTRAINT billing_events_waits_for_check;
