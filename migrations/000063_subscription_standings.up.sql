-- Where a subscription stands among those of its subject: the units of meters are sent for the
-- customer of the first one. NULL: an earlier release has stored it, and its state has to do until it
-- is stored or compared again.
ALTER TABLE billing_subscriptions
    ADD COLUMN standing smallint CHECK (standing BETWEEN 0 AND 4), -- the highest is first
    ADD COLUMN priority integer NOT NULL DEFAULT 0,                -- of the price that decides; of equal standings, the highest is first
    ADD COLUMN created bigint;                                     -- of the subscription, in seconds since 1970; then the newest is first
CREATE INDEX billing_subscriptions_of_subject ON billing_subscriptions (tenant_id, subject) WHERE customer <> ''; -- of all endpoints

-- A paid invoice whose subscription nothing has described yet waits for that. It is found when the
-- subscription has a subject, as are those that wait for a subject. The index comes first: while it
-- is built, events can be read. The next migration but one validates the constraint, which needs no
-- lock that holds events up.
CREATE INDEX billing_events_of_subscription ON billing_events (tenant_id, endpoint_id, subscription, id) WHERE waits_for IN ('subject', 'subscription');
ALTER TABLE billing_events DROP CONSTRAINT billing_events_waits_for_check,
    ADD CONSTRAINT billing_events_waits_for_check CHECK (waits_for IN ('', 'subject', 'price', 'time', 'subscription')) NOT VALID;
